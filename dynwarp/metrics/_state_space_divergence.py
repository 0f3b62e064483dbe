"""How far apart two trajectories lie as sets of states: the divergence D_stsp."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive, check_positive_integer
from dynwarp._typing import PRNGKey, Scalar
from dynwarp.errors import ArgumentError
from dynwarp.metrics._series import check_pair, standardise

_MOST_POINTS = 10_000


def state_space_divergence(
    true: Float[Array, "T N"],
    generated: Float[Array, "S N"],
    *,
    method: Literal["auto", "binned", "mixture"] = "auto",
    bins: int = 30,
    smoothing: float = 1e-5,
    variance: float | None = None,
    samples: int = 1000,
    key: PRNGKey | None = None,
    compat: Literal["python", "julia"] | None = None,
) -> Scalar:
    """The Kullback-Leibler divergence of the generated from the true distribution of states, D_stsp, in nats.

    **Arguments:**

    - `true`, `generated`: trajectories, `(T, N)` and `(S, N)`; time order does not matter.
    - `method`: `"binned"` counts states in `bins` boxes a dimension; `"mixture"` puts a Gaussian on every state and
      takes the divergence of the mixtures by Monte Carlo. `"auto"` bins below N = 6.
    - `bins`, `smoothing`: of `"binned"`: boxes a dimension over the range of the true states widened by 0.1 standard
      deviations, and the count added to every box.
    - `variance`: of `"mixture"`: that of the Gaussians, relative to that of the true states in each dimension; 1 by
      default. At most 10000 evenly spaced states of each trajectory are used.
    - `samples`, `key`: of `"mixture"`: the Monte Carlo sample, drawn from the true mixture. The default key is fixed.
    - `compat`: here generated states outside the range, NaN among them, share one box of their own, so that a
      trajectory that escapes is far away. Published code drops them. `"python"`: also no margin, and the lowest box
      of each dimension is dropped; mixtures of absolute variance 0.3. `"julia"`: the margin as here; absolute
      variance 1 (its 16-bit counts are not reproduced).

    **Returns:** a scalar, NaN where `compat` drops every state. The mixture form is differentiable both ways, the
    binned form is piecewise constant. Cost O((T + S) log(T + S)) binned; O(samples (T + S) N) mixture.

    **Raises:** `ShapeError`; `SeriesError` for too short a series; `NonFiniteError` in `true`; `ArgumentError` where
    the boxes are too many to number.

    **Source:** Koppe et al., PLoS Comput. Biol. 15 (2019) e1007263; Brenner et al., ICML 2022.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> t = jnp.linspace(0.0, 60.0, 3000)
    >>> circle = jnp.stack([jnp.sin(t), jnp.cos(t)], axis=1)
    >>> float(dw.metrics.state_space_divergence(circle, circle)), bool(
    ...     dw.metrics.state_space_divergence(circle, 0.5 * circle) > 5
    ... )
    (0.0, True)
    """
    caller = "state_space_divergence"
    true, generated = check_pair(true, generated, caller)
    check_choice(method, "method", ("auto", "binned", "mixture"), caller=caller)
    check_choice(compat, "compat", (None, "python", "julia"), caller=caller)  # pyright: ignore[reportArgumentType]
    if method == "auto":
        method = "binned" if true.shape[1] < 6 else "mixture"
    if method == "binned":
        check_positive_integer(bins, "bins", minimum=2, caller=caller)
        check_positive(smoothing, "smoothing", caller=caller)
        if bins ** true.shape[1] >= 2**31 - 1:
            raise ArgumentError(f"{caller}: {bins} bins in {true.shape[1]} dimensions are too many; use `mixture`.")
        return _binned(true, generated, bins, jnp.asarray(smoothing, true.dtype), compat)
    check_positive_integer(samples, "samples", caller=caller)
    if variance is None:
        variance = 0.3 if compat == "python" else 1.0
    check_positive(variance, "variance", caller=caller)
    key = jax.random.key(0) if key is None else key
    return _mixture(true, generated, jnp.asarray(variance, true.dtype), samples, key, compat)


@eqx.filter_jit
def _binned(true, generated, bins, smoothing, compat):
    low, high = jnp.min(true, axis=0), jnp.max(true, axis=0)
    if compat != "python":
        margin = 0.1 * jnp.std(true, axis=0)
        low, high = low - margin, high + margin
    # A constant dimension is one box wide.
    width = jnp.where(high > low, high - low, jnp.ones((), true.dtype))
    dimension = true.shape[1]
    boxes = bins**dimension

    def number(points):
        place = jnp.floor(bins * (points - low) / width)
        # The upper edge is outside whatever the division rounds to.
        below = (place < bins) & ((points < high) | (high == low))
        inside = jnp.all((place >= (1 if compat == "python" else 0)) & below, axis=1)
        place = jnp.clip(jnp.nan_to_num(place), 0, bins - 1).astype(jnp.int32)
        radix = jnp.asarray([bins**i for i in range(dimension)], jnp.int32)
        return jnp.where(inside, jnp.sum(place * radix, axis=1, dtype=jnp.int32), boxes), inside

    p_boxes, p_inside = number(true)
    q_boxes, q_inside = number(generated)
    if compat is None:
        p_inside, q_inside = jnp.ones_like(p_inside), jnp.ones_like(q_inside)
        boxes = boxes + 1

    # Only occupied boxes are counted; the others are all alike.
    numbers = jnp.concatenate([p_boxes, q_boxes])
    _, place = jnp.unique(numbers, return_inverse=True, size=len(numbers))
    counts = [
        jnp.zeros(len(numbers), true.dtype).at[which].add(inside.astype(true.dtype))
        for which, inside in ((place[: len(true)], p_inside), (place[len(true) :], q_inside))
    ]
    totals = [jnp.sum(c) for c in counts]
    p, q = ((c + smoothing) / (t + smoothing * boxes) for c, t in zip(counts, totals))
    p_empty, q_empty = (smoothing / (t + smoothing * boxes) for t in totals)
    occupied = (counts[0] > 0) | (counts[1] > 0)
    empty = boxes - jnp.sum(occupied).astype(true.dtype)
    divergence = jnp.sum(jnp.where(occupied, p * jnp.log(p / q), 0)) + empty * p_empty * jnp.log(p_empty / q_empty)
    return jnp.where((totals[0] > 0) & (totals[1] > 0), divergence, jnp.asarray(jnp.nan, true.dtype))


@eqx.filter_jit
def _mixture(true, generated, variance, samples, key, compat):
    if compat is None:
        true, generated = standardise(true, true), standardise(generated, true)
    true, generated = (
        x[jnp.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(jnp.int32)] for x in (true, generated)
    )
    which_key, noise_key = jax.random.split(key)
    which = jax.random.randint(which_key, (samples,), 0, len(true))
    noise = jax.random.normal(noise_key, (samples, true.shape[1]), true.dtype)
    drawn = true[which] + jnp.sqrt(variance) * noise

    def log_density(centres, point):
        exponents = -0.5 * jnp.sum((point - centres) ** 2, axis=1) / variance
        return jax.scipy.special.logsumexp(exponents) - jnp.log(jnp.asarray(len(centres), point.dtype))

    # The normalisation of the Gaussians is the same on both sides.
    gaps = jax.lax.map(lambda z: log_density(true, z) - log_density(generated, z), drawn, batch_size=min(samples, 64))
    return jnp.mean(gaps)
