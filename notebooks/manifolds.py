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
# # What separates two decisions? Invariant manifolds, exactly
#
# A network that settles in one of two states must have a border between the states that go to the one and those that
# go to the other. That border is not arbitrary: as a rule it is the *stable manifold* of a saddle, all the states that
# end on the saddle itself. And where a saddle's *unstable* manifold crosses its own stable one, there is chaos.
#
# In a network of ReLUs every piece of these manifolds is flat, a segment or a polyhedron, so that they can be computed
# exactly. This notebook shows how. With `DYNWARP_FAST=1` in the environment it runs in a smaller version.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt

import dynwarp as dw

pw = dw.piecewise
fast = bool(os.environ.get("DYNWARP_FAST"))

# %% [markdown]
# ## A map of two pieces
#
# On the left of a line the map is one linear map, on the right another. First: all its cycles up to period 6, with a
# proof that there are no others.

# %%
f = dw.systems.BorderCollisionMap.preset("fig3b_left")
cycles = pw.find_cycles(f, 6, key=jax.random.key(0))
for cycle in cycles:
    print(f"period {cycle.period}: {cycle.kind:7} multipliers {np.abs(cycle.multipliers).round(4)}")
print("complete:", all(cycles.complete.values()))

# %% [markdown]
# A stable fixed point, and a saddle of period 3. The saddle's stable manifold (blue) is traced backwards from the
# three points. Behind it, the basins as a plain simulation finds them: grey goes to infinity.

# %%
saddle, sink = cycles.of_period(3)[0], cycles.of_period(1)[0]
stable = pw.trace_manifold(f, saddle, kind="stable", iterations=20, box=(-12, 12))
unstable = pw.trace_manifold(f, saddle, kind="unstable", iterations=12, box=(-12, 12))

n = 60 if fast else 200
grid = jnp.linspace(-6, 6, n)
states = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
labels = pw.basin_of(f, states, sink).reshape(n, n)

figure, ax = plt.subplots(figsize=(5, 4.4))
dw.plot.basins(labels, grid, grid, names={-1: "infinity", 0: "fixed point"}, ax=ax)
dw.plot.manifold(stable, ax=ax)
dw.plot.manifold(unstable, ax=ax)
dw.plot.cycles(cycles, ax=ax)
_ = ax.set(xlim=(-6, 6), ylim=(-6, 6))

# %% [markdown]
# That the two agree can be tested, not only seen. Take pairs of states: they lie in different basins exactly if the
# segment between them crosses the manifold an odd number of times.

# %%
pairs = jax.random.uniform(jax.random.key(1), (200 if fast else 2_000, 2, 2), minval=-6.0, maxval=6.0)
parity = pw.basin_parity(f, saddle, pairs, sink, iterations=50)
print(f"agreement {parity.agreement}, boundary points at most {parity.distance.max():.0e} from the manifold")
print("Delta_sigma =", pw.manifold_quality(f, stable, box=(-6, 6), key=jax.random.key(2), n=200))

# %% [markdown]
# ## Chaos from one point
#
# Another setting of the same map. Where the orange line meets the blue segment around the saddle, a *homoclinic point*
# lies: an orbit that leaves the saddle and comes back to it. If the crossing is transversal, the theorem of Smale and
# Birkhoff gives chaos.

# %%
g = dw.systems.BorderCollisionMap.preset("fig5")
(fixed_point,) = pw.find_cycles(g, 1, key=jax.random.key(0))
homoclinic = pw.homoclinic_points(g, fixed_point, iterations=4)
print(homoclinic.verdict)
print("the first one:", homoclinic.points[0])

figure, ax = plt.subplots(figsize=(5, 4))
dw.plot.manifold(pw.trace_manifold(g, fixed_point, kind="unstable", iterations=9), ax=ax)
dw.plot.manifold(pw.trace_manifold(g, fixed_point, iterations=0), ax=ax)
_ = ax.plot(*homoclinic.points.T, "k*")

# %% [markdown]
# ## A trained network
#
# The Duffing oscillator is a particle in a double well with friction. A shallow PLRNN with two states and ten ReLUs
# learns it from orbits.

# %%
field, dt = dw.systems.Duffing(), 0.1
starts = jax.random.uniform(jax.random.key(0), (60, 2), minval=jnp.array([-5.0, -4.0]), maxval=jnp.array([5.0, 4.0]))
orbits = np.stack([dw.simulate(field, z, steps=650, dt=dt / 5)[4::5] for z in starts])
orbits = (orbits - orbits.mean((0, 1))) / orbits.std((0, 1))

model = dw.models.ShallowPLRNN(2, 10, key=jax.random.key(0))
fitted = dw.training.fit(
    model,
    list(orbits),
    steps=1_500 if fast else 6_000,
    sequence_length=60,
    forcing=dw.training.SparseTeacherForcing(15),
    key=jax.random.key(1),
)
network = fitted.model
found = pw.find_cycles(network, 1, key=jax.random.key(0))
print("fixed points, all of them:", [cycle.kind for cycle in found])

# %% [markdown]
# Two wells and a saddle between them. Its stable manifold winds between the basins.

# %%
saddles = [cycle for cycle in found if cycle.kind == "saddle"]
wells = [cycle for cycle in found if cycle.kind == "stable"]
grid = jnp.linspace(-3, 3, n)
states = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
labels = pw.basin_of(network, states, wells).reshape(n, n)

figure, ax = plt.subplots(figsize=(5, 4.4))
dw.plot.basins(labels, grid, grid, ax=ax)
for cycle in saddles:
    dw.plot.manifold(pw.trace_manifold(network, cycle, iterations=60, box=(-6, 6)), ax=ax)
    dw.plot.manifold(pw.trace_manifold(network, cycle, kind="unstable", iterations=60, box=(-6, 6)), ax=ax)
dw.plot.cycles(found, ax=ax)
_ = ax.set(xlim=(-3, 3), ylim=(-3, 3), xlabel="position", ylabel="velocity")

# %% [markdown]
# ## Any dimension, without the pieces
#
# In 15 dimensions the boundary is 14-dimensional and has too many pieces to list. How far an attractor is from it
# needs none of them: a ray is mapped forward exactly, until its image crosses the local manifold.

# %%
hits = pw.shoot_ray(network, saddles[0], wells[0].points[0], jnp.array([1.0, 0.3]), iterations=100)
print("the ray crosses the boundary at t =", hits.t.round(4).tolist())

# %% [markdown]
# ## Everything is differentiable
#
# A cycle of a given itinerary, its multipliers, the vertices of its manifold are smooth functions of the network. So
# they can stand in a loss: here, how the saddle's unstable multiplier changes with the biases of the map.


# %%
def unstable_multiplier(network):
    return jnp.max(jnp.abs(pw.cycle_at(network, saddles[0].itinerary).multipliers))


gradient = jax.grad(lambda h: unstable_multiplier(dw.models.PiecewiseLinearMap(*h)))(
    tuple(getattr(network.canonical(), name) for name in ("A", "W1", "W2", "h1", "h2"))
)
print("multiplier", unstable_multiplier(network).round(4), " d/dA =", gradient[0].round(3).tolist())

# %% [markdown]
# `dynwarp reproduce manifolds` runs the whole study, with networks of up to 25 states; `dynwarp analyze MODEL` does all
# of this for a model of yours.
