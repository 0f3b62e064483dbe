"""The kernel under fixed points and periodic orbits: a batch of root searches, merged, with implicit derivatives."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx

from dynwarp._checks import check_choice, check_positive, check_positive_integer, check_shape, default_float
from dynwarp._compat import concrete
from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS, raise_failed
from dynwarp.dynamics._jacobian import advance
from dynwarp.dynamics._stepping import Model, as_floating, is_field
from dynwarp.errors import ArgumentError

Method: TypeAlias = Literal["newton", "levenberg_marquardt"]


class Found(NamedTuple):
    """The end of every lane: `points` `(N, k, n)`, `multipliers` `(N, n)`, the rest `(N,)`."""

    points: jax.Array
    multipliers: jax.Array
    residual: jax.Array
    is_stable: jax.Array
    representative: jax.Array
    result: RESULTS


def search(
    model: Model,
    candidates,
    period: int,
    input,
    t,
    method: Method,
    tolerance,
    max_steps,
    merge_tolerance,
    throw,
    caller,
) -> Found:
    """Checks the arguments of a public search, runs it, and raises where no lane at all succeeded."""
    field = is_field(model, caller)
    check_shape(candidates, "candidates", ("N", model.state_size), caller=caller)
    if candidates.shape[0] == 0:
        raise ArgumentError(
            f"{caller}: `candidates` must hold at least one state; got shape {tuple(candidates.shape)}."
        )
    if input is not None:
        check_shape(input, "input", (model.input_size,), caller=caller)
        input = as_floating(input)
    check_choice(method, "method", ("newton", "levenberg_marquardt"), caller=caller)
    check_positive_integer(max_steps, "max_steps", caller=caller)
    candidates = as_floating(candidates)
    eps = float(jnp.finfo(candidates.dtype).eps)
    tolerance = eps ** (2 / 3) if tolerance is None else tolerance
    merge_tolerance = eps**0.5 if merge_tolerance is None else merge_tolerance
    check_positive(tolerance, "tolerance", caller=caller)
    check_positive(merge_tolerance, "merge_tolerance", caller=caller)
    found = _search(
        Problem(model, input, as_floating(t).astype(candidates.dtype), period, field),
        candidates,
        method,
        jnp.asarray(tolerance, candidates.dtype),
        max_steps,
        jnp.asarray(merge_tolerance, candidates.dtype),
    )
    failed = concrete(found.result != RESULTS.successful)
    if throw and failed is not None and failed.all():
        raise_failed(found.result, caller, "Give candidates nearer to a root, such as states of a simulation.")
    return found


class Problem(eqx.Module):
    """G(P) = 0 for a stack P of k states: F(P_i) = P_{i+1 mod k} of a map, f(P_0) = 0 of a field."""

    model: Model
    input: Any
    t: jax.Array
    period: int = eqx.field(static=True)
    field: bool = eqx.field(static=True)

    def next(self, state):
        return advance(self.model, state, self.input, self.t)

    def guess(self, candidate):
        return jax.lax.scan(lambda z, _: (self.next(z), z), candidate, None, self.period)[1].ravel()

    def residual(self, flat):
        states = flat.reshape(self.period, -1)
        after = jax.vmap(self.next)(states)
        return (after if self.field else after - jnp.roll(states, -1, axis=0)).ravel()

    def multipliers(self, states):
        jacobians = jax.vmap(jax.jacfwd(self.next))(states)
        product = jacobians[0]
        for i in range(1, self.period):
            product = jacobians[i] @ product
        return eigenvalues(product, order="real" if self.field else "modulus")


@eqx.filter_jit
def _search(problem: Problem, candidates, method, tolerance, max_steps, merge_tolerance) -> Found:
    # The search sees constants; what it finds is given its derivative afterwards.
    frozen = _map_floats(jax.lax.stop_gradient, problem)

    def lane(candidate):
        guess = frozen.guess(candidate)
        if method == "newton":
            flat, settled = _newton(_residual, frozen, guess, tolerance, max_steps)[0], False
        else:
            flat, settled = _least_squares(frozen, guess, tolerance, max_steps)
        residual, result = _judge(frozen, candidate, flat, settled, tolerance)
        root = result == RESULTS.successful
        points = _attach(problem, flat, root).reshape(problem.period, -1)
        # A lane that ended in NaN must not send one into the gradient of the others.
        finite = jnp.all(jnp.isfinite(flat))
        multipliers = problem.multipliers(jnp.where(finite, points, jnp.zeros((), points.dtype)))
        multipliers = jnp.where(finite, multipliers, jnp.asarray(jnp.nan, multipliers.dtype))
        largest = multipliers[0].real if problem.field else jnp.abs(multipliers[0]) - 1
        return (points, multipliers, residual, root & (largest < 0)), result

    fields, result = jax.vmap(lane)(jax.lax.stop_gradient(candidates))
    # Slow points merge with slow points, roots with roots, failed lanes with nothing.
    kind = jnp.where(result == RESULTS.successful, 1, jnp.where(result == RESULTS.slow_point, 2, 0))
    representative = _merge(jax.lax.stop_gradient(fields[0]), kind, merge_tolerance)
    points, multipliers, residual, is_stable = (x[representative] for x in fields)
    return Found(points, multipliers, residual, is_stable, representative, result)


def _newton(function, problem, guess, tolerance, max_steps):
    """The end of Newton's method for function(y, problem) = 0, and whether it converged."""
    solver = optx.Newton(rtol=tolerance, atol=tolerance)
    solution = optx.root_find(function, solver, guess, problem, max_steps=max_steps, throw=False)
    return solution.value, solution.result == optx.RESULTS.successful


def _residual(flat, problem):
    return problem.residual(flat)


def _speed_slope(flat, problem):
    """The gradient of |G|^2 / 2."""
    return jax.grad(lambda y: jnp.sum(problem.residual(y) ** 2) / 2)(flat)


def _least_squares(problem, guess, tolerance, max_steps):
    """The minimum of |G|^2, and whether it was reached.

    Worked in JAX's default precision: where x64 is on, optimistix's method does not take float32 problems. Towards a
    minimum above zero it creeps; Newton's method, for a root of G and for one of the slope of |G|^2, then takes over.
    """
    working = default_float()
    solver = optx.LevenbergMarquardt(rtol=tolerance.astype(working), atol=tolerance.astype(working))
    solution = optx.least_squares(
        _residual,
        solver,
        guess.astype(working),
        _map_floats(lambda x: x.astype(working), problem),
        max_steps=max_steps,
        throw=False,
    )
    flat, settled = solution.value.astype(guess.dtype), solution.result == optx.RESULTS.successful
    for function in (_speed_slope, _residual):
        refined, converged = _newton(function, problem, flat, tolerance, 20)
        before, after = (jnp.max(jnp.abs(problem.residual(y))) for y in (flat, refined))
        # It may also leave for elsewhere.
        near = jnp.max(jnp.abs(refined - flat)) < 0.1 * (1 + jnp.max(jnp.abs(flat)))
        better = near & (after <= before)
        flat, settled = jnp.where(better, refined, flat), settled | (better & converged)
    return flat, settled


def _judge(problem, candidate, flat, settled, tolerance):
    """The residual of one lane, and what its last state is."""
    residual = jnp.max(jnp.abs(problem.residual(flat)))
    steepness = jnp.max(jnp.sum(jnp.abs(jax.jacfwd(problem.residual)(flat)), axis=1))
    root = residual <= tolerance * steepness * (1 + jnp.max(jnp.abs(flat)))
    result = RESULTS.where(settled, RESULTS.slow_point, RESULTS.max_steps_reached)
    result = RESULTS.where(root, RESULTS.successful, result)
    result = RESULTS.where(jnp.all(jnp.isfinite(flat)) & jnp.isfinite(residual), result, RESULTS.diverged)
    return residual, RESULTS.where(jnp.all(jnp.isfinite(candidate)), result, RESULTS.non_finite)


def _attach(problem, flat, root):
    """The found point with the derivatives of the implicit function theorem; none where the search failed."""

    def residual(y):
        # Zero is a state like any other; NaN is not.
        return jnp.where(root, problem.residual(jnp.where(root, y, jnp.zeros((), y.dtype))), y - flat)

    return jax.lax.custom_root(
        residual,
        flat,
        lambda _, y: y,
        lambda linear, b: jnp.linalg.solve(jax.jacobian(linear)(b), b),
    )


def _map_floats(function, tree):
    return jax.tree.map(lambda x: function(x) if eqx.is_inexact_array(x) else x, tree)


def _merge(states, kind, tolerance):
    """For each lane the first lane that found the same orbit, whatever its phase; failed lanes stand for themselves."""
    lanes, period, _ = states.shape
    indices = jnp.arange(lanes, dtype=jnp.int32)
    rotations = (jnp.arange(period)[:, None] + jnp.arange(period)) % period
    size = jnp.max(jnp.abs(states), axis=(1, 2))

    def lane(representative, i):
        # (rotation, lane): the largest coordinate difference between this orbit, rotated, and every other.
        differences = jnp.abs(states[i][rotations][:, None] - states)
        distance = jnp.min(jnp.max(differences, axis=(2, 3)), axis=0)
        same = distance <= tolerance * (1 + jnp.maximum(size, size[i]))
        same &= (kind == kind[i]) & (kind[i] > 0) & (indices < i) & (representative == indices)
        return representative.at[i].set(jnp.where(jnp.any(same), jnp.argmax(same).astype(jnp.int32), i)), None

    return jax.lax.scan(lane, indices, indices)[0]
