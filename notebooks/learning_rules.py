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
# # How learning rules learn
#
# A recurrent network can be trained by backpropagation through time (BPTT), which needs the whole past, or by *local*
# rules that a synapse could follow on its own. Do they learn the same things, equally fast, always?
#
# In linear networks this question has an exact answer. `dynwarp.learning` has it on four levels, from single sequences
# to three numbers per mode, and this notebook walks through them. With `DYNWARP_FAST=1` in the environment it runs in
# a smaller version.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

import dynwarp as dw

learning = dw.learning
fast = bool(os.environ.get("DYNWARP_FAST"))

# %% [markdown]
# ## One idea: a feedback, a propagator, a horizon
#
# Every rule sends the error $\varepsilon_t$ of the output into the network by a *feedback* $F$, carries it back in time
# by a *propagator* $Z$, and stops after some *horizon*: $g_t = F \varepsilon_t + Z g_{t+1}$. Then
# $\Delta W = \sum_t g_t h_{t-1}^\top$.
#
# | rule | $F$ | $Z$ |
# |---|---|---|
# | BPTT | $A^\top$ | $W^\top$ |
# | TBPTT(1) | $A^\top$ | none: one step |
# | RFLO | random $R^\top$ | a number, the decay |
# | e-prop | random $R^\top$ | the diagonal of $W$ |
#
# On a real sequence, a rule gives something in place of the gradient:

# %%
keys = jax.random.split(jax.random.key(0), 6)
net = dw.models.Elman(1, 8, key=keys[0])
readout = dw.models.Readout(8, 1, key=keys[1])
R = jax.random.normal(keys[2], (1, 8)) / 8**0.5
inputs, targets = jax.random.normal(keys[3], (30, 1)), jnp.ones((30, 1))

for name, rule in {"BPTT": learning.BPTT(), "RFLO": learning.RFLO(R, decay=0.5), "e-prop": learning.EProp(R)}.items():
    loss, (of_net, _) = rule.gradients(
        net, readout, inputs, targets, state0=jnp.zeros(8), loss=learning.half_squared_error
    )
    print(f"{name:7} loss {loss:.4f}   |gradient of W| {jnp.linalg.norm(of_net.recurrent_weight):.4f}")

# %% [markdown]
# ## Three numbers per mode
#
# Averaged over white noise, the update of a linear network that is aligned with its teacher splits into *modes*: an
# output strength $a$, an input strength $b$ and a multiplier $w$, learning from $(a^*, b^*, w^*)$. All rules have the
# same optima, the curve $(s, p/s, w^*)$ with $p = a^* b^*$. They differ in which of them are stable.

# %%
teacher = learning.Teacher(1.0, 1.0, 0.6)
for s in (-2.0, -0.5, 0.5, 2.0):
    kinds = [
        learning.stability(rule, teacher, s).kind
        for rule in (learning.BPTT(), learning.RFLO(1.0, decay=0.5), learning.EProp(1.0))
    ]
    print(f"s = {s:4}:  BPTT {kinds[0]},  RFLO {kinds[1]},  e-prop {kinds[2]}")

# %% [markdown]
# For a fixed feedback $R$ the sign decides: where $R s > 0$ the optimum is stable. That the other branch is unstable
# is almost true: RFLO has a small *stable pocket* there.

# %%
grid_s, grid_r = jnp.linspace(-3.0, -1.5, 121), jnp.linspace(0.0, 0.12, 121)
found = learning.stability_map(lambda r: learning.RFLO(r, decay=0.0), learning.Teacher(0.5, 1.0, 0.9), grid_s, grid_r)
_ = dw.plot.stability_map(found, grid_s, grid_r, label="feedback R")
# %%
pocket = learning.stable_pocket(learning.RFLO(1.0, decay=0.0), learning.Teacher(0.5, 1.0, 0.9), -2.0)
print(f"at s = -2 the wrong sign is stable for {pocket.lower:.5f} < R < {pocket.upper:.5f}")

# %% [markdown]
# ## A detour
#
# A student at $(1, 1, 0.6)$ learns from a teacher $(1, 1, 0.8)$ that is quite close. With $R = -0.5$, RFLO cannot stay
# on its branch: it unlearns the memory ($w$ falls below zero), turns the sign of its readout, and learns again.

# %%
teacher = learning.Teacher(1.0, 1.0, 0.8)
starts = jnp.array([[1.0, 1.0, 0.6], [1.0, 1.0, 0.6]])
run = learning.integrate_modes(
    learning.RFLO(jnp.array([0.5, -0.5]), decay=0.5), teacher, starts, jnp.linspace(0.0, 7.0, 200)
)
_ = dw.plot.mode_paths({"R = 0.5": run.values[0], "R = -0.5": run.values[1]}, teacher)
print("ends at", run.values[:, -1].round(4).tolist())

# %% [markdown]
# ## Not every start converges
#
# From many random starts BPTT always arrives. RFLO can drive $|w|$ to 1 in finite time, where the network stops being
# stable; such lanes end with the code `wall`, they are no errors.

# %%
number = 512 if fast else 10_000
box = jnp.asarray(np.random.default_rng(0).uniform([-2, -2, -0.95], [2, 2, 0.95], (number, 3)))
for name, rule in {"BPTT": learning.BPTT(), "RFLO": learning.RFLO(1.0, decay=0.5)}.items():
    ends = learning.find_landings(rule, teacher, box)
    converged, wall = (np.mean(np.asarray(ends.result == code)) for code in (dw.RESULTS.successful, dw.RESULTS.wall))
    print(f"{name}: converged {converged:.3f}, wall {wall:.3f}")

# %% [markdown]
# ## Speed
#
# How fast an optimum is approached depends on where on the curve it is. RFLO beats BPTT where $s$ is below about $R$.

# %%
teacher = learning.Teacher(1.0, 1.0, 0.6)
s = jnp.geomspace(0.05, 20.0, 200)
rules = {
    "BPTT": learning.BPTT(),
    "TBPTT(1)": learning.TBPTT(1),
    "RFLO": learning.RFLO(1.0, decay=0.5),
    "e-prop": learning.EProp(1.0),
}
_ = dw.plot.convergence_rates(s, {name: learning.stability(rule, teacher, s).rate for name, rule in rules.items()})
print("equal speed at s =", learning.speed_crossings(rules["RFLO"], learning.BPTT(), teacher).round(5))

# %% [markdown]
# ## Whole networks, without alignment
#
# `expected_update` is the exact expectation of a rule's update for any linear student and teacher, and
# `train_on_expectation` a whole training run on it, free of sampling noise. Twenty units, one output:


# %%
def network(key, n, scale):
    of_w, of_b, of_a = jax.random.split(key, 3)
    draw = jax.random.normal
    return dw.models.LinearRNN(scale * draw(of_w, (n, n)), scale * draw(of_b, (n, 1)), scale * draw(of_a, (1, n)))


student = network(keys[4], 20, 0.1)
modes = jnp.diag(jnp.array([0.8, 0.6, 0.4, 0.2]))
of_b, of_a = jax.random.split(keys[5])
big = dw.models.LinearRNN(modes, jax.random.normal(of_b, (4, 1)), jax.random.normal(of_a, (1, 4)))
R = jax.random.normal(keys[2], (1, 20)) / 20**0.5
rules = {
    "BPTT": learning.BPTT(),
    "TBPTT(1)": learning.TBPTT(1),
    "RFLO": learning.RFLO(R, decay=0.5),
    "e-prop": learning.EProp(R),
}
steps, eta = (400 if fast else 4_000), 0.01
sgd, losses, profiles = optax.sgd(eta), {}, {}
for name, rule in rules.items():
    run = learning.train_on_expectation(
        rule, student, big, steps=steps, optimizer=sgd, horizon=30, record_every=steps // 40
    )
    losses[name], profiles[name] = run.losses, learning.rank_profile(student, run.student)
_ = dw.plot.learning_curves(eta * np.arange(41) * (steps // 40), losses)
# %% [markdown]
# All of them learn, but not the same thing. What RFLO writes into $W$ has as many directions as there are outputs, here
# one; e-prop writes few that matter; BPTT many.

# %%
_ = dw.plot.singular_values(profiles)
for name, profile in profiles.items():
    print(f"{name:9} effective rank {profile.effective_rank:.3f}")

# %% [markdown]
# The bound is exact for gradient descent, and an optimiser that scales entries one by one breaks it:

# %%
run = learning.train_on_expectation(
    rules["RFLO"], student, big, steps=400, optimizer=optax.adam(1e-3), horizon=30, record_every=400
)
print("RFLO with Adam: rank", int(learning.rank_profile(student, run.student).rank()))

# %% [markdown]
# ## Your own rule
#
# Any feedback and any propagator make a rule, and all of the above works for it. `homotopy` leads from BPTT to RFLO,
# and results are differentiable along the way:


# %%
def rate(decay):
    return learning.stability(learning.RFLO(1.0, decay), learning.Teacher(1.0, 1.0, 0.6), 1.0).rate


print("d rate / d decay =", jax.grad(rate)(0.5))
mine = learning.Rule(None, lambda W: 0.9 * W.T)
print("mine at s = 1:", learning.stability(mine, learning.Teacher(1.0, 1.0, 0.6), 1.0).kind)

# %% [markdown]
# `dynwarp reproduce learning` runs the whole study: every claim against what was computed, with its verdict.
