"""The gradients study on spectra: mean-field theory, flossing, and what reservoirs remember."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp import gradients, plot
from dynwarp._simulate import simulate
from dynwarp.dynamics import lyapunov_spectrum, mean_field_tanh
from dynwarp.learning._descent import descend
from dynwarp.models import EchoStateNetwork, Elman, GaussianInit, Readout
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure


def spectra(config) -> Part:
    """Exponents of large random networks against theory, and exponents moved by gradient descent."""
    N, steps = config.field_units, config.field_steps
    gains, theory, found = (1.5, 2.0, 3.0, 5.0), [], []
    for gain in gains:
        theory.append(float(mean_field_tanh(gain).exponent))
        found.append(
            _random_exponents(jnp.asarray(gain), jnp.asarray(0.0), N, steps, config.seed + 30, config.field_networks)
        )
    means = [float(x.mean()) for x in found]
    off = max(abs(m / t - 1) for m, t in zip(means, theory))
    noisy_theory = float(mean_field_tanh(1.5, noise=0.5).exponent)
    noisy = float(
        _random_exponents(jnp.asarray(1.5), jnp.asarray(0.5), N, steps, config.seed + 30, config.field_networks).mean()
    )

    net = Elman(0, 12, recurrent_init=GaussianInit(1.6), use_bias=False, key=jax.random.key(config.seed + 31))
    spectrum = lyapunov_spectrum(net, jnp.full(12, 0.1), steps=2000, transient=200)
    orthogonal = Elman(0, 6, activation=jax.nn.identity, use_bias=False, key=jax.random.key(config.seed + 32))
    of_gain = eqx.tree_at(lambda m: m.recurrent_weight, orthogonal, 1.1 * orthogonal.recurrent_weight)
    flat = lyapunov_spectrum(of_gain, jnp.ones(6), steps=50)
    flat_error = float(jnp.max(jnp.abs(flat.exponents - jnp.log(1.1))))

    states = simulate(net, jnp.full(12, 0.1), steps=2200, include_initial=True)[200:-1]
    product = gradients.jacobian_product(net, states, lag=2000, throw=False)
    gap = float(jnp.max(jnp.abs(product.log_singular_values[:3] / 2000 - spectrum.exponents[:3])))

    flossed = _floss(config)
    claims = (
        Claim(
            "the largest exponent of a large random tanh network is that of mean-field theory",
            "log(g^2 <sech^4>) / 2 in the limit of many units",
            f"{N} units, mean of {config.field_networks} networks (theory): "
            + ", ".join(f"g = {g:g}: {m:.4f} ({t:.4f})" for g, m, t in zip(gains, means, theory))
            + f"; {100 * off:.1f} % off at most",
            "holds" if off < 0.15 else "fails",
        ),
        Claim(
            "noise puts chaos off",
            f"theory at g = 1.5 with noise 0.5: {noisy_theory:.4f}, without: {theory[0]:.4f}",
            f"{noisy:.4f} with and {means[0]:.4f} without",
            "holds" if noisy < 0 < means[0] else "fails",
        ),
        Claim(
            "exponents sum to the mean log |det| of the steps",
            "exact",
            f"residual {float(spectrum.sum_rule_residual):.0e} for 12 units; 1.1 times an orthogonal matrix has "
            "all its "
            f"exponents at log 1.1 within {flat_error:.0e}",
            "holds" if abs(spectrum.sum_rule_residual) < 1e-6 and flat_error < 1e-12 else "fails",
        ),
        Claim(
            "Lyapunov exponents are the growth rates of the ordered product of Jacobians",
            "Oseledets; the survey takes spectral radii of single steps",
            f"leading three, from the singular values of a product of 2000 steps: {gap:.4f} apart at most; mean log of "
            f"the steps' spectral radii {_mean_radius(net, states):.3f} against {float(spectrum.exponents[0]):.3f}",
            "holds" if gap < 0.02 else "fails",
        ),
        Claim(
            "the spectrum has a derivative through its orthonormalisation",
            "gradient flossing (Engelken 2023)",
            f"against finite differences {flossed['error']:.0e}; sum of squared exponents {flossed['before']:.4f} to "
            f"{flossed['after']:.1e} in {config.floss_steps} steps",
            "holds" if flossed["error"] < 1e-5 and flossed["after"] < 0.1 * flossed["before"] else "fails",
        ),
        Claim(
            "flossing lets gradients travel further",
            "exponents at zero neither vanish nor explode",
            f"decay of a loss term over {flossed['lag']} steps: {flossed['decay'][0]:.3f} nats a step before, "
            f"{flossed['decay'][1]:.3f} after",
            "holds" if abs(flossed["decay"][1]) < 0.5 * abs(flossed["decay"][0]) else "fails",
        ),
    )
    figure, (left, right) = new_figure(2)
    fine = np.linspace(1.01, 5.2, 200)
    left.plot(fine, mean_field_tanh(jnp.asarray(fine)).exponent, color="#999999", label="mean field")
    for gain, x in zip(gains, found):
        left.plot([gain] * len(x), x, "o", ms=3, color="#0072b2")
    left.set_xlabel("gain g")
    left.set_ylabel("largest exponent")
    plot.gradient_profile({"before": flossed["profiles"][0], "after flossing": flossed["profiles"][1]}, ax=right)
    drawn = StudyFigure(
        "spectra", figure, "Largest exponents of random networks and mean-field theory; what a loss term sends back "
        "before and after flossing.",
        "Dots lie on the curve; the gradient falls by orders of magnitude before flossing and much less after.",
    )  # fmt: skip
    values = {
        "gains": gains, "theory": theory, "found": found, "noise": [noisy_theory, noisy],
        "flossing": {k: v for k, v in flossed.items() if k != "profiles"}, "product_gap": gap,
    }  # fmt: skip
    text = "Random networks x' = J tanh(x) + noise; flossing of a tanh network that contracts, driven by white noise."
    return Part("Lyapunov spectra", text, claims, values, (drawn,))


def _random_exponents(gain, noise, N, steps, seed, networks):
    found = []
    for key in jax.random.split(jax.random.key(seed), networks):
        found.append(float(_random_exponent(gain, noise, key, N, steps)))
    return np.asarray(found)


@eqx.filter_jit
def _random_exponent(gain, noise, key, N, steps):
    of_weight, of_state, of_noise = jax.random.split(key, 3)
    net = Elman(N, N, form="pre", use_bias=False, key=of_weight)
    W = gain * GaussianInit()(of_weight, (N, N))
    net = eqx.tree_at(lambda m: (m.recurrent_weight, m.input_weight), net, (W, noise * jnp.eye(N)))
    inputs = jax.random.normal(of_noise, (steps + 200, N))
    start = jax.random.normal(of_state, (N,))
    return lyapunov_spectrum(net, start, steps=steps, transient=200, k=1, inputs=inputs, throw=False).exponents[0]


def _mean_radius(net, states) -> float:
    W = np.asarray(net.recurrent_weight)
    after = np.asarray(states)[1:200]
    return float(np.mean([np.log(np.abs(np.linalg.eigvals((1 - h**2)[:, None] * W)).max()) for h in after]))


def _floss(config):
    """Exponents of a driven network held at zero by Adam, its derivative checked, and gradients before and after."""
    n, T = 8, 60
    keys = jax.random.split(jax.random.key(config.seed + 33), 3)
    net = Elman(2, n, recurrent_init=GaussianInit(0.7), key=keys[0])
    inputs = 0.3 * jax.random.normal(keys[1], (T, 2))

    def cost(net):
        return gradients.flossing_loss(net, inputs, k=4)

    slope = eqx.filter_jit(eqx.filter_value_and_grad(cost))
    value, gradient = slope(net)
    towards = jax.random.normal(keys[2], (n, n))
    moved = [
        float(cost(eqx.tree_at(lambda m: m.recurrent_weight, net, net.recurrent_weight + h * towards)))
        for h in (1e-5, -1e-5)
    ]
    exact = float(jnp.sum(gradient.recurrent_weight * towards))
    error = abs((moved[0] - moved[1]) / 2e-5 / exact - 1)
    optimizer = optax.adam(1e-2)
    trained = net
    state = optimizer.init(eqx.filter(trained, eqx.is_inexact_array))
    for _ in range(config.floss_steps):
        _, gradient = slope(trained)
        trained, state = descend(optimizer, gradient, state, trained)
    readout = Readout(n, 1, key=keys[2])
    profiles = [
        gradients.gradient_profile(m, readout, inputs, jnp.ones((T, 1)), mask=jnp.arange(T) == T - 1, lags=40)
        for m in (net, trained)
    ]
    return {
        "error": error, "before": float(value), "after": float(cost(trained)), "lag": 40,
        "decay": [float(p.decay) for p in profiles], "profiles": [p.lag_norms for p in profiles],
    }  # fmt: skip


def reservoirs(config) -> Part:
    """What reservoirs remember, and what makes them forget their start."""
    N, key = 20, jax.random.key(config.seed + 40)
    identity = jax.nn.identity
    line = gradients.memory_capacity(
        EchoStateNetwork(1, N, spectral_radius=0.9, topology="dense", activation=identity, bias_scaling=0.0, key=key),
        400,
    )  # fmt: skip
    whole = float(jnp.sum(line.capacities))
    cycles = {}
    for size, r in ((20, 0.9), (50, 0.95), (50, 0.99)):
        ring = EchoStateNetwork(1, size, spectral_radius=r, topology="cycle", activation=identity, key=key)
        cycles[f"{size}, {r}"] = (float(gradients.memory_capacity(ring, 2000).total), size - 1 + r ** (2 * size))
    scales = (0.01, 0.1, 1.0)
    nets = {
        s: EchoStateNetwork(
            1, 50, spectral_radius=0.9, input_scaling=s, bias_scaling=0.0, topology="dense", key=key
        )
        for s in scales
    }  # fmt: skip
    tanh = {
        s: gradients.memory_capacity(net, 100, steps=config.capacity_steps, key=jax.random.key(config.seed + 41))
        for s, net in nets.items()
    }
    totals = {s: float(x.total) for s, x in tanh.items()}

    real = [_real_radius(100, 0.9, config.seed + 42 + i) for i in range(20)]
    asked = [
        abs(float(jnp.max(jnp.abs(jnp.linalg.eigvals(net.recurrent_matrix())))) - 0.9)
        for net in list(nets.values())[:1]
    ]
    drive = jax.random.normal(jax.random.key(config.seed + 43), (1000, 1))
    strong = gradients.echo_state_report(
        EchoStateNetwork(1, 50, spectral_radius=1.3, topology="dense", input_scaling=3.0, key=key), drive
    )
    quiet = gradients.echo_state_report(
        EchoStateNetwork(1, 50, spectral_radius=1.3, topology="dense", input_scaling=0.0, bias_scaling=0.0, key=key),
        drive,
        throw=False,
    )
    # W^2 = 0; the bias saturates the second unit, and the first, alone, has two states.
    bistable = EchoStateNetwork.from_parameters(
        jnp.array([[3.0, -1.0], [9.0, -3.0]]), jnp.zeros((2, 1)), bias=jnp.array([1.0, 20.0])
    )
    trapped = gradients.echo_state_report(bistable, drive, starts=32, throw=False)
    claims = (
        Claim(
            "a linear reservoir's capacities for all delays from 0 on sum to its size",
            "N for a nondegenerate one (Jaeger 2001)",
            f"{whole:.6f} of {N} in a dense random one, whose states have the numerical rank {int(line.rank)}",
            "holds" if abs(whole - int(line.rank)) < 1e-6 else "fails",
        ),
        Claim(
            "a cycle's capacity is N - 1 + r^(2N)",
            "Rodan and Tino 2011",
            "; ".join(f"{name}: {a:.6f} ({b:.6f})" for name, (a, b) in cycles.items()),
            "holds" if all(abs(a - b) < 1e-5 for a, b in cycles.values()) else "fails",
        ),
        Claim(
            "saturation costs memory",
            "30.8, 22.2, 11.1 at input scales 0.01, 0.1, 1 (50 tanh units, radius 0.9)",
            ", ".join(f"{s:g}: {x:.1f}" for s, x in totals.items()) + " in another network of the kind",
            "holds" if totals[0.01] > totals[0.1] > totals[1.0] else "fails",
        ),
        Claim(
            "the spectral radius may be set through the real parts of the eigenvalues",
            "the survey's code",
            f"asked for 0.9, 20 matrices of 100 units had {np.mean(real):.3f} in the mean and {max(real):.3f} at most; "
            f"EchoStateNetwork is off by {asked[0]:.0e}",
            "fails" if max(real) > 0.91 and asked[0] < 1e-9 else "holds",
        ),
        Claim(
            "a spectral radius below one is what makes a reservoir forget its start",
            "often said; neither necessary nor sufficient",
            f"radius 1.3 under strong input: conditional exponent {float(strong.conditional_exponent):.3f}, forgets: "
            f"{bool(strong.holds)}; without input {float(quiet.conditional_exponent):.3f}, forgets: "
            f"{bool(quiet.holds)}; "
            f"two units of radius {float(trapped.spectral_radius):.0e} with a bias: runs end "
            f"{float(trapped.spread):.2f} "
            f"of their distance apart, forgets: {bool(trapped.holds)}",
            "fails" if bool(strong.holds) and not bool(quiet.holds) and not bool(trapped.holds) else "holds",
        ),
    )
    figure, ax = new_figure()
    plot.memory_capacities({f"input scale {s:g}": x for s, x in tanh.items()}, ax=ax)
    drawn = StudyFigure(
        "memory_capacity", figure, "Capacities of a tanh reservoir of 50 units for its past inputs.",
        "The smaller the inputs, the longer the capacity stays near one.",
    )  # fmt: skip
    values = {
        "linear": [whole, int(line.rank)], "cycles": cycles, "tanh": {str(s): x for s, x in totals.items()},
        "real_part_radius": real, "trapped_radius": float(trapped.spectral_radius),
    }  # fmt: skip
    text = "Capacities of linear reservoirs are exact, those of tanh reservoirs sampled and corrected for chance."
    return Part("Reservoirs", text, claims, values, (drawn,))


def _real_radius(n, asked, seed) -> float:
    """The true radius of a sparse random matrix scaled by the largest real part, as the survey's code does it."""
    draw = np.random.default_rng(seed)
    W = draw.standard_normal((n, n)) * (draw.random((n, n)) < 0.1)
    eigenvalues = np.linalg.eigvals(W)
    return float(asked * np.abs(eigenvalues).max() / np.abs(eigenvalues.real).max())
