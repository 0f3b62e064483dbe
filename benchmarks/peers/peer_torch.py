"""Peer: PyTorch on the processor, with as many threads as the run has cores."""

import os

import numpy as np
import torch

VERSION = torch.__version__
DEVICE = "cpu"

if hasattr(os, "sched_getaffinity"):
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def _tensor(array, *, gradient=False):
    return torch.tensor(np.asarray(array), device=DEVICE, requires_grad=gradient)


def _arrays(*tensors):
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    return tuple(tensor.detach().cpu().numpy() for tensor in tensors)


def _network_gradient(network, inputs, weights):
    """A call that runs a recurrent layer over the inputs, and returns the gradient of the mean square of its states."""
    with torch.no_grad():
        for name, value in weights.items():
            getattr(network, f"{name}_l0").copy_(_tensor(value))
    network = network.to(DEVICE)
    x, state0 = _tensor(inputs["inputs"]), _tensor(inputs["states0"])[None]

    def call():
        network.zero_grad(set_to_none=True)
        states, _ = network(x, state0)
        (states**2).mean().backward()
        return _arrays(network.weight_hh_l0.grad, network.weight_ih_l0.grad)

    return call


def elman_gradient(size, inputs):
    dtype = getattr(torch, size["dtype"])
    network = torch.nn.RNN(size["input_size"], size["state_size"], batch_first=True, dtype=dtype)
    bias = inputs["bias"]
    weights = {
        "weight_hh": inputs["recurrent_weight"],
        "weight_ih": inputs["input_weight"],
        "bias_ih": bias,
        "bias_hh": np.zeros_like(bias),
    }
    return _network_gradient(network, inputs, weights)


def gru_gradient(size, inputs):
    n, dtype = size["state_size"], getattr(torch, size["dtype"])
    network = torch.nn.GRU(size["input_size"], n, batch_first=True, dtype=dtype)
    inner = np.zeros_like(inputs["bias"])
    inner[2 * n :] = inputs["bias_n"]
    weights = {
        "weight_hh": inputs["recurrent_weight"],
        "weight_ih": inputs["input_weight"],
        "bias_ih": inputs["bias"],
        "bias_hh": inner,
    }
    return _network_gradient(network, inputs, weights)


def simulate_alrnn(size, inputs):
    A, W, h, states0 = (_tensor(inputs[key]) for key in ("A", "W", "h", "states0"))
    linear = size["state_size"] - size["relu_size"]

    @torch.no_grad()
    def call():
        states, state = [], states0
        for _ in range(size["steps"]):
            active = torch.cat([state[:, :linear], torch.relu(state[:, linear:])], 1)
            state = A * state + active @ W.T + h
            states.append(state)
        return _arrays(torch.stack(states, 1)[:4])

    return call


def simulate_lru(size, inputs):
    complex_dtype = torch.complex64 if size["dtype"] == "float32" else torch.complex128
    multipliers = _tensor(inputs["multipliers"]).to(complex_dtype)
    modes = len(multipliers)
    drive, states0 = _tensor(inputs["drive"]), _tensor(inputs["states0"]).to(torch.float64)
    drive = torch.complex(drive[..., :modes], drive[..., modes:]).to(complex_dtype)
    state0 = torch.complex(states0[:, :modes], states0[:, modes:]).to(complex_dtype)

    @torch.no_grad()
    def call():
        states, state = [], state0
        for t in range(size["steps"]):
            state = multipliers * state + drive[:, t]
            states.append(state)
        stacked = torch.stack(states, 1)[:4]
        return _arrays(torch.cat([stacked.real, stacked.imag], -1))

    return call


def alrnn_training_step(size, inputs):
    n, steps, interval = size["state_size"], size["steps"], int(inputs["interval"])
    A, W, h, L = (_tensor(inputs[key], gradient=True) for key in ("A", "W", "h", "initial_weight"))
    x = _tensor(inputs["windows"])
    observed, linear = x.shape[-1], n - size["relu_size"]
    optimizer = torch.optim.Adam([A, W, h, L], lr=0.0)  # each call must start from the same weights

    def call():
        optimizer.zero_grad(set_to_none=True)
        state, outputs = torch.cat([x[:, 0], x[:, 0] @ L.T], 1), []
        for t in range(steps):
            active = torch.cat([state[:, :linear], torch.relu(state[:, linear:])], 1)
            state = A * state + active @ W.T + h
            outputs.append(state[:, :observed])
            if t % interval == 0:
                state = torch.cat([x[:, t + 1], state[:, observed:]], 1)
        ((torch.stack(outputs, 1) - x[:, 1:]) ** 2).mean().backward()
        optimizer.step()
        return _arrays(A.grad, W.grad, h.grad)

    return call


def jacobians(size, inputs):
    """`torch.func`: reverse mode, which is the faster of the two there, mapped over the batch."""
    W, U, b, inner = (_tensor(inputs[key]) for key in ("recurrent_weight", "input_weight", "bias", "bias_n"))
    states, driven = _tensor(inputs["states"]), _tensor(inputs["inputs"])

    def step(h, x):
        drive, own = (U @ x + b).chunk(3), (W @ h).chunk(3)
        r, z = torch.sigmoid(drive[0] + own[0]), torch.sigmoid(drive[1] + own[1])
        c = torch.tanh(drive[2] + r * (own[2] + inner))
        return (1 - z) * c + z * h

    jacobian = torch.func.vmap(torch.func.jacrev(step))

    @torch.no_grad()
    def call():
        return _arrays(jacobian(states, driven))

    return call


def representation_metric(size, inputs):
    """`torch.func`: forward mode through the simulation, the faster of the two there, mapped over the points."""
    if size["state_size"] > 256:
        raise NotImplementedError("the derivatives of all states at once are too large")
    names = ("recurrent_weight", "input_weight", "bias", "envelopes", "thetas")
    W, U, b, envelopes, thetas = (_tensor(inputs[name]) for name in names)

    def states(theta):
        inputs = envelopes.T @ torch.stack([torch.cos(theta), torch.sin(theta)], 1)
        state, found = torch.zeros_like(b), []
        for input in inputs:
            state = torch.tanh(W @ state + U @ input + b)
            found.append(state)
        return torch.stack(found)

    tangents = torch.func.vmap(torch.func.jacfwd(states))

    @torch.no_grad()
    def call():
        S = tangents(thetas)
        return _arrays(S.mT @ S)

    return call
