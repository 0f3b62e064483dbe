"""The piecewise-linear family: canonical forms, published parameters, initial values, transformations, messages."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the acceptance data of ../shared/data is not there")

M, D, B, H, P = 5, 2, 3, 7, 2


def relu(x):
    return np.where(x > 0, x, 0.0)


def draw(shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def parameters(full):
    return {
        "A": draw((M, M) if full else (M,), 1),
        "W": draw((M, M), 2),
        "h": draw(M, 3),
        "C": draw((M, D), 4),
        "W1": draw((M, H), 5),
        "W2": draw((H, M), 6),
        "h2": draw(H, 7),
        "alpha": draw(B, 8),
        "thresholds": draw((B, M), 9),
    }


def linear(p, z):
    return p["A"] @ z if p["A"].ndim == 2 else p["A"] * z


# Each member: how to build it, and the formula of the literature in plain numpy.
def plrnn(p, **options):
    return dw.models.PLRNN.from_parameters(p["A"], p["W"], p["h"], input_weight=p["C"], **options)


def centred(p, **options):
    return dw.models.MeanCentredPLRNN.from_parameters(p["A"], p["W"], p["h"], input_weight=p["C"], **options)


def shallow(p, clipped=False):
    return dw.models.ShallowPLRNN.from_parameters(
        p["A"], p["W1"], p["W2"], p["h"], p["h2"], clipped, input_weight=p["C"]
    )


def dendritic(p, clipped=False):
    return dw.models.DendriticPLRNN.from_parameters(
        p["A"], p["W"], p["h"], p["alpha"], p["thresholds"], clipped, input_weight=p["C"]
    )


def almost_linear(p):
    return dw.models.ALRNN.from_parameters(p["A"], p["W"], p["h"], P, input_weight=p["C"])


def dendrite(p, z, clipped):
    spline = sum(a * (relu(z - t) - (relu(z) if clipped else 0.0)) for a, t in zip(p["alpha"], p["thresholds"]))
    return p["W"] @ spline


FAMILY = {
    "PLRNN": (plrnn, lambda p, z: p["W"] @ relu(z), M),
    "mean-centred": (centred, lambda p, z: p["W"] @ relu(z - z.mean()), M),
    "shallow": (shallow, lambda p, z: p["W1"] @ relu(p["W2"] @ z + p["h2"]), H),
    "clipped shallow": (
        lambda p: shallow(p, True),
        lambda p, z: p["W1"] @ (relu(p["W2"] @ z + p["h2"]) - relu(p["W2"] @ z)),
        2 * H,
    ),
    "dendritic": (dendritic, lambda p, z: dendrite(p, z, False), M * B),
    "clipped dendritic": (lambda p: dendritic(p, True), lambda p, z: dendrite(p, z, True), M * B + M),
    "AL-RNN": (almost_linear, lambda p, z: p["W"] @ np.append(z[:-P], relu(z[-P:])), P),
}
members = pytest.mark.parametrize("name", FAMILY)
fullness = pytest.mark.parametrize("full", [False, True], ids=["diagonal A", "full A"])


def states(p):
    """Random states, small and large, and states with entries on borders of every member."""
    random = draw((60, M), 10)
    border = draw((8, M), 11)
    border[0] = 0.0
    border[1, -1] = 0.0
    border[2, ::2] = 0.0
    border[3] = 1.0  # equal entries: every centred one is 0
    border[4:7] = p["thresholds"]
    border[7] = np.linalg.pinv(p["W2"][:M]) @ -p["h2"][:M]
    return np.concatenate([random, 1e3 * random, 1e-3 * random, border])


@members
@fullness
def test_direct_canonical_and_published_formulas_agree(name, full):
    build, formula, relus = FAMILY[name]
    p = parameters(full)
    model = build(p)
    z = states(p)
    inputs = draw((len(z), D), 12)
    direct = jax.vmap(model)(z, inputs)
    canonical = jax.vmap(lambda state, s: model.canonical(s)(state))(z, inputs)
    expected = np.stack([linear(p, x) + formula(p, x) + p["h"] + p["C"] @ s for x, s in zip(z, inputs)])
    # Relative to the sum of the terms' sizes: cancellation among them is not the form's fault.
    f = jax.tree.map(np.asarray, model.canonical())
    terms = np.abs(z) @ np.abs(f.A).T + relu(z @ f.W2.T + f.h2) @ np.abs(f.W1).T + np.abs(f.h1)
    scale = terms.max(1, keepdims=True)
    np.testing.assert_array_less(np.abs(direct - canonical) / scale, 1e-14)
    np.testing.assert_array_less(np.abs(direct - expected) / scale, 1e-14)
    assert model.canonical().h2.shape == (relus,)
    assert model.canonical().A.shape == (M, M)


@members
def test_no_input_is_a_zero_input(name):
    p = parameters(False)
    model = FAMILY[name][0](p)
    z = draw(M, 13)
    np.testing.assert_array_equal(model(z), model(z, jnp.zeros(D)))
    np.testing.assert_array_equal(model.canonical()(z), model.canonical(jnp.zeros(D))(z))
    assert (model.state_size, model.input_size) == (M, D)


@members
def test_jacobians_of_both_forms_agree_off_and_on_borders(name):
    p = parameters(False)
    model = FAMILY[name][0](p)
    canonical = model.canonical()
    for z in jnp.concatenate([draw((5, M), 14), jnp.zeros((1, M))]):
        J, b = canonical.affine(canonical.pattern(z))
        np.testing.assert_allclose(jax.jacrev(model)(z), J, atol=1e-13)
        np.testing.assert_allclose(jax.jacfwd(model)(z), J, atol=1e-13)
        np.testing.assert_allclose(model(z), J @ z + b, atol=1e-13)


@members
def test_gradients_match_finite_differences(name):
    model = FAMILY[name][0](parameters(True))
    z, s = jnp.asarray(draw(M, 15)), jnp.asarray(draw(D, 16))
    weights = jnp.asarray(draw(M, 17))

    def loss(m):
        return weights @ jnp.sin(m(z, s))

    gradient = eqx.filter_grad(loss)(model)
    direction = jax.tree.map(lambda x: jnp.asarray(draw(x.shape, 18)), eqx.filter(model, eqx.is_inexact_array))
    slope = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction)))
    step = 1e-6
    ahead, behind = (
        loss(eqx.apply_updates(model, jax.tree.map(lambda d, e=e: e * d, direction))) for e in (step, -step)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-7)


@members
def test_models_run_under_jit_and_vmap_and_as_parameters_of_a_batch(name):
    p = parameters(False)
    build = FAMILY[name][0]
    z = jnp.asarray(draw((4, M), 19))
    model = build(p)
    np.testing.assert_allclose(
        eqx.filter_jit(eqx.filter_vmap(model))(z), np.stack([model(x) for x in z]), rtol=1e-14, atol=1e-14
    )
    # from_parameters is pure: a batch of models from a batch of biases.
    biases = jnp.stack([p["h"], p["h"] + 1.0])
    batch = jax.jit(jax.vmap(lambda h: build({**p, "h": h})(z[0])))(biases)
    np.testing.assert_allclose(batch[1] - batch[0], np.ones(M), atol=1e-13)


CONSTRUCTORS = {
    "PLRNN": lambda **k: dw.models.PLRNN(M, **k),
    "mean-centred": lambda **k: dw.models.MeanCentredPLRNN(M, **k),
    "shallow": lambda **k: dw.models.ShallowPLRNN(M, H, **k),
    "clipped shallow": lambda **k: dw.models.ShallowPLRNN(M, H, clipped=True, **k),
    "dendritic": lambda **k: dw.models.DendriticPLRNN(M, B, **k),
    "clipped dendritic": lambda **k: dw.models.DendriticPLRNN(M, B, clipped=True, **k),
    "AL-RNN": lambda **k: dw.models.ALRNN(M, P, **k),
}


@members
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_drawn_models_keep_their_precision(name, dtype, key):
    model = CONSTRUCTORS[name](input_size=D, dtype=dtype, key=key)
    assert all(x.dtype == dtype for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    z, s = jnp.asarray(draw(M, 20), dtype), jnp.asarray(draw(D, 21), dtype)
    out = model(z, s)
    assert out.dtype == dtype
    np.testing.assert_allclose(out, model.canonical(s)(z), rtol=1e-5, atol=10 * jnp.finfo(dtype).eps)
    autonomous = CONSTRUCTORS[name](dtype=dtype, key=key)
    assert autonomous.input_size == 0
    assert autonomous.input_weight.shape == (M, 0)
    np.testing.assert_allclose(autonomous(z), autonomous(z, jnp.zeros(0, dtype)))


def test_initial_values_follow_the_literature(key):
    size = 40
    model = dw.models.PLRNN(size, key=key)
    matrix = np.diag(model.A) + np.asarray(model.W)
    eigenvalues = np.linalg.eigvalsh(matrix)
    np.testing.assert_allclose(eigenvalues[-1], 1.0, rtol=1e-12)
    assert eigenvalues[0] > 0
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
    assert np.all(np.diag(model.W) == 0)
    assert not np.any(model.h)

    al = dw.models.ALRNN(size, 4, key=key)
    assert abs(np.std(al.W) / 0.01 - 1) < 5 / np.sqrt(2 * size**2)
    assert np.all(np.asarray(al.A) > 0)
    assert np.all(np.asarray(al.A) <= 1)
    assert not np.any(al.h)

    for clipped in (False, True):
        shallow_model = dw.models.ShallowPLRNN(size, 100, clipped=clipped, key=key)
        for x, fan_in in [(shallow_model.W1, 100), (shallow_model.W2, size)]:
            bound = 1 / np.sqrt(fan_in)
            assert 0.99 * bound < np.abs(x).max() <= bound
        assert not np.any(shallow_model.h1)
        assert np.any(shallow_model.h2) == clipped
        assert np.abs(shallow_model.h2).max() <= 0.1

    dend = dw.models.DendriticPLRNN(size, 25, data_range=(-1.0, 3.0), key=key)
    assert np.abs(dend.alpha).max() <= 0.2
    assert np.all(np.asarray(dend.thresholds) >= -1)
    assert np.all(np.asarray(dend.thresholds) < 3)
    np.testing.assert_allclose(np.mean(dend.thresholds), 1.0, atol=5 * 4 / np.sqrt(12 * 1000))


@pytest.mark.parametrize("name", ["PLRNN", "mean-centred", "dendritic", "clipped dendritic"])
def test_the_diagonal_neither_counts_nor_learns(name, key):
    model = CONSTRUCTORS[name](key=key)
    z = jnp.asarray(draw(M, 22))
    changed = eqx.tree_at(lambda m: m.W, model, model.W + 10 * jnp.eye(M))
    np.testing.assert_array_equal(model(z), changed(z))
    np.testing.assert_array_equal(model.canonical()(z), changed.canonical()(z))
    gradient = eqx.filter_grad(lambda m: jnp.sum(m(z) ** 2))(model).W
    assert np.all(np.diag(gradient) == 0)
    assert np.any(gradient)


def test_clipped_networks_stay_bounded(key):
    for name in ("clipped shallow", "clipped dendritic"):
        model = CONSTRUCTORS[name](key=key)
        model = eqx.tree_at(lambda m: m.A, model, jnp.full(M, 0.5))
        far = dw.simulate(model, jnp.full(M, 1e6), steps=200)[-1]
        if name == "clipped shallow":
            # |relu(a + b) - relu(a)| <= |b|
            bound = 2 * np.abs(model.W1) @ np.abs(model.h2)
        else:
            reach = np.abs(model.alpha) @ np.abs(model.thresholds)
            off_diagonal = np.abs(model.W) * (1 - np.eye(M))
            bound = 2 * off_diagonal @ reach
        assert np.all(np.abs(far) <= bound + 1e-9)


def test_parameters_are_kept_as_given():
    full = draw((M, M), 23)
    model = dw.models.PLRNN.from_parameters(full, full.T, np.arange(M))  # integers become floats
    np.testing.assert_array_equal(model.A, full)
    np.testing.assert_array_equal(model.W, full.T)
    assert model.h.dtype == jnp.float64
    assert not model.off_diagonal
    single = dw.models.ALRNN.from_parameters(
        *(jnp.asarray(x, jnp.float32) for x in (full[0], full, full[1])), relu_size=1
    )
    assert single(jnp.ones(M, jnp.float32)).dtype == jnp.float32
    lists = dw.models.ShallowPLRNN.from_parameters([0.5], [[1.0, 2.0]], [[1.0], [-1.0]], [0.0], [0.0, 1.0])
    np.testing.assert_allclose(lists(jnp.array([0.5])), [0.25 + 0.5 + 1.0])


# ---- published parameters


@needs_data
def test_fixed_points_of_the_trained_lorenz_network():
    weights = np.load(DATA / "alrnn_lorenz63_m20_p2.npz", allow_pickle=False)
    model = dw.models.ALRNN.from_parameters(*(weights[k].astype(float) for k in "AWh"), 2)
    published = json.loads((DATA / "alrnn_m20_p2_fixed_points.json").read_text())["m20_p2"]
    assert len(published) == 4
    canonical = model.canonical()
    for entry in published:
        J, b = canonical.affine(jnp.asarray(entry["region"], bool))
        z = np.linalg.solve(np.eye(20) - J, b)
        np.testing.assert_allclose(z, entry["z"], atol=1e-9, rtol=0)
        np.testing.assert_array_equal(canonical.pattern(z), np.asarray(entry["region"], bool))
        for f in (model, canonical):
            np.testing.assert_allclose(f(jnp.asarray(z)), z, atol=1e-12, rtol=0)
        moduli = np.sort(np.abs(np.linalg.eigvals(J)))[::-1]
        np.testing.assert_allclose(moduli, entry["eig_abs"], atol=1e-9)


def is_diagonal(A):
    return np.ndim(A) == 1 or not np.any(A - np.diag(np.diag(A)))


@needs_data
@pytest.mark.parametrize("file", ["cycles_2d_ground_truth.json", "cycles_shplrnn_ground_truth.json"])
def test_published_cycles_close(file):
    cycles = 0
    for case in json.loads((DATA / file).read_text()):
        p = {name: np.asarray(x) for name, x in case["params"].items()}
        models = [dw.models.ShallowPLRNN.from_parameters(p["A"], p["W1"], p["W2"], p["h1"], p["h2"])]
        if file.startswith("cycles_2d"):
            assert is_diagonal(p["A"])
            models += [dw.models.PLRNN.from_parameters(np.diag(p["A"]), p["W1"], p["h1"])]
            models += [dw.models.PLRNN.from_parameters(p["A"], p["W1"], p["h1"], off_diagonal=True)]
            models += [dw.models.ALRNN.from_parameters(p["A"], p["W1"], p["h1"], 2)]
        for cycle in case["cycles"]:
            points = np.asarray(cycle["points"])
            # One length for all cycles, so that one compilation serves them.
            padded, images = (np.resize(x, (96, 2)) for x in (points, np.roll(points, -1, axis=0)))
            for f in [m for model in models for m in (model, model.canonical())]:
                np.testing.assert_allclose(jax.vmap(f)(padded), images, atol=1e-10)
            f = jax.tree.map(np.asarray, models[0].canonical())
            z = points[0]
            for _ in range(case["k"]):
                z = f.A @ z + f.W1 @ relu(f.W2 @ z + f.h2) + f.h1
            np.testing.assert_allclose(z, points[0], atol=1e-8)
            cycles += 1
    assert cycles >= 4


@needs_data
def test_a_diagonal_counts_where_it_was_given():
    """The published 10-D network has one."""
    p = {k: np.asarray(x) for k, x in json.loads((DATA / "plrnn_10d_parameters.json").read_text()).items()}
    assert np.any(np.diag(p["W"]))
    model = dw.models.PLRNN.from_parameters(p["A"], p["W"], p["h"])
    z = draw(10, 24)
    np.testing.assert_allclose(model(z), p["A"] @ z + p["W"] @ relu(z) + p["h"], atol=1e-13)
    with pytest.raises(ArgumentError, match="`off_diagonal=True` needs a `W` with a zero diagonal"):
        dw.models.PLRNN.from_parameters(p["A"], p["W"], p["h"], off_diagonal=True)


# ---- messages


def test_messages(key):
    m = dw.models
    with pytest.raises(ArgumentError, match="PLRNN: `state_size` must be a whole number of at least 1; got 0"):
        m.PLRNN(0, key=key)
    with pytest.raises(ArgumentError, match="ShallowPLRNN: `hidden_size` must be a whole number"):
        m.ShallowPLRNN(2, 2.5, key=key)
    with pytest.raises(ArgumentError, match="DendriticPLRNN: `n_bases` must be a whole number"):
        m.DendriticPLRNN(2, -1, key=key)
    with pytest.raises(ArgumentError, match=r"`data_range` must be \(least, largest\)"):
        m.DendriticPLRNN(2, 2, data_range=(1.0, 1.0), key=key)
    with pytest.raises(ArgumentError, match="`relu_size` must be at most `state_size`, 3; got 4"):
        m.ALRNN(3, 4, key=key)
    with pytest.raises(ArgumentError, match="`input_size` must be a whole number of at least 0; got -1"):
        m.ALRNN(3, 1, input_size=-1, key=key)

    eye, one = np.eye(2), np.ones(2)
    with pytest.raises(ShapeError, match=r"`A` must have shape \(2,\) or \(2, 2\); got \(3,\) with `h` of 2"):
        m.PLRNN.from_parameters(np.ones(3), eye, one)
    with pytest.raises(ShapeError, match=r"MeanCentredPLRNN.*: `W` must have shape \(2, 2\); got \(3, 3\)"):
        m.MeanCentredPLRNN.from_parameters(one, np.eye(3), one)
    with pytest.raises(ShapeError, match=r"`W1` must have shape \(2, 3\); got \(3, 2\)"):
        m.ShallowPLRNN.from_parameters(one, np.ones((3, 2)), np.ones((3, 2)), one, np.ones(3))
    with pytest.raises(ShapeError, match=r"`W2` must have shape \(3, 2\); got \(2, 3\)"):
        m.ShallowPLRNN.from_parameters(one, np.ones((2, 3)), np.ones((2, 3)), one, np.ones(3))
    with pytest.raises(ShapeError, match=r"`thresholds` must have shape \(3, 2\); got \(2, 3\)"):
        m.DendriticPLRNN.from_parameters(one, eye, one, np.ones(3), np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"`h` must have shape \(M,\); got \(2, 1\)"):
        m.ALRNN.from_parameters(one, eye, np.ones((2, 1)), 1)
    with pytest.raises(ShapeError, match=r"`input_weight` must have shape \(2, d\); got \(4, 2\)"):
        m.ALRNN.from_parameters(one, eye, one, 1, input_weight=np.ones((4, 2)))
    with pytest.raises(ArgumentError, match="`relu_size` must be at most `state_size`, 2; got 3"):
        m.ALRNN.from_parameters(one, eye, one, 3)
