"""Peer: pynamicalsys, Lyapunov spectra by compiled loops."""

import numba
import numpy as np
import pynamicalsys

VERSION = pynamicalsys.__version__
WARM_UP = 100.0  # its first call compiles the whole package


def lyapunov_lorenz63(size, inputs):
    if size["batch"] > 4:
        raise NotImplementedError(
            "it takes one trajectory at a time: its time for this batch is that of batch=1, repeated"
        )
    system = pynamicalsys.ContinuousDynamicalSystem(model="lorenz system")
    system.integrator("rk4", time_step=0.01)
    options = {
        "total_time": (size["transient"] + size["steps"]) * 0.01,
        "transient_time": size["transient"] * 0.01,
        "parameters": [10.0, 28.0, 8.0 / 3.0],
    }

    def call():
        exponents = [system.lyapunov(state, **options) for state in inputs["states0"]]
        # Its first frame is random, so that a short run has other exponents than ours.
        return None if size["steps"] <= 1000 else np.mean(exponents, 0)

    return call


@numba.njit
def _step(state, parameters):
    n = len(state)
    return parameters.reshape((n, n)) @ np.tanh(state)


@numba.njit
def _jacobian(state, parameters, *arguments):
    n = len(state)
    return parameters.reshape((n, n)) * (1 - np.tanh(state) ** 2)


def lyapunov_rnn(size, inputs):
    n = size["state_size"]
    system = pynamicalsys.DiscreteDynamicalSystem(
        mapping=_step, jacobian=_jacobian, system_dimension=n, number_of_parameters=n * n
    )
    parameters, state0 = inputs["weight"].ravel(), inputs["states0"][0]

    def call():
        # On a path of its own, which rounding decides: there is nothing to compare.
        system.lyapunov(state0, size["steps"], parameters=parameters, num_exponents=size["k"])

    return call
