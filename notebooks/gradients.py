# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How far gradients travel
#
# A recurrent network learns from its past by sending errors back through time, step by step. On the way they shrink or
# grow, and a network whose errors do not arrive cannot learn what it should remember.
#
# Much that is said about this is almost right. This notebook computes what is exactly right, from one network's
# gradients to what a reservoir can remember. With `DYNWARP_FAST=1` in the environment it runs in a smaller version.

# %%
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

import dynwarp as dw

gr = dw.gradients
fast = bool(os.environ.get("DYNWARP_FAST"))

# %% [markdown]
# ## Vanishing and exploding, seen
#
# The state h follows $h_t = \tanh(W h_{t-1} + U x_t)$. A loss at the end sends back $\partial L / \partial h_{t-l}$,
# the product of the transposed Jacobians of the last $l$ steps. We take the same network with three sizes of W.

# %%
n, steps = 24, 60
keys = jax.random.split(jax.random.key(0), 8)
inputs, targets = 0.3 * jax.random.normal(keys[0], (steps, 2)), jnp.ones((steps, 1))
readout = dw.models.Readout(n, 1, key=keys[1])
last = jnp.arange(steps) == steps - 1


def network(gain):
    return dw.models.Elman(2, n, recurrent_init=dw.models.GaussianInit(gain), key=keys[2])


profiles = {
    f"gain {gain}": gr.gradient_profile(network(gain), readout, inputs, targets, mask=last, lags=50)
    for gain in (0.5, 1.0, 3.0)
}
_ = dw.plot.gradient_profile(profiles)
# %%
for name, profile in profiles.items():
    print(f"{name}: {profile.decay:+.3f} nats a step")

# %% [markdown]
# ## What a norm can promise
#
# The norm of a product is at most the product of the norms. So a largest singular value below 1 is *sufficient* for
# vanishing. Above 1 it is only *necessary* for exploding, and proves nothing. The plainest counterexample:

# %%
nilpotent = dw.models.LinearRNN(jnp.array([[0.0, 5.0], [0.0, 0.0]]), jnp.zeros((2, 1)), jnp.eye(2))
report = gr.bound_report(nilpotent, jnp.zeros((3, 2)), gamma=1.0)
print("exploding possible:", bool(report.exploding_possible), "  norms:", jnp.exp(report.log_norms).tolist())

# %% [markdown]
# A random matrix of gain 0.9 is less extreme: its largest singular value is near 1.8, its spectral radius below 1. The
# norm of its powers first rises, then falls, while the bound explodes.

# %%
size = 40 if fast else 100
W = dw.models.GaussianInit(0.9)(keys[3], (size, size))
linear = dw.models.LinearRNN(W, jnp.zeros((size, 1)), jnp.eye(size))
report = gr.bound_report(linear, jnp.zeros((80, size)), gamma=1.0)
_ = dw.plot.gradient_bounds(report)
# %%
print(f"sigma_max {report.sigma_max[0]:.2f}, spectral radius {report.spectral_radius[0]:.2f}")

# %% [markdown]
# Does the spectral radius decide, then? Not when W changes from step to step, as the Jacobian of every nonlinear
# network does. Two steps whose eigenvalues are all zero make a product that doubles at each step:

# %%
up, down = np.array([[0.0, 2.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [2.0, 0.0]])
print(np.linalg.matrix_power(down @ up, 5))

# %% [markdown]
# ## The right number: Lyapunov exponents
#
# What decides is the growth rate of the *ordered product*. For large random networks theory gives it in closed form:

# %%
gains = (0.8, 1.5, 2.0, 3.0)
units = 100 if fast else 400
found = []
for gain in gains:
    net = dw.models.Elman(0, units, form="pre", use_bias=False, key=keys[4])
    W = dw.models.GaussianInit(gain)(keys[4], (units, units))
    net = eqx.tree_at(lambda m: m.recurrent_weight, net, W)
    start = jax.random.normal(keys[5], (units,))
    spectrum = dw.dynamics.lyapunov_spectrum(net, start, steps=200 if fast else 600, transient=200, k=1)
    found.append(float(spectrum.exponents[0]))
fine = jnp.linspace(0.7, 3.2, 100)
ax = plt.subplots(figsize=(5, 3.4), layout="constrained")[1]
ax.plot(fine, dw.dynamics.mean_field_tanh(fine).exponent, color="#999999", label="mean field")
ax.plot(gains, found, "o", label=f"{units} units")
ax.axhline(0, lw=0.5, color="black")
ax.set_xlabel("gain")
ax.set_ylabel("largest exponent")
_ = ax.legend(frameon=False)

# %% [markdown]
# Exponents are differentiable, so they can be moved. *Gradient flossing* holds some of them at zero:

# %%
before = network(0.5)
floss = eqx.filter_jit(eqx.filter_value_and_grad(lambda net: gr.flossing_loss(net, inputs, k=4)))
after, optimizer = before, optax.adam(1e-2)
state = optimizer.init(eqx.filter(after, eqx.is_inexact_array))
for _ in range(60 if fast else 150):
    cost, slope = floss(after)
    with jax.numpy_dtype_promotion("standard"):
        update, state = optimizer.update(slope, state)
    after = eqx.apply_updates(after, update)
flossed = {
    name: gr.gradient_profile(net, readout, inputs, targets, mask=last, lags=50)
    for name, net in (("before", before), ("after flossing", after))
}
_ = dw.plot.gradient_profile(flossed)

# %% [markdown]
# ## Nothing vanishes, and learning is still hard
#
# Take a single linear unit, $h_{t+1} = \lambda h_t + x_t$ with $|\lambda| < 1$. The longer its memory, the more
# violently h reacts to a change of $\lambda$: the *curse of memory*. Normalising h and writing $\lambda = \tanh \nu$
# takes it away.

# %%
memory = np.geomspace(2.0, 1e4, 40)
lam = jnp.asarray(1 - 1 / memory)
curves = {
    "lam, white input": gr.signal_moments(lam, 0.0)[1],
    "lam, slow input": gr.signal_moments(lam, 0.9)[1],
    "normalised, tanh": gr.parameter_sensitivity(lam, parametrisation="tanh", normalisation="l2")[0],
    "normalised, exp(-exp)": gr.parameter_sensitivity(lam, parametrisation="exp", normalisation="l2")[0],
}
_ = dw.plot.sensitivities(memory, curves, label="mean square sensitivity")

# %% [markdown]
# ## How far back can be learned?
#
# The *envelope* says how much the units still feel of what happened l steps ago. With heavy-tailed gradient noise of
# tail index $\alpha$, a dependence at lag l needs $N(l) \propto f(l)^{-\alpha/(\alpha-1)}$ samples. The usual
# first-order formula decays faster than the truth:

# %%
gated = dw.models.GatedLeak(2, n, gate="diagonal", leak=0.05, key=keys[6])
sequence = jax.random.normal(keys[7], (160, 2))
lags = (4, 8, 16, 24, 32)
both = {kind: gr.envelope(gated, sequence, lags, kind=kind) for kind in ("exact", "diagonal")}
_ = dw.plot.envelopes(lags, {kind: e.values for kind, e in both.items()})
# %%
for kind, e in both.items():
    law = gr.fit_regime(e)
    window = law.windows(alpha=1.8, scale=1.0, n_samples=1e4)[0]
    print(f"{kind:9} time constant {law.time_constant:5.1f} steps, window of 10000 samples {window:5.0f} steps")

# %% [markdown]
# ## Chaos makes a cost rough
#
# A network of two LSTM units without any input can be chaotic. Over the scale of its weights it goes through windows of
# periodic and chaotic orbits, and wherever it is chaotic a cost over T steps is as rough as exp(exponent x T).

# %%
weights = jnp.array([[-1, -4], [-3, -2], [-2, 6], [0, -6], [-1, -6], [6, -9], [4, 1], [-9, -7]], float)
cell = dw.models.LSTM(0, 2, use_bias=False, key=keys[0])


@eqx.filter_jit
def visited(scale):
    net = eqx.tree_at(lambda m: m.recurrent_weight, cell, scale * weights)
    start = jnp.full(4, 0.5)
    orbit = dw.simulate(net, start, steps=300)[200:, 0]
    return orbit, dw.dynamics.lyapunov_spectrum(net, start, steps=1000, transient=200, k=1, throw=False).exponents


scales = jnp.linspace(0.5, 2.0, 60 if fast else 400)
orbits, exponents = jax.vmap(visited)(scales)
_ = dw.plot.bifurcation_diagram(scales, orbits, exponents=exponents, parameter="scale of the weights")

# %% [markdown]
# ## Remembering without learning
#
# A reservoir is never trained inside; a linear readout takes from its states what it can. A linear reservoir of N units
# remembers N inputs, all in all. Saturating units pay for their nonlinearity with memory.

# %%
capacities = {}
for scale in (0.01, 0.1, 1.0):
    reservoir = dw.models.EchoStateNetwork(
        1, 50, spectral_radius=0.9, input_scaling=scale, bias_scaling=0.0, topology="dense", key=keys[1]
    )
    capacities[f"input scale {scale}"] = gr.memory_capacity(reservoir, 80, steps=2_000 if fast else 8_000)
_ = dw.plot.memory_capacities(capacities)
# %%
for name, capacity in capacities.items():
    print(f"{name}: {capacity.total:.1f}")

# %% [markdown]
# ## One call for your own network
#
# `diagnose` does most of this at once, and tells for each verdict the inequality that made it.

# %%
print(gr.diagnose(network(3.0), readout, inputs, targets).to_markdown())

# %% [markdown]
# `dynwarp reproduce gradients` runs the whole study: every claim against what was computed, with its verdict.
