"""Peer: lyapax, Lyapunov spectra in JAX; in its documented use, renormalised every 10 steps."""

import jax
import jax.numpy as jnp
import lyapax
import numpy as np

VERSION = lyapax.__version__

jax.config.update("jax_enable_x64", True)


def lyapunov_lorenz63(size, inputs):
    if size["batch"] > 4:
        raise NotImplementedError(
            "it takes one trajectory at a time: its time for this batch is that of batch=1, repeated"
        )

    def velocity(state):
        x, y, z = state
        return jnp.array([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

    problems = [lyapax.ode_problem(velocity, state0=jnp.asarray(state), dt=0.01) for state in inputs["states0"]]

    def call():
        found = [
            lyapax.lyapunov_spectrum(problem, size["steps"], renorm_every=10, t_transient=size["transient"] * 0.01)
            for problem in problems
        ]
        # Its first frame is random, so that a short run has other exponents than ours.
        return None if size["steps"] <= 1000 else np.mean([np.asarray(each.exponents) for each in found], 0)

    return call


def lyapunov_rnn(size, inputs):
    weight, state0 = jnp.asarray(inputs["weight"]), jnp.asarray(inputs["states0"][0])

    def step(state):
        return weight @ jnp.tanh(state)

    def call():
        found = lyapax.lyapunov_spectrum(step, state0, 1.0, size["steps"], k=size["k"], renorm_every=5)
        np.asarray(found.exponents)  # on a path of its own: rounding decides it

    return call
