"""Floor 0: checks that name argument and shape, result codes, the one exception."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import RESULTS, _checks, _results, errors
from dynwarp._compat import concrete


def test_shapes_are_named():
    _checks.check_shape(jnp.zeros((3, 3)), "a", ("n", "n"))
    with pytest.raises(errors.ShapeError, match=r"`a` must have shape \(n, n\); got \(3, 2\)"):
        _checks.check_shape(jnp.zeros((3, 2)), "a", ("n", "n"))
    with pytest.raises(errors.ShapeError, match=r"f: `v` must have shape \(2,\); got \(\)"):
        _checks.check_shape(1.0, "v", (2,), caller="f")


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None, float("nan")])
def test_counts_are_whole(value):
    with pytest.raises(errors.ArgumentError, match="`steps` must be a whole number of at least 1"):
        _checks.check_positive_integer(value, "steps")


def test_counts_pass_as_int():
    assert _checks.check_positive_integer(np.int64(4), "steps") == 4


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), np.array([1.0, 0.0])])
def test_positive(value):
    with pytest.raises(errors.ArgumentError, match="`dt` must be positive and finite"):
        _checks.check_positive(value, "dt")


def test_choices_are_listed():
    with pytest.raises(errors.ArgumentError, match="`mode` must be one of 'a', 'b'; got 'c'"):
        _checks.check_choice("c", "mode", ["a", "b"])


def test_non_finite_position():
    with pytest.raises(errors.NonFiniteError, match=r"1 NaN or infinite entries, the first at \(1, 0\)"):
        _checks.check_finite(jnp.array([[0.0], [jnp.nan]]), "x")
    with pytest.raises(errors.NonFiniteError, match=r"the first at \(\)"):
        _checks.check_finite(jnp.nan, "x")


def test_checks_pass_traced_values():
    @jax.jit
    def f(x):
        _checks.check_finite(x, "x")
        _checks.check_positive(x, "x")
        assert concrete(x) is None
        return x

    assert np.isnan(f(jnp.nan))


def test_float64_is_asked_for():
    model = dw.models.PiecewiseLinearMap(*(jnp.zeros(s, jnp.float32) for s in [(1, 1), (1, 2), (2, 1), (1,), (2,)]))
    with pytest.raises(errors.PrecisionError, match=r"needs float64: `map` holds float32, shape \(1, 1\)\.$"):
        _checks.check_float64(model, "map", caller="find_cycles")
    assert issubclass(errors.PrecisionError, TypeError)


def test_one_exception_names_the_lanes():
    codes = jax.vmap(lambda x: RESULTS.where(x > 0, RESULTS.successful, RESULTS.singular))(jnp.array([1.0, -1.0, 0.0]))
    assert _results.describe(codes)[0] == ""
    with pytest.raises(
        errors.ConvergenceError, match=r"verb: 2 of 3 lanes failed \(lane 1: A linear system was singular"
    ):
        _results.raise_failed(codes, "verb", "Try again.")


def test_no_exception_under_tracing():
    @jax.jit
    def f(x):
        code = RESULTS.where(x > 0, RESULTS.successful, RESULTS.diverged)
        _results.raise_failed(code, "verb", "Try again.")
        return code == RESULTS.successful

    assert not f(-1.0)


def test_errors_are_explained():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.DynwarpError)]
    assert len(classes) >= 9
    assert all(len(c.__doc__) > 40 for c in classes)


def test_piecewise_linear_map_checks_its_shapes():
    with pytest.raises(errors.ShapeError, match=r"A \(M, M\).*got A \(2, 2\), W1 \(2, 3\), W2 \(2, 3\)"):
        dw.models.PiecewiseLinearMap(jnp.eye(2), jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.ones(2), jnp.ones(3))


def test_piecewise_linear_map_is_its_regions(key):
    keys = jax.random.split(key, 6)
    shapes = [(3, 3), (3, 4), (4, 3), (3,), (4,)]
    f = dw.models.PiecewiseLinearMap(*(jax.random.normal(k, s) for k, s in zip(keys, shapes)))
    z = jax.random.normal(keys[5], (50, 3))
    j, b = jax.vmap(lambda z: f.affine(f.pattern(z)))(z)
    by_region = jnp.einsum("bij,bj->bi", j, z) + b
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(z), by_region, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(jax.vmap(jax.jacfwd(f))(z), j, rtol=1e-13, atol=1e-14)
    assert f.canonical() is f
