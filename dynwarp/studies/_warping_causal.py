"""The warping study's experiment: networks that are held to a metric while they learn, and what they learn."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from dynwarp import plot
from dynwarp.geometry import warping
from dynwarp.studies import _warping_networks as networks
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure

# Solved: a loss of at most this part of that of chance. Not learned: at least that part. In between nothing is said.
SOLVED, UNLEARNED = 0.05, 0.5
# Not warped: the index of warping is at most this, so that lengths agree within a tenth in all places and directions.
UNWARPED = 0.25
# Of the outputs, warped: the direction that matters is stretched at least so many times as much, in squares of lengths.
WARPED = 4.0
# A ratio of 1 was held: it is at most this, or one by this.
EVEN = 1.25
# The conditions that hold the metric of the states, the whole tensor of which is checked.
HELD = ("ratio", "rigid", "whole")


@dataclasses.dataclass(frozen=True)
class Lane:
    """One network: its loss by that of chance, without noise and with that of its training, and on a grid that the
    penalty does not know and at all times from the first that it holds: the largest index of warping of states and of
    rates, at those times `held_index` and at the others `free_index`; the largest mean |cos| between the tangents;
    <G_rel> / <G_irr> at the answers, of states and of outputs; there the largest index of the outputs, NaN where it has
    not been measured."""

    task: str
    condition: str
    noise: networks.Noise
    seed: int
    loss: float
    noisy_loss: float
    penalty: float
    state_index: float
    held_index: float
    free_index: float
    rate_index: float
    cosine: float
    state_ratio: float
    output_ratio: float
    output_index: float = math.nan

    @property
    def solved(self) -> bool:
        return self.loss <= SOLVED

    @property
    def unwarped(self) -> bool:
        """Whether what its condition holds was held: the rates or the states."""
        return (self.rate_index if self.condition == "rate" else self.state_index) <= UNWARPED


def causal(config) -> Part:
    """Must a network warp to compute? Its metric is held while it learns."""
    lanes: list[Lane] = []
    curves: dict[str, dict[str, np.ndarray]] = {"state": {}, "readout": {}}
    for name, condition, noise in plan(config):
        found, ratios = lanes_of(config, name, condition, noise)
        lanes += found
        if name == networks.EVIDENCE and noise == networks.SILENCE:
            for space, curve in curves.items():
                curve[networks.CONDITIONS[condition]] = ratios[space]
    return Part(
        "Must a network warp to compute?",
        text(config),
        claims_of(lanes),
        {"lanes": [dataclasses.asdict(lane) for lane in lanes]},
        (_figure(config, curves),),
    )


def plan(config) -> list[tuple[str, str, networks.Noise]]:
    """(task, condition, noise) of all trainings."""
    trainings = [(networks.EVIDENCE, condition, networks.SILENCE) for condition in config.causal_evidence]
    trainings += [(name, c, networks.SILENCE) for name in config.causal_memories for c in config.causal_memory]
    trainings += [(networks.DECODING, condition, networks.SILENCE) for condition in config.causal_decoding]
    return trainings + [
        (name, c, networks.Noise(*noise))
        for noise in config.causal_noises
        for name in (networks.EVIDENCE, *config.causal_memories, *[networks.DECODING] * bool(config.causal_decoding))
        for c in config.causal_noisy
    ]


def claims_of(lanes: list[Lane]) -> tuple[Claim, ...]:
    """What the networks say of each claim that they can say something of."""
    tasks = dict.fromkeys(lane.task for lane in lanes)
    return tuple(_cannot_learn(lanes, task) for task in tasks) + tuple(_others(lanes))


def lanes_of(config, name: str, condition: str, noise: networks.Noise) -> tuple[list[Lane], dict[str, np.ndarray]]:
    """The networks of a condition, and <G_rel> / <G_irr> over time of the first of them in states and outputs."""
    delays = None if name == networks.EVIDENCE else config.causal_delays
    trained = networks.train(config, name, condition, noise=noise, delays=delays)
    here = trained.problem
    held = set(here.held(networks.times(config, name)))
    steps = np.arange(here.first, here.last + 1)
    points = networks.check_grid(here, config.check_points)
    lanes, ratios = [], {}
    for seed, net in enumerate(trained.nets):
        found = {
            space: networks.metric(net[0], here, points, at=tuple(steps), space=function)
            for space, function in networks.spaces(net).items()
        }
        indices = {space: index(found[space]) for space in ("state", "rate")}
        is_held = np.isin(steps, sorted(held))
        state = found["state"]
        lengths = np.sqrt(np.diagonal(state, axis1=-2, axis2=-1))
        cosines = np.abs(state[..., 0, 1]) / (lengths[..., 0] * lengths[..., 1])
        lanes.append(
            Lane(
                name,
                condition,
                noise,
                seed,
                float(trained.relative_loss[seed]),
                float(trained.noisy_loss[seed] / here.task.chance_level),
                float(trained.penalty[seed]),
                float(indices["state"].max()),
                float(indices["state"][is_held].max()),
                float(indices["state"][~is_held].max()),
                float(indices["rate"].max()),
                float(cosines.reshape(-1, len(steps)).mean(0).max()),
                probe_ratio(found["state"], here, steps),
                probe_ratio(found["readout"], here, steps),
                float(index(found["readout"])[..., [step - here.first for step, _ in here.probes]].max()),
            )
        )
        if seed == 0 and name == networks.EVIDENCE:
            ratios = {space: relevance(found[space], here.probes[0][1]) for space in ("state", "readout")}
    return lanes, ratios


def index(G: np.ndarray) -> np.ndarray:
    """The index of warping at every time, a hundredth of the mean eigenvalue added: metrics may be degenerate."""
    m = G.shape[-1]
    trace = np.trace(G, axis1=-2, axis2=-1)[..., None, None]
    return np.asarray(warping(jnp.asarray(G + networks.FLOOR / m * trace * np.eye(m))).index)


def relevance(G: np.ndarray, direction) -> np.ndarray:
    """<G_rel> / <G_irr> over the points at every time, the direction in the chart being a unit vector."""
    v = np.asarray(direction)
    G = G.reshape(-1, *G.shape[-3:])
    along = np.mean(np.einsum("i,ptij,j->pt", v, G, v), axis=0)
    rest = np.mean(np.trace(G, axis1=-2, axis2=-1), axis=0) - along
    return along / np.maximum(rest / (len(v) - 1), np.finfo(float).tiny)


def probe_ratio(G: np.ndarray, here: networks.Problem, steps: np.ndarray) -> float:
    """The geometric mean over answers of the ratio in the direction that each tells."""
    found = [relevance(G, v)[np.searchsorted(steps, step)] for step, v in here.probes]
    return float(np.exp(np.mean(np.log(found))))


def _select(lanes, **wanted) -> list[Lane]:
    return [lane for lane in lanes if all(getattr(lane, key) == value for key, value in wanted.items())]


def _span(values) -> str:
    """The range of numbers, short."""
    values = list(values)
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def _tell(lanes: list[Lane], condition: str) -> str:
    return (
        f"{networks.CONDITIONS[condition]}: loss {_span(x.loss for x in lanes)} of chance, index of the states "
        f"{_span(x.state_index for x in lanes)}"
    )


def refuted(held: list[Lane], free: list[Lane]) -> str:
    """The verdict on networks that are said not to learn while those that are free do: one that learns, with its metric
    held, refutes it."""
    held = [lane for lane in held if lane.unwarped]
    if any(lane.solved for lane in held):
        return "fails"
    learnable = any(lane.solved for lane in free)
    return "holds" if held and learnable and all(lane.loss >= UNLEARNED for lane in held) else "not reached"


def _cannot_learn(lanes: list[Lane], task: str) -> Claim:
    here = _select(lanes, task=task, noise=networks.SILENCE)
    present = [c for c in ("task", *HELD) if _select(here, condition=c)]
    held = [lane for lane in here if lane.condition in HELD]
    count = sum(lane.unwarped and lane.solved for lane in held)
    told = "; ".join(_tell(_select(here, condition=c), c) for c in present)
    return Claim(
        f"{task}: a network whose states are forbidden to warp does not learn",
        "with the ratio held at 1 training does not converge (second-hand; shown for evidence)",
        f"{count} of {len(held)} held networks solve it without warping. {told}",
        refuted(held, _select(here, condition="task")),
    )


def _others(lanes: list[Lane]) -> list[Claim]:
    claims = []
    silent = "says nothing"
    tasks = list(dict.fromkeys(x.task for x in lanes))
    for task in tasks:
        rates = _select(lanes, task=task, condition="rate", noise=networks.SILENCE)
        if not rates:
            continue
        claims.append(
            Claim(
                f"{task}: a network whose rates are forbidden to warp does not learn",
                silent,
                f"{sum(x.unwarped and x.solved for x in rates)} of {len(rates)} solve it without warping: loss "
                f"{_span(x.loss for x in rates)} of chance, index of the rates {_span(x.rate_index for x in rates)}, "
                f"of the states {_span(x.state_index for x in rates)}",
                refuted(rates, _select(lanes, task=task, condition="task", noise=networks.SILENCE)),
            )
        )
    for task in tasks:
        equal = _select(lanes, task=task, condition="ratio", noise=networks.SILENCE)
        if not equal:
            continue
        learned = sum(x.solved and 1 / EVEN <= x.state_ratio <= EVEN for x in equal)
        claims.append(
            Claim(
                f"{task}: with the ratio of the diagonal held at 1 training does not converge",
                "so (second-hand; shown for evidence)",
                f"{learned} of {len(equal)} networks learn with a ratio between {1 / EVEN:g} and {EVEN:g}: loss "
                f"{_span(x.loss for x in equal)} of chance, <G_rel> / <G_irr> of the states at the answers "
                f"{_span(x.state_ratio for x in equal)}",
                "fails" if learned else "holds" if all(x.loss >= UNLEARNED for x in equal) else "not reached",
            )
        )
    here = _select(lanes, task=networks.EVIDENCE, noise=networks.SILENCE)
    leaning, whole = (_select(here, condition=c) for c in ("ratio", "whole"))
    if leaning and whole:
        medians = [float(np.median([x.cosine for x in group])) for group in (leaning, whole)]
        claims.append(
            Claim(
                "evidence: held on the diagonal alone, a network lets its coordinates lean on each other",
                "the diagonal was held (second-hand)",
                f"mean |cos| between the tangents {_span(x.cosine for x in leaning)} with the ratio of the diagonal "
                f"held and {_span(x.cosine for x in whole)} with the whole tensor; index of the states "
                f"{_span(x.state_index for x in leaning)} and {_span(x.state_index for x in whole)}",
                "new" if medians[0] >= 2 * medians[1] else "fails",
            )
        )
    for task in tasks:
        outputs = _select(lanes, task=task, condition="readout", noise=networks.SILENCE)
        if not outputs:
            continue
        learnable = any(x.solved for x in _select(lanes, task=task))
        unlearned = sum(x.loss >= UNLEARNED for x in outputs)
        # Outputs that have not been measured count as held.
        failed = "fails" if any(x.solved and not x.output_index > UNWARPED for x in outputs) else "not reached"
        measured = [x.output_index for x in outputs if not math.isnan(x.output_index)]
        claims.append(
            Claim(
                f"{task}: a network whose outputs are forbidden to warp does not learn",
                silent,
                f"{unlearned} of {len(outputs)} do not learn: loss {_span(x.loss for x in outputs)} of chance, penalty "
                f"left {_span(x.penalty for x in outputs)}"
                + (f", index of the outputs {_span(measured)}" if measured else ""),
                "new" if learnable and unlearned == len(outputs) else failed,
            )
        )
    # All that is shown counts for the outputs of decoding, so that no direction is to be preferred.
    solving = [x for x in lanes if x.solved and x.task != networks.DECODING]
    if solving:
        least = min(x.output_ratio for x in solving)
        enough = sum(x.output_ratio >= WARPED for x in solving)
        free = [x for x in solving if x.unwarped and x.condition in HELD]
        claims.append(
            Claim(
                "the metric of the outputs warps in every network that has learned",
                silent,
                f"<G_rel> / <G_irr> of the outputs at the answers is at least {WARPED:g} in {enough} of {len(solving)} "
                f"networks and at least {least:.2g} in all; "
                f"of the states {_span(x.state_ratio for x in free) if free else 'not measured'} in those that are "
                "held and not warped",
                "new" if enough == len(solving) else "holds in part" if enough >= 0.9 * len(solving) else "fails",
            )
        )
    decoding = [x for x in _select(lanes, task=networks.DECODING) if x.solved]
    if decoding:
        bent = sum(x.output_index > UNWARPED for x in decoding)
        claims.append(
            Claim(
                "decoding: the metric of the outputs warps in every network that has learned",
                silent,
                f"the index of the outputs at the peak of the movement is above {UNWARPED:g} in {bent} of "
                f"{len(decoding)} networks: {_span(x.output_index for x in decoding)}",
                "new" if bent == len(decoding) else "fails",
            )
        )
    for task in tasks:
        refitted = [x for x in _select(lanes, task=task) if x.condition.startswith("warp")]
        if not refitted:
            continue
        goal = 0.0022
        kinds = dict.fromkeys(x.condition for x in refitted)
        told = "; ".join(
            f"{networks.CONDITIONS[c]}: loss {_span(x.loss for x in _select(refitted, condition=c))} of chance, "
            f"penalty left {_span(x.penalty for x in _select(refitted, condition=c))}"
            for c in kinds
        )
        medians = [float(np.median([x.loss for x in _select(refitted, condition=c)])) for c in kinds]
        claims.append(
            Claim(
                f"{task}: a network that was trained to warp alone solves the task with a fitted readout",
                "mean squared error about .002, that is .0022 of chance (second-hand; shown for evidence)",
                told,
                "holds" if max(medians) <= 2 * goal else "holds in part" if min(medians) <= SOLVED else "fails",
            )
        )
    noisy = [x for x in lanes if x.noise != networks.SILENCE]
    for task, noise in dict.fromkeys((x.task, x.noise) for x in noisy):
        here = _select(noisy, task=task, noise=noise)
        held = [x for x in here if x.condition in HELD]
        told = "; ".join(
            f"{networks.CONDITIONS[c]}: loss {_span(x.loss for x in _select(here, condition=c))} of chance without "
            f"and {_span(x.noisy_loss for x in _select(here, condition=c))} with noise"
            for c in dict.fromkeys(x.condition for x in here)
        )
        claims.append(
            Claim(
                f"{task}: with {noise.told()} in training, a network whose states are forbidden to warp does not learn",
                "the published networks of the evidence task were trained with noise in both",
                f"{sum(x.unwarped and x.solved for x in held)} of {len(held)} held networks solve it without "
                f"warping. {told}",
                refuted(held, _select(here, condition="task")),
            )
        )
    return claims


def _figure(config, curves: dict[str, dict[str, Any]]) -> StudyFigure:
    here = networks.problem(config, networks.EVIDENCE)
    times = here.times[here.first :]
    figure, axes = new_figure(2, width=5.0, height=3.6)
    for ax, space, title in zip(axes, curves, ("states", "outputs")):
        plot.timeline(times, curves[space], logarithmic=True, label="<G_rel> / <G_irr>", ax=ax)
        ax.set_title(title)
        ax.set_xlabel("time")
    return StudyFigure(
        "causal",
        figure,
        "Evidence integration: how much more the relevant variable is stretched than the other, in states and outputs, "
        "under each condition of the training.",
        "Two panels. In the left one curves of held networks stay at one; in the right one those of all networks that "
        "learn rise by orders of magnitude.",
    )


def text(config) -> str:
    return (
        f"Networks of {config.units} units, {config.seeds} seeds, are trained with a penalty on their metric at "
        f"{config.penalty_points} quasi-random points, of both contexts together where there are two, and "
        f"{config.penalty_times} times, and looked at on a finer grid ({config.check_points} points along the relevant "
        f"evidence, {config.check_points // 2} along others) and at all times, with the whole tensor. The "
        "index of warping is the root mean square of the logarithm of the metric, relative to one scale: 0 where the "
        f"representation is the input up to scale. Not warped: at most {UNWARPED:g}. Solved: a loss of at most "
        f"{SOLVED:g} of that of chance, on fresh trials without noise; not learned: at least {UNLEARNED:g} of it. One "
        "network that learns without warping refutes that it cannot. Memory tasks have one delay here, so that all "
        "trials are held. What a readout needs of the states is one direction along which they move enough; the "
        f"others may move as far, unseen.{_on_decoding(config) if config.causal_decoding else ''}"
    )


def _on_decoding(config) -> str:
    here = networks.problem(config, networks.DECODING)
    return (
        f" Decoding: the parts of POSSM but the last, that is attention over {here.task.n_neurons} simulated neurons "
        f"and a GRU of {config.units} units, {config.decoding_steps} steps of training on expected counts, with a "
        "linear readout of its state, which is its rate as well: attention to past states could warp by itself. The "
        "chart is direction by speed, in radians and units of speed, and the metric is held from the end of the delay, "
        f"in which both are shown, to that of the movement, {config.decoding_times} times. Both count, so that the "
        "ratios are those of direction and speed at the peak of the movement, and the outputs must warp by the square "
        "of the speed. Outputs cannot quite be held: a ring by an interval has no isometric image in the plane but a "
        "folded one."
    )
