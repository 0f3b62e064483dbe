"""The gradients study on bounds: what vanishes, what explodes, and how smooth a cost is."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import gradients, plot
from dynwarp._simulate import simulate
from dynwarp.dynamics import lyapunov_spectrum
from dynwarp.models import LSTM, AbstractMap, Elman, GaussianInit, LinearRNN, Readout
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure

# The network of Laurent and von Brecht as Ribeiro et al. use it: rows i, f, g, o of two units, no input and no bias.
CHAOTIC_LSTM = np.array(
    [[-1, -4], [-3, -2], [-2, 6], [0, -6], [-1, -6], [6, -9], [4, 1], [-9, -7]], dtype=np.float64
)  # fmt: skip
_START = 0.5


class Alternating(AbstractMap):
    """h' = W_t h with W_t = [[0, 2], [0, 0]] in even steps and its transpose in odd ones: both are nilpotent."""

    state_size: int = eqx.field(default=2, static=True)
    input_size: int = eqx.field(default=0, static=True)

    def __call__(self, state, input=None, *, step=None):
        up, down = jnp.array([[0.0, 2.0], [0.0, 0.0]]), jnp.array([[0.0, 0.0], [2.0, 0.0]])
        return jnp.where(jnp.asarray(step) % 2 == 0, up, down) @ state


def bounds(config) -> Part:
    """Which statements about norms decide whether gradients vanish or explode."""
    cases, n, T = config.bound_cases, 8, 20
    report = _random_reports(jax.random.split(jax.random.key(config.seed), cases), n, T)
    violated = int(jnp.sum(~report.holds))
    below = np.asarray(report.vanishing_certain)
    shrunk = np.asarray(report.log_norms[:, -1] < 0)
    above_and_shrunk = int(np.sum(shrunk & ~below))
    above = int(np.sum(~below))
    tightness = np.asarray(report.tightness)

    nilpotent = gradients.bound_report(
        LinearRNN(jnp.array([[0.0, 5.0], [0.0, 0.0]]), jnp.zeros((2, 1)), jnp.eye(2)), jnp.zeros((4, 2)), gamma=1.0
    )
    gone = float(jnp.exp(nilpotent.log_norms[-1]))
    size, lag = config.bound_units, config.bound_lag
    W = GaussianInit(0.9)(jax.random.key(config.seed + 1), (size, size))
    wide = gradients.bound_report(LinearRNN(W, jnp.zeros((size, 1)), jnp.eye(size)), jnp.zeros((lag, size)), gamma=1.0)
    radius, sigma = float(wide.spectral_radius[0]), float(wide.sigma_max[0])
    peak, end = float(jnp.exp(jnp.max(wide.log_norms))), float(jnp.exp(wide.log_norms[-1]))
    switched = gradients.bound_report(Alternating(), jnp.zeros((20, 2)))
    growth = float(switched.log_norms[-1]) / 20

    recursion = _recursion(config.seed + 2)
    claims = (
        Claim(
            "gamma sigma_max(W) < 1 is sufficient for gradients to vanish",
            "sufficient (Pascanu et al. 2013)",
            f"{cases} random tanh networks, lags 1 to {T}: {violated} products above (gamma sigma_max)^lag; of "
            f"{int(below.sum())} with sigma_max < 1 all {int((shrunk & below).sum())} shrink",
            "holds" if violated == 0 and bool((shrunk | ~below).all()) else "fails",
        ),
        Claim(
            "gamma sigma_max(W) > 1 makes gradients explode",
            "the survey: a theorem; Pascanu et al.: necessary only",
            f"W = [[0, 5], [0, 0]] has norm 5 and W^2 = 0 (norm {gone:g} after 4 steps); gain 0.9, {size} units: "
            f"sigma_max {sigma:.2f}, spectral radius {radius:.2f}, norm up to {peak:.2f}, {end:.1e} after {lag} steps; "
            f"{above_and_shrunk} of {above} random networks above 1 shrink all the same",
            "fails" if gone == 0 and end < 0.5 and above_and_shrunk > 0 else "holds",
        ),
        Claim(
            "the spectral radius of the recurrent matrix decides between vanishing and exploding",
            "the survey: radius 1 is the threshold",
            f"two nilpotent steps in turn, spectral radii {float(switched.spectral_radius.max()):g}: the product "
            "grows by "
            f"exp({growth:.4f}) a step; the limit is the Lyapunov exponent of the ordered product",
            "fails" if growth > 0.6 else "holds",
        ),
        Claim(
            "the norm of dh_t/dh_k is the product of the largest singular values",
            "the survey: equality; true: at most that",
            f"share of the bound that a step delivers at lag {T}: median {np.median(tightness[:, -1]):.3f}, largest "
            f"{tightness[:, -1].max():.3f}; 1 only at lag 1",
            "fails" if tightness[:, -1].max() < 1 - 1e-6 and violated == 0 else "holds",
        ),
        Claim(
            "dh_t/dh_k = J_t J_{t-1} ... J_{k+1}, with J = diag(s') W and the latest step on the left",
            "the survey: ascending products of W^T diag(s')",
            f"differs from automatic differentiation by {recursion['right']:.0e}; the ascending product by "
            f"{recursion['ascending']:.2f} of its norm, and as an adjoint factor in the wrong order by "
            f"{recursion['adjoint']:.2f}",
            "holds" if recursion["right"] < 1e-12 < min(recursion["ascending"], recursion["adjoint"]) else "fails",
        ),
        Claim(
            "h_2 = s(W^2 h_0 + W u_1 + u_2)",
            "the survey: unrolled as an equality",
            f"off by {recursion['unrolled_tanh']:.3f} for tanh, by {recursion['unrolled_linear']:.0e} for the identity",
            "fails" if recursion["unrolled_tanh"] > 1e-3 else "holds",
        ),
        Claim(
            "the manual reverse recursion gives the gradient",
            "equal, with the initial state included",
            f"largest relative difference from `backpropagate` {recursion['manual']:.0e}, over weights and "
            "initial state",
            "holds" if recursion["manual"] < 1e-12 else "fails",
        ),
    )
    figure, (left, right) = new_figure(2)
    plot.gradient_bounds(wide, ax=left)
    left.set_title(f"gain 0.9, {size} units", fontsize="medium")
    right.hist(tightness[:, -1], bins=30, color="#0072b2")
    right.set_xlabel(f"tightness at lag {T}")
    right.set_ylabel("networks")
    values = {
        "violated": violated, "vanishing_certain": int(below.sum()), "above_and_shrunk": [above_and_shrunk, above],
        "nilpotent_norm": gone, "non_normal": {"sigma_max": sigma, "spectral_radius": radius, "peak": peak, "end": end},
        "switched_growth": growth, "median_tightness": float(np.median(tightness[:, -1])), "recursion": recursion,
    }  # fmt: skip
    text = (
        "Norms of products of Jacobians beside what the norms of the factors allow. A bound above one forbids nothing, "
        "and spectral radii of the factors bound nothing at all."
    )
    drawn = StudyFigure(
        "gradient_bounds", figure, "The norm of W^l and its bounds; what random tanh networks make of the bound.",
        "The bound rises while the norm, after a small hump, falls.",
    )  # fmt: skip
    return Part("Bounds on products of Jacobians", text, claims, values, (drawn,))


@eqx.filter_jit
def _random_reports(keys, n, T):
    def one(key):
        of_gain, of_net, of_input = jax.random.split(key, 3)
        # Largest singular values from about 0.4 to 4.
        gain = jax.random.uniform(of_gain, minval=0.2, maxval=2.0)
        net = Elman(2, n, recurrent_init=lambda k, s, d: gain * GaussianInit()(k, s, d), key=of_net)
        inputs = jax.random.normal(of_input, (T, 2))
        states = simulate(net, jnp.zeros(n), inputs, include_initial=True)
        return gradients.bound_report(net, states[:-1], inputs, gamma=1.0, throw=False)

    return jax.vmap(one)(keys)


def _recursion(seed) -> dict[str, float]:
    """Orders of products, an unrolled step, and the manual recursion, against automatic differentiation."""
    keys = jax.random.split(jax.random.key(seed), 4)
    n, T = 6, 8
    net, readout = Elman(2, n, key=keys[0]), Readout(n, 1, key=keys[1])
    inputs, targets = jax.random.normal(keys[2], (T, 2)), jnp.ones((T, 1))
    start = jax.random.normal(keys[3], (n,))
    states = simulate(net, start, inputs, include_initial=True)
    W = np.asarray(net.recurrent_weight)
    factors = [np.diag(1 - np.asarray(h) ** 2) @ W for h in states[1:]]
    exact = np.asarray(jax.jacfwd(lambda h: simulate(net, h, inputs)[-1])(start))
    descending = np.linalg.multi_dot(factors[::-1])
    ascending = np.linalg.multi_dot(factors)
    # The adjoint of the product is J_{k+1}^T ... J_t^T; the survey lists the transposes the other way round.
    adjoint = np.linalg.multi_dot([J.T for J in factors[::-1]])

    def off(found, right):
        return float(np.linalg.norm(found - right) / np.linalg.norm(right))

    def unrolled(phi):
        h0, u1, u2 = start, net.input_weight @ inputs[0], net.input_weight @ inputs[1]
        right = phi(W @ phi(W @ h0 + u1) + u2)
        return float(jnp.linalg.norm(phi(W @ W @ h0 + W @ u1 + u2) - right) / jnp.linalg.norm(right))

    # By hand: g_t = e_t + J_{t+1}^T g_{t+1}, and the gradient of W is the sum of (s' g_t) h_{t-1}^T.
    h, C = np.asarray(states), np.asarray(readout.weight)
    errors = (h[1:] @ C.T + np.asarray(readout.bias) - np.asarray(targets)) / T
    g, of_W, of_U = np.zeros(n), np.zeros((n, n)), np.zeros((n, 2))
    for t in range(T - 1, -1, -1):
        sent = (1 - h[t + 1] ** 2) * (C.T @ errors[t] + g)
        of_W, of_U, g = of_W + np.outer(sent, h[t]), of_U + np.outer(sent, inputs[t]), W.T @ sent
    found = gradients.backpropagate(net, readout, inputs, targets, state0=start)
    pairs = [(found.model.recurrent_weight, of_W), (found.model.input_weight, of_U), (found.state0, g)]
    return {
        "right": off(descending, exact),
        "ascending": off(ascending, exact),
        "adjoint": off(adjoint, exact.T),
        "unrolled_tanh": unrolled(jnp.tanh),
        "unrolled_linear": unrolled(lambda x: x),
        "manual": max(off(np.asarray(a), np.asarray(b)) for a, b in pairs),
    }


def smoothness(config) -> Part:
    """How the Lipschitz constants of a cost and of its gradient grow with the length of a simulation."""
    lengths = np.asarray(config.smoothness_lengths)
    scalar = {a: _scalar_growth(a, lengths, config.seed + 3) for a in (0.9, 1.0, 1.1)}
    steep = {a: [_slope(lengths, s[order], log=a == 1.0) for order in (0, 1)] for a, s in scalar.items()}
    scales = np.linspace(0.5, 2.0, config.orbit_points)
    orbits = np.asarray(_orbits(jnp.asarray(scales), config.orbit_burn_in, config.orbit_steps))
    exponents = np.asarray(_exponents(jnp.asarray(scales), config.orbit_burn_in, config.exponent_steps))
    leading = np.asarray(_exponents(jnp.ones(1), 100, config.spectrum_steps)[0])
    at = {s: float(exponents[np.argmin(np.abs(scales - s)), 0]) for s in (0.5, 1.0, 1.5)}
    grid = jnp.linspace(-0.02, 0.02, config.slice_points)
    rough = {}
    for name, centre in (("contractive", 1.8), ("chaotic", 1.0)):
        rough[name] = {T: _lipschitz(centre, grid, T, T) for T in config.slice_lengths}
    rough["chaotic, multiple shooting"] = {T: _lipschitz(1.0, grid, T, 10) for T in config.slice_lengths}
    # Pieces visit more of the orbit as it grows: what counts is whether growth goes on.
    early, last = config.slice_lengths[-2:]
    ratio = {name: float(x[last] / x[early]) for name, x in rough.items()}
    rate = np.log(ratio["chaotic"]) / (last - early)
    limit = 2 * np.log(1.1)
    claims = (
        Claim(
            "outside of contractive regions the Lipschitz constant of a cost may grow exponentially with its length",
            "at most L_f^(2N) for V, L_f^(3N) for V', polynomial at 1, bounded below 1",
            f"x' = a x + u: a = 1.1, |V'| and |V''| grow by {steep[1.1][0]:.4f} and {steep[1.1][1]:.4f} a step (bounds "
            f"{limit:.4f}, {1.5 * limit:.4f}); a = 1, as N^{steep[1.0][0]:.1f} and N^{steep[1.0][1]:.1f}; a = 0.9, by "
            f"{steep[0.9][0]:.4f} and {steep[0.9][1]:.4f}",
            "holds"
            if abs(steep[1.1][0] - limit) < 0.05 and steep[1.1][1] < 1.5 * limit and abs(steep[0.9][0]) < 0.03
            else "fails",
        ),
        Claim(
            "the two-unit LSTM is chaotic at scale 1, and contracts when its weights are halved",
            "chaotic (Laurent and von Brecht 2017)",
            f"spectrum {', '.join(f'{x:.3f}' for x in leading)} at 1; largest exponent {at[0.5]:.3f} at 0.5 and "
            f"{at[1.5]:.3f} at 1.5, where it is periodic again",
            "holds" if leading[0] > 0.1 and at[0.5] < 0 else "fails",
        ),
        Claim(
            "a cost over a chaotic orbit is rough, over a contractive one smooth",
            "seen as rough slices of the cost",
            f"largest |dV/ds| from {early} to {last} steps: chaotic {ratio['chaotic']:.1e} times as large "
            f"({rate:.3f} a "
            f"step; the exponent is {leading[0]:.3f}), contractive {ratio['contractive']:.2f} times",
            "holds" if rate > 0.1 and ratio["contractive"] < 3 else "fails",
        ),
        Claim(
            "multiple shooting keeps it smooth",
            "proposed as a remedy",
            f"the same orbit in pieces of 10 steps, from {early} to {last} steps: "
            f"{ratio['chaotic, multiple shooting']:.2f} times",
            "holds" if ratio["chaotic, multiple shooting"] < 3 else "fails",
        ),
        Claim(
            "recurrent networks end as dead, chaotic or periodic attractors, and this is what explodes",
            "the survey's reading; the paper recasts exploding gradients as smoothness of the cost",
            f"{np.mean(exponents[:, 0] < -1e-3):.2f} of the scales end on a fixed or periodic orbit and "
            f"{np.mean(exponents[:, 0] > 1e-3):.2f} on a chaotic one; a cost explodes with L_f^N also for x' = 1.1 x, "
            "which has no attractor",
            "fails",
        ),
    )
    figure, (left, right) = new_figure(2)
    left.plot(np.repeat(scales, orbits.shape[1]), orbits.ravel(), ",", color="black", alpha=0.4, rasterized=True)
    left.set_xlabel("scale of the weights")
    left.set_ylabel("first unit")
    for name, found in rough.items():
        right.plot(list(found), list(found.values()), "o-", ms=3, lw=1.2, label=name)
    right.set_yscale("log")
    right.set_xlabel("steps")
    right.set_ylabel("largest slope of the cost")
    right.legend(frameon=False, fontsize="small")
    drawn = StudyFigure(
        "smoothness", figure, "Orbits of the two-unit LSTM over the scale of its weights, and slopes of a cost.",
        "Windows of chaos between periodic orbits; the slope grows exponentially only where the orbit is chaotic.",
    )  # fmt: skip
    values = {
        "scalar": {str(a): x for a, x in steep.items()}, "spectrum": leading, "exponents": exponents[:, 0],
        "scales": scales, "slopes": {name: {str(T): v for T, v in x.items()} for name, x in rough.items()},
    }  # fmt: skip
    text = (
        "The cost is the squared distance of an orbit from that of a teacher of the same kind, differentiated with "
        "respect to one parameter: the multiplier of a scalar map, the scale of all weights of the LSTM."
    )
    return Part("Smoothness of the cost", text, claims, values, (drawn,))


def _scalar_growth(a, lengths, seed):
    """Root mean squares over inputs of V'(a) and V''(a), V the sum of x_t^2 of x' = a x + u, at each length."""
    inputs = np.random.default_rng(seed).standard_normal((512, lengths[-1]))
    x, dx, ddx = (np.zeros(512) for _ in range(3))
    first, second, out = np.zeros(512), np.zeros(512), ([], [])
    for t in range(lengths[-1]):
        x, dx, ddx = a * x + inputs[:, t], x + a * dx, 2 * dx + a * ddx
        first, second = first + 2 * x * dx, second + 2 * (dx**2 + x * ddx)
        if t + 1 in lengths:
            for series, values in zip(out, (first, second)):
                series.append(float(np.sqrt(np.mean(values**2))))
    return out


def _slope(lengths, values, *, log):
    """The slope of log values over the second half of the lengths, or over their logarithms."""
    half = len(lengths) // 2
    x = np.log(lengths) if log else np.asarray(lengths, float)
    return float(np.polyfit(x[half:], np.log(values)[half:], 1)[0])


def chaotic_lstm(scale: Any = 1.0) -> LSTM:
    """The two-unit LSTM without input and bias, its weights times `scale`."""
    net = LSTM(0, 2, use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.recurrent_weight, net, jnp.asarray(CHAOTIC_LSTM) * scale)


@eqx.filter_jit
def _orbits(scales, burn_in, steps):
    def one(scale):
        return simulate(chaotic_lstm(scale), jnp.full(4, _START), steps=burn_in + steps)[burn_in:, 0]

    return jax.vmap(one)(scales)


@eqx.filter_jit
def _exponents(scales, burn_in, steps):
    def one(scale):
        start = jnp.full(4, _START)
        return lyapunov_spectrum(chaotic_lstm(scale), start, steps=steps, transient=burn_in, throw=False).exponents

    return jax.vmap(one)(scales)


@eqx.filter_jit
def _lipschitz(centre, offsets, T, window):
    """The largest slope of V(s) near a scale: mean squared distance from the orbit at `centre`, restarted on it every
    `window` steps."""
    start = simulate(chaotic_lstm(centre), jnp.full(4, _START), steps=100, last_only=True)
    target = simulate(chaotic_lstm(centre), start, steps=T, include_initial=True)
    starts, goals = target[:-1:window], target[1:].reshape(T // window, window, 4)

    def cost(offset):
        net = chaotic_lstm(centre + offset)
        orbits = jax.vmap(lambda z: simulate(net, z, steps=window))(starts)
        return jnp.mean((orbits[..., :2] - goals[..., :2]) ** 2)

    return jnp.max(jnp.abs(jax.vmap(jax.grad(cost))(offsets)))
