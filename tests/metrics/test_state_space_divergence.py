"""D_stsp against plain histograms and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

divergence = dw.metrics.state_space_divergence


@pytest.fixture(scope="module")
def clouds():
    generator = np.random.default_rng(0)
    return generator.standard_normal((3000, 2)), generator.standard_normal((2000, 2)) * 0.8 + 0.3


def _reference(true, generated, bins, alpha, compat):
    """The published procedure with a dense histogram."""
    low, high = true.min(0), true.max(0)
    if compat == "julia":
        low, high = low - 0.1 * true.std(0), high + 0.1 * true.std(0)
    pdfs = []
    for x in (true, generated):
        place = np.floor(bins * (x - low) / (high - low)).astype(int)
        lowest = 1 if compat == "python" else 0
        # The largest point is outside; bins * width / width may round to either side of it.
        place = place[((place >= lowest) & (place < bins) & (x < high)).all(axis=1)]
        histogram = np.zeros((bins,) * x.shape[1])
        np.add.at(histogram, tuple(place.T), 1)
        pdfs.append((histogram + alpha) / (histogram.sum() + alpha * histogram.size))
    return np.sum(pdfs[0] * np.log(pdfs[0] / pdfs[1]))


@pytest.mark.parametrize("compat", ["python", "julia"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_binned_equals_the_published_procedure(compat, n):
    generator = np.random.default_rng(n)
    true, generated = generator.standard_normal((1500, n)), 1.2 * generator.standard_normal((900, n))
    found = divergence(jnp.asarray(true), jnp.asarray(generated), compat=compat, bins=12)
    np.testing.assert_allclose(found, _reference(true, generated, 12, 1e-5, compat), rtol=1e-10)


def test_default_counts_what_escapes(clouds):
    true, generated = (jnp.asarray(x) for x in clouds)
    inside = generated[jnp.all(jnp.abs(generated) < 2.5, axis=1)]
    np.testing.assert_allclose(divergence(true, inside), divergence(true, inside, compat="julia"), rtol=1e-6)
    # A trajectory half of which runs away is not excused by its other half.
    escaped = inside.at[::2].set(100.0)
    assert divergence(true, escaped) > divergence(true, inside) + 0.5
    np.testing.assert_allclose(
        divergence(true, escaped, compat="julia"), divergence(true, inside[1::2], compat="julia"), rtol=1e-10
    )
    gone = jnp.full((500, 2), jnp.nan)
    assert 10 < divergence(true, gone) < 20
    assert jnp.isnan(divergence(true, gone, compat="python"))
    assert divergence(true, true) == 0


def test_mixture_of_one_point_each_is_the_divergence_of_two_gaussians():
    # Two identical rows, so that it is a series; KL(N(a, v), N(b, v)) = |a - b|^2 / (2 v).
    a, b = jnp.zeros((2, 7)), 0.5 * jnp.ones((2, 7))
    found = divergence(a, b, compat="julia", samples=200_000)
    np.testing.assert_allclose(found, 7 * 0.25 / 2, rtol=0.02)
    found = divergence(a, b, compat="python", samples=200_000)
    np.testing.assert_allclose(found, 7 * 0.25 / 0.6, rtol=0.02)


def test_mixture_equals_a_direct_sum():
    generator = np.random.default_rng(5)
    true, generated = generator.standard_normal((300, 6)), generator.standard_normal((200, 6)) + 0.5
    key = jax.random.key(3)
    found = divergence(jnp.asarray(true), jnp.asarray(generated), variance=0.5, samples=50, key=key)
    scale = true.std(0)
    p, q = true / scale, generated / scale
    which_key, noise_key = jax.random.split(key)
    which = np.asarray(jax.random.randint(which_key, (50,), 0, 300))
    drawn = p[which] + np.sqrt(0.5) * np.asarray(jax.random.normal(noise_key, (50, 6), float))
    densities = [np.mean(np.exp(-((drawn[:, None] - x) ** 2).sum(2) / (2 * 0.5)), axis=1) for x in (p, q)]
    np.testing.assert_allclose(found, np.mean(np.log(densities[0] / densities[1])), rtol=1e-10)
    # Units do not matter, nor does a far-away trajectory underflow.
    units = jnp.asarray(10.0 ** np.arange(6))
    np.testing.assert_allclose(
        divergence(true * units, generated * units, variance=0.5, samples=50, key=key), found, rtol=1e-9
    )
    assert 1e3 < divergence(jnp.asarray(true), jnp.asarray(generated) + 100) < jnp.inf


def test_mixture_is_differentiable():
    generator = np.random.default_rng(5)
    true, generated = (jnp.asarray(generator.standard_normal((50, 6))) for _ in range(2))

    def f(shift):
        return divergence(true, generated + shift, samples=40)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(f)(0.3), (f(0.3 + h) - f(0.3 - h)) / (2 * h), rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (0.3,), (1.0,))[1], jax.grad(f)(0.3), rtol=1e-11)


def test_jit_vmap_float32(clouds):
    true, generated = (jnp.asarray(x[:400]) for x in clouds)
    batch = jnp.stack([generated, 2 * generated])
    many = jax.jit(jax.vmap(lambda x: divergence(true, x, bins=10)))(batch)
    np.testing.assert_allclose(many, [divergence(true, x, bins=10) for x in batch], rtol=1e-12)
    single = divergence(true.astype(jnp.float32), generated.astype(jnp.float32), bins=10)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(float(single), float(many[0]), rtol=2e-2)


def test_constant_column_and_errors(clouds):
    true, generated = (jnp.asarray(x) for x in clouds)
    flat = true.at[:, 0].set(1.0)
    assert divergence(flat, flat) == 0
    with pytest.raises(
        dw.errors.ShapeError, match=r"`generated` must have shape \(\?|`generated` must have shape \(S, 2\)"
    ):
        divergence(true, generated[:, :1])
    with pytest.raises(dw.errors.SeriesError, match="`generated` must have at least 2 time steps; got 1"):
        divergence(true, generated[:1])
    with pytest.raises(dw.errors.NonFiniteError, match="`true`"):
        divergence(true.at[0, 0].set(jnp.inf), generated)
    with pytest.raises(dw.errors.ArgumentError, match="too many; use `mixture`"):
        divergence(jnp.zeros((10, 7)), jnp.zeros((10, 7)), method="binned")
    with pytest.raises(dw.errors.ArgumentError, match="`method` must be one of"):
        divergence(true, generated, method="histogram")  # pyright: ignore[reportArgumentType]
    with pytest.raises(dw.errors.ArgumentError, match="`compat` must be one of"):
        divergence(true, generated, compat="r")  # pyright: ignore[reportArgumentType]
