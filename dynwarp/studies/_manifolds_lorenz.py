"""The manifolds study on Lorenz's system: the network's manifolds beside those of the differential equation."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import dynamics, piecewise, plot
from dynwarp._simulate import simulate
from dynwarp.models import AbstractField
from dynwarp.studies import _manifolds_networks as networks
from dynwarp.studies._manifolds_maps import judge, quality
from dynwarp.studies._manifolds_trained import not_reached
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure
from dynwarp.systems import Lorenz63

# In standard deviations; the origin lies at -2.8 on the third axis.
_BOX = 3.2


class ArcLength(AbstractField):
    """Lorenz's equation in units of `scale`, followed with speed 1, backwards in time if `direction` is -1."""

    field: AbstractField
    scale: jax.Array
    direction: float
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, field, scale, direction: float):
        self.field, self.scale, self.direction = field, jnp.asarray(scale), direction
        self.state_size, self.input_size = field.state_size, 0

    def __call__(self, t, state, input=None):
        velocity = self.direction * self.field(t, state * self.scale) / self.scale
        return velocity / (1e-30 + jnp.linalg.norm(velocity))


def ode_manifolds(recording: networks.Recording, *, length: float, dt: float = 0.01):
    """Points of W^s, `(starts, T, 3)`, and W^u, `(2, T, 3)`, of the origin of Lorenz's equation, standardised."""
    field, scale = Lorenz63(), recording.scale
    values, vectors = np.linalg.eig(np.asarray(jax.jacfwd(lambda z: field(jnp.zeros(()), z))(jnp.zeros(3))))
    fast, slow, unstable = (vectors[:, i].real / scale for i in np.argsort(values.real))
    # Backwards the fast direction outgrows the slow one by e^{20 t}: offsets from the slow one over many decades.
    offsets = np.geomspace(1e-14, 1e-2, 25)
    offsets = np.concatenate([-offsets[::-1], [0.0], offsets])
    around = np.concatenate([offsets[:, None] * fast + sign * 0.02 * slow / np.linalg.norm(slow) for sign in (1, -1)])
    ends = 1e-3 * np.outer([1.0, -1.0], unstable / np.linalg.norm(unstable))
    steps = int(length / dt)

    def follow(direction, points):
        along = ArcLength(field, scale, direction)
        found = jax.vmap(lambda z: simulate(along, z, steps=steps, dt=dt))(jnp.asarray(points))
        return np.asarray(found) - recording.mean / scale

    return follow(-1.0, around), follow(1.0, ends)


def lorenz(config) -> Part:
    """Figure 4C: chaos, the saddle at the origin, and the equation itself."""
    title, claim = "Lorenz-63", "Delta_sigma of a shallow PLRNN (M = 3, H = 20) trained on Lorenz-63"
    recording = networks.lorenz(config.seed)
    origin = -recording.mean / recording.scale

    def wanted(cycles, recording):
        near = [
            c for c in networks.thresholds(cycles, recording) if np.linalg.norm(np.asarray(c.points)[0] - origin) < 0.4
        ]
        return near[0] if near else None

    trained = networks.train(
        networks.shallow(3, 20), recording, wanted, seed=config.seed + 2, steps=config.lorenz_steps,
        tries=config.tries, sequence_length=50, noise=0.02,
    )  # fmt: skip
    if trained.saddle is None:
        missing = not_reached(trained, "a saddle near the origin")
        return Part(title, "", (Claim(claim, ".78", missing, "not reached"),), {"loss": trained.loss})
    f, saddle = trained.map, trained.saddle
    room = (np.full(3, -_BOX - 1), np.full(3, _BOX + 1))
    manifold = piecewise.trace_manifold(f, saddle, iterations=config.lorenz_iterations, box=room)
    box = (np.full(3, -_BOX), np.full(3, _BOX))
    found = quality(f, manifold, config, box)
    unstable = piecewise.trace_manifold(f, saddle, kind="unstable", iterations=60, max_length=40.0)
    stable_ode, unstable_ode = ode_manifolds(recording, length=5.0)
    inside = stable_ode[:, 10:].reshape(-1, 3)
    inside = inside[np.all(np.abs(inside) < _BOX, axis=1)]
    draw = np.random.default_rng(config.seed)
    some = inside[draw.integers(len(inside), size=config.samples)]
    gap = np.asarray(manifold.distance(some))
    chance = np.asarray(manifold.distance(draw.uniform(-_BOX, _BOX, (config.samples, 3))))
    first = np.concatenate(unstable.vertices)
    first = first[np.linalg.norm(first - np.asarray(saddle.points)[0], axis=1) < 2.0]
    apart = np.linalg.norm(first[:, None] - unstable_ode.reshape(-1, 3)[None], axis=2).min(axis=1)

    start = trained.reconstruction.encode(jnp.asarray(recording.values[0][0]))
    visited = visited_regions(f, start, config.saturation_steps)
    regions = len(piecewise.enumerate_regions(f))
    steps = min(config.lyapunov_steps, 20_000)
    spectrum = dynamics.lyapunov_spectrum(f, start, steps=steps, transient=500, throw=False)
    largest = float(np.asarray(spectrum.exponents)[0]) / recording.dt
    growth = np.log(np.abs(np.asarray(saddle.multipliers))[0]) / recording.dt
    halves = visited[-1][1] / max(1, visited[-2][1])
    claims = (
        Claim(
            claim,
            ".78",
            f"{found['delta']:.6f}, {found['pieces']} polygons after {found['iterations']} preimages; images of their "
            f"points miss them by at most {found['residual']:.0e}; seeds tried: {trained.tries}",
            judge(found["delta"] >= 0.99 and found["residual"] <= 1e-10),
        ),
        Claim(
            "the network's saddle manifolds follow those of the Lorenz equation",
            "not compared",
            f"saddle {np.linalg.norm(np.asarray(saddle.points)[0] - origin):.3f} from the origin, growth rate "
            f"{growth:.2f} (equation 11.83); of points of the equation's W^s in the box, median distance "
            f"{np.median(gap):.3f} to the network's, of random points {np.median(chance):.3f}; of the network's W^u, "
            f"median {np.median(apart):.3f} to the equation's; all in standard deviations; "
            f"the network's W^s is traced for {config.lorenz_iterations * recording.dt:.2f} units of time, the "
            "equation's for longer",
            "new" if np.median(gap) < 0.5 * np.median(chance) else "fails",
        ),
        Claim(
            "the largest Lyapunov exponent is that of the system",
            "not given",
            f"{largest:.3f} per unit of time; the equation has 0.906",
            "new" if abs(largest - 0.906) < 0.15 else "fails",
        ),
        Claim(
            "the number of regions that an orbit visits saturates",
            "stated",
            ", ".join(f"{n} by step {t}" for t, n in visited[1:])
            + f", of {regions} regions; the last doubling of time adds {100 * (halves - 1):.1f} %",
            judge(halves < 1.05),
        ),
    )
    orbit = np.asarray(simulate(f, start, steps=3000, mode="scan"))
    figure = _figure(manifold, unstable, stable_ode, unstable_ode, saddle, orbit)
    saturation, ax = new_figure()
    ax.plot(*np.array(visited).T, "o-", ms=3)
    ax.set(xscale="log", xlabel="steps", ylabel="regions visited")
    drawn = (
        StudyFigure(
            "lorenz",
            figure,
            "Fig. 4C: manifolds of the saddle near the origin. Left: of the network, exact polygons and lines over its "
            "orbit. Right: of the equation, by integration.",
            "Two views in three dimensions of a folded blue surface and orange curves through the butterfly.",
        ),
        StudyFigure("saturation", saturation, "Regions visited by one orbit, over time.", "A curve that flattens."),
    )
    values = found | {
        "gap": float(np.median(gap)), "chance": float(np.median(chance)), "apart": float(np.median(apart)),
        "visited": visited, "lyapunov": largest, "growth": float(growth), "loss": trained.loss,
    }  # fmt: skip
    text = (
        "Trained on a long orbit on the attractor and on short ones that begin beside the origin, at a step of 0.02. "
        "The equation's W^s is followed backwards from points of its stable subspace beside the origin, at unit "
        "speed."
    )
    return Part(title, text, claims, values, drawn)


@eqx.filter_jit
def _codes(form, state, steps: int):
    """A number for the region of each state of an orbit, and its end."""
    weights = 2.0 ** jnp.arange(form.h2.shape[0], dtype=float)

    def step(z, _):
        return form(z), jnp.sum(jnp.where(form.pattern(z), weights, 0.0))

    return jax.lax.scan(step, state, length=steps)


def visited_regions(map, state, steps: int) -> list[tuple[int, int]]:
    """How many regions an orbit has visited by each doubling of time."""
    codes = np.asarray(_codes(map.canonical(), state, steps)[1])
    _, first = np.unique(codes, return_index=True)
    times = [steps]
    while times[-1] > 50:
        times.append(times[-1] // 2)
    return [(t, int(np.sum(first < t))) for t in reversed(times)]


def _figure(manifold, unstable, stable_ode, unstable_ode, saddle, orbit):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    left, right = (figure.add_subplot(1, 2, i, projection="3d") for i in (1, 2))
    space = (0, 1, 2)
    plot.manifold(manifold, coordinates=space, ax=left)
    plot.manifold(unstable, coordinates=space, ax=left)
    plot.cycles([saddle], coordinates=space, ax=left)
    left.plot(*orbit.T, color="#999999", lw=0.3)
    inside = np.where(np.abs(stable_ode) < _BOX, stable_ode, np.nan)
    for curve in inside:
        right.plot(*curve.T, color="#0072b2", lw=0.5)
    for curve in unstable_ode:
        right.plot(*curve.T, color="#d55e00", lw=0.8)
    for ax, name in ((left, "network"), (right, "equation")):
        ax.set(xlim=(-_BOX, _BOX), ylim=(-_BOX, _BOX), zlim=(-_BOX, _BOX), title=name)
    return figure
