"""Model files: everything comes back equal, and nothing comes back from a damaged file."""

import hashlib
import io
import json
import os
import subprocess
import sys
import textwrap
import warnings
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
import dynwarp.io._checkpoint as checkpoint
from dynwarp import models, systems
from dynwarp.errors import ArgumentError, CheckpointError
from dynwarp.io._registry import class_name

KEY = jax.random.key(0)


def doubled(x):
    return 2 * x


@dw.io.register
class Custom(eqx.Module):
    """A user's module: plain fields of every kind a file can hold."""

    weights: jax.Array
    counts: np.ndarray
    table: dict
    layers: list
    pair: tuple
    function: object
    key: jax.Array
    number: float = 0.5
    size: int = 3
    phase: complex = 1 - 2j
    name: str = "é\n"
    nothing: None = None
    flag: bool = True
    infinite: float = float("-inf")
    dtype: object = eqx.field(static=True, default=np.dtype("float32"))
    scalar_type: object = eqx.field(static=True, default=jnp.float32)
    shape: tuple = eqx.field(static=True, default=(2, (3, "a")))


class Unknown(eqx.Module):
    x: float


def custom():
    return Custom(
        weights=jnp.arange(6.0).reshape(2, 3),
        counts=np.array([1, 2], np.int16),
        table={"a": jnp.ones(2), "b": {3: [None, 1.5], 7: "yes"}},
        layers=[eqx.nn.Linear(2, 2, key=KEY), jnp.array(2)],
        pair=(1, (jnp.array(1.5), np.float32(2.5))),
        function=jax.nn.softplus,
        key=jax.random.key(7),
    )


MODELS = {
    "Elman": lambda: models.Elman(2, 3, activation=jax.nn.relu, key=KEY),
    "LeakyRNN": lambda: models.LeakyRNN(2, 3, tau=jnp.array([1.0, 2.0, 3.0]), key=KEY),
    "GRU": lambda: models.GRU(2, 3, use_bias=False, key=KEY),
    "LSTM": lambda: models.LSTM(2, 3, key=KEY),
    "PLRNN": lambda: models.PLRNN(3, input_size=2, key=KEY),
    "ALRNN": lambda: models.ALRNN(4, 2, key=KEY),
    "ShallowPLRNN": lambda: models.ShallowPLRNN(2, 5, clipped=True, key=KEY),
    "DendriticPLRNN": lambda: models.DendriticPLRNN(2, 3, key=KEY),
    "PiecewiseLinearMap": lambda: models.ALRNN(3, 1, key=KEY).canonical(),
    "Stack": lambda: models.Stack([models.LSTM(2, 3, key=KEY), models.GRU(3, 4, key=KEY)], dropout=0.1),
    "normalised Stack": lambda: models.Stack([models.GRU(3, 3, key=KEY)] * 2, layer_norm=True),
    "Bidirectional": lambda: models.Bidirectional(models.GRU(2, 3, key=KEY), models.GRU(2, 3, key=KEY)),
    "from_cell": lambda: models.from_cell(eqx.nn.LSTMCell(2, 3, key=KEY), 6, 2),
    "pair with readout": lambda: (models.GRU(2, 3, key=KEY), models.Readout(3, 2, key=KEY)),
    "MLP": lambda: eqx.nn.MLP(2, 2, 3, 1, activation=jax.nn.gelu, key=KEY),
    "Lorenz63": systems.Lorenz63,
    "Henon": systems.Henon,
    "custom": custom,
}


def leaves(model):
    """The arrays with all that makes them what they are."""
    described = []
    for leaf in jax.tree.leaves(model):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            described.append((str(jax.random.key_impl(leaf)), np.asarray(jax.random.key_data(leaf)).tobytes()))
        elif isinstance(leaf, jax.Array | np.ndarray | np.generic):
            weak = getattr(leaf, "weak_type", None)
            described.append((type(leaf), leaf.dtype, leaf.shape, weak, np.asarray(leaf).tobytes()))
        else:
            described.append((type(leaf), leaf))
    return described


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert leaves(a) == leaves(b)


@pytest.mark.parametrize("name", MODELS)
def test_what_comes_back_is_what_was_saved(tmp_path, name):
    model = MODELS[name]()
    path = dw.io.save(tmp_path / "model", model)
    assert_equal(dw.io.load(path), model)
    # Of a loaded model too.
    assert_equal(dw.io.load(dw.io.save(path, dw.io.load(path))), model)
    assert list(tmp_path.iterdir()) == [path]


def test_every_public_model_and_system_has_a_name():
    for package in (models, systems):
        for name, cls in vars(package).items():
            if isinstance(cls, type) and issubclass(cls, eqx.Module) and not name.startswith("Abstract"):
                assert class_name(cls) == f"{package.__name__.split('.')[1]}.{name}"


def test_a_loaded_model_needs_no_new_compilation(tmp_path):
    traces = []

    @eqx.filter_jit
    def step(model, state):
        traces.append(1)
        return model(state)

    for model in (models.ALRNN(4, 2, key=KEY), systems.Henon(), models.from_cell(eqx.nn.GRUCell(2, 3, key=KEY), 3, 2)):
        traces.clear()
        state = jnp.full(model.state_size, 0.1)
        before = step(model, state)
        after = step(dw.io.load(dw.io.save(tmp_path / "m", model)), state)
        np.testing.assert_array_equal(before, after)
        assert len(traces) == 1


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int64", "uint16", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_every_dtype(tmp_path, dtype, shape):
    values = jnp.asarray(np.random.default_rng(0).integers(0, 2, shape), jnp.dtype(dtype))
    assert_equal(dw.io.load(dw.io.save(tmp_path / "m", [values, np.asarray(values)])), [values, np.asarray(values)])


def test_special_numbers_and_memory_order(tmp_path):
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    big_endian = np.arange(3, dtype=">f8")
    special = jnp.array([np.nan, -0.0, np.inf, 5e-324])
    loaded = dw.io.load(dw.io.save(tmp_path / "m", {"x": x, "b": big_endian, "s": special, "nan": float("nan")}))
    np.testing.assert_array_equal(loaded["x"], x)
    np.testing.assert_array_equal(loaded["b"], big_endian)
    assert np.asarray(loaded["s"]).tobytes() == np.asarray(special).tobytes()
    assert np.isnan(loaded["nan"])


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_keys(tmp_path, implementation):
    keys = jax.random.split(jax.random.key(3, impl=implementation), 2)
    loaded = dw.io.load(dw.io.save(tmp_path / "m", [keys]))[0]
    assert loaded.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.normal(loaded[1]), jax.random.normal(keys[1]))


def test_gradients_through_a_loaded_model(tmp_path):
    model = models.ALRNN(4, 2, key=KEY)
    loaded = dw.io.load(dw.io.save(tmp_path / "m", model))
    state = jnp.linspace(-1.0, 1.0, 4)
    loss = eqx.filter_grad(lambda m: jnp.sum(m(state) ** 2))
    assert_equal(loss(loaded), loss(model))


class TestMetadata:
    def test_round_trip_and_inspection(self, tmp_path):
        metadata = {
            "loss": np.float64(0.5),
            "mean": jnp.arange(2.0),
            "columns": ["a"],
            "note": None,
            "nan": float("nan"),
        }
        path = dw.io.save(tmp_path / "m", models.ALRNN(4, 2, key=KEY), metadata=metadata)
        kept = dw.io.load_metadata(path)
        assert np.isnan(kept.pop("nan"))
        assert kept == {"loss": 0.5, "mean": [0.0, 1.0], "columns": ["a"], "note": None}
        info = dw.io.inspect(path)
        assert info.model == "models.ALRNN"
        assert info.format_version == 1
        assert info.parameters == 4 + 16 + 4
        assert info.arrays[1] == ("model.W", (4, 4), "float64")
        assert info.provenance["dynwarp"] == dw.__version__
        assert info.provenance["jax"] == jax.__version__
        assert info.provenance["written"].endswith("+00:00")
        assert dw.io.inspect(dw.io.save(tmp_path / "n", (1, 2))).model == "tuple"
        assert dw.io.load_metadata(tmp_path / "n") == {}

    @pytest.mark.parametrize("metadata", [{"a": object()}, {"a": {1, 2}}, {(1, 2): 3}, [1, 2]])
    def test_what_json_cannot_hold(self, tmp_path, metadata):
        with pytest.raises(ArgumentError, match="`metadata` must"):
            dw.io.save(tmp_path / "m", (1,), metadata=metadata)
        assert not (tmp_path / "m").exists()

    def test_more_than_a_reader_would_take(self, tmp_path, monkeypatch):
        monkeypatch.setattr(checkpoint, "_MAX_MANIFEST", 1000)
        with pytest.raises(ArgumentError, match="`metadata` is too large: the manifest may hold 1000 bytes"):
            dw.io.save(tmp_path / "m", (1,), metadata={"a": "x" * 1000})
        assert not (tmp_path / "m").exists()


class TestRefusedOnSaving:
    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (
                lambda: models.Elman(2, 3, activation=lambda x: x, key=KEY),
                r"model\.activation is <function.*register_f",
            ),
            (lambda: [1, Unknown(1.0)], r"model\[1\] is a .*Unknown, a class .*dynwarp\.io\.register\(cls\)"),
            (lambda: {"a": {1, 2}}, r"model\['a'\] is a set"),
            (lambda: {(1, 2): 3}, r"has the key \(1, 2\)"),
            (lambda: np.array(["a"]), "an array of <U1"),
            (lambda: np.array([None]), "an array of object"),
            (lambda: (Custom,), r"model\[0\] is a"),
            (lambda: jax.ShapeDtypeStruct((2,), jnp.float32), "model is a ShapeDtypeStruct"),
        ],
    )
    def test_names_the_field_and_writes_nothing(self, tmp_path, model, message):
        (tmp_path / "m").write_text("old")
        with pytest.raises(CheckpointError, match=message):
            dw.io.save(tmp_path / "m", model())
        assert (tmp_path / "m").read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 1

    def test_under_tracing(self, tmp_path):
        with pytest.raises(CheckpointError, match="model is traced"):
            jax.jit(lambda x: dw.io.save(tmp_path / "m", x))(jnp.ones(2))

    def test_places_that_cannot_be_written(self, tmp_path):
        with pytest.raises(ArgumentError, match="does not exist"):
            dw.io.save(tmp_path / "no" / "m", (1,))
        with pytest.raises(ArgumentError, match="is a folder"):
            dw.io.save(tmp_path, (1,))

    def test_a_failure_while_writing_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = dw.io.save(tmp_path / "m", (1,))
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            dw.io.save(path, (2,))
        assert dw.io.load(path) == (1,)
        assert list(tmp_path.iterdir()) == [path]


class TestRegistry:
    def test_functions(self, tmp_path):
        model = models.Elman(2, 3, activation=doubled, key=KEY)
        with pytest.raises(CheckpointError, match=r"model\.activation is <function doubled"):
            dw.io.save(tmp_path / "m", model)
        dw.io.register_function("doubled", doubled)
        loaded = dw.io.load(dw.io.save(tmp_path / "m", model))
        assert loaded.activation is doubled

    @pytest.mark.parametrize(
        "function", [jnp.tanh, jax.nn.relu, jax.nn.sigmoid, jax.nn.gelu, jax.nn.identity, jax.lax.tanh]
    )
    def test_common_activations_keep_their_identity(self, tmp_path, function):
        assert dw.io.load(dw.io.save(tmp_path / "m", [function]))[0] is function

    def test_names(self, tmp_path):
        class Local(eqx.Module):
            x: float

        assert dw.io.register(Local, "mine") is Local
        path = dw.io.save(tmp_path / "m", Local(1.0))
        assert dw.io.inspect(path).model == "user.mine"
        assert isinstance(dw.io.load(path), Local)
        with pytest.raises(ArgumentError, match=r"the name 'mine' belongs to .*Local"):
            dw.io.register(Custom, "mine")
        with pytest.raises(ArgumentError, match="concrete subclass"):
            dw.io.register(models.AbstractMap)
        with pytest.raises(ArgumentError, match="concrete subclass"):
            dw.io.register(int)
        with pytest.raises(ArgumentError, match="must be callable"):
            dw.io.register_function("f", 3)

    def test_a_class_can_be_defined_again(self, tmp_path):
        def define():
            class Again(eqx.Module):
                x: float

            return dw.io.register(Again)

        define()
        path = dw.io.save(tmp_path / "m", define()(1.0))
        newest = define()
        assert type(dw.io.load(path)) is newest


def rewrite(path, change=lambda manifest: None, arrays=None, extra=None, compression=zipfile.ZIP_STORED):
    """Writes the file anew, with valid check sums, after a change to its manifest or arrays."""
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        content = archive.read("arrays.npz")
    change(manifest)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("arrays.npz", content if arrays is None else arrays(content))
        for name, body in (extra or {}).items():
            archive.writestr(name, body)
    return path


def packed(*arrays, **options):
    buffer = io.BytesIO()
    np.savez(buffer, **{f"array_{i:05d}": a for i, a in enumerate(arrays)}, **options)
    return buffer.getvalue()


@pytest.fixture
def saved(tmp_path):
    model = models.ALRNN.from_parameters(jnp.array([0.5, 0.6]), jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.ones(2), 1)
    return dw.io.save(tmp_path / "m", model), model


class TestDamage:
    def test_no_flipped_byte_passes(self, tmp_path):
        model = models.LinearReadout(jnp.array([[1.0, 2.0]]))
        path = dw.io.save(tmp_path / "m", model)
        content = path.read_bytes()
        equal = 0
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= (0x01, 0x80, 0xFF)[position % 3]
            path.write_bytes(damaged)
            try:
                loaded = dw.io.load(path)
            except CheckpointError:
                continue
            assert_equal(loaded, model)
            equal += 1
        # Only what carries nothing passes: dates, versions and attributes in the headers of the outer zip.
        assert equal < 0.1 * len(content)

    def test_no_truncation_and_no_addition_passes(self, saved):
        path, _ = saved
        content = path.read_bytes()
        for end in [*range(0, len(content), 7), len(content) - 1]:
            path.write_bytes(content[:end])
            with pytest.raises(CheckpointError, match=r"truncated|beginning"):
                dw.io.load(path)
        for other in (content + b"\0", content + content, b"\0" + content, b"PK\3\4" + content):
            path.write_bytes(other)
            with pytest.raises(CheckpointError):
                dw.io.load(path)

    @pytest.mark.parametrize(("value", "field"), [(0.6, "A"), (3.0, "W"), (1.0, "h")])
    def test_names_the_array_that_was_damaged(self, saved, value, field):
        path, _ = saved
        content = bytearray(path.read_bytes())
        content[content.rindex(np.float64(value).tobytes())] ^= 0x10
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"model\.{field} is not what was saved"):
            dw.io.load(path)

    def test_swapped_arrays_of_one_shape(self, saved):
        path, model = saved
        rewrite(path, arrays=lambda _: packed(*map(np.asarray, (model.h, model.W, model.A, model.input_weight))))
        with pytest.raises(
            CheckpointError, match=r"model\.A is not what was saved: its content does not match its hash"
        ):
            dw.io.load(path)

    @pytest.mark.parametrize(
        "array", [np.zeros(3), np.zeros(2, np.float32), np.zeros(2, np.int64), np.zeros((2, 1))], ids=str
    )
    def test_arrays_of_another_shape_or_dtype(self, saved, array):
        path, model = saved
        rewrite(path, arrays=lambda _: packed(array, *map(np.asarray, (model.W, model.h, model.input_weight))))
        with pytest.raises(CheckpointError, match=r"model\.A should be float64\[2\]"):
            dw.io.load(path)

    @pytest.mark.parametrize(
        "arrays",
        [
            lambda _: b"nothing",
            lambda content: content + b"\0",
            lambda _: packed(np.zeros(2)),
            lambda _: packed(*[np.zeros(2)] * 6),
            lambda _: packed(np.array([None]), *[np.zeros(2)] * 3),
        ],
    )
    def test_arrays_that_are_not_those_of_the_manifest(self, saved, arrays):
        path, _ = saved
        rewrite(path, arrays=arrays)
        with pytest.raises(CheckpointError):
            dw.io.load(path)

    def test_a_header_that_promises_more_than_there_is(self, saved):
        path, _ = saved

        def inflate(content):
            source = zipfile.ZipFile(io.BytesIO(content))
            target = io.BytesIO()
            with zipfile.ZipFile(target, "w") as archive:
                for name in source.namelist():
                    body = source.read(name)
                    archive.writestr(
                        name, body.replace(b"'shape': (2,), }" + b" " * 14, b"'shape': (2000000000000,), }  ")
                    )
            return target.getvalue()

        rewrite(path, arrays=inflate)
        with pytest.raises(
            CheckpointError, match=r"model\.A is not what was saved: its header does not fit its content"
        ):
            dw.io.load(path)

    def test_bombs_links_folders_and_strangers(self, saved):
        path, _ = saved
        content = path.read_bytes()
        rewrite(path, compression=zipfile.ZIP_DEFLATED)
        with pytest.raises(CheckpointError, match="compressed, links, folders or not unique"):
            dw.io.load(path)
        path.write_bytes(content)
        rewrite(path, extra={"evil.py": b"1"})
        with pytest.raises(CheckpointError, match=r"should hold .* and holds .*'evil.py'"):
            dw.io.load(path)
        path.write_bytes(content)
        rewrite(path, extra={"folder/": b""})
        with pytest.raises(CheckpointError, match="compressed, links, folders or not unique"):
            dw.io.load(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path.write_bytes(content)
            rewrite(path, extra={"manifest.json": b"{}"})
        with pytest.raises(CheckpointError, match="not unique"):
            dw.io.load(path)
        link = zipfile.ZipInfo("manifest.json")
        link.external_attr = 0o120777 << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(link, b"/etc/passwd")
            archive.writestr("arrays.npz", packed())
        with pytest.raises(CheckpointError, match="links"):
            dw.io.load(path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda m: m.update(version=2), "of format version 2; this dynwarp, .*, reads 1"),
            (lambda m: m.update(format="other"), "its format is 'other'"),
            (lambda m: m["model"].update(module="os.system"), "unknown class, 'os.system'"),
            (lambda m: m["model"].update(module="models.jax"), "unknown class"),
            (lambda m: m["model"].update(module="models.AbstractMap"), "unknown class"),
            (lambda m: m["model"].update(module="models.from_cell"), "unknown class"),
            (lambda m: m["model"].update(module="models._base.AbstractMap"), "unknown class"),
            (lambda m: m["model"].update(module="user.Never"), "unknown class, 'user.Never'.*dynwarp.io.register"),
            (lambda m: m["model"].update(module=["models.ALRNN"]), "unknown class"),
            (lambda m: m["model"].update(module="models.PLRNN"), r"fields missing from the file \['off_diagonal'\]"),
            (lambda m: m["model"]["fields"].pop("W"), r"fields missing from the file \['W'\]"),
            (lambda m: m["model"]["fields"].update(extra=1), r"fields unknown to the class \['extra'\]"),
            (lambda m: m["model"]["fields"].update(W={"pickle": "x"}), r"model\.W is of a kind .* 'pickle'"),
            (lambda m: m["model"]["fields"].update(W={"function": "os.system"}), "unknown function, 'os.system'"),
            (
                lambda m: m["model"]["fields"].update(W={"function": "user.never"}),
                "unknown function.*register_function",
            ),
            (lambda m: m["model"]["fields"].update(W={"array": 99}), "is damaged"),
            (lambda m: m["model"]["fields"].update(W={}), r"model\.W"),
            (lambda m: m["model"]["fields"].update(W=[1]), r"model\.W"),
            (lambda m: m["arrays"][0].update(sha256="0" * 64), r"model\.A is not what was saved"),
            (lambda m: m["arrays"][0].update(kind="pickle"), r"model\.A is an array of an unknown kind, 'pickle'"),
            (lambda m: m["arrays"][0].update(dtype="object"), r"model\.A should be object"),
            (lambda m: m["arrays"][1].update(shape=[4]), r"model\.W should be float64\[4\]"),
            (lambda m: m["arrays"].pop(), "its arrays are not those of its manifest"),
            (lambda m: m.pop("model"), "is damaged: 'model'"),
            (lambda m: m.pop("version"), "is damaged: 'version'"),
        ],
    )
    def test_manifests_that_no_writer_wrote(self, saved, change, message):
        path, _ = saved
        rewrite(path, change)
        with pytest.raises(CheckpointError, match=message):
            dw.io.load(path)

    def test_a_manifest_without_end(self, saved):
        path, _ = saved
        deep = "[" * 100_000
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest.json", deep)
            archive.writestr("arrays.npz", packed())
        with pytest.raises(CheckpointError, match="damaged"):
            dw.io.load(path)

    def test_other_files(self, tmp_path):
        with pytest.raises(CheckpointError, match="does not exist"):
            dw.io.load(tmp_path / "none")
        with pytest.raises(CheckpointError, match="is a folder"):
            dw.io.load(tmp_path)
        (tmp_path / "empty").touch()
        np.savez(tmp_path / "a.npz", x=np.zeros(2))
        (tmp_path / "text").write_text("hello")
        for name, message in {
            "empty": "not a model file",
            "a.npz": "it should hold",
            "text": "not a model file",
        }.items():
            for read in (dw.io.load, dw.io.inspect, dw.io.load_metadata):
                with pytest.raises(CheckpointError, match=message):
                    read(tmp_path / name)

    def test_the_hash_is_that_of_the_bytes(self, saved):
        path, model = saved
        with zipfile.ZipFile(path) as archive:
            records = json.loads(archive.read("manifest.json"))["arrays"]
        assert records[1]["sha256"] == hashlib.sha256(np.asarray(model.W).tobytes()).hexdigest()


def test_numpy_alone_can_read_the_arrays(saved):
    path, model = saved
    with zipfile.ZipFile(path) as archive, np.load(io.BytesIO(archive.read("arrays.npz"))) as arrays:
        np.testing.assert_array_equal(arrays["array_00001"], model.W)


def test_double_precision_is_not_rounded_silently(tmp_path):
    double = dw.io.save(tmp_path / "double", models.ALRNN(4, 2, key=KEY))
    single = dw.io.save(tmp_path / "single", models.ALRNN(4, 2, dtype=jnp.float32, key=KEY))
    assert dw.io.load(single).W.dtype == jnp.float32
    script = """
    import sys
    import dynwarp as dw
    assert dw.io.load(sys.argv[2]).W.dtype == "float32"
    assert dw.io.inspect(sys.argv[1]).model == "models.ALRNN"
    try:
        dw.io.load(sys.argv[1])
    except dw.errors.PrecisionError as error:
        print(error)
    """
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(double), str(single)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "model.A is float64, and JAX is in single precision" in done.stdout
    assert 'jax.config.update("jax_enable_x64", True)' in done.stdout
