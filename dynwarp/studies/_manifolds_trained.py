"""The manifolds study on trained networks: a double well, a decision, a neuron, a heart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import dynamics, io, piecewise, plot
from dynwarp._simulate import simulate
from dynwarp.errors import MissingDependencyError
from dynwarp.studies import _manifolds_networks as networks
from dynwarp.studies._manifolds_maps import judge, pairs, quality
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure

# In standard deviations of the recording: where manifolds are measured.
_BOX = 3.0
# Stable cycles of this many steps are looked for along the end of an orbit.
_MAX_PERIOD = 200
# Of basins by simulation: the distance at which points of an orbit catch, and the most steps.
_TOLERANCE, _STEPS = 0.25, 2_000


def not_reached(trained: networks.Trained, what: str) -> str:
    """Why a claim could not be tested."""
    kinds = (
        ", ".join(f"{c.kind} at {trained.observed(c.points)[0].round(2).tolist()}" for c in trained.cycles) or "none"
    )
    return f"no network of {trained.tries} has {what}; fixed points of the last: {kinds}; loss {trained.loss:.1e}"


def duffing(config) -> Part:
    """Figure 4A: the double well."""
    title, claim = (
        "Duffing oscillator",
        "Delta_sigma of a shallow PLRNN (M = 2, H = 10) trained on the Duffing oscillator",
    )
    recording = networks.duffing(config.seed)
    trained = networks.train(
        networks.shallow(2, 10), recording, networks.bistable, seed=config.seed, steps=config.duffing_steps,
        tries=config.tries, interval=15,
    )  # fmt: skip
    if trained.saddle is None:
        missing = not_reached(trained, "a saddle between two stable fixed points")
        return Part(title, "", (Claim(claim, ".97", missing, "not reached"),), {"loss": trained.loss})
    f, box = trained.map, (np.full(2, -_BOX), np.full(2, _BOX))
    manifold = piecewise.trace_manifold(f, trained.saddle, iterations=config.duffing_iterations, box=(-6.0, 6.0))
    unstable = piecewise.trace_manifold(f, trained.saddle, kind="unstable", iterations=config.duffing_iterations)
    found = quality(f, manifold, config, box)
    sinks = trained.stable()
    parity = piecewise.basin_parity(
        f, trained.saddle, pairs(config.seed, config.pairs // 4, *box), sinks, iterations=config.duffing_iterations
    )
    truth = np.array([[0.0, 0.0], [10**0.5, 0.0], [-(10**0.5), 0.0]])
    points = np.concatenate([trained.observed(c.points) for c in trained.cycles if networks.within(c, recording)])
    off = float(max(np.linalg.norm(points - x, axis=1).min() for x in truth))
    regions = piecewise.enumerate_regions(f)
    claims = (
        Claim(
            claim,
            ".97",
            f"{found['delta']:.6f}, {found['pieces']} pieces; images of points of W^s miss it by at most "
            f"{found['residual']:.0e}; seeds tried: {trained.tries}",
            judge(found["delta"] >= 0.9999 and found["residual"] <= 1e-10),
        ),
        Claim(
            "the network has the fixed points of the oscillator: 0 and +-sqrt(10)",
            "shown",
            f"{len(trained.cycles)} fixed points, all there are ({len(regions)} regions); largest distance to the true "
            f"ones {off:.3f}",
            judge(off < 0.2),
        ),
        Claim(
            "W^s of the saddle is the basin boundary of the network",
            "by eye",
            f"parity {parity.agreement:.4f} of {config.pairs // 4} pairs, "
            f"{int((parity.crossings % 2 == 1).sum())} of them in different basins; "
            f"unexplained share of the boundary {parity.unexplained:.3f}",
            judge(parity.agreement == 1.0),
        ),
    )
    figure, ax = new_figure(width=5.0, height=4.0)
    grid = np.linspace(-_BOX, _BOX, config.grid)
    labels = basin_map(f, sinks, np.zeros(2), np.eye(2), grid)
    plot.basins(labels, grid, grid, ax=ax)
    plot.manifold(unstable, ax=ax)
    plot.manifold(manifold, ax=ax)
    plot.cycles(trained.cycles, ax=ax)
    ax.set(xlim=(-_BOX, _BOX), ylim=(-_BOX, _BOX), xlabel="position (standardised)", ylabel="velocity (standardised)")
    drawn = StudyFigure(
        "duffing",
        figure,
        "Fig. 4A: W^s (blue) and W^u (orange) of the network's saddle over its basins.",
        "Two interleaved spiral basins; a blue line separates them.",
    )
    values = found | {"parity": parity.agreement, "distance_of_fixed_points": off, "loss": trained.loss}
    text = "A shallow PLRNN of two states learns orbits into both wells; its saddle's manifolds are polylines."
    return Part(title, text, claims, values, (drawn,))


def decision(config) -> Part:
    """Figure 4B: two attractors and the saddle between them, in 15 dimensions."""
    title = "Two-choice decision"
    claim = "Delta_sigma of an AL-RNN (M = 15, P = 6) trained on the decision model"
    trained = networks.train(
        networks.almost_linear(15, 6), networks.decision(config.seed), networks.bistable, seed=config.seed + 5,
        steps=config.decision_steps, tries=config.tries, noise=0.01,
    )  # fmt: skip
    if trained.saddle is None:
        missing = not_reached(trained, "a saddle between two stable fixed points")
        return Part(title, "", (Claim(claim, ".95", missing, "not reached"),), {"loss": trained.loss})
    f, sinks = trained.map, [c for c in trained.stable() if networks.within(c, trained.recording)][:2]
    found, manifold, near = separating(config, trained, sinks)
    distances = [distance_to_boundary(f, trained.saddle, np.asarray(c.points), config) for c in sinks]
    ratio = max(distances) / min(distances)
    claims = (
        quality_claim(claim, ".95", found, trained, 0.99),
        Claim(
            "both choices are about as far from the boundary",
            ".34 and .32, a ratio of 1.06",
            f"{distances[0]:.3f} and {distances[1]:.3f}, a ratio of {ratio:.2f}, in standard deviations, along the "
            "nearest of the rays shot",
            judge(ratio < 1.1) if ratio < 1.1 else "holds in part" if ratio < 1.5 else "fails",
        ),
        boundary_claim("W^s of the saddle separates the two choices", near, config),
    )
    drawn = slice_figure(
        "decision", trained, manifold, sinks, config,
"Fig. 4B: the plane through the saddle and both attractors. Basins by simulation; "
        "blue: W^s after one preimage (line) and where rays cross it (dots).",
    )  # fmt: skip
    text = (
        "W^s is 14-dimensional: polyhedra, found by pulling constraints back through the forward map. Fixed points are "
        f"all there are, from all {2**6} regions."
    )
    return Part(title, text, claims, found | {"distances": distances, "parity": near.agreement}, (drawn,))


def neuron(config) -> Part:
    """Figure 4D: a spiking neuron, or a recording of one."""
    title = "Spiking neuron"
    own = config.data is None
    recording = networks.neuron(config.seed) if own else networks.from_file(config.data)
    claim = "Delta_sigma of an AL-RNN (M = 25, P = 6) trained on a spiking neuron"

    def wanted(cycles, recording):
        thresholds = networks.thresholds(cycles, recording)
        rest = any(c.kind == "stable" and networks.within(c, recording) for c in cycles)
        return thresholds[0] if thresholds and (rest or not own) else None

    trained = networks.train(
        networks.almost_linear(25, 6), recording, wanted, seed=config.seed + 4, steps=config.neuron_steps,
        tries=config.tries,
    )  # fmt: skip
    if trained.saddle is None:
        missing = not_reached(trained, "a threshold: a saddle with one unstable direction")
        return Part(title, "", (Claim(claim, ".76", missing, "not reached"),), {"loss": trained.loss})
    f = trained.map
    attractors = [*trained.stable(), *spiking(trained)]
    found, manifold, near = separating(config, trained, attractors, steps=60)
    sinks = [c for c in trained.stable() if networks.within(c, recording)]
    spikes = [x for x in attractors if not isinstance(x, piecewise.Cycle) or x.period > 1]
    distances = [
        distance_to_boundary(f, trained.saddle, np.asarray(getattr(x, "points", x))[:40], config)
        for x in (sinks[:1] + spikes[:1])
    ]
    kind = (
        "none found"
        if not spikes
        else (
            f"a stable {spikes[0].period}-cycle"
            if isinstance(spikes[0], piecewise.Cycle)
            else "an orbit that is no cycle"
        )
    )
    claims = (
        quality_claim(claim, ".76", found, trained, 0.99),
        Claim(
            "rest and spiking coexist, apart from each other by W^s of a saddle",
            "a 38-cycle and a stable fixed point",
            f"stable fixed points: {len(sinks)}; spiking: {kind}; saddle at "
            f"{trained.observed(trained.saddle.points)[0].round(2).tolist()}" + (" (true: -58.34 mV)" if own else ""),
            ("holds" if sinks and spikes else "holds in part") if own else "new",
        ),
        Claim(
            "spiking is farther from the boundary than rest",
            "2.3 and 1.2",
            (
                f"rest {distances[0]:.2f}, spiking {distances[1]:.2f} at its nearest point"
                if len(distances) == 2 and sinks
                else "not both attractors are there"
            ),
            ("holds" if distances[1] > distances[0] else "fails") if len(distances) == 2 and sinks else "not reached",
        ),
        boundary_claim("W^s of the saddle is the boundary", near, config),
    )
    source = (
        "orbits of the package's conductance-based neuron, with a weak potassium current that reverses at -60 mV, so "
        "that rest and spiking coexist, as in the recording of the paper"
        if own
        else f"the recording `{config.data}`"
    )
    drawn = () if len(sinks) + len(spikes) < 2 else (
        slice_figure(
            "neuron", trained, manifold, attractors, config,
            "Fig. 4D: the plane through the saddle, rest and a point of spiking. Basins by simulation; "
            "blue: W^s after one preimage (line) and where rays cross it (dots).",
            corners=[np.asarray(getattr(x, "points", x))[0] for x in (sinks[:1] + spikes[:1])],
        ),
    )  # fmt: skip
    text = f"Trained on {source}. W^s is 24-dimensional."
    values = found | {"distances": distances, "parity": near.agreement, "loss": trained.loss}
    return Part(title, text, claims, values, drawn)


def electrocardiogram(config) -> Part:
    """A heart: homoclinic points of a network's saddles."""
    title, claim = "Electrocardiogram", "a homoclinic point proves chaos in a network trained on an electrocardiogram"
    published = "chaos, by a homoclinic point"
    try:
        if config.electrocardiogram is None:
            series = io.default_series(embed=6, lag=14)
        else:
            series = io.read_series(config.electrocardiogram)
    except MissingDependencyError as error:
        ours = f"skipped: no recording was given, and the default one is not there. {error}"
        return Part(title, "", (Claim(claim, published, ours, "not reached"),), {})
    recording = networks.Recording([np.asarray(series.values)], np.asarray(series.mean), np.asarray(series.scale), 1.0)

    def saddles(cycles, recording):
        found = networks.thresholds(cycles, recording)
        return found[0] if found else None

    trained = networks.train(
        networks.almost_linear(20, 5), recording, saddles, seed=config.seed + 1, steps=config.heart_steps,
        tries=config.tries, sequence_length=100, interval=25, noise=0.02,
    )  # fmt: skip
    f = trained.map
    start = trained.reconstruction.encode(jnp.asarray(recording.values[0][0]))
    orbit = np.asarray(simulate(f, start, steps=4000, mode="scan"))
    bounded = bool(np.isfinite(orbit).all() and np.abs(orbit[:, :1]).max() < 20)
    largest = float("nan")
    if bounded:
        spectrum = dynamics.lyapunov_spectrum(f, jnp.asarray(orbit[-1]), steps=5000, k=1, throw=False)
        largest = float(np.asarray(spectrum.exponents)[0])
    verdicts, chaotic, count = [], False, 0
    for saddle in networks.thresholds(trained.cycles, recording)[:2]:
        found = piecewise.homoclinic_points(f, saddle, iterations=60, box=(-20.0, 20.0), max_pieces=20_000)
        count, chaotic = count + len(found), chaotic or found.chaos
        verdicts.append(found.verdict)
    ours = " ".join(verdicts) or "no saddle with one unstable direction among the fixed points"
    ours += f" Largest Lyapunov exponent of the free run: {largest:.4f} a step."
    verdict = "holds" if chaotic else "not reached"
    values = {"homoclinic_points": count, "lyapunov": largest, "bounded": bounded, "loss": trained.loss}
    text = (
        f"An AL-RNN (M = 20, P = 5) on {series.source}, {recording.values[0].shape[1]} channels. The verdict is on the "
        "network, not on the heart: chaos of the map in its whole state space, which need not be on its attractor."
    )
    return Part(title, text, (Claim(claim, published, ours, verdict),), values)


def separating(config, trained: networks.Trained, attractors, *, steps: int = 120):
    """W^s of a saddle in many dimensions, one preimage of the local one: its quality, itself, and a test by pairs."""
    f, saddle = trained.map, trained.saddle
    assert saddle is not None
    m = f.state_size
    manifold = piecewise.trace_manifold(f, saddle, iterations=1)
    box = (np.asarray(saddle.points)[0] - _BOX, np.asarray(saddle.points)[0] + _BOX)
    found = quality(f, manifold, config, box, n=max(50, config.samples // 4))
    found |= {"dimension": manifold.dimension, "loss": trained.loss}
    draw = np.random.default_rng(config.seed)
    rows = np.concatenate(trained.recording.values)
    rows = rows[draw.integers(len(rows), size=2 * (config.pairs // 8))]
    two = jax.vmap(trained.reconstruction.encode)(jnp.asarray(rows)).reshape(-1, 2, m)
    parity = piecewise.basin_parity(
        f, saddle, two, attractors, iterations=steps, tolerance=_TOLERANCE, steps=_STEPS, max_pieces=200_000
    )
    return found, manifold, parity


def spiking(trained: networks.Trained) -> list[Any]:
    """The attractor on which recorded orbits end that are not at rest: a stable cycle, else points on it, or none."""
    starts = jnp.asarray(np.stack([x[-1] for x in trained.recording.values[:50]]))
    states = jax.vmap(trained.reconstruction.encode)(starts)
    ends = np.asarray(jax.vmap(lambda z: simulate(trained.map, z, steps=4000, mode="scan", last_only=True))(states))
    far = np.isfinite(ends).all(axis=1) & (np.abs(ends).max(axis=1) < 50)
    for c in trained.stable():
        far &= np.linalg.norm(ends - np.asarray(c.points)[0], axis=1) > 0.1
    if not far.any():
        return []
    orbit = np.asarray(simulate(trained.map, jnp.asarray(ends[far][0]), steps=2000, mode="scan"))
    form = trained.map.canonical()
    for period in range(1, _MAX_PERIOD):
        if np.linalg.norm(orbit[-1] - orbit[-1 - period]) < 1e-6:
            itinerary = jax.vmap(form.pattern)(jnp.asarray(orbit[-1 - period : -1]))
            cycle = piecewise.cycle_at(form, itinerary)
            return [cycle] if cycle.kind == "stable" else []
    return [orbit[-500:]]


def distance_to_boundary(f, saddle, points, config) -> float:
    """How far an attractor is from W^s: the nearest crossing of rays, random ones and one to the saddle."""
    draw = np.random.default_rng(config.seed)
    target = np.asarray(saddle.points)[0]
    best = np.inf
    for point in points[:: max(1, len(points) // 5)]:
        toward = target - point
        directions = draw.normal(size=(8, len(point)))
        directions = np.concatenate([[toward], toward / np.linalg.norm(toward) + 0.2 * directions])
        for direction in directions / np.linalg.norm(directions, axis=1, keepdims=True):
            hits = piecewise.shoot_ray(
                f, saddle, jnp.asarray(point), jnp.asarray(direction), iterations=40, length=min(best, 20.0),
                max_pieces=4_000,
            )  # fmt: skip
            if len(hits):
                best = min(best, float(hits.t[0]))
    return best


def basin_map(f, attractors, origin, directions, grid, second=None) -> np.ndarray:
    """Basins by simulation on a grid in a plane."""
    u, v = np.meshgrid(grid, grid if second is None else second)
    states = origin + u.reshape(-1, 1) * directions[0] + v.reshape(-1, 1) * directions[1]
    labels = piecewise.basin_of(f, jnp.asarray(states), attractors, tolerance=_TOLERANCE, steps=_STEPS)
    return np.asarray(labels).reshape(u.shape)


def slice_figure(name, trained, manifold, attractors, config, caption, corners=None) -> StudyFigure:
    """The plane through the saddle and two attractors, with basins and W^s."""
    origin = np.asarray(trained.saddle.points)[0]
    corners = [np.asarray(c.points)[0] for c in attractors[:2]] if corners is None else corners
    first = (corners[0] - corners[1]) / np.linalg.norm(corners[0] - corners[1])
    second = corners[0] - origin
    second = second - first * (second @ first)
    second /= np.linalg.norm(second)
    at = np.array([[(c - origin) @ first, (c - origin) @ second] for c in corners])
    reach = 1.6 * float(np.abs(at).max())
    grid = np.linspace(-reach, reach, config.grid // 2)
    figure, ax = new_figure(width=5.0, height=4.0)
    plot.basins(basin_map(trained.map, attractors, origin, np.stack([first, second]), grid), grid, grid, ax=ax)
    plot.manifold_slice(manifold, origin, np.stack([first, second]), ax=ax)
    rows = []
    for v in np.linspace(-reach, reach, 24):
        start = origin - reach * first + v * second
        hits = piecewise.shoot_ray(
            trained.map, trained.saddle, jnp.asarray(start), jnp.asarray(first), iterations=60, length=2 * reach,
            max_pieces=4_000,
        )  # fmt: skip
        rows += [(float(t) - reach, v) for t in hits.t]
    if rows:
        ax.plot(*np.array(rows).T, ".", color="#0072b2", ms=3)
    ax.plot(*at.T, "o", color="black", ms=5)
    ax.plot(0, 0, "D", color="black", mfc="white", ms=5)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xlabel="along the attractors", ylabel="across")
    return StudyFigure(name, figure, caption, "A plane in two colours; a blue line runs along their border.")


def quality_claim(claim, published, found, trained, wanted: float) -> Claim:
    """Delta_sigma against the published one."""
    return Claim(
        claim,
        published,
        f"{found['delta']:.6f}; W^s has dimension {found['dimension']}, {found['pieces']} pieces after "
        f"{found['iterations']} preimages; images of its points miss it by at most {found['residual']:.0e}; "
        f"seeds tried: {trained.tries}",
        judge(found["delta"] >= wanted and found["residual"] <= 1e-10),
    )


def boundary_claim(claim, parity, config) -> Claim:
    """Parity of crossings against simulation."""
    crossed = int((np.asarray(parity.crossings) % 2 == 1).sum())
    return Claim(
        claim,
        "by eye",
        f"parity of crossings agrees with simulation in {parity.agreement:.4f} of {config.pairs // 8} pairs of "
        f"recorded states, {crossed} of them with odd crossings, {parity.undecided} undecided; of boundary points "
        f"found by bisection {parity.unexplained:.3f} are not on it",
        "not reached"
        if parity.undecided > len(parity.crossings) // 2
        else "holds"
        if parity.agreement >= 0.99
        else "holds in part"
        if parity.agreement >= 0.9
        else "fails",
    )
