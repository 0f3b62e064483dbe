"""The manifolds study on maps of the plane, and on other piecewise-linear systems."""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import dynamics, piecewise, plot
from dynwarp._simulate import simulate
from dynwarp.models import PiecewiseLinearMap
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure
from dynwarp.systems import BorderCollisionMap

# Of the map with a homoclinic point: cycles by period, and F^2(W^u_loc) on W^s_loc by a computation of 60 digits.
_KNOWN_CYCLES = [1, 1, 2, 3, 4, 5, 6, 6, 12, 16]
_KNOWN_POINT = np.array([-0.4167269895285939624989504, -0.5023791939727799756488133])


def judge(true: bool) -> str:
    """A verdict."""
    return "holds" if true else "fails"


def quality(map, manifold, config, box, *, n: int | None = None) -> dict[str, Any]:
    """Delta_sigma in a box, and by how much images of points of the manifold there miss it, relative to their size."""
    keys = jax.random.split(jax.random.key(config.seed), 3)
    found = {
        "delta": piecewise.manifold_quality(map, manifold, box=box, key=keys[0], n=n or config.samples),
        "pieces": manifold.number_of_pieces,
        "limits": list(manifold.limits),
        "iterations": manifold.iterations,
    }
    if manifold.kind == "stable":
        images = eqx.filter_vmap(map)(manifold.sample(keys[1], n or config.samples, box=box))
        size = 1 + np.linalg.norm(np.asarray(images), axis=1)
        found["residual"] = float(np.max(np.asarray(manifold.distance(images)) / size))
    else:
        found["residual"] = piecewise.invariance_residual(map, manifold, key=keys[2], n=n or config.samples)
    return found


def pairs(seed: int, n: int, lower, upper) -> jax.Array:
    """Pairs of states in a box, `(n, 2, M)`."""
    lower, upper = np.asarray(lower, float), np.asarray(upper, float)
    return jnp.asarray(np.random.default_rng(seed).uniform(lower, upper, (n, 2, lower.size)))


def toy_maps(config) -> Part:
    """Figures 3A and 3B: saddles, saddle cycles, their manifolds as basin boundaries."""
    settings = {
        "fig3a_left": (1, (-1.2, -1.0), (1.0, 1.2), 40),
        "fig3a_right": (1, (-4.0, -4.0), (4.0, 4.0), 25),
        "fig3b_left": (3, (-6.0, -6.0), (6.0, 6.0), 25),
        "fig3b_right": (4, (-30.0, -30.0), (30.0, 30.0), 25),
    }
    values: dict[str, Any] = {}
    figure, axes = new_figure(4, width=3.6)
    for ax, (name, (period, lower, upper, iterations)) in zip(axes, settings.items()):
        f = BorderCollisionMap.preset(name)
        cycles = piecewise.find_cycles(f, config.toy_period, key=jax.random.key(config.seed))
        saddle = next(c for c in cycles.of_period(period) if c.kind == "saddle")
        reach = 1.3 * float(np.abs(np.asarray(saddle.points)).max())
        lower, upper = np.minimum(lower, -reach), np.maximum(upper, reach)
        manifold = piecewise.trace_manifold(f, saddle, iterations=iterations, box=(2 * lower, 2 * upper))
        other = piecewise.trace_manifold(f, saddle, kind="unstable", iterations=iterations // 2, max_length=500.0)
        found = quality(f, manifold, config, (lower, upper))
        found |= {
            "complete": all(cycles.complete.values()),
            "cycles": {k: len(cycles.of_period(k)) for k in cycles.complete},
        }
        sinks = [c for c in cycles if c.kind == "stable"]
        if sinks:
            two = pairs(config.seed, config.pairs, lower, upper)
            parity = piecewise.basin_parity(f, saddle, two, sinks, iterations=2 * iterations)
            decided = int((np.asarray(parity.labels) != -2).all(axis=1).sum())
            found |= {
                "parity": parity.agreement, "pairs": decided, "crossed": int((parity.crossings % 2 == 1).sum()),
                "distance": float(np.max(np.asarray(parity.distance), initial=0.0)),
            }  # fmt: skip
            grid = [np.linspace(a, b, config.grid) for a, b in zip(lower, upper)]
            states = np.stack(np.meshgrid(*grid), axis=-1).reshape(-1, 2)
            labels = np.asarray(piecewise.basin_of(f, jnp.asarray(states), sinks)).reshape(config.grid, config.grid)
            plot.basins(labels, *grid, names={-1: "infinity", 0: "attractor"}, ax=ax)
        plot.manifold(other, ax=ax)
        plot.manifold(manifold, ax=ax)
        plot.cycles(cycles, ax=ax)
        ax.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), title=name.replace("fig", "Fig. "))
        values[name] = found
    worst = min(values[name]["delta"] for name in ("fig3a_left", "fig3a_right"))
    residual = max(found["residual"] for found in values.values())
    tested = [found for found in values.values() if "parity" in found]
    claims = (
        Claim(
            "Delta_sigma of the toy maps of Fig. 3A is near 1",
            ".98",
            f"{worst:.6f}; of all four maps at least {min(f['delta'] for f in values.values()):.6f}; images of points "
            f"of the manifolds miss them by at most {residual:.0e}",
            judge(worst >= 0.9999 and residual <= 1e-10),
        ),
        Claim(
            "the basin boundary is the stable manifold of a saddle or saddle cycle (Fig. 3)",
            "by eye, against basins on a grid",
            f"{sum(f['pairs'] for f in tested)} pairs of states in three maps: parity of crossings agrees with "
            f"simulation in {min(f['parity'] for f in tested):.4f}; bisected boundary points are within "
            f"{max(f['distance'] for f in tested):.0e} of a crossing",
            judge(min(f["parity"] for f in tested) == 1.0),
        ),
        Claim(
            "the saddles of Fig. 3B are a 3-cycle and a 4-cycle",
            "shown",
            f"one saddle 3-cycle (left) and one saddle 4-cycle (right); cycles up to period {config.toy_period} are "
            "all there are: " + ("certified" if all(f["complete"] for f in values.values()) else "not certified"),
            judge(
                values["fig3b_left"]["cycles"].get(3) == 1
                and values["fig3b_right"]["cycles"].get(4) == 1
                and all(f["complete"] for f in values.values())
            ),
        ),
    )
    drawn = StudyFigure(
        "toy_maps",
        figure,
        "Figs. 3A and 3B: stable (blue) and unstable (orange) manifolds over basins by simulation.",
        "Four planes with basins in pale colours; blue lines bound them.",
    )
    text = (
        "Every piece of a manifold of a piecewise-linear map is a line segment here; preimages and images are exact. "
        "Basins come from simulation, crossings from rays shot at the manifold: the two share nothing but the map."
    )
    return Part("Toy maps: basins and their boundaries", text, claims, values, (drawn,))


def chaos(config) -> Part:
    """Figure 5: a homoclinic point, chaos, and what happens over h1."""
    f = BorderCollisionMap.preset("fig5")
    top = config.chaos_period
    cycles = piecewise.find_cycles(f, top, key=jax.random.key(config.seed))
    counts = [len(cycles.of_period(k)) for k in range(1, top + 1)]
    certified = all(cycles.complete.values())
    saddle = cycles.of_period(1)[0]
    began = time.perf_counter()
    unstable = piecewise.trace_manifold(f, saddle, kind="unstable", iterations=20)
    seconds = time.perf_counter() - began
    stable = piecewise.trace_manifold(f, saddle, iterations=6, box=(-2.0, 2.0))
    lengths = [piecewise.trace_manifold(f, saddle, kind="unstable", iterations=n).length for n in (14, 20)]
    growth = float(np.log(lengths[1] / lengths[0]) / 6)
    how = None
    try:
        import mpmath  # noqa: F401

        how = "mpmath"
    except ImportError:
        pass
    homoclinic = piecewise.homoclinic_points(f, saddle, iterations=4, certify=how)
    error = float(np.abs(homoclinic.points[0] - _KNOWN_POINT).max()) if len(homoclinic) else np.inf
    by_step = [int(np.sum(homoclinic.iterations <= n)) for n in (1, 2, 3, 4)]
    spectrum = dynamics.lyapunov_spectrum(f, jnp.array([-0.3, 0.1]), steps=config.lyapunov_steps, transient=500)
    exponents = np.asarray(spectrum.exponents)

    h1 = np.linspace(-1.1, -0.1, config.bifurcation_points)
    states, over = _over_h1(f, jnp.asarray(h1), config.bifurcation_steps)
    states, over = np.array(states), np.array(over)
    lost = np.asarray(~np.isfinite(states).all(axis=1))
    over[lost] = np.nan
    near = np.abs(h1 + 0.7) <= 0.1
    first = over[:, 0]
    robust = float(np.mean(first[near] > 0))
    claims = (
        Claim(
            "the homoclinic point of Fig. 5 agrees with the analytic one",
            "by eye",
            f"({homoclinic.points[0, 0]:.15f}, {homoclinic.points[0, 1]:.15f}), {error:.0e} off the value of 25 "
            f"digits; points of F^n(W^u_loc) on W^s_loc for n = 1..4: {by_step}",
            judge(error < 1e-14 and by_step == [0, 1, 2, 4]),
        ),
        Claim(
            "the map of Fig. 5 is chaotic",
            "by the homoclinic point",
            homoclinic.verdict,
            judge(homoclinic.chaos),
        ),
        Claim(
            "cycles of the map of Fig. 5",
            "not counted",
            f"periods 1 to {top}: {counts}, all saddles: {all(c.kind == 'saddle' for c in cycles)}; "
            + ("certified complete" if certified else "not certified"),
            "new" if counts == _KNOWN_CYCLES[:top] and certified else "fails",
        ),
        Claim(
            "Lyapunov spectrum and bifurcation diagram over h1 show robust chaos",
            "a plot",
            f"lambda = ({exponents[0]:.4f}, {exponents[1]:.4f}) at h1 = -0.7, standard error "
            f"{float(np.asarray(spectrum.standard_error)[0]):.4f}; the first is positive on {robust:.3f} of the grid "
            f"in -0.8 < h1 < -0.6, on {float(np.mean(first[~lost] > 0)):.3f} of all h1 that do not diverge",
            judge(abs(exponents[0] - 0.4933) < 0.01 and robust == 1.0),
        ),
        Claim(
            "the unstable manifold grows exponentially",
            "stated as a limitation",
            f"{len(unstable.vertices[0])} vertices and length {unstable.length:.3f} after 20 steps, {seconds:.2f} s; "
            f"its length grows by e^{growth:.3f} a step, no slower than lambda_1",
            "new" if growth >= exponents[0] - 0.02 else "fails",
        ),
    )
    figure, (left, right) = new_figure(2, width=4.6)
    plot.manifold(piecewise.trace_manifold(f, saddle, kind="unstable", iterations=9), ax=left)
    plot.manifold(stable, ax=left)
    plot.cycles([saddle], ax=left)
    points = homoclinic.points
    left.plot(points[:, 0], points[:, 1], "k*", ms=7)
    left.set(xlim=(-1.5, 0.9), ylim=(-1.3, 0.7), title="homoclinic points (stars)")
    plot.bifurcation_diagram(
        h1, np.where(lost[:, None], np.nan, states[:, -80:]), exponents=over, parameter="h1", ax=right
    )
    drawn = StudyFigure(
        "chaos",
        figure,
        "Fig. 5. Left: W^u (orange), W^s (blue) of the saddle, and where they meet. Right: states visited over h1, and "
        "the Lyapunov exponents.",
        "Left: folded orange lines crossing blue ones. Right: a band of states and two curves of exponents.",
    )
    values = {
        "cycles": counts, "complete": certified, "homoclinic_error": error, "homoclinic_counts": by_step,
        "exponents": exponents, "growth": growth, "length": unstable.length, "vertices": len(unstable.vertices[0]),
        "h1": h1, "exponents_over_h1": over, "robust": robust,
    }  # fmt: skip
    text = (
        "W^u is an exact polyline, W^s_loc an interval that respects the negative multipliers; each homoclinic point "
        "is solved anew as one linear system from its itinerary."
    )
    return Part("Homoclinic points and chaos", text, claims, values, (drawn,))


@eqx.filter_jit
def _over_h1(f, values, steps: int):
    """The first coordinate of late states and the Lyapunov exponents for each h1."""

    def one(h1):
        g = eqx.tree_at(lambda f: f.h1, f, h1)
        states = simulate(g, jnp.array([-0.3, 0.1]), steps=steps, mode="scan")
        found = dynamics.lyapunov_spectrum(g, states[-1], steps=steps, throw=False)
        return states[steps // 2 :, 0], found.exponents

    return jax.vmap(one)(values)


def related_systems(config) -> Part:
    """Other piecewise-linear systems that the same code serves."""
    # Two populations that inhibit each other: x' = -x + relu(W x + b), Euler steps of 0.1.
    step, W = 0.1, jnp.array([[0.0, -2.0], [-2.0, 0.0]])
    threshold_linear = PiecewiseLinearMap((1 - step) * jnp.eye(2), step * jnp.eye(2), W, jnp.zeros(2), jnp.ones(2))
    # Three linear modes that c x = -1 and c x = 1 separate; the inner one has a saddle.
    mix = jnp.array([[1.0, 0.3, 0.0], [0.2, 1.0, -0.4], [0.0, 0.5, 1.0]])
    rotation = 0.85 * jnp.array([[jnp.cos(1.0), -jnp.sin(1.0)], [jnp.sin(1.0), jnp.cos(1.0)]])
    inner = jnp.zeros((3, 3)).at[0, 0].set(1.25).at[1:, 1:].set(rotation)
    c = jnp.array([1.0, 0.5, 0.0])
    gain = jnp.array([[-0.7, 0.7], [0.3, -0.3], [0.0, 0.0]])
    back = jnp.linalg.inv(mix)
    switching = PiecewiseLinearMap(
        mix @ inner @ back, mix @ gain, jnp.stack([c, -c]) @ back, jnp.zeros(3), -jnp.ones(2)
    )
    values: dict[str, Any] = {}
    settings = {
        "threshold-linear network": (threshold_linear, 0.0, 2.0),
        "switching linear system": (switching, -4.0, 4.0),
    }
    figure, axes = new_figure(2)
    for ax, (name, (f, low, high)) in zip(axes, settings.items()):
        m = f.state_size
        cycles = piecewise.find_cycles(f, 2, key=jax.random.key(config.seed))
        saddle = next(x for x in cycles if x.kind == "saddle")
        sinks = [x for x in cycles if x.kind == "stable"]
        box = (np.full(m, low), np.full(m, high))
        manifold = piecewise.trace_manifold(f, saddle, iterations=15, box=(box[0] - 4, box[1] + 4))
        found = quality(f, manifold, config, box)
        parity = piecewise.basin_parity(f, saddle, pairs(config.seed, config.pairs, *box), sinks, iterations=60)
        values[name] = found | {
            "parity": parity.agreement,
            "attractors": len(sinks),
            "complete": all(cycles.complete.values()),
        }
        grid = np.linspace(low, high, config.grid)
        states = np.zeros((config.grid**2, m))
        states[:, :2] = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
        labels = np.asarray(piecewise.basin_of(f, jnp.asarray(states), sinks)).reshape(config.grid, config.grid)
        plot.basins(labels, grid, grid, ax=ax)
        plot.manifold_slice(manifold, np.zeros(m), np.eye(m)[:2], ax=ax)
        ax.set(xlim=(low, high), ylim=(low, high), title=name, xlabel="z[0]", ylabel="z[1]")
    good = all(v["parity"] == 1.0 and v["delta"] >= 0.9999 and v["residual"] <= 1e-10 for v in values.values())
    claims = (
        Claim(
            "the method serves related systems: switching linear, threshold-linear",
            "named, not shown",
            "; ".join(
                f"{name}: {v['attractors']} attractors, Delta_sigma {v['delta']:.6f}, parity {v['parity']:.4f}, "
                f"residual {v['residual']:.0e}"
                for name, v in values.items()
            ),
            "new" if good else "fails",
        ),
    )
    drawn = StudyFigure(
        "related",
        figure,
        "Basins by simulation, and the saddle's stable manifold in the plane of the first two coordinates.",
        "Two planes cut in two by a blue line that follows the border of two colours.",
    )
    text = (
        "Any continuous piecewise-linear map with ReLUs has the form A z + W1 relu(W2 z + h2) + h1, so that all of it "
        "works on threshold-linear networks in discrete time and on switching linear systems that are continuous where "
        "they switch; systems that jump there have no such form."
    )
    return Part("Related systems", text, claims, values, (drawn,))
