"""Derivatives of the states of a field in the coordinates, by adaptive steps."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._results import RESULTS
from dynwarp._simulate._fields import solve_adaptive
from dynwarp.geometry._schedule import initial
from dynwarp.geometry._sensitivities import Problem, Sensitivities, assemble, in_units
from dynwarp.models import AbstractField


class SolveOptions(eqx.Module):
    """How diffrax solves."""

    solver: Any
    controller: Any
    adjoint: Any
    breakpoints: Any
    max_steps: int | None = eqx.field(static=True)


class Signal(eqx.Module):
    """The input at one point of a manifold as a function of time."""

    manifold: Any
    theta: Any

    def __call__(self, t):
        return self.manifold(self.theta, t)


class _Joint(AbstractField):
    """A field with its variational equation: the state is [x, d_1 x, ..., d_m x], so that both are error-controlled."""

    model: Any
    signal: Signal
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(default=0, static=True)

    def __call__(self, t, state, input=None):
        theta = self.signal.theta
        vectors = state.reshape(len(theta) + 1, -1)

        def velocity(z, theta):
            if self.signal.manifold is None:
                return self.model(t, z).astype(z.dtype)
            return self.model(t, z, self.signal.manifold(theta, t)).astype(z.dtype)

        def push(tangent, direction):
            return jax.jvp(velocity, (vectors[0], theta), (tangent, direction))

        basis = jnp.eye(len(theta), dtype=theta.dtype)
        first, others = jax.vmap(push, out_axes=(None, 0))(vectors[1:], basis)
        return jnp.concatenate([first[None], others]).reshape(-1)


def solve(problem: Problem, ts, seen_at, method: str, options: SolveOptions, theta) -> tuple[Sensitivities, RESULTS]:
    """The sensitivities at `ts` by one of the methods, and how the solve ended; `seen_at` is where velocities are."""
    model, manifold, observation = problem.step.model, problem.manifold, problem.observation

    def run(field, inputs, y0):
        adjoint = options.adjoint
        if adjoint is None:
            adjoint = diffrax.RecursiveCheckpointAdjoint() if method == "adjoint" else diffrax.DirectAdjoint()
        return solve_adaptive(
            field, inputs, y0, ts, options.solver, options.controller, adjoint, options.breakpoints, options.max_steps
        )

    if method == "forward":
        first = initial(problem.state0, theta)
        joint0 = jnp.concatenate(
            [first[None], jax.jacfwd(lambda theta: initial(problem.state0, theta))(theta).T.astype(first.dtype)]
        ).reshape(-1)
        joint, result = run(_Joint(model=model, signal=Signal(manifold, theta), state_size=joint0.size), None, joint0)
        vectors = joint.reshape(len(ts), len(theta) + 1, -1)
        states = vectors[:, 0]
        tangents = jax.vmap(observation.push)(states, vectors[:, 1:])
    else:

        def observe(theta):
            inputs = None if manifold is None else Signal(manifold, theta)
            states, result = run(model, inputs, initial(problem.state0, theta))
            return jax.vmap(observation)(states), (states, result)

        differentiate = jax.jacrev if method == "adjoint" else jax.jacfwd
        gradient, (states, result) = differentiate(observe, has_aux=True)(theta)
        tangents = jnp.swapaxes(gradient, 1, 2).astype(states.dtype)
    tangents, exponent = in_units(tangents)
    tangents = problem.tangents_with_time(theta, seen_at, states, None, tangents, exponent)
    exploded = (result == RESULTS.successful) & jnp.any(exponent > 0)
    result = RESULTS.where(exploded, RESULTS.diverged, result)
    return assemble(observation, states, tangents, exponent, problem.keep), result
