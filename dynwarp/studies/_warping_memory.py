"""The warping study on memory: the torus of two items and its curvature, a subtraction, a sequence."""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import geometry, plot
from dynwarp._results import RESULTS
from dynwarp.errors import MissingDependencyError
from dynwarp.studies import _warping_networks as networks
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure
from dynwarp.studies._warping_evidence import films_of


def torus(config) -> Part:
    """Two angles in memory: a torus, its metric and its curvature."""
    trained = networks.train(config, networks.MEMORY)
    here = trained.problem
    task, map, times = here.task, trained.nets[0][0], here.times
    n = config.curvature_points
    grid = here.manifold.grid(n)
    cue = int(np.flatnonzero(np.asarray(task(jnp.zeros(2)))[:, 2])[0])
    # The torus with both items in memory, at the end of the pause, and that of the first answer.
    steps = (cue - 1, here.probes[0][0])
    found = geometry.curvature_history(map, here.manifold, grid, state0=jnp.zeros(map.state_size), at=steps)
    G, K = np.asarray(found.G), np.asarray(found.gaussian_curvature())
    volume = np.sqrt(np.linalg.det(G))
    cell = (2 * math.pi / n) ** 2
    signed = cell * np.sum(K * volume, (0, 1))
    total = cell * np.sum(abs(K) * volume, (0, 1))
    spectral, circulating = zip(*(curvatures(G[:, :, i]) for i in range(len(steps))))
    resolved = [float(np.median(abs(a - K[..., i])) / np.median(abs(K[..., i]))) for i, a in enumerate(spectral)]
    wrong = [float(np.median(abs(b - K[..., i])) / np.median(abs(K[..., i]))) for i, b in enumerate(circulating)]
    signs = [float(np.mean(np.sign(b) == np.sign(K[..., i]))) for i, b in enumerate(circulating)]
    cosine = G[..., 0, 1] / np.sqrt(G[..., 0, 0] * G[..., 1, 1])
    cosines = np.median(abs(cosine), (0, 1))
    balance = abs(signed) / total
    relative = float(np.median(trained.relative_loss))
    solved = relative <= 0.1
    claims = (
        Claim(
            "working memory: the network learns the task",
            "shown",
            f"loss {relative:.2g} of chance after {trained.steps} steps, mean squared error "
            f"{float(np.median(trained.loss)):.1e}",
            "holds" if relative <= 0.05 else "holds in part" if solved else "not reached",
        ),
        Claim(
            "the torus of two remembered items is curved, so that their codes are not orthogonal",
            "shown",
            f"the integral of |K| is {total[0]:.3g} in the delay and {total[1]:.3g} at the first answer (a sphere has "
            f"{4 * math.pi:.3g}, a product of two orthogonal codes 0); median |cos| between the two tangents "
            f"{cosines[0]:.2f} and {cosines[1]:.2f}",
            ("holds" if min(total) >= 1 else "fails") if solved else "not reached",
        ),
        Claim(
            "the integral of the curvature of a torus is 0 (Gauss and Bonnet)",
            "theorem",
            f"|integral of K| is {balance[0]:.0e} and {balance[1]:.0e} of the integral of |K| on {n} x {n} points",
            # A grid on which the other formula has not converged either says nothing.
            "holds" if max(balance) <= 1e-6 else "not reached" if max(resolved) > 1e-6 else "fails",
        ),
        Claim(
            "the formula for the curvature in the public copy of the authors' code",
            "taken for the Gaussian curvature; right where G_12 = 0",
            f"with exact derivatives its sign is right at {100 * signs[0]:.0f} and {100 * signs[1]:.0f} % of the "
            f"points, its median error {wrong[0]:.2g} and {wrong[1]:.2g} of the median |K|; that of the full formula "
            f"on the same grid is {resolved[0]:.0e} and {resolved[1]:.0e}",
            "fails"
            if max(wrong) > 0.1 and max(resolved) < 0.1 * max(wrong)
            else "holds"
            if max(wrong) < 0.1
            else "not reached",
        ),
    )
    history = networks.metric(map, here, here.manifold.grid(12))
    panels = _panels(G[:, :, 0], np.asarray(grid))
    figure, axes = new_figure(4, width=3.5, height=3.2)
    curves = {"G_11": history[..., 0, 0], "G_22": history[..., 1, 1]}
    plot.timeline(times, curves, epochs=_epochs(here), label="G", logarithmic=True, ax=axes[0])
    axes[0].set_xlabel("time")
    signs_of = abs(history[..., 0, 1]) / np.sqrt(np.maximum(history[..., 0, 0] * history[..., 1, 1], 1e-300))
    plot.timeline(
        times[here.first :], {"|cos|": signs_of[..., here.first :]}, label="|cos| of the tangents", ax=axes[1]
    )
    axes[1].set_xlabel("time")
    plot.curvature_map(K[..., 0], np.asarray(grid), ax=axes[2])
    axes[2].set_title("in the delay")
    plot.curvature_map(K[..., 1], np.asarray(grid), ax=axes[3])
    axes[3].set_title("first answer")
    betti = _holes(map, here, steps[0])
    if betti is not None:
        claims += (
            Claim(
                "two items in memory are a torus",
                "hyper-tori in memory (abstract)",
                f"Betti numbers {', '.join(str(b) for b in betti)} of 196 states in the delay (a torus has 1, 2, 1; "
                "holes that are narrower than the gaps between states are not seen)",
                _solved(solved, "holds" if betti == (1, 2, 1) else "holds in part" if betti[:2] == (1, 2) else "fails"),
            ),
        )
    distances, way = _own_geometry(config, map, here, steps[0])
    film = films_of(
        "torus",
        history,
        np.asarray(here.manifold.grid(12)),
        times,
        ("item 1", "item 2"),
        kinds=("tissot",),
        first=here.first,
    )
    drawn = StudyFigure(
        "torus",
        figure,
        "The torus of two items: lengths along both angles over time, the angle between them, and the Gaussian "
        "curvature in the delay and at the first answer.",
        "Two curves that rise as the items are shown; maps with patches of both signs.",
    )
    values = {
        "relative_loss": trained.relative_loss.tolist(),
        "absolute_curvature": total.tolist(),
        "gauss_bonnet": balance.tolist(),
        "signs": signs,
        "median_error": wrong,
        "resolution": resolved,
        "cosines": cosines.tolist(),
        "betti": betti,
        "distances": distances,
    }
    text = (
        f"Delays {', '.join(f'{d:g}' for d in config.delays)}, the longest shown; the published network has 100 units "
        "and delays up to 3.5. Curvature by the equation of Gauss from second derivatives of the states; the formulas "
        "that need the metric alone have its derivatives by Fourier series."
    )
    if betti is None:
        text += " Holes were not counted: that needs the extra `topology`."
    return Part("Working memory: a torus and its curvature", text, claims, values, (drawn, panels, *film, *way))


def _solved(solved: bool, verdict: str) -> str:
    return verdict if solved else "not reached"


def _holes(map, here: networks.Problem, step: int) -> tuple[int, ...] | None:
    """The Betti numbers of the states over a grid; None without what counts them."""
    states = networks.states(map, here, here.manifold.grid(14), step)
    try:
        return tuple(geometry.persistent_homology(states).betti)
    except MissingDependencyError:
        return None


def _own_geometry(config, map, here: networks.Problem, step: int) -> tuple[list | None, tuple[StudyFigure, ...]]:
    """Geodesic distances between the points of a grid, and a figure of geodesics and of the shape they make."""
    from matplotlib.figure import Figure

    n = config.geodesic_points
    if n == 0:
        return None, ()
    surface = geometry.state_manifold(map, here.manifold, state0=jnp.zeros(map.state_size), step=step)
    chart = geometry.Metric(surface.metric, dim=2, periods=surface.periods).surrogate(24)
    grid = here.manifold.grid(n)
    points = grid.reshape(-1, 2)
    i, j = np.triu_indices(n * n, 1)
    lengths, curves = (np.asarray(x) for x in _ways(chart, points[i], points[j]))
    distances = np.zeros((n * n, n * n))
    distances[i, j] = distances[j, i] = np.where(np.isfinite(lengths), lengths, np.inf)
    # Where none was found, the shortest way over other points.
    for k in range(n * n):
        distances = np.minimum(distances, distances[:, k, None] + distances[k])
    found = np.isfinite(lengths)
    if not np.isfinite(distances).all() or not found.any():
        return None, ()
    straight = curves[:, :1] + np.linspace(0, 1, curves.shape[1])[:, None] * (curves[:, -1:] - curves[:, :1])
    bent = np.where(found, np.linalg.norm(curves - straight, axis=-1).max(1), -1)
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2, projection="3d")
    plot.geodesics(curves[np.argsort(bent)[-5:]], periods=here.manifold.periods, ax=left)
    left.set(xlabel="item 1", ylabel="item 2")
    plot.own_shape(distances, grid, periods=here.manifold.periods, ax=right)
    drawn = StudyFigure(
        "torus-distances",
        figure,
        "With both items in memory: of all geodesics between the points of a grid the five that are least straight in "
        f"the angles; the shape that their lengths make ({int(found.sum())} of {len(found)} found; for the others the "
        "way over other points), by classical multidimensional scaling.",
        "Curved lines beside straight ones on a square; points of a torus in three dimensions.",
    )
    return distances.tolist(), (drawn,)


@eqx.filter_jit
def _ways(chart, starts, ends):
    """The lengths of geodesics, NaN where none was found, and 40 points of each."""

    def one(start, end):
        way = chart.connect(start, end)
        found = (way.result == RESULTS.successful) | (way.result == RESULTS.inaccurate)
        return jnp.where(found, way.length, jnp.nan), jax.vmap(way)(jnp.linspace(0, 1, 40))

    return jax.vmap(one)(starts, ends)


def curvatures(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Gaussian curvature of a metric on the regular grid of two angles, (n, n, 2, 2), and what the formula makes of
    it that circulates: -[d_u((G_u - 2 F_v) / W) + d_v((E_v - 2 F_u) / W)] / 2W. Derivatives by Fourier series."""
    E, F, H = G[..., 0, 0], G[..., 0, 1], G[..., 1, 1]
    W = np.sqrt(E * H - F**2)
    (Eu, Ev), (Fu, Fv), (Hu, Hv) = ((_along(x, 0), _along(x, 1)) for x in (E, F, H))

    def divergence(first, second):
        return -(_along(first / W, 0) + _along(second / W, 1)) / (2 * W)

    rows = np.stack([np.stack(row, -1) for row in ((E, F, H), (Eu, Fu, Hu), (Ev, Fv, Hv))], -2)
    right = divergence(Hu - Fv, Ev - Fu) - np.linalg.det(rows) / (4 * W**4)
    return right, divergence(Hu - 2 * Fv, Ev - 2 * Fu)


def _along(values: np.ndarray, axis: int) -> np.ndarray:
    """The derivative along an angle of the grid."""
    n = values.shape[axis]
    waves = np.fft.fftfreq(n, 1 / n)
    if n % 2 == 0:
        waves[n // 2] = 0
    shape = [1, 1]
    shape[axis] = n
    return np.fft.ifft(1j * waves.reshape(shape) * np.fft.fft(values, axis=axis), axis=axis).real


def _panels(G, grid) -> StudyFigure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    plot.metric_panels(G, grid, names=("item 1", "item 2"), ax=figure.subplots(2, 2))
    return StudyFigure(
        "torus-metric", figure, "The metric over the torus with both items in memory.",
        "Three maps: both diagonal entries, which vary over the torus, and the other one with both signs.",
    )  # fmt: skip


def _epochs(here: networks.Problem) -> dict[str, tuple[float, float]]:
    """When items are shown and answers expected."""
    task, dt = here.task, here.task.dt
    shown = np.flatnonzero(np.any(np.asarray(task(jnp.ones(task.dim)))[:, :2] != 0, axis=1))
    answers = np.flatnonzero(np.any(np.asarray(task.targets(jnp.arange(1.0, task.dim + 1))) != 0, axis=1))
    return {
        "items": (float(shown[0] * dt), float((shown[-1] + 1) * dt)),
        "answers": (float(answers[0] * dt), float((answers[-1] + 1) * dt)),
    }


def subtraction(config) -> Part:
    """Two angles of which the difference counts: what becomes of the other direction."""
    noises = [networks.SILENCE] + [networks.Noise(units=config.unit_noise)] * (config.unit_noise > 0)
    found = {noise: _collapse(networks.train(config, networks.SUBTRACTION, noise=noise)) for noise in noises}
    claims = tuple(
        Claim(
            f"subtraction, {noise.told()}: a torus of two items collapses to a ring, their difference",
            "about two dimensions become about one (second-hand)",
            f"the smaller stretch of the states is {x.flat[0]:.2f} of the larger once both are shown, "
            f"{x.flat[x.answer]:.2f} at the end of the answer and {x.flat[-1]:.2f} at that of the trial; the "
            f"difference has {100 * x.share[0]:.0f}, {100 * x.share[x.answer]:.0f} and {100 * x.share[-1]:.0f} % of "
            f"the trace (half if no direction is preferred); loss {x.loss:.2g} of chance",
            x.verdict,
        )
        for noise, x in found.items()
    )
    figure, axes = new_figure(2 * len(found), width=3.8)
    here = networks.problem(config, networks.SUBTRACTION)
    times, epochs = here.times[here.first :], _epochs(here)
    for (noise, x), (left, right) in zip(found.items(), np.reshape(axes, (-1, 2))):
        plot.stretches(x.stretches, times=times, epochs=epochs, ax=left)
        plot.timeline(times, {"difference": x.shares}, epochs=epochs, label="share of the trace", ax=right)
        for ax in (left, right):
            ax.set_xlabel(f"time, {noise.told()}")
    drawn = StudyFigure(
        "subtraction",
        figure,
        "Memory subtraction: the two principal stretches over time, and the share of the direction of the difference, "
        "in networks that were trained without noise and with noise in their units.",
        "Two curves that come apart; one that moves away from one half; more so with noise.",
    )
    values = {
        noise.told(): {"ratio": x.flat.tolist(), "share": x.share.tolist(), "relative_loss": x.loss}
        for noise, x in found.items()
    }
    text = (
        "The two principal stretches of the states over the torus of the items; medians over points and seeds. It "
        "holds where the smaller stretch falls to half of what it was and to a fifth of the larger by the end of the "
        "answer, and in part where it does the one, or the other later. Settings of this task were not to be had; "
        "those of the evidence task have noise in the units."
    )
    return Part("Memory subtraction", text, claims, values | {"times": times.tolist()}, (drawn,))


class _Collapse(NamedTuple):
    """Smaller stretch by larger, `flat`, and the share of the difference, medians over points and seeds, from the step
    on at which both items have been shown; stretches and shares of the first network; the step of the answer."""

    flat: np.ndarray
    share: np.ndarray
    stretches: np.ndarray
    shares: np.ndarray
    answer: int
    loss: float

    @property
    def verdict(self) -> str:
        if self.loss > 0.1:
            return "not reached"
        falls, flat = self.flat[self.answer] <= 0.5 * self.flat[0], self.flat[self.answer] <= 0.2
        return "holds" if falls and flat else "holds in part" if falls or self.flat[-1] <= 0.2 else "fails"


def _collapse(trained) -> _Collapse:
    here = trained.problem
    G = np.stack([networks.metric(map, here, here.manifold.grid(12)) for map, _ in trained.nets])[
        ..., here.first :, :, :
    ]
    stretches = np.sqrt(np.maximum(np.linalg.eigvalsh(G), 0))
    (answer, direction) = here.probes[-1]
    shares = np.einsum("i,...ij,j->...", direction, G, direction) / np.trace(G, axis1=-2, axis2=-1)
    flat, share = (np.median(x, axis=(0, 1, 2)) for x in (stretches[..., 0] / stretches[..., 1], shares))
    loss = float(np.median(trained.relative_loss))
    return _Collapse(flat, share, stretches[0], shares[0], answer - here.first, loss)


def sequence(config) -> Part:
    """Three angles of which one is asked for: a torus of three dimensions and what is left of it."""
    trained = networks.train(config, networks.SEQUENCE)
    here = trained.problem
    history = np.stack([networks.metric(map, here, here.manifold.grid(5)) for map, _ in trained.nets])
    history = history[..., here.first :, :, :]
    size = np.maximum(np.linalg.eigvalsh(history), 0)
    effective = np.median(size.sum(-1) ** 2 / (size**2).sum(-1), axis=(0, 1, 2, 3))
    diagonal = np.diagonal(history, axis1=-2, axis2=-1)
    share = np.median(diagonal[..., 0] / diagonal.sum(-1), axis=(0, 1, 2, 3))
    answer = here.probes[-1][0] - here.first
    relative = float(np.median(trained.relative_loss))
    solved = relative <= 0.1
    wide, narrow = float(effective.max()), float(effective[answer])
    claims = (
        Claim(
            "sequence: a torus of three dimensions in memory becomes one dimension, the item asked for",
            "hyper-tori in memory, three-dimensional manifolds turn into line attractors (abstract)",
            f"(sum of the squared stretches)^2 / sum of their squares is {effective[0]:.2f} once all are shown, "
            f"{wide:.2f} at most, {narrow:.2f} at the end of the answer, when the item asked for has "
            f"{100 * share[answer]:.0f} % of the trace, and {effective[-1]:.2f} at the end of the trial; loss "
            f"{relative:.2g} of chance",
            ("holds" if narrow <= 1.5 and wide >= 2 else "holds in part" if narrow <= 0.8 * wide else "fails")
            if solved
            else "not reached",
        ),
    )
    figure, axes = new_figure(2)
    times = here.times[here.first :]
    plot.stretches(np.sqrt(size[0]), times=times, epochs=_epochs(here), ax=axes[0])
    diagonal = diagonal[0]
    shares = {f"item {i + 1}": diagonal[..., i] / diagonal.sum(-1) for i in range(3)}
    plot.timeline(times, shares, epochs=_epochs(here), label="share of the trace", ax=axes[1])
    for ax in axes:
        ax.set_xlabel("time")
    drawn = StudyFigure(
        "sequence",
        figure,
        "A sequence of three angles of which the first is asked for: principal stretches, and the shares of the items.",
        "Three curves that come apart; the share of the first item rises towards the answer.",
    )
    values = {
        "effective": effective.tolist(),
        "share": share.tolist(),
        "times": times.tolist(),
        "relative_loss": relative,
    }
    text = "The inputs of three items form a torus of three dimensions; a cue names the item that is to be told."
    return Part("Sequences", text, claims, values, (drawn,))
