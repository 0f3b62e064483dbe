"""How much of its past inputs a driven network holds: what a linear readout of its states can give back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_choice, check_float64, check_positive_integer
from dynwarp._compat import concrete
from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS, raise_failed
from dynwarp._simulate import simulate
from dynwarp._typing import PRNGKey, Scalar
from dynwarp.dynamics import input_jacobian, jacobian
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractMap, EchoStateNetwork, LinearRNN

# The normal quantile beyond which a capacity is taken for chance once in ten thousand.
_QUANTILE = 3.72
# Powers of a linear map are summed until nothing of the first is left, and at most so many.
_LONGEST = 20_000
_BATCH = 256
_REMEDY = "Check the stability of the reservoir: its states must stay finite."


class MemoryCapacity(eqx.Module):
    """What [`memory_capacity`][dynwarp.gradients.memory_capacity] returns.

    **Attributes:**

    - `capacities`: m(k) for the delays k = 0 ... max_delay, summed over input channels, `(max_delay + 1,)`.
    - `total`: the sum over delays from 1 on, Jaeger's memory capacity.
    - `rank`: the number of directions of the states that the arithmetic can tell from rounding; the capacities of all
      delays from 0 on sum to at most this.
    - `exact`: whether the value is computed, not sampled.
    - `result`: `non_finite` where the states ran away.
    """

    capacities: Float[Array, " K"]
    total: Scalar
    rank: Int[Array, ""]
    result: RESULTS
    exact: bool = eqx.field(static=True)


class InformationCapacity(eqx.Module):
    """What [`information_processing_capacity`][dynwarp.gradients.information_processing_capacity] returns.

    **Attributes:**

    - `capacities`: of each target, `(M,)`.
    - `degrees`: the total degree of each target, `(M,)`.
    - `by_degree`: the sums over the targets of degree 1, 2, ..., `(max_degree,)`; the first is the linear memory.
    - `total`: the sum of all, at most `rank`.
    - `rank`: the number of independent directions of the states.
    - `terms`: for each target, its factors as (delay, channel, degree of the Legendre polynomial).
    - `result`: `non_finite` where the states ran away.
    """

    capacities: Float[Array, " M"]
    degrees: Int[Array, " M"]
    by_degree: Float[Array, " D"]
    total: Scalar
    rank: Int[Array, ""]
    result: RESULTS
    terms: tuple[tuple[tuple[int, int, int], ...], ...] = eqx.field(static=True)


def memory_capacity(
    reservoir: AbstractMap,
    max_delay: int,
    *,
    method: Literal["auto", "exact", "sampled"] = "auto",
    steps: int = 10_000,
    washout: int | None = None,
    key: PRNGKey | None = None,
    throw: bool = True,
) -> MemoryCapacity:
    """How much of the input k steps ago a linear readout of the present state can give back, for every delay k.

    m(k) = 1 - (the least mean squared error of a readout with intercept) / (the variance of the input), for inputs
    that are independent in time. Delay 0 is the input that has just come in.

    **Arguments:**

    - `reservoir`: a map with inputs, started from the zero state, in float64.
    - `max_delay`: the longest delay.
    - `method`: `"exact"` is the formula for a linear map, from the singular value decomposition of [B, A B, A^2 B ...];
      `"sampled"` simulates inputs uniform on [-1, 1] and fits. `"auto"` is exact for `LinearRNN` and for an
      `EchoStateNetwork` whose activation is `jax.nn.identity`.
    - `steps`, `washout`: of the sample; by default the washout is `max_delay` + 200 steps. A fit of N numbers to T rows
      explains N / T of pure chance: what is not significant (at 1e-4) is set to zero, and the rest corrected.
    - `key`: of the sample; `jax.random.key(0)` by default.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`MemoryCapacity`][dynwarp.gradients.MemoryCapacity]. For a linear reservoir of one input the
    capacities of all delays from 0 on sum to its size, and m(0) = 1 - det(A)^2; in floating point to `rank`, which for
    a random matrix is far below it. Cost of the exact form: a decomposition of (delays, N), of the sampled one of
    (steps, N).

    **Raises:** `PrecisionError` for float32; `ArgumentError` for a linear reservoir that is not stable; `ModelError`
    for one without input; `ConvergenceError` with `throw`.

    **Source:** Jaeger, GMD report 152 (2001); cycles: Rodan & Tiňo, IEEE Trans. Neural Netw. 22 (2011) 131; chance:
    Dambre, Verstraeten, Schrauwen & Massar, Sci. Rep. 2 (2012) 514.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> ring = dw.models.EchoStateNetwork(
    ...     1, 20, spectral_radius=0.9, topology="cycle", activation=jax.nn.identity, key=jax.random.key(0)
    ... )
    >>> capacity = dw.gradients.memory_capacity(ring, 200)
    >>> round(float(capacity.total), 6), round(20 - 1 + 0.9**40, 6)
    (19.014781, 19.014781)
    """
    caller = "memory_capacity"
    washout = _check(reservoir, max_delay, steps, washout, caller)
    check_choice(method, "method", ("auto", "exact", "sampled"), caller=caller)
    linear = isinstance(reservoir, LinearRNN) or getattr(reservoir, "activation", None) is jax.nn.identity
    linear = linear and isinstance(reservoir, LinearRNN | EchoStateNetwork)
    if method == "exact" or (method == "auto" and linear):
        zero = jnp.zeros(reservoir.state_size)
        A = jacobian(reservoir, zero, jnp.zeros(reservoir.input_size))
        B = input_jacobian(reservoir, zero, jnp.zeros(reservoir.input_size))
        return _exact(A, B, max_delay, _powers(A, max_delay))
    inputs = _draw(reservoir, steps + washout, key)
    found = _sampled(reservoir, inputs, max_delay, washout)
    if throw:
        raise_failed(found.result, caller, _REMEDY)
    return found


def information_processing_capacity(
    reservoir: AbstractMap,
    *,
    max_degree: int = 3,
    max_delay: int | tuple[int, ...] = 10,
    max_terms: int = 20_000,
    steps: int = 10_000,
    washout: int | None = None,
    key: PRNGKey | None = None,
    throw: bool = True,
) -> InformationCapacity:
    """The capacity of a driven network for every function of its past inputs in an orthogonal family: products of
    Legendre polynomials of inputs at different delays.

    Inputs are independent and uniform on [-1, 1], for which the products are orthogonal; the capacities of all of them
    sum to at most the number of independent state variables, and to it for a network that forgets its start.

    **Arguments:**

    - `reservoir`: a map with inputs, started from the zero state, in float64.
    - `max_degree`: the largest total degree.
    - `max_delay`: the longest delay; one for each degree if a tuple.
    - `max_terms`: refuses a family of more functions than this.
    - `steps`, `washout`, `key`, `throw`: as for [`memory_capacity`][dynwarp.gradients.memory_capacity].

    **Returns:** an [`InformationCapacity`][dynwarp.gradients.InformationCapacity]. Cost: M T N for M functions, T steps
    and N units.

    **Raises:** as [`memory_capacity`][dynwarp.gradients.memory_capacity].

    **Source:** Dambre, Verstraeten, Schrauwen & Massar, Sci. Rep. 2 (2012) 514.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> line = dw.models.LinearRNN(jnp.eye(3, k=-1), jnp.array([[1.0], [0.0], [0.0]]), jnp.eye(3))
    >>> found = dw.gradients.information_processing_capacity(line, max_degree=2, max_delay=4, steps=500, washout=10)
    >>> found.by_degree.round(6).tolist(), found.terms[0]
    ([3.0, 0.0], ((0, 0, 1),))
    """
    caller = "information_processing_capacity"
    max_degree = check_positive_integer(max_degree, "max_degree", caller=caller)
    delays = (max_delay,) * max_degree if isinstance(max_delay, int | np.integer) else tuple(max_delay)
    if len(delays) != max_degree:
        raise ArgumentError(f"{caller}: `max_delay` must be one number or one a degree; got {max_delay!r}.")
    for delay in delays:
        check_positive_integer(delay, "max_delay", minimum=0, caller=caller)
    washout = _check(reservoir, max(delays), steps, washout, caller)
    check_positive_integer(max_terms, "max_terms", caller=caller)
    channels = reservoir.input_size
    count = sum(math.comb((d + 1) * channels + q, q + 1) for q, d in enumerate(delays))
    if count > max_terms:
        raise ArgumentError(
            f"{caller}: {count} functions are more than `max_terms` = {max_terms}; shorten `max_delay`, one for each "
            "degree, or raise it."
        )
    terms = tuple(_terms(max_degree, delays, channels))
    # Slots of a term that are not used hold the polynomial of degree 0, which is 1.
    slots = np.zeros((len(terms), max_degree, 2), np.int32)
    for row, term in zip(slots, terms):
        for slot, (delay, channel, degree) in zip(row, term):
            slot[:] = (delay * channels + channel, degree)
    inputs = _draw(reservoir, steps + washout, key)
    capacities, rank, result = _information(reservoir, inputs, jnp.asarray(slots), max(delays), max_degree, washout)
    if throw:
        raise_failed(result, caller, _REMEDY)
    degrees = jnp.asarray(slots[..., 1].sum(1))
    by_degree = jnp.stack([jnp.sum(jnp.where(degrees == q + 1, capacities, 0.0)) for q in range(max_degree)])
    return InformationCapacity(capacities, degrees, by_degree, jnp.sum(capacities), rank, result, terms)


def _check(reservoir, max_delay, steps, washout, caller) -> int:
    """Checks what both verbs take; returns the washout."""
    if not isinstance(reservoir, AbstractMap) or reservoir.input_size == 0:
        raise ModelError(f"{caller}: `reservoir` must be a map with inputs; got {type(reservoir).__name__}.")
    check_float64(reservoir, "reservoir", caller=caller)
    check_positive_integer(max_delay, "max_delay", minimum=0, caller=caller)
    washout = (
        max_delay + 200 if washout is None else check_positive_integer(washout, "washout", minimum=0, caller=caller)
    )
    check_positive_integer(steps, "steps", minimum=reservoir.state_size + 2, caller=caller)
    if max_delay > washout:
        # The targets of the first rows would lie before the first input.
        raise ArgumentError(f"{caller}: `washout` must be at least `max_delay` = {max_delay}; got {washout}.")
    return washout


def _draw(reservoir, length, key):
    key = jax.random.key(0) if key is None else key
    return jax.random.uniform(key, (length, reservoir.input_size), jnp.float64, -1, 1)


def _powers(A, max_delay) -> int:
    """How many powers of A matter (host); as many as may be where A is traced."""
    known = concrete(A)
    if known is None:
        return max(max_delay + 1, len(A)) + 1000
    radius = float(jnp.abs(eigenvalues(A)[0]))
    if not radius < 1:
        raise ArgumentError(f"memory_capacity: a linear reservoir must be stable; its spectral radius is {radius:.6g}.")
    decay = 0 if radius < 1e-6 else math.ceil(math.log(np.finfo(float).eps) / math.log(radius))
    return min(max(max_delay + 1, len(A)) + decay, max(_LONGEST, max_delay + 1))


@eqx.filter_jit
def _exact(A, B, max_delay, powers):
    columns = jax.lax.scan(lambda column, _: (A @ column, column), B, length=powers)[1]  # (powers, n, d)
    rows = jnp.swapaxes(columns, 1, 2).reshape(-1, len(A))
    basis, kept = _basis(rows)
    capacities = jnp.sum((basis**2).reshape(powers, -1), axis=1)[: max_delay + 1]
    return MemoryCapacity(capacities, jnp.sum(capacities[1:]), jnp.sum(kept), RESULTS.successful, True)


@eqx.filter_jit
def _sampled(reservoir, inputs, max_delay, washout):
    basis, rank, result = _driven_basis(reservoir, inputs, washout)
    length = len(inputs) - washout
    delays = jnp.arange(max_delay + 1)

    def one(delay):
        past = jax.lax.dynamic_slice_in_dim(inputs, washout - delay, length)
        return jnp.sum(jax.vmap(lambda y: _explained(basis, rank, y), in_axes=1)(past))

    capacities = jax.lax.map(one, delays)
    return MemoryCapacity(capacities, jnp.sum(capacities[1:]), rank, result, False)


@eqx.filter_jit
def _information(reservoir, inputs, slots, max_delay, max_degree, washout):
    basis, rank, result = _driven_basis(reservoir, inputs, washout)
    length = len(inputs) - washout
    lagged = [inputs[washout - delay :][:length] for delay in range(max_delay + 1)]
    x = jnp.concatenate(lagged, axis=1).T  # (variables, T), the delay outside, the channel inside
    polynomials = [jnp.ones_like(x), x]
    for p in range(1, max_degree):
        polynomials.append(((2 * p + 1) * x * polynomials[p] - p * polynomials[p - 1]) / (p + 1))
    table = jnp.stack(polynomials)

    def one(term):
        return _explained(basis, rank, jnp.prod(table[term[:, 1], term[:, 0]], axis=0))

    return jax.lax.map(one, slots, batch_size=_BATCH), rank, result


def _driven_basis(reservoir, inputs, washout):
    """An orthonormal basis of the centred states, their rank, and whether they are finite."""
    states = simulate(reservoir, jnp.zeros(reservoir.state_size), inputs)[washout:]
    finite = jnp.all(jnp.isfinite(states))
    states = jnp.where(finite, states, 0.0)
    basis, kept = _basis(states - jnp.mean(states, axis=0))
    return basis, jnp.sum(kept), RESULTS.where(finite, RESULTS.successful, RESULTS.non_finite)


def _basis(rows: Float[Array, "T n"]) -> tuple[Float[Array, "T k"], Bool[Array, " k"]]:
    """Left singular vectors, zero where the singular value is rounding."""
    u, s, _ = jnp.linalg.svd(rows, full_matrices=False)
    kept = s > jnp.max(s) * max(rows.shape) * jnp.finfo(rows.dtype).eps
    return jnp.where(kept, u, 0.0), kept


def _explained(basis, rank, target):
    """The share of the variance of a target that the states explain, without what they explain by chance."""
    rows = len(target)
    target = target - jnp.mean(target)
    share = jnp.sum((target @ basis) ** 2) / jnp.sum(target**2)
    # Wilson and Hilferty's cube for the quantile of chi-squared with `rank` degrees of freedom.
    freedom = jnp.maximum(rank, 1).astype(target.dtype)
    chance = freedom * (1 - 2 / (9 * freedom) + _QUANTILE * jnp.sqrt(2 / (9 * freedom))) ** 3 / rows
    corrected = 1 - (1 - share) * (rows - 1) / (rows - freedom - 1)
    return jnp.where(share > chance, jnp.maximum(corrected, 0.0), 0.0)


def _terms(max_degree: int, delays: tuple[int, ...], channels: int) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Every product of Legendre polynomials, by total degree: its factors (delay, channel, degree)."""
    for degree in range(1, max_degree + 1):
        variables = list(itertools.product(range(delays[degree - 1] + 1), range(channels)))
        for factors in itertools.combinations_with_replacement(variables, degree):
            yield tuple((*variable, len(list(group))) for variable, group in itertools.groupby(factors))
