"""The activations of the warping paper on the tasks: each learns, and has a metric; the kinked one has no curvature."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp.errors import ModelError

CASES = {
    "tanh": (jnp.tanh, dw.tasks.ContextualIntegration(duration=2.0, dt=0.5)),
    "relu": (jax.nn.relu, dw.tasks.CentreOut(n_neurons=6, delays=(0.2,), dt=0.2)),
    "softplus": (jax.nn.softplus, dw.tasks.WorkingMemory(n_items=1, delays=(0.5,), dt=0.5)),
    "gelu": (functools.partial(jax.nn.gelu, approximate=False), dw.tasks.FlipFlop(n_bits=2, steps=12)),
}
OPTIMIZER = optax.adam(1e-2)


@pytest.mark.parametrize("name", list(CASES))
def test_each_activation_learns(name):
    activation, task = CASES[name]
    keys = jax.random.split(jax.random.key(0), 3)
    net = dw.models.LeakyRNN(task.input_size, 10, dt=task.dt, activation=activation, key=keys[0])
    readout = dw.models.Readout(10, task.output_size, key=keys[1])
    fitted = dw.training.fit(net, task, readout=readout, steps=60, key=keys[2], batch_size=16, optimizer=OPTIMIZER)
    loss = fitted.history.loss
    assert np.isfinite(loss).all()
    assert np.mean(loss[-10:]) < 0.8 * np.mean(loss[:5])
    if name == "relu":
        with pytest.raises(ModelError, match="kink"):
            dw.geometry.state_manifold(fitted.model, task, state0=jnp.zeros(10))
    else:
        dw.geometry.state_manifold(fitted.model, task, state0=jnp.zeros(10))
