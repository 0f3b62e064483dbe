"""Weights of other libraries: against PyTorch's published formulas in numpy, and against the maps written out."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import scipy.io

import dynwarp as dw
from dynwarp import models
from dynwarp.errors import (
    ArgumentError,
    CheckpointError,
    MissingDependencyError,
    NonFiniteError,
    PrecisionError,
    ShapeError,
)

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
HIDDEN, INPUT, STEPS = 4, 3, 7


def state_dict(kind, *, layers=1, directions=1, bias=True, seed=0, dtype=np.float64):
    """The names and shapes of torch.nn.RNN, GRU and LSTM."""
    rng = np.random.default_rng(seed)
    rows = GATES[kind] * HIDDEN
    weights = {}
    for layer in range(layers):
        for suffix in ("", "_reverse")[:directions]:
            width = INPUT if layer == 0 else directions * HIDDEN
            weights[f"weight_ih_l{layer}{suffix}"] = rng.standard_normal((rows, width))
            weights[f"weight_hh_l{layer}{suffix}"] = rng.standard_normal((rows, HIDDEN))
            if bias:
                weights[f"bias_ih_l{layer}{suffix}"] = rng.standard_normal(rows)
                weights[f"bias_hh_l{layer}{suffix}"] = rng.standard_normal(rows)
    return {name: value.astype(dtype) for name, value in weights.items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def torch_layer(weights, suffix, kind, inputs, phi=np.tanh):
    """The outputs h_t of one layer, by the formulas in PyTorch's documentation, in numpy."""
    gates = GATES[kind]
    w_i = np.split(weights[f"weight_ih{suffix}"], gates)
    w_h = np.split(weights[f"weight_hh{suffix}"], gates)
    zero = np.zeros(gates * HIDDEN)
    b_i = np.split(weights.get(f"bias_ih{suffix}", zero), gates)
    b_h = np.split(weights.get(f"bias_hh{suffix}", zero), gates)
    h, c, outputs = np.zeros(HIDDEN), np.zeros(HIDDEN), []
    for x in inputs:
        if kind == "rnn":
            h = phi(w_i[0] @ x + b_i[0] + w_h[0] @ h + b_h[0])
        elif kind == "gru":
            r = sigmoid(w_i[0] @ x + b_i[0] + w_h[0] @ h + b_h[0])
            z = sigmoid(w_i[1] @ x + b_i[1] + w_h[1] @ h + b_h[1])
            n = np.tanh(w_i[2] @ x + b_i[2] + r * (w_h[2] @ h + b_h[2]))
            h = (1 - z) * n + z * h
        else:
            i, f, g, o = (w_i[k] @ x + b_i[k] + w_h[k] @ h + b_h[k] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def run(model, inputs):
    """The outputs of a model from the zero state, stepped one by one."""
    readout = model.readout() if hasattr(model, "readout") else lambda state, input: state
    state, outputs = jnp.zeros(model.state_size, inputs.dtype), []
    for x in inputs:
        state = model(state, x)
        outputs.append(readout(state, x))
    return np.array(outputs)


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(1).standard_normal((STEPS, INPUT))


class TestTorch:
    @pytest.mark.parametrize("suffix", ["npz", "safetensors"])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("kind", GATES)
    def test_the_published_formulas(self, tmp_path, inputs, kind, bias, suffix):
        weights = state_dict(kind, bias=bias)
        path = tmp_path / f"m.{suffix}"
        if suffix == "npz":
            np.savez(path, **weights)
        else:
            safetensors.numpy.save_file(weights, path)
        model = dw.io.import_torch(path, kind=kind)
        assert isinstance(model, {"rnn": models.Elman, "gru": models.GRU, "lstm": models.LSTM}[kind])
        np.testing.assert_allclose(run(model, inputs), torch_layer(weights, "_l0", kind, inputs), atol=1e-12)

    def test_relu(self, tmp_path, inputs):
        weights = state_dict("rnn")
        np.savez(tmp_path / "m.npz", **weights)
        model = dw.io.import_torch(tmp_path / "m.npz", kind="rnn", nonlinearity="relu")
        expected = torch_layer(weights, "_l0", "rnn", inputs, phi=lambda x: np.maximum(x, 0))
        np.testing.assert_allclose(run(model, inputs), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("kind", GATES)
    def test_layers(self, tmp_path, inputs, kind):
        weights = state_dict(kind, layers=3)
        np.savez(tmp_path / "m.npz", **weights)
        expected = inputs
        for layer in range(3):
            expected = torch_layer(weights, f"_l{layer}", kind, expected)
        model = dw.io.import_torch(tmp_path / "m.npz", kind=kind)
        assert isinstance(model, models.Stack)
        np.testing.assert_allclose(run(model, inputs), expected, atol=1e-12)
        single = dw.io.import_torch(tmp_path / "m.npz", kind=kind, layer=1)
        below = torch_layer(weights, "_l0", kind, inputs)
        np.testing.assert_allclose(run(single, below), torch_layer(weights, "_l1", kind, below), atol=1e-12)

    @pytest.mark.parametrize("kind", ["rnn", "gru"])
    def test_both_directions(self, tmp_path, inputs, kind):
        weights = state_dict(kind, directions=2)
        np.savez(tmp_path / "m.npz", **weights)
        model = dw.io.import_torch(tmp_path / "m.npz", kind=kind)
        assert isinstance(model, models.Bidirectional)
        ahead = torch_layer(weights, "_l0", kind, inputs)
        back = torch_layer(weights, "_l0_reverse", kind, inputs[::-1])[::-1]
        np.testing.assert_allclose(model(jnp.asarray(inputs)), np.concatenate([ahead, back], axis=1), atol=1e-12)

    def test_both_directions_of_several_layers_come_one_by_one(self, tmp_path):
        weights = state_dict("gru", layers=2, directions=2)
        np.savez(tmp_path / "m.npz", **weights)
        with pytest.raises(CheckpointError, match=r"bidirectional with layers \[0, 1\].*one by one with `layer`"):
            dw.io.import_torch(tmp_path / "m.npz", kind="gru")
        upper = dw.io.import_torch(tmp_path / "m.npz", kind="gru", layer=1)
        assert upper.input_size == 2 * HIDDEN

    def test_cells_have_names_without_a_layer(self, tmp_path, inputs):
        weights = state_dict("lstm")
        np.savez(tmp_path / "m.npz", **{name.removesuffix("_l0"): value for name, value in weights.items()})
        model = dw.io.import_torch(tmp_path / "m.npz", kind="lstm")
        np.testing.assert_allclose(run(model, inputs), torch_layer(weights, "_l0", "lstm", inputs), atol=1e-12)

    def test_prefixes(self, tmp_path, inputs):
        encoder, decoder = state_dict("gru"), state_dict("gru", seed=5)
        one = {f"net.rnn.{name}": value for name, value in encoder.items()} | {"net.head.weight": np.zeros((2, 2))}
        np.savez(tmp_path / "one.npz", **one)
        model = dw.io.import_torch(tmp_path / "one.npz", kind="gru")
        np.testing.assert_allclose(run(model, inputs), torch_layer(encoder, "_l0", "gru", inputs), atol=1e-12)
        np.savez(tmp_path / "two.npz", **one, **{f"decoder.{name}": value for name, value in decoder.items()})
        with pytest.raises(
            CheckpointError, match=r"several networks; choose with `prefix` among \['decoder.', 'net.rnn.'"
        ):
            dw.io.import_torch(tmp_path / "two.npz", kind="gru")
        model = dw.io.import_torch(tmp_path / "two.npz", kind="gru", prefix="decoder.")
        np.testing.assert_allclose(run(model, inputs), torch_layer(decoder, "_l0", "gru", inputs), atol=1e-12)
        with pytest.raises(CheckpointError, match=r"lacks 'x\.weight_ih_l0'; it holds 'decoder.bias_hh_l0'"):
            dw.io.import_torch(tmp_path / "two.npz", kind="gru", prefix="x.")

    def test_precision_is_that_of_the_file_or_the_one_asked_for(self, tmp_path, inputs):
        weights = state_dict("gru", dtype=np.float32)
        safetensors.numpy.save_file(weights, tmp_path / "m.safetensors")
        single = dw.io.import_torch(tmp_path / "m.safetensors", kind="gru")
        assert single.bias_n.dtype == single.recurrent_weight.dtype == jnp.float32
        np.testing.assert_allclose(
            run(single, inputs.astype(np.float32)), torch_layer(weights, "_l0", "gru", inputs), atol=1e-5
        )
        double = dw.io.import_torch(tmp_path / "m.safetensors", kind="gru", dtype=jnp.float64)
        assert double.bias.dtype == jnp.float64
        np.testing.assert_array_equal(double.recurrent_weight, weights["weight_hh_l0"])

    def test_imported_models_simulate_batch_differentiate_and_save(self, tmp_path, inputs):
        np.savez(tmp_path / "m.npz", **state_dict("lstm"))
        model = dw.io.import_torch(tmp_path / "m.npz", kind="lstm")
        states = dw.simulate(model, jnp.zeros(2 * HIDDEN), jnp.asarray(inputs))
        np.testing.assert_allclose(states[:, :HIDDEN], run(model, inputs), atol=1e-12)
        batch = jax.jit(jax.vmap(lambda s, x: model(s, x)))(states, jnp.asarray(inputs))
        np.testing.assert_allclose(batch[2], model(states[2], inputs[2]), atol=1e-14)
        slope = jax.grad(lambda m, s: jnp.sum(m(s)), allow_int=True)(model, states[0])
        assert slope.bias.shape == (4 * HIDDEN,)
        loaded = dw.io.load(dw.io.save(tmp_path / "m", model))
        np.testing.assert_array_equal(run(loaded, inputs), run(model, inputs))

    @pytest.mark.parametrize(
        ("change", "options", "message"),
        [
            (lambda w: w.pop("bias_hh_l0"), {}, "lacks 'bias_hh_l0'; it holds 'bias_ih_l0'"),
            (lambda w: w.pop("weight_hh_l0"), {}, "lacks 'weight_hh_l0'"),
            (lambda w: w.pop("weight_ih_l0"), {}, "lacks 'weight_ih_l0'; it holds"),
            (lambda w: w.clear(), {}, "lacks 'weight_ih_l0'"),
            (lambda w: None, {"kind": "lstm"}, r"'weight_ih_l0' of a lstm with 4 units .* that of kind='gru'"),
            (lambda w: w.update(weight_ih_l0=np.zeros(12)), {}, r"'weight_ih_l0' of a gru .*; got \(12,\)"),
            (lambda w: w.update(bias_hh_l0=np.zeros(4)), {}, r"must have shape \(12,\); got \(4,\)"),
            (lambda w: w.update(weight_hr_l0=np.zeros((2, 4))), {}, r"projections .*'weight_hr_l0'"),
            (lambda w: w.update(bias_hh_l0=np.zeros(12, complex)), {}, "'bias_hh_l0' must hold real numbers"),
            (lambda w: None, {"layer": 1}, r"has layers \[0\]; got layer=1"),
        ],
    )
    def test_state_dicts_that_do_not_fit(self, tmp_path, change, options, message):
        weights = state_dict("gru")
        change(weights)
        np.savez(tmp_path / "m.npz", **weights)
        with pytest.raises(CheckpointError, match=message):
            dw.io.import_torch(tmp_path / "m.npz", **({"kind": "gru"} | options))

    def test_other_errors(self, tmp_path, monkeypatch):
        path = tmp_path / "m.npz"
        np.savez(path, **state_dict("gru") | {"bias_ih_l0": np.full(12, np.nan)})
        with pytest.raises(NonFiniteError, match="`bias_ih_l0` must be finite"):
            dw.io.import_torch(path, kind="gru")
        with pytest.raises(ArgumentError, match="`kind` must be one of 'rnn', 'gru', 'lstm'; got 'transformer'"):
            dw.io.import_torch(path, kind="transformer")
        with pytest.raises(ArgumentError, match="`nonlinearity`"):
            dw.io.import_torch(path, kind="rnn", nonlinearity="sin")
        with pytest.raises(ArgumentError, match="`dtype` must be a real floating type"):
            dw.io.import_torch(path, kind="gru", dtype=int)
        for name, message in {
            "m.pt": "is a pickle, which can run code",
            "m.txt": "unknown extension '.txt'",
            "none.npz": "There is no file",
            "none.safetensors": "There is no file",
        }.items():
            with pytest.raises(CheckpointError, match=message):
                dw.io.import_torch(tmp_path / name, kind="gru")
        for name in ("a.npz", "a.safetensors"):
            (tmp_path / name).write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
            with pytest.raises(CheckpointError, match="damaged, truncated or of another kind"):
                dw.io.import_torch(tmp_path / name, kind="gru")
        monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
        with pytest.raises(MissingDependencyError, match=r"safetensors.*dynwarp\[io\]"):
            dw.io.import_torch(tmp_path / "a.safetensors", kind="gru")


def plrnn_arrays(size=3, seed=0):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((size, size))
    return {"A": rng.standard_normal(size), "W": W - np.diag(np.diag(W)), "h": rng.standard_normal(size)}


def shallow_arrays(size=3, hidden=5, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"A": (size,), "W1": (size, hidden), "W2": (hidden, size), "h1": (size,), "h2": (hidden,)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def write_folder(path, arrays):
    path.mkdir()
    for name, value in arrays.items():
        np.save(path / f"{name}.npy", value)


def write_h5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name] = value


WRITERS = {
    "m.npz": lambda path, arrays: np.savez(path, **arrays),
    "m.mat": scipy.io.savemat,
    "m.h5": write_h5,
    "m.json": lambda path, arrays: path.write_text(json.dumps({k: v.tolist() for k, v in arrays.items()})),
    "folder": write_folder,
}


def relu(x):
    return np.maximum(x, 0)


class TestPLRNN:
    @pytest.mark.parametrize("name", WRITERS)
    @pytest.mark.parametrize("size", [1, 3])
    def test_files(self, tmp_path, name, size):
        z = np.linspace(-1, 2, size) if size > 1 else np.array([0.7])
        p = plrnn_arrays(size)
        WRITERS[name](tmp_path / name, p)
        model = dw.io.import_plrnn(tmp_path / name)
        assert isinstance(model, models.PLRNN)
        np.testing.assert_allclose(model(jnp.asarray(z)), p["A"] * z + p["W"] @ relu(z) + p["h"], rtol=1e-14)
        (tmp_path / "s").mkdir()
        p = shallow_arrays(size)
        WRITERS[name](tmp_path / "s" / name, p)
        model = dw.io.import_plrnn(tmp_path / "s" / name)
        expected = p["A"] * z + p["W1"] @ relu(p["W2"] @ z + p["h2"]) + p["h1"]
        np.testing.assert_allclose(model(jnp.asarray(z)), expected, rtol=1e-13)

    def test_kinds(self, tmp_path):
        z = np.array([1.0, -2.0, 0.5])
        p, path = plrnn_arrays(), tmp_path / "m.npz"
        np.savez(path, **p)
        centred = dw.io.import_plrnn(path, kind="mean_centred")
        np.testing.assert_allclose(
            centred(jnp.asarray(z)), p["A"] * z + p["W"] @ relu(z - z.mean()) + p["h"], rtol=1e-13
        )
        almost = dw.io.import_plrnn(path, relu_size=2)
        assert isinstance(almost, models.ALRNN)
        partly = np.array([z[0], *relu(z[1:])])
        np.testing.assert_allclose(almost(jnp.asarray(z)), p["A"] * z + p["W"] @ partly + p["h"], rtol=1e-13)
        p = shallow_arrays()
        np.savez(path, **p)
        clipped = dw.io.import_plrnn(path, kind="clipped_shallow")
        hidden = relu(p["W2"] @ z + p["h2"]) - relu(p["W2"] @ z)
        np.testing.assert_allclose(clipped(jnp.asarray(z)), p["A"] * z + p["W1"] @ hidden + p["h1"], rtol=1e-13)

    def test_full_matrices_inputs_and_columns(self, tmp_path):
        z, s = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.4])
        p = plrnn_arrays() | {"C": np.arange(6.0).reshape(3, 2), "B": np.zeros((2, 3))}
        full = p | {"A": np.diag(p["A"]) + 0.1, "h": p["h"][:, None]}
        np.savez(tmp_path / "m.npz", **full)
        model = dw.io.import_plrnn(tmp_path / "m.npz")
        expected = full["A"] @ z + p["W"] @ relu(z) + p["h"] + p["C"] @ s
        np.testing.assert_allclose(model(jnp.asarray(z), jnp.asarray(s)), expected, rtol=1e-14)
        np.savez(tmp_path / "m.npz", **p | {"C": p["C"][:, 0], "A": p["A"][None]})
        model = dw.io.import_plrnn(tmp_path / "m.npz")
        expected = p["A"] * z + p["W"] @ relu(z) + p["h"] + p["C"][:, 0] * 0.3
        np.testing.assert_allclose(model(jnp.asarray(z), jnp.asarray([0.3])), expected, rtol=1e-14)

    def test_a_diagonal_in_w_needs_a_word(self, tmp_path):
        p = plrnn_arrays()
        np.savez(tmp_path / "m.npz", **p | {"W": p["W"] + np.eye(3)})
        with pytest.raises(CheckpointError, match=r"has a diagonal, as that of an AL-RNN has: give its `relu_size`"):
            dw.io.import_plrnn(tmp_path / "m.npz")
        z = np.array([1.0, -2.0, 0.5])
        model = dw.io.import_plrnn(tmp_path / "m.npz", kind="plrnn")
        expected = p["A"] * z + (p["W"] + np.eye(3)) @ relu(z) + p["h"]
        np.testing.assert_allclose(model(jnp.asarray(z)), expected, rtol=1e-14)

    def test_precision(self, tmp_path):
        np.savez(tmp_path / "m.npz", **{k: v.astype(np.float32) for k, v in plrnn_arrays().items()})
        assert dw.io.import_plrnn(tmp_path / "m.npz").W.dtype == jnp.float32
        assert dw.io.import_plrnn(tmp_path / "m.npz", dtype=jnp.float64).W.dtype == jnp.float64
        (tmp_path / "m.json").write_text('{"A": [1], "W": [[0]], "h": [2]}')
        assert dw.io.import_plrnn(tmp_path / "m.json").h.dtype == jnp.float64

    @pytest.mark.parametrize(
        ("change", "options", "error", "message"),
        [
            (lambda p: p.pop("W"), {}, CheckpointError, "expected arrays A, W, h or A, W1, .*; .* holds A, h"),
            (lambda p: p.pop("h"), {}, CheckpointError, "lacks h for kind='plrnn'; it holds A, W"),
            (lambda p: None, {"kind": "shallow"}, CheckpointError, "lacks W1, W2, h1, h2 for kind='shallow'"),
            (lambda p: p.clear(), {}, CheckpointError, "holds nothing"),
            (lambda p: None, {"kind": "alrnn"}, ArgumentError, "needs `relu_size`, the number of its ReLUs"),
            (lambda p: None, {"kind": "plrnn", "relu_size": 2}, ArgumentError, "takes no `relu_size`; got relu_size=2"),
            (lambda p: None, {"relu_size": 4}, ArgumentError, "`relu_size` must be at most `state_size`, 3; got 4"),
            (lambda p: None, {"kind": "linear"}, ArgumentError, "`kind` must be one of 'plrnn'"),
            (lambda p: p.update(W=np.zeros((2, 3))), {}, ShapeError, r"`W` must have shape \(3, 3\); got \(2, 3\)"),
            (lambda p: p.update(h=np.full(3, np.inf)), {}, NonFiniteError, "`h` must be finite"),
            (lambda p: p.update(h=np.array(["a"] * 3)), {}, CheckpointError, "'h' must hold real numbers"),
        ],
    )
    def test_errors(self, tmp_path, change, options, error, message):
        p = plrnn_arrays()
        change(p)
        np.savez(tmp_path / "m.npz", **p)
        with pytest.raises(error, match=message):
            dw.io.import_plrnn(tmp_path / "m.npz", **options)

    def test_files_that_cannot_be_read(self, tmp_path):
        for name, content in {"m.json": "{", "n.json": '{"A": [[1], [1, 2]]}', "m.npz": "x", "m.txt": "x"}.items():
            (tmp_path / name).write_text(content)
            with pytest.raises(CheckpointError, match=r"damaged|unknown extension"):
                dw.io.import_plrnn(tmp_path / name)
        (tmp_path / "list.json").write_text("[1]")
        (tmp_path / "empty").mkdir()
        for name in ("list.json", "empty"):
            with pytest.raises(CheckpointError, match="holds nothing"):
                dw.io.import_plrnn(tmp_path / name)
        with pytest.raises(CheckpointError, match="There is no file"):
            dw.io.import_plrnn(tmp_path / "none.npz")


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared models are not here")
class TestSharedModels:
    def test_fixed_points_of_a_trained_alrnn(self):
        model = dw.io.import_plrnn(DATA / "alrnn_lorenz63_m20_p2.npz", relu_size=2, dtype=jnp.float64)
        truth = json.loads((DATA / "alrnn_m20_p2_fixed_points.json").read_text())
        points = np.array([point["z"] for point in truth["m20_p2"]])
        assert points.shape == (4, 20)
        for point in points:
            np.testing.assert_allclose(model(jnp.asarray(point)), point, atol=1e-9)

    def test_a_trained_shallow_plrnn_and_a_10_d_plrnn(self):
        shallow = dw.io.import_plrnn(DATA / "shplrnn_duffing_m2_h10.npz")
        assert (shallow.state_size, shallow.hidden_size) == (2, 10)
        plain = dw.io.import_plrnn(DATA / "plrnn_10d_parameters.json", kind="plrnn")
        assert plain.state_size == 10


def test_double_precision_is_not_rounded_silently(tmp_path):
    np.savez(tmp_path / "m.npz", **plrnn_arrays())
    script = """
    import sys
    import jax.numpy as jnp
    import dynwarp as dw
    assert dw.io.import_plrnn(sys.argv[1], dtype=jnp.float32).W.dtype == jnp.float32
    try:
        dw.io.import_plrnn(sys.argv[1])
    except dw.errors.PrecisionError as error:
        print(error)
    """
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "m.npz")],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "'A' is float64, and JAX is in single precision" in done.stdout
    assert issubclass(PrecisionError, TypeError)
