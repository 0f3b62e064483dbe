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
# # How a network warps its inputs
#
# Show a network two numbers, and its state after some time is a function of both: a curved sheet in the space of its
# units. Where the sheet is wide, neighbouring inputs are told apart; where it is narrow, they are treated alike. As the
# network computes, the sheet is stretched here and squeezed there. That is *dynamic warping*, and it can be measured
# exactly: by a metric, the mathematics of map makers.
#
# With `DYNWARP_FAST=1` in the environment this notebook runs in a smaller version.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from IPython.display import HTML, display

jax.config.update("jax_enable_x64", True)

import dynwarp as dw

g = dw.geometry
fast = bool(os.environ.get("DYNWARP_FAST"))

# %% [markdown]
# ## A manifold of inputs
#
# The task: two streams of evidence, each between -0.2 and 0.2, and a context that names the one that matters. At the
# end the network is to tell its sign. In one context a trial is a point $(e_1, e_2)$ of a square: the square is a
# *manifold of inputs*, each point of which is a whole sequence in time. Here the context names $e_1$, so that $e_1$ is
# relevant and $e_2$ is not.

# %%
task = dw.tasks.ContextualIntegration(dt=0.5, limit=0.2)
points = task.grid(9 if fast else 13)
print("points", points.shape, " one trial", task(points[0, 0]).shape, " coordinates within", task.bounds)

# %% [markdown]
# ## A network that learned to decide


# %%
def network(key):
    return dw.models.LeakyRNN(4, units, dt=task.dt, recurrent_init=dw.models.GaussianInit(0.8), key=key)


units = 24 if fast else 64
keys = jax.random.split(jax.random.key(0), 4)
optimizer = optax.adam(5e-3 if fast else 2e-3)
settings = {"steps": 150 if fast else 2000, "batch_size": 64, "optimizer": optimizer, "key": keys[2]}
untrained, first_readout = network(keys[0]), dw.models.Readout(units, 1, key=keys[1])
fitted = dw.training.fit(untrained, task, readout=first_readout, **settings)
net, readout = fitted.model, fitted.reconstruction.readout
print(f"loss {fitted.history.loss[0]:.3f} -> {np.mean(fitted.history.loss[-20:]):.4f}, chance {task.chance_level:.3f}")

# %% [markdown]
# ## The metric over time
#
# Let $x_t(e_1, e_2)$ be the state after t steps. Move the evidence a little, by $de$, and the state moves by a length
# whose square is $\sum_{ij} G_{ij} de_i de_j$, with
#
# $$G_{ij}(t) = \partial_i x_t \cdot \partial_j x_t .$$
#
# $\sqrt{G_{11}}$ is the stretch along $e_1$; $G_{12}$ tells how much the two are mixed up. One call gives it for all
# points and all times, from the states and their derivatives stepped together.

# %%
start = jnp.zeros(units)
before = g.representation_metric(untrained, task, points, state0=start)
metric = g.representation_metric(net, task, points, state0=start)
times = task.dt * np.arange(1, task.steps + 1)
print("G", metric.G.shape)

# %% [markdown]
# Before training both streams are stretched alike. Afterwards the one that matters is stretched a hundred times more at
# some points, and hardly at others, and the one that does not is left behind. The bands are the points of the square,
# from the 5th to the 95th percentile.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for ax, found, title in zip(axes, (before, metric), ("untrained", "trained")):
    curves = {"relevant, $G_{11}$": found.G[..., 0, 0], "irrelevant, $G_{22}$": found.G[..., 1, 1]}
    dw.plot.timeline(times, curves, logarithmic=True, label="stretch squared", ax=ax)
    ax.set_title(title)

# %% [markdown]
# ## Stretched where it matters
#
# Where are those points? *Tissot's ellipses*, which map makers draw to show what a projection does to small circles,
# tell. An ellipse is long in the direction in which the states move far.

# %%
shown = [round(task.steps * share) - 1 for share in (0.2, 0.5, 1.0)]
figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), layout="constrained")
for ax, below, step in zip(*axes, shown):
    dw.plot.tissot(metric.G[:, :, step], points, power=0.25, ax=ax)
    dw.plot.warped_grid(metric.G[:, :, step], points, ax=below)
    ax.set_title(f"t = {times[step]:g}")

# %% [markdown]
# Above, the fourth root of G, since the stretches range over decades; below, the grid of the inputs drawn at the
# lengths of its own lines. Around $e_1 = 0$, where the decision falls, the sheet is drawn apart, and its ends are
# pressed together: 0.1 and 0.2 are the same answer. As an animation:

# %%
frames = np.arange(1, task.steps, 5 if fast else 2)
film = dw.plot.animation(
    metric.G[:, :, frames], points, power=0.25, times=times[frames], ax=plt.figure(figsize=(3, 3), dpi=60).gca()
)
display(HTML(film.to_jshtml(fps=5)))
plt.close()

# %% [markdown]
# In numbers: how much more the relevant stream is stretched in the mean, and how much more at the boundary than
# elsewhere. The *index* is 0 for a network that only magnifies the square.

# %%
boundary = jnp.abs(points[..., 0]) < 0.03
for name, found in (("untrained", before), ("trained", metric)):
    measure = g.warping(found.G, relevant=[0], boundary=boundary)
    print(
        f"{name:9} at the end: relevant / irrelevant {measure.relevance_ratio[-1]:7.2f}, "
        f"boundary / elsewhere {measure.boundary_stretch[-1]:7.2f}, index {measure.index[-1]:.2f}"
    )

# %% [markdown]
# ## Curvature and geodesics
#
# A metric says more than lengths. The Gaussian curvature of the sheet tells whether it can be flattened without
# stretching; it follows from two derivatives of the states. The shortest way from one input to another, a *geodesic*,
# is not the straight line of inputs: it crosses the boundary where that is cheap.

# %%
moment = shown[1]
surface = g.state_manifold(net, task, state0=start, step=moment)
curvature = jax.jit(jax.vmap(jax.vmap(surface.gaussian_curvature)))(points)

sheet = g.Metric(surface.metric, dim=2, bounds=surface.bounds).surrogate(8 if fast else 16)
pairs = jnp.array([[[-0.15, -0.15], [0.15, 0.15]], [[-0.15, 0.15], [0.15, 0.05]], [[0.08, -0.18], [0.18, 0.15]]])
ways = jnp.stack([sheet.geodesic(*pair, 40, nodes=16) for pair in pairs])

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
dw.plot.curvature_map(curvature, points, ax=axes[0])
lines = dw.plot.geodesics(ways, ax=axes[1])

# %% [markdown]
# The picture depends on the coordinates, the lengths do not. From one end to the other:


# %%
def length(way):
    """The length of a broken line of inputs, in the space of states."""
    states = jax.vmap(surface.fn)(way)
    return jnp.sum(jnp.linalg.norm(jnp.diff(states, axis=0), axis=1))


straight = jax.vmap(lambda pair: jnp.linspace(*pair, 40))(pairs)
for name, kind in (("straight", straight), ("geodesic", ways)):
    print(f"{name}: " + ", ".join(f"{x:.4f}" for x in jax.jit(jax.vmap(length))(kind)))

# %% [markdown]
# ## What the readout sees
#
# The answer is one number, $y = C x$. It has a metric as well, $\partial_i y \cdot \partial_j y$. The two are not the
# same: the states may be stretched in directions that the readout never sees.

# %%
seen = g.representation_metric(net, task, points, state0=start, readout=readout)
aligned = g.decoder_alignment(metric.states, metric.tangents, readout)
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained")
curves = {
    "states": g.warping(metric.G, relevant=[0]).relevance_ratio,
    "outputs": jnp.mean(seen.G[..., 0, 0], (0, 1)) / jnp.mean(seen.G[..., 1, 1], (0, 1)),
}
dw.plot.timeline(times, curves, logarithmic=True, label="relevant / irrelevant", ax=axes[0])
curves = {"relevant": aligned.norm[..., 0], "irrelevant": aligned.norm[..., 1]}
angles = dw.plot.timeline(times, curves, label="|cosine| to the readout", ax=axes[1])

# %% [markdown]
# ## A network that must not warp
#
# Is the warping of the states needed? We forbid it, and train again. A *metric penalty* holds the whole tensor at the
# same multiple of the identity at all points, at several times: a similarity, with no stretch anywhere beyond a common
# one. The sheet must stay a square.

# %%
penalty = g.MetricPenalty(task, task.grid(4 if fast else 6), target="rigid", at=shown, strength=1.0)
held = dw.training.fit(untrained, task, readout=first_readout, penalty=penalty, **settings)
kept, kept_readout = held.model, held.reconstruction.readout


def report(name, model, out):
    held_out = task.batch(keys[3], 200)
    outputs = jax.vmap(lambda x: jax.vmap(out)(dw.simulate(model, start, x)))(held_out.inputs)
    loss = task.loss(outputs, held_out.targets, held_out.mask)
    here = g.representation_metric(model, task, points, state0=start)
    there = g.representation_metric(model, task, points, state0=start, readout=out)
    states = g.warping(here.G, relevant=[0], boundary=boundary)
    outer = g.warping(there.G, relevant=[0], boundary=boundary)
    print(
        f"{name:9} loss {loss:.4f} | states: index {states.index[-1]:5.2f}, "
        f"boundary / elsewhere {states.boundary_stretch[-1]:8.2f} | outputs: {outer.boundary_stretch[-1]:8.2f}"
    )
    return here


_ = report("free", net, readout)
rigid = report("forbidden", kept, kept_readout)

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for ax, found, title in zip(axes, (metric, rigid), ("free", "not to warp")):
    dw.plot.warped_grid(found.G[:, :, -1], points, ax=ax)
    ax.set_title(title)

# %% [markdown]
# Compare the two lines above. The task is learned almost as well, with a sheet that stays close to a square. What has
# to warp for a decision is the metric of the *outputs*. That of the states is freer than it seems, since a sheet of two
# dimensions can be bent in a space of many without being stretched, and a readout looks at it from one side only. How
# far this goes, over seeds, tasks and noise, is what the `warping` study looks at. The mathematics, and the limits of
# each function, are on the page on geometry of the documentation.
