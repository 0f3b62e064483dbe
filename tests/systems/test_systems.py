"""Every named system against a known property: equilibria, traces, energies, closed forms, published numbers."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import dynwarp as dw
from dynwarp import systems
from dynwarp.errors import ArgumentError, ShapeError

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the acceptance data of ../shared/data is not there")

FIELDS = {
    "Lorenz63": systems.Lorenz63,
    "Lorenz96": lambda: systems.Lorenz96(6),
    "Rossler": systems.Rossler,
    "Duffing": lambda: systems.Duffing(gamma=0.4),
    "DampedOscillators": systems.DampedOscillators,
    "Decision": systems.Decision,
    "FitzHughNagumo": systems.FitzHughNagumo,
    "ConductanceNeuron": systems.ConductanceNeuron,
    "BurstingNeuron": systems.BurstingNeuron,
}
MAPS = {
    "LogisticMap": systems.LogisticMap,
    "Henon": systems.Henon,
    "Lozi": systems.Lozi,
    "BorderCollisionMap": systems.BorderCollisionMap,
}


@eqx.filter_jit
def velocity(system, state, input=None):
    """The field at t = 0.3, or the map."""
    if isinstance(system, dw.models.AbstractField):
        return system(jnp.asarray(0.3, state.dtype), state, input)
    return system(state, input)


def nearby(system, seed=0):
    """A state near the initial one, on no border, every coordinate of its own size."""
    start = np.asarray(system.initial_state())
    return jnp.asarray(start + 0.05 * (np.abs(start) + 0.1) * np.random.default_rng(seed).normal(size=start.shape))


@pytest.mark.parametrize("name", [*FIELDS, *MAPS])
def test_every_system_transforms(name):
    system = (FIELDS | MAPS)[name]()
    n, d = system.state_size, system.input_size
    z = nearby(system)
    assert system.initial_state().shape == (n,)
    assert not system.initial_state().weak_type
    assert np.all(np.isfinite(system.initial_state()))
    if name in FIELDS:
        assert system.time_step > 0

    out = velocity(system, z)
    assert out.shape == (n,)
    np.testing.assert_array_equal(out, velocity(system, z, jnp.zeros(d)))
    batch = eqx.filter_jit(eqx.filter_vmap(velocity, in_axes=(None, 0)))(system, jnp.stack([z, z]))
    np.testing.assert_allclose(batch[1], out, rtol=1e-13, atol=1e-13 * np.abs(out).max())

    # A float32 state stays float32 and agrees, whatever the precision of the defaults.
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if x.ndim else x, system)
    low = velocity(single, z.astype(jnp.float32))
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, out, rtol=1e-4, atol=1e-4 * np.abs(out).max())

    # Derivatives in the state and in every parameter at once, against central differences.
    weights = jnp.asarray(np.random.default_rng(1).normal(size=n))

    @jax.jit
    def loss(pair):
        model, state = pair
        return weights @ velocity(model, state)

    leaves, rebuild = jax.tree.flatten((system, z))
    assert all(eqx.is_inexact_array(x) for x in leaves)
    direction = [np.random.default_rng(i).normal(size=x.shape) * (jnp.abs(x) + 0.1) for i, x in enumerate(leaves)]
    gradient = jax.tree.leaves(jax.jit(jax.grad(loss))((system, z)))
    slope = sum(jnp.vdot(g, d) for g, d in zip(gradient, direction))
    h = 1e-6
    ahead, behind = (loss(rebuild.unflatten([x + s * d for x, d in zip(leaves, direction)])) for s in (h, -h))
    scale = sum(float(jnp.abs(jnp.vdot(g, d))) for g, d in zip(gradient, direction))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * h), atol=1e-7 * scale)


def zero(system, state, atol=1e-12):
    np.testing.assert_allclose(velocity(system, jnp.asarray(state)), 0.0, atol=atol)


@eqx.filter_jit
def _jacobian(system, state):
    return jax.jacfwd(lambda z: velocity(system, z))(state)


def jacobian(system, state):
    return np.asarray(_jacobian(system, jnp.asarray(state)))


def steps(system, duration, state0=None, inputs=None):
    """The states of a fixed-step simulation, one every `time_step`, as numpy."""
    start = system.initial_state() if state0 is None else state0
    count = round(duration / system.time_step)
    return np.asarray(dw.simulate(system, start, inputs, dt=system.time_step, steps=count))


def crossings(signal, threshold, time_step):
    """The times at which the signal rises through the threshold."""
    return np.flatnonzero((signal[1:] > threshold) & (signal[:-1] <= threshold)) * time_step


# ---- flows


def test_lorenz63_equilibria_symmetry_and_trace():
    f = systems.Lorenz63()
    r = np.sqrt(8 / 3 * 27)
    for point in ([0.0, 0, 0], [r, r, 27], [-r, -r, 27]):
        zero(f, point)
    mirror = jnp.array([-1.0, -1.0, 1.0])
    for seed in range(3):
        z = nearby(f, seed)
        np.testing.assert_allclose(np.trace(jacobian(f, z)), -(10 + 1 + 8 / 3), rtol=1e-14)
        np.testing.assert_allclose(velocity(f, mirror * z), mirror * velocity(f, z), rtol=1e-14)
    # At the origin one eigenvalue is -beta, the others solve l^2 + (sigma + 1) l + sigma (1 - rho) = 0.
    expected = np.append(np.roots([1, 11, 10 * (1 - 28)]), -8 / 3)
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(jacobian(f, np.zeros(3)))), np.sort(expected))


def test_lorenz96_equilibrium_energy_trace_and_formula():
    f = systems.Lorenz96(7, forcing=3.0)
    zero(f, np.full(7, 3.0))
    z = np.random.default_rng(2).normal(size=7)
    expected = [(z[(i + 1) % 7] - z[i - 2]) * z[i - 1] - z[i] + 3.0 for i in range(7)]
    np.testing.assert_allclose(velocity(f, jnp.asarray(z)), expected, rtol=1e-13)
    # The advection conserves energy and volume.
    np.testing.assert_allclose(z @ velocity(f, jnp.asarray(z)), -z @ z + 3.0 * z.sum(), rtol=1e-12)
    np.testing.assert_allclose(np.trace(jacobian(f, z)), -7.0, rtol=1e-14)
    assert systems.Lorenz96().state_size == 40
    with pytest.raises(ArgumentError, match="Lorenz96: `n` must be a whole number of at least 4; got 3"):
        systems.Lorenz96(3)


def test_rossler_equilibria_and_trace():
    a, b, c = 0.2, 0.2, 5.7
    f = systems.Rossler()
    for x in np.roots([1, -c, a * b]):
        zero(f, [x, -x / a, x / a])
    z = nearby(f)
    np.testing.assert_allclose(np.trace(jacobian(f, z)), a + z[0] - c, rtol=1e-13)
    turns = crossings(steps(f, 200.0)[2500:, 0], 0.0, f.time_step)
    np.testing.assert_allclose(np.mean(np.diff(turns)), 5.9, atol=0.1)


def test_duffing_equilibria_energy_and_drive():
    f = systems.Duffing()
    for x in (0.0, np.sqrt(10), -np.sqrt(10)):
        zero(f, [x, 0.0], atol=1e-14)
    assert np.sign(np.linalg.eigvals(jacobian(f, [0.0, 0.0]))).sum() == 0  # a saddle
    assert np.all(np.linalg.eigvals(jacobian(f, [np.sqrt(10), 0.0])).real < 0)

    def energy(z):
        return z[1] ** 2 / 2 - z[0] ** 2 / 2 + 0.1 * z[0] ** 4 / 4

    z = jnp.array([1.3, -0.7])
    np.testing.assert_allclose(jax.grad(energy)(z) @ f(0.0, z), -0.5 * z[1] ** 2, rtol=1e-13)
    np.testing.assert_allclose(steps(f, 60.0)[-1], [np.sqrt(10), 0.0], atol=1e-6)
    driven = systems.Duffing(gamma=0.7, omega=1.4)
    np.testing.assert_allclose(driven(2.0, z) - f(2.0, z), [0.0, 0.7 * np.cos(2.8)], atol=1e-14)
    np.testing.assert_allclose(f(2.0, z, jnp.array([0.25])) - f(2.0, z), [0.0, 0.25], atol=1e-14)


def test_damped_oscillators_energy_spectrum_and_closed_form():
    f = systems.DampedOscillators()
    alpha, beta, gamma = (np.asarray(x) for x in (f.alpha, f.beta, f.gamma))
    assert f.state_size == 20
    z = jnp.asarray(np.random.default_rng(3).normal(size=20))

    def energies(z):
        x, y = z[:10], z[10:]
        return y**2 / 2 + alpha * x**2 / 2 + beta * x**4 / 4

    decay = jax.jit(lambda z: jax.jvp(energies, (z,), (velocity(f, z),))[1])(z)
    np.testing.assert_allclose(decay, -gamma * z[10:] ** 2, atol=1e-13)
    zero(f, np.zeros(20))
    eigenvalues = np.linalg.eigvals(jacobian(f, np.zeros(20)))
    expected = -gamma / 2 + 1j * np.sqrt(alpha - gamma**2 / 4)
    np.testing.assert_allclose(np.sort_complex(eigenvalues[eigenvalues.imag > 0]), np.sort_complex(expected))
    # Two linear oscillators against the matrix exponential.
    linear = systems.DampedOscillators([1.0, 0.5], [0.0, 0.0], [0.1, 0.2])
    end = steps(linear, 5.0)[-1]
    exact = scipy.linalg.expm(5.0 * jacobian(linear, np.zeros(4))) @ np.asarray(linear.initial_state())
    np.testing.assert_allclose(end, exact, atol=1e-6)
    with pytest.raises(ShapeError, match=r"DampedOscillators: `gamma` must have shape \(2,\); got \(3,\)"):
        systems.DampedOscillators([1.0, 2.0], [0.0, 0.0], [0.1, 0.1, 0.1])


def test_decision_symmetry_winners_and_saddle():
    f = systems.Decision()
    swap = np.array([1, 0, 2])
    z = nearby(f)
    np.testing.assert_allclose(velocity(f, z[swap]), velocity(f, z)[swap], rtol=1e-14)

    def balance(h):
        """The stationary equations, from the text of the model."""
        g = 1 / (1 + np.exp(-(h - 5)))
        return -h + 16 * g - 15 * 12 * g.sum() + 40

    def stationary(guess):
        h = scipy.optimize.root(balance, guess, tol=1e-13).x
        return np.append(h, 12 * (1 / (1 + np.exp(-(h - 5)))).sum())

    winner, symmetric = stationary([3.7, 0.5]), stationary([2.9, 2.9])
    assert winner[0] - winner[1] > 3
    np.testing.assert_allclose(symmetric[0], symmetric[1])
    zero(f, winner, atol=1e-10)
    zero(f, symmetric, atol=1e-10)
    assert np.all(np.linalg.eigvals(jacobian(f, winner)).real < 0)
    # One unstable direction, along h_1 - h_2: its stable manifold is the plane h_1 = h_2.
    unstable = np.linalg.eigvals(jacobian(f, symmetric)).real > 0
    assert unstable.sum() == 1
    np.testing.assert_allclose(steps(f, 1000.0)[-1], winner, atol=1e-8)
    # Evidence for the second overrules the first one's lead.
    evidence = systems.Decision(I1=39.5, I2=40.5)
    last = steps(evidence, 500.0)[-1]
    assert last[1] - last[0] > 3
    s = jnp.array([-0.5, 0.5])
    np.testing.assert_allclose(velocity(f, z, s), velocity(evidence, z), rtol=1e-13)


# ---- neurons


def test_fitzhugh_nagumo_rests_and_fires():
    rest = systems.FitzHughNagumo(current=0.0)
    # v - v^3/3 - (v + a)/b = 0 has one real root; the published resting point is (-1.1994, -0.6243).
    roots = np.roots([-1 / 3, 0, 1 - 1 / 0.8, -0.7 / 0.8])
    v = roots[np.abs(roots.imag) < 1e-12].real.item()
    zero(rest, [v, (v + 0.7) / 0.8])
    np.testing.assert_allclose([v, (v + 0.7) / 0.8], [-1.1994, -0.6243], atol=5e-5)
    assert np.all(np.linalg.eigvals(jacobian(rest, [v, (v + 0.7) / 0.8])).real < 0)
    firing = systems.FitzHughNagumo()
    spikes = crossings(steps(firing, 300.0)[:, 0], 0.0, firing.time_step)
    np.testing.assert_allclose(np.diff(spikes)[1:], 39.5, atol=0.2)
    np.testing.assert_allclose(rest(0.0, rest.initial_state(), jnp.array([0.5])), firing(0.0, rest.initial_state()))


def traub_miles(z, current):
    """The equations once more, in numpy and in the order of the original paper."""
    v, m, h, n = z
    u = v + 63
    am, bm = 0.32 * (13 - u) / (np.exp((13 - u) / 4) - 1), 0.28 * (u - 40) / (np.exp((u - 40) / 5) - 1)
    ah, bh = 0.128 * np.exp((17 - u) / 18), 4 / (1 + np.exp((40 - u) / 5))
    an, bn = 0.032 * (15 - u) / (np.exp((15 - u) / 5) - 1), 0.5 * np.exp((10 - u) / 40)
    dv = current - 0.05 * (v + 65) - 100 * m**3 * h * (v - 50) - 30 * n**4 * (v + 90)
    return np.array([dv, am * (1 - m) - bm * m, ah * (1 - h) - bh * h, an * (1 - n) - bn * n])


def test_conductance_neuron_equations_and_removable_singularities():
    f = systems.ConductanceNeuron()
    rng = np.random.default_rng(4)
    for _ in range(5):
        z = np.append(rng.uniform(-90, 50), rng.uniform(size=3))
        np.testing.assert_allclose(velocity(f, jnp.asarray(z)), traub_miles(z, 1.0), rtol=1e-11)
        np.testing.assert_allclose(velocity(f, jnp.asarray(z), jnp.array([2.0])), traub_miles(z, 3.0), rtol=1e-11)
    for u in (13.0, 15.0, 40.0):
        at, beside = (np.array([u - 63 + shift, 0.2, 0.6, 0.3]) for shift in (0.0, 1e-3))
        np.testing.assert_allclose(velocity(f, jnp.asarray(at)), traub_miles(beside, 1.0), rtol=1e-2)
        np.testing.assert_allclose(jacobian(f, at), jacobian(f, beside), rtol=1e-2, atol=1e-2)
        # The two branches meet: the slope across the switch is that of the smooth function.
        near, far = (velocity(f, jnp.asarray(at + s * np.eye(4)[0])) for s in (-1e-3, 1e-3))
        np.testing.assert_allclose((far - near) / 2e-3, jacobian(f, at)[:, 0], atol=1e-5)


def test_conductance_neuron_is_silent_without_current_and_fires_faster_with_more():
    currents = jnp.array([0.0, 0.5, 1.0, 2.0])
    start = systems.ConductanceNeuron().initial_state()
    run = jax.vmap(lambda i: dw.simulate(systems.ConductanceNeuron(current=i), start, dt=0.02, steps=7500))
    states = np.asarray(run(currents))
    spikes = [crossings(v, 0.0, 0.02) for v in states[:, :, 0]]
    assert not len(spikes[0])
    np.testing.assert_allclose(states[0, -1, 0], -64.76, atol=0.02)
    intervals = [np.diff(s)[-1] for s in spikes[1:]]
    np.testing.assert_allclose(intervals, [42.5, 25.65, 15.34], atol=0.05)
    assert np.all(states[1:, :, 0].max(1) > 40)  # full-sized spikes
    assert np.all(states[1:, :, 0] < 50)  # below the sodium reversal potential
    assert np.all(states[..., 1:] >= 0)
    assert np.all(states[..., 1:] <= 1)


@pytest.fixture(scope="module")
def bursting():
    return steps(systems.BurstingNeuron(), 1000.0)


def test_bursting_neuron_equations():
    f = systems.BurstingNeuron()
    v, n, h = z = np.array([-31.0, 0.2, 0.05])
    expected = [
        (
            -8 * (v + 80)
            - 20 / (1 + np.exp((-20 - v) / 15)) * (v - 60)
            - 10 * n * (v + 90)
            - 25 * h * (v + 90)
            - 10.2 / (1 + 0.33 * np.exp(-0.0625 * v)) * v
        )
        / 6,
        1 / (1 + np.exp((-25 - v) / 5)) - n,
        (1 / (1 + np.exp((-15 - v) / 5)) - h) / 200,
    ]
    np.testing.assert_allclose(velocity(f, jnp.asarray(z)), expected, rtol=1e-12)
    pushed = velocity(f, jnp.asarray(z), jnp.array([3.0]))
    np.testing.assert_allclose(pushed - velocity(f, jnp.asarray(z)), [0.5, 0, 0], atol=1e-12)


def test_bursting_neuron_bursts(bursting):
    intervals = np.diff(crossings(bursting[6000:, 0], -20.0, 0.05))
    gaps = intervals > 30
    np.testing.assert_allclose(intervals[gaps], 83.9, atol=0.2)
    within = intervals[~gaps]
    assert 3.5 < within.min() < 4
    assert within.max() < 9
    per_burst = np.diff(np.flatnonzero(gaps))
    np.testing.assert_array_equal(per_burst, 15)
    # The slow current ends the burst: its gate rises through the burst and falls in the gap.
    assert bursting[:, 2].max() < 0.1
    # More NMDA current turns bursting into tonic spiking.
    tonic = np.diff(crossings(steps(systems.BurstingNeuron(g_NMDA=11.0), 1000.0)[14000:, 0], -20.0, 0.05))
    assert np.ptp(tonic) <= 0.1
    np.testing.assert_allclose(tonic, 8.6, atol=0.1)


@needs_data
def test_bursting_neuron_agrees_with_the_published_series(bursting):
    """The benchmark's recording is standardised and sampled every 0.5 ms: silences of 168 samples."""
    recorded = np.load(DATA / "bursting_neuron_3d.npy", allow_pickle=False)[:, 0]
    theirs = np.diff(crossings(recorded, 1.0, 0.5))
    ours = np.diff(crossings(bursting[6000:, 0], -20.0, 0.05))
    np.testing.assert_allclose(np.median(theirs[theirs > 50]), np.median(ours[ours > 50]), atol=0.5)
    np.testing.assert_allclose(np.median(theirs[theirs < 20]), np.median(ours[ours < 20]), atol=0.5)
    model = (bursting[6000:, 0] - bursting[6000:, 0].mean()) / bursting[6000:, 0].std()
    for quantile in (0.25, 0.5, 0.75, 0.95):
        np.testing.assert_allclose(np.quantile(recorded, quantile), np.quantile(model, quantile), atol=0.1)


# ---- maps


def test_logistic_map_in_closed_form():
    f = systems.LogisticMap()
    angle = np.arcsin(np.sqrt(0.3))
    orbit = np.asarray(dw.simulate(f, f.initial_state(), steps=12))[:, 0]
    # x_n = sin^2(2^n theta); errors double every step.
    np.testing.assert_allclose(orbit, np.sin(2.0 ** np.arange(1, 13) * angle) ** 2, atol=1e-11)


def test_henon_fixed_points_and_determinant():
    f = systems.Henon()
    for x in np.roots([1.4, 1 - 0.3, -1]):
        point = jnp.array([x, 0.3 * x])
        np.testing.assert_allclose(f(point), point, atol=1e-14)
    np.testing.assert_allclose(np.linalg.det(jacobian(f, nearby(f))), -0.3, rtol=1e-13)
    orbit = np.asarray(dw.simulate(f, f.initial_state(), steps=1000))
    assert np.abs(orbit[:, 0]).max() < 1.3


@pytest.mark.parametrize("name", ["Lozi", "BorderCollisionMap"])
def test_canonical_forms_of_the_planar_maps(name):
    f = MAPS[name]()
    random = np.random.default_rng(5).normal(size=(50, 2))
    z = np.concatenate([random, 1e3 * random, [[0.0, 0.0], [0.0, 1.0], [-0.0, -2.0]]])
    canonical = f.canonical()
    direct, other = jax.vmap(f)(z), jax.vmap(canonical)(z)
    scale = np.abs(z).max(1, keepdims=True) + 1
    np.testing.assert_array_less(np.abs(direct - other) / scale, 1e-14)
    for point in z[::10]:
        J, b = canonical.affine(canonical.pattern(point))
        np.testing.assert_allclose(J, jacobian(f, point), atol=1e-14)
        np.testing.assert_allclose(J @ point + b, f(jnp.asarray(point)), atol=1e-12)


def test_lozi_fixed_points_and_chaos():
    a, b = 1.7, 0.5
    f = systems.Lozi()
    for x in (1 / (1 + a - b), 1 / (1 - a - b)):
        point = jnp.array([x, b * x])
        np.testing.assert_allclose(f(point), point, atol=1e-14)
    z = jnp.array([-0.4, 0.2])
    np.testing.assert_allclose(f(z), [1 - a * 0.4 + 0.2, b * -0.4], rtol=1e-14)
    np.testing.assert_allclose(np.linalg.det(jacobian(f, z)), -b, rtol=1e-14)
    assert np.abs(np.asarray(dw.simulate(f, f.initial_state(), steps=2000))).max() < 2


# A fixed point of each published setting, with its multipliers.
PLANAR_FIXED_POINTS = {
    "fig3a_left": ([-1 / 9, 0.0096296], [1.68135, -0.98135]),
    "fig3a_right": ([0.927835, -0.088097], [1.569469, 0.250531]),
    "fig3b_left": ([-0.454545, 0.409091], [-0.15 + 0.93675j, -0.15 - 0.93675j]),
    "fig3b_right": ([-1.0, 0.9], [0.45 + 0.83516j, 0.45 - 0.83516j]),
    "fig5": ([-0.288478, -0.165141], [-1.427737808459220, -0.192262191540780]),
}


@pytest.mark.parametrize("name", PLANAR_FIXED_POINTS)
def test_published_settings_of_the_planar_map(name):
    point, multipliers = PLANAR_FIXED_POINTS[name]
    f = systems.BorderCollisionMap.preset(name)
    np.testing.assert_allclose(f(jnp.array(point)), point, atol=3e-6)
    np.testing.assert_allclose(
        np.sort_complex(np.linalg.eigvals(jacobian(f, point))), np.sort_complex(multipliers), atol=6e-6
    )


@needs_data
@pytest.mark.parametrize("name", PLANAR_FIXED_POINTS)
def test_published_cycles_of_the_planar_map(name):
    truth = json.loads((DATA / "plmap_ground_truth.json").read_text())[name]
    f = systems.BorderCollisionMap.preset(name)
    canonical = f.canonical()
    sides = {"L": np.asarray(truth["A_l"]), "R": np.asarray(truth["A_r"])}
    for side, pattern in (("L", False), ("R", True)):
        J, b = canonical.affine(jnp.array([pattern]))
        np.testing.assert_allclose(J, sides[side], atol=1e-15)
        np.testing.assert_allclose(b, truth["h"], atol=1e-15)
    compiled = eqx.filter_jit(lambda step, z: step(z))
    for cycles in truth.get("cycles", {}).values():
        for cycle in cycles:
            point = np.asarray(cycle["point"])
            # Rounding grows with the product of the unstable multipliers.
            growth = max(1.0, np.abs(np.asarray(cycle["eig"])).max())
            for step in (f, canonical):
                z = jnp.asarray(point)
                for letter in cycle["word"]:
                    assert (z[0] > 0) == (letter == "R")
                    z = compiled(step, z)
                np.testing.assert_allclose(z, point, atol=1e-12 * growth)


def test_chaos_of_the_planar_map():
    """The primary homoclinic point falls onto the saddle, and the largest exponent is the published one."""
    f = systems.BorderCollisionMap()
    saddle = np.array([-0.288478, -0.165141])
    orbit = np.asarray(dw.simulate(f, jnp.array([-0.4167269895285939625, -0.5023791939727799757]), steps=10))
    distance = np.linalg.norm(orbit - saddle, axis=1)
    assert distance[-1] < 1e-5
    np.testing.assert_allclose(distance[1:6] / distance[:5], 0.19226, rtol=2e-2)

    orbit = np.asarray(dw.simulate(f, f.initial_state(), steps=20000))
    left, right = jacobian(f, [-1.0, 0.0]), jacobian(f, [1.0, 0.0])
    direction, total = np.array([1.0, 0.0]), 0.0
    for x in orbit[:, 0]:
        direction = (right if x > 0 else left) @ direction
        size = np.linalg.norm(direction)
        direction, total = direction / size, total + np.log(size)
    np.testing.assert_allclose(total / len(orbit), 0.4933, atol=0.01)


def test_unknown_setting_is_named():
    with pytest.raises(ArgumentError, match=r"`name` must be one of 'fig3a_left', .*'fig5'; got 'fig4'"):
        systems.BorderCollisionMap.preset("fig4")
