"""How rough losses are, against closed forms; orbits, periods and exponents of known maps and of the chaotic LSTM."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

gr = dw.gradients


def _last_state_loss(a, steps):
    """Half the square of the last of x <- a x + 1."""
    return 0.5 * jnp.sum(a[0] ** jnp.arange(steps.shape[0], dtype=float)) ** 2


def _slope_and_curvature(a, steps):
    k = np.arange(steps)
    x, d, dd = (a**k).sum(), (k[1:] * a ** (k[1:] - 1)).sum(), (k[2:] * (k[2:] - 1) * a ** (k[2:] - 2)).sum()
    return abs(x * d), abs(d * d + x * dd)


def test_scalar_recurrence_has_the_published_growth():
    """A loss of the last state: exponential in its length above 1, with rates near 2 log a; N^3 and N^4 at 1; bounded
    below."""
    found = {}
    for a in (1.1, 1.0, 0.9):
        for steps in (50, 100):
            constants = gr.smoothness(
                _last_state_loss, jnp.array([a]), jnp.ones(steps), key=jax.random.key(0), iterations=2
            )
            found[a, steps] = float(constants.lipschitz), float(constants.gradient_lipschitz)
            np.testing.assert_allclose(found[a, steps], _slope_and_curvature(a, steps), rtol=1e-10)
    growth = {a: np.log(np.divide(found[a, 100], found[a, 50])) for a in (1.1, 1.0, 0.9)}
    assert np.all((growth[1.1] / 50 > 2 * np.log(1.1)) & (growth[1.1] / 50 < 2.4 * np.log(1.1)))
    np.testing.assert_allclose(growth[1.0] / np.log(2), [3, 4], atol=0.1)
    assert np.all(growth[0.9] < 0.15)


def test_curvature_is_the_largest_modulus_of_a_hessian(key):
    matrix = np.random.default_rng(0).normal(size=(6, 6))
    matrix = (matrix + matrix.T) / 2
    # The two largest of opposite sign and nearly equal: the plain power method turns back and forth.
    values, vectors = np.linalg.eigh(matrix)
    values[[0, -1]] = -3.0, 3.1
    matrix = (vectors * values) @ vectors.T

    def loss(p, m):
        return 0.5 * p["x"] @ m @ p["x"]

    point = {"x": jnp.ones(6), "name": "not an array"}
    found = gr.smoothness(loss, point, jnp.asarray(matrix), key=key, radius=0.5, samples=4, iterations=200)
    np.testing.assert_allclose(found.curvatures, 3.1, rtol=1e-5)
    assert float(found.gradient_norms[0]) == pytest.approx(np.linalg.norm(matrix @ np.ones(6)), rel=1e-12)
    assert float(found.lipschitz) == float(jnp.max(found.gradient_norms))
    # Points in a ball of radius 1/2: gradients within 3.1 / 2 of that in the centre.
    assert float(jnp.max(jnp.abs(found.gradient_norms - found.gradient_norms[0]))) < 3.1 / 2
    few = gr.smoothness(loss, point, jnp.asarray(matrix), key=key, iterations=3)
    assert few.curvatures[0] < 3.1
    assert few.curvature_error[0] > 1e-3
    with pytest.raises(dw.errors.ConvergenceError):
        gr.smoothness(lambda p: jnp.log(p[0]), -jnp.ones(1), key=key)
    with pytest.raises(dw.errors.ArgumentError, match="floating arrays"):
        gr.smoothness(loss, {"x": 3}, key=key)


def test_slices_of_a_quadratic(key):
    point = {"a": jnp.array([1.0, 2.0]), "b": jnp.zeros(1, jnp.float32), "n": 3}

    def loss(p):
        return jnp.sum(p["a"] ** 2) + p["n"] * jnp.sum(p["b"].astype(float))

    x, y = ({"a": jnp.array(v), "b": jnp.array([w], jnp.float32), "n": None} for v, w in (([1.0, 0], 0), ([0, 1.0], 1)))
    plane = gr.loss_slice(loss, point, directions=(x, y), span=0.5, points=5)
    u, v = np.meshgrid(plane.offsets, plane.offsets, indexing="ij")
    np.testing.assert_allclose(plane.values, (1 + u) ** 2 + (2 + v) ** 2 + 3 * v, atol=1e-6)
    line = gr.loss_slice(loss, point, key=key, points=3)
    (direction,) = line.directions
    assert float(jnp.linalg.norm(direction["a"])) == pytest.approx(5**0.5)
    assert float(direction["b"][0]) == 0
    np.testing.assert_allclose(line.values[2], jnp.sum((point["a"] + direction["a"]) ** 2), rtol=1e-12)
    with pytest.raises(dw.errors.ArgumentError, match="shaped like"):
        gr.loss_slice(loss, point, directions=({"a": jnp.ones(3), "b": jnp.zeros(1), "n": None},))
    with pytest.raises(dw.errors.ArgumentError, match="key"):
        gr.loss_slice(loss, point)


# ---- orbits


def _chaotic_lstm(scale):
    """The two-unit LSTM of Ribeiro et al., gates i, f, g, o, without input and bias."""
    weight = [[-1, -4], [-3, -2], [-2, 6], [0, -6], [-1, -6], [6, -9], [4, 1], [-9, -7]]
    model = dw.models.LSTM(0, 2, use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.recurrent_weight, model, scale * jnp.array(weight, float))


def test_chaotic_lstm():
    scales = jnp.array([0.5, 0.8, 1.0, 1.2, 1.5, 2.0])
    diagram = jax.jit(
        jax.vmap(lambda s: gr.orbit_diagram(_chaotic_lstm(s), jnp.full((1, 4), 0.5), steps=10000, max_period=16))
    )(scales)
    published = np.array([-0.557, -0.449, 0.1683, 0.053, -0.485, -0.972])
    errors = np.asarray(diagram.standard_error[:, 0])
    assert np.all(np.abs(np.asarray(diagram.exponent[:, 0]) - published) < 5e-3 + 3 * errors)
    assert errors.max() < 0.02
    chaotic = np.asarray(diagram.exponent[:, 0]) > 0
    assert chaotic.tolist() == [False, False, True, True, False, False]
    # What is not chaotic repeats itself, exactly; what is does not.
    assert np.all((np.asarray(diagram.period[:, 0]) > 0) == ~chaotic)
    assert np.all(np.asarray(diagram.closure[:, 0])[~chaotic] < 1e-8)


def test_periods_of_the_logistic_map():
    rates = jnp.array([2.5, 3.2, 3.5, 3.83, 4.0])
    starts = jnp.array([[0.3], [0.41]])
    diagram = jax.jit(jax.vmap(lambda r: gr.orbit_diagram(dw.systems.LogisticMap(r), starts, steps=200, max_period=8)))(
        rates
    )
    assert diagram.period.T.tolist() == [[1, 2, 4, 3, 0]] * 2
    # Of a cycle the exponent is that of its multiplier: of the fixed point 2 - r, of the 2-cycle 4 + 2 r - r^2.
    expected = np.log(np.abs([2 - 2.5, 4 + 2 * 3.2 - 3.2**2])) / [1, 2]
    np.testing.assert_allclose(diagram.exponent[:2], np.repeat(expected[:, None], 2, 1), atol=1e-9)
    assert np.all(np.abs(diagram.exponent[4] - np.log(2)) < 4 * diagram.standard_error[4] + 0.02)
    assert diagram.states.shape == (5, 2, 200, 1)


def test_attractors_along_training():
    models = [dw.systems.LogisticMap(r) for r in (2.5, 2.9, 3.2, 3.5)]
    history = gr.attractor_history(models, jnp.array([[0.4]]), periods=(2,), steps=200, max_period=8)
    assert history.orbits.period[:, 0].tolist() == [1, 1, 2, 4]
    # The branch of the fixed point goes on where it is stable no longer.
    points = history.fixed_points
    np.testing.assert_allclose(points.points[:, 1, 0], [1 - 1 / r for r in (2.5, 2.9, 3.2, 3.5)], rtol=1e-9)
    assert points.is_stable[:, 1].tolist() == [True, True, False, False]
    # A cycle is born at 3, first seen by the orbit, and followed beyond 1 + 6^(1/2), where it is stable no longer.
    cycles = history.cycles[2]
    assert cycles.minimal_period[:3].tolist() == [[1, 1], [1, 1], [2, 1]]
    assert cycles.minimal_period[3, 1] == 2
    for r, model, lane, stable in ((3.2, 2, 0, True), (3.5, 3, 1, False)):
        root = np.sqrt((r + 1) * (r - 3))
        points = np.sort(cycles.points[model, lane, :, 0])
        np.testing.assert_allclose(points, [(r + 1 - root) / 2 / r, (r + 1 + root) / 2 / r], rtol=1e-9)
        assert complex(cycles.multipliers[model, lane, 0]) == pytest.approx(4 + 2 * r - r**2, abs=1e-9)
        assert bool(cycles.is_stable[model, lane]) == stable
    with pytest.raises(dw.errors.ArgumentError, match="at least one model"):
        gr.attractor_history([], jnp.ones((1, 1)))
    with pytest.raises(dw.errors.ArgumentError, match="periods"):
        gr.attractor_history(models, jnp.array([[0.4]]), periods=(1,))
    with pytest.raises(dw.errors.ArgumentError, match="`periods`"):
        gr.attractor_history(models, jnp.array([[0.4]]), periods=2)


def test_orbits_say_what_is_wrong():
    grows = dw.models.LinearRNN(jnp.array([[-3.0]]), jnp.zeros((1, 0)), jnp.eye(1))
    found = gr.orbit_diagram(grows, jnp.ones((2, 1)), steps=20, max_period=2)
    assert bool(jnp.all(found.result == dw.RESULTS.diverged))
    with pytest.raises(dw.errors.ArgumentError, match="half of the 20"):
        gr.orbit_diagram(grows, jnp.ones((2, 1)), steps=20, max_period=11)
    with pytest.raises(dw.errors.ModelError, match="map"):
        gr.orbit_diagram(dw.systems.Lorenz63(), jnp.ones((2, 3)))
    with pytest.raises(dw.errors.ShapeError, match="states0"):
        gr.orbit_diagram(grows, jnp.ones(1))
