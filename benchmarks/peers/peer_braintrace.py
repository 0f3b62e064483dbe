"""Peer: braintrace, online rules by eligibility traces, forwards in time; its own driver over a sequence."""

import brainstate
import braintrace
import jax
import jax.numpy as jnp
import numpy as np

VERSION = braintrace.__version__

jax.config.update("jax_enable_x64", True)
brainstate.environ.set(precision=64)


class _Network(brainstate.nn.Module):
    """h' = tanh(W h + U x + b), and y = A h + c with a fixed readout."""

    def __init__(self, inputs):
        super().__init__()
        self.recurrent = brainstate.ParamState(jnp.asarray(inputs["recurrent_weight"].T))
        self.input = brainstate.ParamState(jnp.asarray(inputs["input_weight"].T))
        self.bias, self.readout, self.offset = (jnp.asarray(inputs[k]) for k in ("bias", "readout_weight", "offset"))

    def init_state(self, *arguments, **options):
        self.state = brainstate.HiddenState(jnp.zeros(len(self.bias)))

    def update(self, x):
        driven = braintrace.matmul(x, self.input.value) + self.bias
        self.state.value = jnp.tanh(braintrace.matmul(self.state.value, self.recurrent.value) + driven)
        return self.readout @ self.state.value + self.offset


def _rule(algorithm, inputs, **options):
    if len(inputs["inputs"]) > 16:
        raise NotImplementedError("one sequence after the other: its time for this batch is that of batch=1, repeated")
    network = _Network(inputs)
    sequences = [jnp.asarray(inputs[name]) for name in ("inputs", "targets", "states0")]
    learner = braintrace.compile(network, algorithm, sequences[0][0, 0], **options)

    names = {id(state): name for name, state in learner.param_states.items()}

    @brainstate.transform.jit
    def gradients(x, y, state0):
        learner.reset_state()
        network.state.value = state0
        found = learner.etrace_grad(x, y, step_fn=lambda x, y: jnp.sum((learner(x) - y) ** 2) / 2)
        return tuple(found[names[id(state)]] for state in (network.recurrent, network.input))

    def call():
        found = [gradients(*each) for each in zip(*sequences)]
        return tuple(sum(np.asarray(part).T for part in parts) for parts in zip(*found))

    return call


def learning_eprop(size, inputs):
    """Its diagonal rule with the recurrent weights in the diagonal, which it calls OSTL and others SnAp-1."""
    return _rule(braintrace.OSTLRecurrent, inputs)


def learning_rtrl(size, inputs):
    """SnAp of an order at which nothing is left out."""
    return _rule(braintrace.SnAp, inputs, n=size["state_size"])
