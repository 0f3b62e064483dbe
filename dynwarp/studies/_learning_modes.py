"""The learning study on modes: optima and their stability, speed, trajectories, finite sequences."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from dynwarp import learning, plot
from dynwarp._results import RESULTS
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure

Rules = dict[str, learning.AbstractRule]


def named_rules(feedback: Any = 1.0, decay: Any = 0.5) -> Rules:
    """The four rules of the paper, with one feedback and decay."""
    return {
        "BPTT": learning.BPTT(),
        "TBPTT(1)": learning.TBPTT(1),
        "RFLO": learning.RFLO(feedback, decay),
        "e-prop": learning.EProp(feedback),
    }


def optima(config) -> Part:
    """Which optima are stable under which rule."""
    draw = np.random.default_rng(config.seed)
    n = config.box
    s, feedback, decay, multiplier = (jnp.asarray(draw.uniform(-x, x, n)) for x in (4.0, 2.0, 1.0, 0.99))
    teacher, sign = learning.Teacher(1.0, 1.0, multiplier), np.sign(np.asarray(feedback * s))
    found = {name: learning.stability(rule, teacher, s) for name, rule in named_rules(feedback, decay).items()}
    code = {name: np.asarray(x.code) for name, x in found.items()}
    complexes = {name: np.asarray(x.oscillates) for name, x in found.items()}

    few = slice(0, 512)
    tried = learning.Teacher(jnp.ones_like(s[few]), jnp.ones_like(s[few]), multiplier[few])
    error = max(
        _jacobian_error(rule, tried, s[few], found[name])
        for name, rule in named_rules(feedback[few], decay[few]).items()
    )

    right, wrong = sign > 0, sign < 0
    real_stable = all((code[name] == 0).all() and not complexes[name].any() for name in ("BPTT", "TBPTT(1)"))
    rflo, oscillating = code["RFLO"], complexes["RFLO"]
    shares = {
        "saddle": np.mean(rflo[wrong] == 1),
        "unstable node": np.mean((rflo == 2)[wrong] & ~oscillating[wrong]),
        "unstable spiral": np.mean((rflo == 2)[wrong] & oscillating[wrong]),
        "stable": np.mean(rflo[wrong] == 0),
    }
    pocket = learning.stable_pocket(learning.RFLO(feedback, decay), teacher, s)
    strength = jnp.abs(feedback)
    inside = np.asarray((pocket.lower < strength) & (strength < pocket.upper))
    misplaced = int(np.sum((rflo == 0)[wrong] != inside[wrong]))
    right_stable = bool((rflo[right] == 0).all())
    eprop_wrong = int(np.sum(code["e-prop"][wrong] == 0))
    some = learning.Teacher(1.2, 0.7, 0.6)
    saddles = {name: learning.fixed_points(rule, some).saddles for name, rule in named_rules().items()}
    silent_loss = float(learning.mode_loss(some, jnp.array([0.0, 0.0, 0.3])))
    expected_loss = float(some.product**2 / (2 * (1 - some.w**2)))
    symmetric_only = [name for name, line in saddles.items() if line is not None]
    growth = float(saddles["BPTT"].eigenvalues(jnp.array(0.3))[0]) if saddles["BPTT"] is not None else float("nan")

    claims = (
        Claim(
            "every optimum is stable under BPTT and TBPTT(1), without oscillation",
            "all eigenvalues real and negative",
            f"true of {n} random optima; closed forms and Jacobians by automatic differentiation differ by {error:.0e}",
            _verdict(real_stable and error < 1e-6),
        ),
        Claim(
            "RFLO: the right sign of feedback, R s > 0, is always stable",
            "stable",
            f"{np.mean(rflo[right] == 0):.4f} of {right.sum()}; {np.mean(oscillating[right]):.4f} oscillate",
            _verdict(right_stable),
        ),
        Claim(
            "RFLO: the wrong sign, R s < 0, is unstable",
            "the table: unstable or oscillating",
            "too coarse: "
            + ", ".join(f"{name} {share:.4f}" for name, share in shares.items())
            + f"; the stable ones fill the pocket of the closed form, {misplaced} misplaced",
            "holds in part" if misplaced == 0 and shares["stable"] > 0 else "fails",
        ),
        Claim(
            "e-prop with fixed feedback: the wrong sign is never stable",
            "left open",
            f"{eprop_wrong} stable of {wrong.sum()}; no pocket",
            "new" if eprop_wrong == 0 else "fails",
        ),
        Claim(
            "silent networks (0, 0, w) are saddles of loss p^2 / (2 (1 - w*^2))",
            "a non-optimal manifold of saddles",
            f"loss {silent_loss:.6f} against {expected_loss:.6f}, growth rate {growth:.4f} > 0 under BPTT; only under "
            f"{' and '.join(symmetric_only)}: with fixed feedback a silent network moves at once",
            "holds" if abs(silent_loss - expected_loss) < 1e-12 and growth > 0 else "fails",
        ),
    )

    # An even number of points leaves out s = 0, where there is no optimum (s, p/s, w*).
    grid_s = jnp.linspace(-4.0, 4.0, config.grid + config.grid % 2)
    grid_r = jnp.linspace(-2.0, 2.0, config.grid)
    narrow_s = jnp.linspace(-3.0, -1.5, config.grid)
    narrow_r = jnp.linspace(0.0, 0.12, config.grid)
    figure, (left, middle) = new_figure(2)
    wide = learning.stability_map(lambda r: learning.RFLO(r, 0.5), learning.Teacher(1.0, 1.0, 0.6), grid_s, grid_r)
    plot.stability_map(wide, grid_s, grid_r, label="feedback R", ax=left)
    close = learning.stability_map(lambda r: learning.RFLO(r, 0.0), learning.Teacher(0.5, 1.0, 0.9), narrow_s, narrow_r)
    plot.stability_map(close, narrow_s, narrow_r, label="feedback R", ax=middle)
    drawn = StudyFigure(
        "stability",
        figure,
        "Stability of RFLO's optima. Left: w* = 0.6, decay 0.5. Right: the stable pocket with the wrong sign of "
        "feedback, w* = 0.9, p = 0.5, decay 0.",
        "Two maps over the optimum s and the feedback R; right signs are stable, the right map has a stable strip.",
    )
    values = {"closed_form_error": error, "rflo_wrong_sign": shares, "pocket_misplaced": misplaced, "box": n}
    text = (
        "Every rule has the same optima, the curve (s, p/s, w*). What differs is their stability, in closed form from "
        "trace and determinant, and for fixed feedback it is a matter of the sign of R s. The box is |s| < 4, |R| < 2, "
        "|decay| < 1, |w*| < 0.99, p = 1."
    )
    return Part("Optima and their stability", text, claims, values, (drawn,))


def _jacobian_error(rule, teacher, s, closed):
    """The closed trace and determinant against those of Jacobians by automatic differentiation, relative."""

    def jacobian(rule, teacher, s):
        return learning.mode_jacobian(rule, teacher, jnp.stack([s, teacher.product / s, teacher.w]))

    J = np.asarray(eqx.filter_vmap(jacobian)(rule, teacher, s))
    trace, of_square = np.trace(J, axis1=1, axis2=2), np.trace(J @ J, axis1=1, axis2=2)
    size, few = np.abs(J).max(axis=(1, 2)), slice(0, len(J))
    first = np.abs(trace + np.asarray(closed.trace)[few]) / size
    second = np.abs((trace**2 - of_square) / 2 - np.asarray(closed.determinant)[few]) / size**2
    return float(max(first.max(), second.max()))


def speed(config) -> Part:
    """How fast rules converge along the manifold of optima."""
    teacher = learning.Teacher(1.0, 1.0, 0.6)
    s = jnp.geomspace(0.05, 20.0, 200)
    rates = {name: np.asarray(learning.stability(rule, teacher, s).rate) for name, rule in named_rules().items()}
    slowest = {name: learning.slowest_point(rule, teacher) for name, rule in named_rules().items()}
    decays = (0.0, 0.5, 0.9)
    crossings = {
        decay: learning.speed_crossings(learning.RFLO(1.0, decay), learning.BPTT(), teacher, decades=2.0).tolist()
        for decay in decays
    }
    matched = learning.speed_ratio(learning.RFLO(1.0, 0.6), learning.EProp(1.0), teacher, s)
    equal = float(jnp.max(jnp.abs(matched - 1)))
    at = {name: float(point.s) for name, point in slowest.items()}
    crossed = "; ".join(f"decay {decay:g}: s = {', '.join(f'{x:.4f}' for x in xs)}" for decay, xs in crossings.items())
    ends = slowest["RFLO"]
    claims = (
        Claim(
            "BPTT is slowest at s = sqrt|p|",
            "slowest at sqrt|p|",
            f"s = {at['BPTT']:.4f} for p = 1, w* = 0.6, rate {float(slowest['BPTT'].rate):.4f}",
            _verdict(abs(at["BPTT"] - 1) < 1e-3),
        ),
        Claim(
            "TBPTT(1) is slowest at s = sqrt|p| too",
            "stated for BPTT",
            f"s = {at['TBPTT(1)']:.4f}, not 1; rate {float(slowest['TBPTT(1)'].rate):.4f}",
            _verdict(abs(at["TBPTT(1)"] - 1) < 1e-3),
        ),
        Claim(
            "RFLO is faster than BPTT only near s = 0",
            "faster near s = 0",
            f"faster below a crossing that is of the size of the feedback R = 1: {crossed}",
            "holds in part",
        ),
        Claim(
            "RFLO slows down without limit along the manifold",
            "left open",
            f"no slowest point: the rate falls throughout, to s = {float(ends.s):.0f}, {float(ends.rate):.1e}",
            "fails" if bool(ends.interior) else "new",
        ),
        Claim(
            "RFLO with decay w* converges like e-prop",
            "left open",
            f"rates differ by at most {equal:.0e} relative",
            "new" if equal < 1e-9 else "fails",
        ),
    )
    figure, ax = new_figure()
    plot.convergence_rates(s, rates, ax=ax)
    drawn = StudyFigure(
        "rates",
        figure,
        "Rate of the slower transverse direction along the branch s > 0; p = 1, w* = 0.6, R = 1, decay 0.5.",
        "Rates of four rules over s: BPTT and e-prop have a minimum or a fall, RFLO falls for large s.",
    )
    values = {"slowest": at, "crossings": {str(d): xs for d, xs in crossings.items()}, "eprop_rflo_difference": equal}
    text = "The rate at which an optimum is approached is that of the slower of its two transverse directions."
    return Part("Speed along the manifold", text, claims, values, (drawn,))


def trajectories(config) -> Part:
    """The detour to the opposite branch, the walls, basins, the pocket, and the passage of the saddle."""
    draw = np.random.default_rng(config.seed + 1)
    box = draw.uniform([-2, -2, -0.95], [2, 2, 0.95], (config.starts, 3))
    epsilons = (0.1, 0.01, 0.001)
    nudged = [-2.0, -0.25, 0.899]
    # (start, teacher, feedback, decay) of the lanes before the box; all rules run the same lanes.
    special = (
        [([1.0, 1.0, 0.6], (1.0, 1.0, 0.8), -0.5, 0.5)]
        + [(nudged, (0.5, 1.0, 0.9), r, 0.0) for r in (0.02, 0.045, 0.07)]
        + [([e, e, 0.1], (1.0, 1.0, 0.6), 1.0, 0.5) for e in epsilons]
        + [([1.0, 1.0, 0.6], (1.0, 1.0, 0.9), -1.0, 0.5)]
    )
    lanes = special + [(start, (1.0, 1.0, 0.8), 1.0, 0.5) for start in box.tolist()]
    starts, teachers, feedback, decay = (jnp.asarray([lane[i] for lane in lanes]) for i in range(4))
    teacher = learning.Teacher(teachers[:, 0], teachers[:, 1], teachers[:, 2])
    ends = {
        name: learning.find_landings(rule, teacher, starts, loss_tolerance=1e-6, throw=False)
        for name, rule in named_rules(feedback, decay).items()
    }
    rest = slice(len(special), None)
    # Passing close by an unstable optimum is no convergence: the pocket is followed to a far smaller loss.
    near = learning.find_landings(
        learning.RFLO(feedback, decay), teacher, starts, loss_tolerance=1e-12, max_time=400.0, throw=False
    )
    outcome = {name: _outcomes(found.result) for name, found in ends.items()}
    converged = {name: float(np.mean(x["converged"][rest])) for name, x in outcome.items()}
    wall = {name: float(np.mean(x["wall"][rest])) for name, x in outcome.items()}
    positive = np.asarray(ends["RFLO"].points)[rest, 0][outcome["RFLO"]["converged"][rest]] > 0

    predicted = learning.predicted_landing(learning.BPTT(), learning.Teacher(1.0, 1.0, 0.8), jnp.asarray(box))
    landed = np.asarray(ends["BPTT"].points)[rest]
    mismatches = int(np.sum(np.sign(np.asarray(predicted)[:, 0]) != np.sign(landed[:, 0])))

    detour, bptt = ends["RFLO"], ends["BPTT"]
    to, when = np.asarray(detour.points)[0], float(detour.times[0])
    nearby = _outcomes(near.result)
    pocket = [_word(nearby, i, near.points) for i in (1, 2, 3)]
    slopes = {name: float(np.diff(np.asarray(found.times)[4:7]).mean() / np.log(10)) for name, found in ends.items()}
    wall_time = float(detour.times[7])
    turned = outcome["RFLO"]["converged"][0] and to[0] < 0
    pocket_right = nearby["converged"][1:4].tolist() == [False, True, False] and float(near.points[2, 0]) < 0
    claims = (
        Claim(
            "RFLO from (1, 1, 0.6) goes to the opposite branch of optima",
            "shown in a figure, parameters not stated here",
            f"teacher (1, 1, 0.8), R = -0.5, decay 0.5: ends at ({to[0]:.4f}, {to[1]:.4f}, {to[2]:.4f}) after "
            f"t = {when:.4f}; BPTT stays on its branch and needs {float(bptt.times[0]):.4f}",
            _verdict(bool(turned)),
        ),
        Claim(
            "RFLO and e-prop fail from some starts, BPTT and TBPTT(1) from none",
            "runs of networks: RFLO and e-prop fail in some",
            f"from {config.starts} starts in [-2, 2]^2 x [-0.95, 0.95], w* = 0.8, R = 1: converged "
            + ", ".join(f"{name} {share:.3f}" for name, share in converged.items())
            + "; the others reach the wall |w| = 1 in finite time ("
            + ", ".join(f"{name} {share:.3f}" for name, share in wall.items())
            + ")",
            "holds" if converged["BPTT"] == 1 and converged["RFLO"] < 1 and converged["e-prop"] < 1 else "fails",
        ),
        Claim(
            "RFLO that converges ends on the branch with the sign of R",
            "the sign of R decides",
            f"{positive.mean():.4f} of {positive.size} converged starts; without the pocket, which these settings lack",
            _verdict(bool(positive.all())),
        ),
        Claim(
            "the conserved a^2 - b^2 says where BPTT lands",
            "left open",
            f"{mismatches} branches wrong of {config.starts}",
            "new" if mismatches == 0 else "fails",
        ),
        Claim(
            "RFLO's stable pocket exists in simulation",
            "left open",
            f"near (-2, -0.25, 0.9), p = 0.5: R = 0.02 {pocket[0]}, 0.045 {pocket[1]}, 0.07 {pocket[2]}",
            "new" if pocket_right else "fails",
        ),
        Claim(
            "the saddle makes a plateau for BPTT and TBPTT(1), not for fixed feedback",
            "left open",
            "time per e-fold of a smaller start (w = 0.1, w* = 0.6): "
            + ", ".join(f"{name} {slope:.4f}" for name, slope in slopes.items())
            + f"; theory for BPTT {1 - 0.06:.4f}",
            "new" if abs(slopes["BPTT"] - 0.94) < 0.01 and slopes["RFLO"] < 0.1 else "fails",
        ),
    )
    ts = jnp.linspace(0.0, 7.0, 200)
    one = learning.Teacher(1.0, 1.0, 0.8)
    both = learning.integrate_modes(
        learning.RFLO(jnp.array([0.5, -0.5]), 0.5), one, jnp.tile(jnp.array([1.0, 1.0, 0.6]), (2, 1)), ts
    )
    paths = {"R = 0.5": both.values[0], "R = -0.5": both.values[1]}
    figure, ax = new_figure()
    plot.mode_paths(paths, one, ax=ax)
    drawn = StudyFigure(
        "detour",
        figure,
        "RFLO from (1, 1, 0.6) to the optima: directly with R > 0, to the opposite branch with R < 0.",
        "Two paths in the plane of a and w; the one with R < 0 dips to negative w and ends with a < 0.",
    )
    values = {
        "converged": converged, "wall": wall, "detour_end": to, "detour_time": when, "wall_time": wall_time,
        "landing_mismatches": mismatches, "saddle_slopes": slopes, "pocket": pocket,
    }  # fmt: skip
    text = (
        "Modes are followed to a loss of 1e-6, each with its own adaptive steps, with the wall |w| = 1 as an event. "
        f"RFLO with R = -1 from (1, 1, 0.6), w* = 0.9, reaches the wall at t = {wall_time:.5f}."
    )
    return Part("Trajectories, walls and basins", text, claims, values, (drawn,))


def sequences(config) -> Part:
    """What a loss at every step of a finite sequence changes."""
    teacher, state = learning.Teacher(1.1, 0.8, -0.35), jnp.array([0.7, 1.3, 0.55])
    rest, errors = {}, {}
    for name, rule in named_rules(-0.6, 0.45).items():
        limit = -learning.mode_flow(rule, teacher)(jnp.zeros(()), state)
        correction = learning.sequence_correction(rule, teacher, state)
        mean = -learning.mode_flow(rule, teacher, horizon=config.horizon, loss="sequence")(jnp.zeros(()), state)
        rest[name] = float(jnp.max(jnp.abs(mean - limit)))
        errors[name] = float(jnp.max(jnp.abs(mean - limit - correction / config.horizon)))
    worst = max(errors.values())
    claims = (
        Claim(
            "a loss at every step gives the same flow for long sequences",
            "the same flow as T goes to infinity",
            f"at T = {config.horizon} the updates still differ by up to {max(rest.values()):.1e}, and by {worst:.0e} "
            "after the correction C / T in closed form",
            _verdict(worst < 1e-9),
        ),
    )
    values = {"difference": rest, "after_correction": errors, "horizon": config.horizon}
    text = "The mean of the loss over a sequence of T steps differs from the stationary limit by C / T + O(T rho^2T)."
    return Part("Losses over sequences", text, claims, values)


def _outcomes(result: RESULTS):
    return {"converged": np.asarray(result == RESULTS.successful), "wall": np.asarray(result == RESULTS.wall)}


def _word(outcome, lane, points):
    if outcome["converged"][lane]:
        return f"converges at s = {float(points[lane, 0]):.3f}"
    return "goes to the wall" if outcome["wall"][lane] else f"leaves, to a = {float(points[lane, 0]):.3f} by t = 400"


def _verdict(true: bool) -> str:
    return "holds" if true else "fails"
