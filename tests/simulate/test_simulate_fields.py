"""`simulate` over fields: against expm, order of convergence, breakpoints, noise, derivatives, bad input."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dynwarp as dw
from dynwarp._simulate._fields import plan_steps
from dynwarp.errors import ArgumentError

errors = dw.errors


class Linear(dw.models.AbstractField):
    """z' = A z + B u(t), a user's own: sizes are plain whole numbers, a function is a field."""

    state_size: int
    input_size: int
    A: jax.Array
    B: jax.Array
    label: tuple = ("linear", 1)
    shape: object = jnp.positive

    def __call__(self, t, state, input=None):
        velocity = self.A @ state
        return velocity if input is None else velocity + self.B @ self.shape(input)


class Pendulum(dw.models.AbstractField):
    state_size: int
    input_size: int

    def __call__(self, t, state, input=None):
        push = 0.0 if input is None else input[0]
        return jnp.stack([state[1], -jnp.sin(state[0]) - 0.1 * state[1] + push])


class Sine(eqx.Module):
    """A signal with a parameter."""

    frequency: jax.Array

    def __call__(self, t):
        return jnp.sin(self.frequency * t)[None]


def pulse(t):
    return jnp.where(t < 0.53, 1.0, -2.0)[None].astype(t.dtype)


TS = np.array([0.0, 0.3, 0.4, 1.1, 2.0])
START = np.array([1.0, -0.5])


@pytest.fixture(scope="module")
def linear():
    return Linear(2, 1, jnp.array([[-0.1, 1.0], [-2.0, -0.3]]), jnp.array([[0.0], [1.0]]))


def _exact(field, ts, start=START):
    return np.stack([scipy.linalg.expm(np.asarray(field.A) * t) @ start for t in ts])


def _exact_pulsed(field, ts):
    """Piecewise constant input: exact by the augmented exponential on each side of the jump."""

    def flow(state, u, t):
        A = np.zeros((3, 3))
        A[:2, :2], A[:2, 2] = field.A, np.asarray(field.B)[:, 0] * u
        return (scipy.linalg.expm(A * t) @ np.append(state, 1.0))[:2]

    at_jump = flow(START, 1.0, 0.53)
    return np.stack([flow(START, 1.0, t) if t <= 0.53 else flow(at_jump, -2.0, t - 0.53) for t in ts])


# ---- Values.


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [(dict(), 1e-7), (dict(dt=0.01), 1e-8), (dict(dt=0.05, solver=diffrax.Tsit5()), 1e-8)],
    ids=["adaptive", "rk4", "tsit5-fixed"],
)
def test_a_linear_field_is_the_matrix_exponential(linear, options, tolerance):
    states = dw.simulate(linear, jnp.asarray(START), ts=TS, **options)
    assert states.shape == (5, 2)
    np.testing.assert_array_equal(states[0], START)
    np.testing.assert_allclose(states, _exact(linear, TS), atol=tolerance)
    last = dw.simulate(linear, jnp.asarray(START), ts=TS, last_only=True, **options)
    np.testing.assert_allclose(last, _exact(linear, TS)[-1], atol=tolerance)


def test_rk4_has_order_four():
    state = jnp.asarray(START)
    reference = dw.simulate(
        Pendulum(2, 1), state, ts=[0.0, 2.0], stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12)
    )[-1]
    missed = [
        float(jnp.max(jnp.abs(dw.simulate(Pendulum(2, 1), state, ts=[0.0, 2.0], dt=dt)[-1] - reference)))
        for dt in (0.2, 0.1, 0.05)
    ]
    rates = np.log2(np.array(missed[:-1]) / np.array(missed[1:]))
    np.testing.assert_allclose(rates, 4, atol=0.4)
    assert missed[-1] < 1e-6


@pytest.mark.parametrize("solver", [diffrax.Euler(), diffrax.Heun(), diffrax.Tsit5(), diffrax.Dopri5()])
def test_explicit_steps_are_those_of_diffrax(solver):
    """Written out from the coefficients: one step against the solver's own."""
    state, field = jnp.asarray(START), Pendulum(2, 1)
    terms = diffrax.ODETerm(lambda t, x, args: field(t, x))
    memory = solver.init(terms, 0.0, 0.3, state, None)
    expected = solver.step(terms, 0.0, 0.3, state, None, memory, made_jump=True)[0]
    np.testing.assert_allclose(dw.simulate(field, state, steps=1, dt=0.3, solver=solver)[0], expected, atol=1e-15)


def test_implicit_steps(linear):
    """Implicit Euler: (I - h A)^-1 at each step."""
    solver = diffrax.ImplicitEuler(root_finder=diffrax.VeryChord(rtol=1e-12, atol=1e-12))
    states = dw.simulate(linear, jnp.asarray(START), steps=3, dt=0.1, solver=solver)
    inverse = np.linalg.inv(np.eye(2) - 0.1 * np.asarray(linear.A))
    np.testing.assert_allclose(states[2], np.linalg.matrix_power(inverse, 3) @ START, atol=1e-10)
    with pytest.raises(ArgumentError, match=r"give diffrax.ImplicitEuler\(root_finder="):
        dw.simulate(linear, jnp.asarray(START), steps=3, dt=0.1, solver=diffrax.ImplicitEuler())


def test_steps_with_dt_are_like_a_map(linear):
    state = jnp.asarray(START)
    states = dw.simulate(linear, state, steps=7, dt=0.1)
    assert states.shape == (7, 2)
    np.testing.assert_allclose(states, _exact(linear, 0.1 * np.arange(1, 8)), atol=1e-5)
    whole = dw.simulate(linear, state, steps=7, dt=0.1, include_initial=True)
    np.testing.assert_allclose(whole, dw.simulate(linear, state, ts=0.1 * np.arange(8), dt=0.1), atol=1e-13)
    assert dw.simulate(linear, state, steps=0, dt=0.1).shape == (0, 2)
    assert dw.simulate(linear, state, steps=0, dt=0.1, include_initial=True).shape == (1, 2)


def test_one_time_is_the_start(linear):
    for options in (dict(), dict(dt=0.1)):
        np.testing.assert_array_equal(dw.simulate(linear, jnp.asarray(START), ts=[3.0], **options), START[None])
        last = dw.simulate(linear, jnp.asarray(START), ts=[3.0], last_only=True, **options)
        np.testing.assert_array_equal(last, START)


def test_float32(linear):
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, linear)
    state = jnp.asarray(START, jnp.float32)
    for options in (dict(), dict(dt=0.01)):
        states = dw.simulate(single, state, ts=TS, **options)
        assert states.dtype == jnp.float32
        np.testing.assert_allclose(states, _exact(linear, TS), atol=2e-5)


# ---- Inputs and breakpoints.


def test_inputs_are_functions_or_diffrax_paths(linear):
    state = jnp.asarray(START)
    knots = np.linspace(0.0, 2.0, 201)
    path = diffrax.LinearInterpolation(jnp.asarray(knots), jnp.sin(3 * knots)[:, None])
    by_path = dw.simulate(linear, state, path, ts=TS, dt=0.01)
    by_function = dw.simulate(linear, state, lambda t: jnp.sin(3 * t)[None], ts=TS, dt=0.01)
    # Linear interpolation: 0.01^2 / 8 * 9.
    np.testing.assert_allclose(by_path, by_function, atol=2e-4)
    adaptive = dw.simulate(linear, state, Sine(jnp.array(3.0)), ts=TS)
    np.testing.assert_allclose(adaptive, by_function, atol=1e-7)
    # z'' + ... by the exponential of the field joined with the oscillator that makes the signal.
    joint = np.zeros((4, 4))
    joint[:2, :2], joint[1, 2], joint[2, 3], joint[3, 2] = linear.A, 1.0, 3.0, -3.0
    exact = np.stack([(scipy.linalg.expm(joint * t) @ np.array([*START, 0.0, 1.0]))[:2] for t in TS])
    np.testing.assert_allclose(by_function, exact, atol=1e-8)


@pytest.mark.parametrize("options", [dict(), dict(dt=0.02)], ids=["adaptive", "rk4"])
def test_breakpoints_keep_full_accuracy_across_a_jump(linear, options):
    exact = _exact_pulsed(linear, TS)
    states = dw.simulate(linear, jnp.asarray(START), pulse, ts=TS, breakpoints=[0.53], **options)
    np.testing.assert_allclose(states, exact, atol=2e-7)
    if options:
        # A step across the jump costs three orders: without the breakpoint the test above would fail.
        blind = dw.simulate(linear, jnp.asarray(START), pulse, ts=TS, **options)
        assert float(np.max(np.abs(blind - exact))) > 1e-4


@pytest.mark.parametrize("closed", [True, False])
def test_a_jump_on_a_saved_time_is_seen_from_both_sides(closed):
    """Whichever side owns the instant of the jump, the steps before and after it see their own limit."""
    ramp = Linear(1, 1, jnp.zeros((1, 1)), jnp.ones((1, 1)))

    def signal(t):
        after = t >= 1.0 if closed else t > 1.0
        return jnp.where(after, 5.0, 1.0)[None]

    for ts in ([0.0, 1.0, 2.0], [0.0, 0.5, 1.0, 1.5, 2.0]):
        states = dw.simulate(ramp, jnp.zeros(1), signal, ts=ts, dt=0.5, breakpoints=[1.0])
        exact = [t if t <= 1 else 1 + 5 * (t - 1) for t in ts]
        np.testing.assert_allclose(states[:, 0], exact, rtol=1e-14)
    # At time zero, where the neighbouring numbers are subnormal.
    states = dw.simulate(ramp, jnp.zeros(1), lambda t: signal(t + 1.0), ts=[0.0, 1.0], dt=0.5, breakpoints=[0.0])
    assert states[-1, 0] == pytest.approx(5.0, rel=1e-14) or not closed


def test_plans_hold_every_time_and_breakpoint():
    ts, breaks = np.array([0.0, 1.0, 1.5, 4.0]), np.array([-1.0, 1.0, 2.25, 9.0])
    plan = plan_steps(ts, 0.4, breaks, np.float64)
    lengths = np.asarray(plan.length).ravel()
    ends = np.cumsum(lengths)
    assert lengths.max() <= 0.4 + 1e-15
    assert plan.saved is not None
    np.testing.assert_allclose(ends[np.asarray(plan.saved)], ts[1:], atol=1e-14)
    assert np.isclose(ends, 2.25).any()
    right, left = np.asarray(plan.right).ravel(), np.asarray(plan.left).ravel()
    assert (right[np.isclose(ends, 1.0)] < 1.0).all()
    assert (left[np.isclose(ends - lengths, 1.0)] > 1.0).all()
    # The ends that are no breakpoints are exact.
    assert right[-1] == 4.0


def test_plans_forgive_rounding():
    """Times made in float32 are whole multiples of dt only up to rounding: still one step each."""
    ts = np.arange(0, 100, 0.1, dtype=np.float32)
    plan = plan_steps(ts, 0.1, np.zeros(0), np.float32)
    assert plan.length.shape == (len(ts) - 1, 1)
    assert plan.saved is None
    # A breakpoint that misses a time by rounding is that time.
    assert plan_steps(ts, 0.1, np.array([50.1]), np.float32).length.shape == (len(ts) - 1, 1)


# ---- Derivatives.


@pytest.mark.parametrize(
    "options",
    [dict(), dict(dt=0.1, remat="sqrt"), dict(dt=0.1, solver=diffrax.Tsit5())],
    ids=["adaptive", "rk4", "tsit5-fixed"],
)
def test_derivatives_both_ways(linear, options):
    def last(A, start, frequency):
        field = eqx.tree_at(lambda f: f.A, linear, A)
        return dw.simulate(field, start, Sine(frequency), ts=np.array([0.0, 0.7, 1.5]), **options)[-1]

    point = (linear.A, jnp.asarray(START), jnp.array(2.0))
    backward = jax.jacrev(last, (0, 1, 2))(*point)
    forward = jax.jacfwd(last, (0, 1, 2))(*point)
    for b, f in zip(backward, forward):
        np.testing.assert_allclose(b, f, atol=1e-11)
    # The derivative in the start is the exponential; in A, its Frechet derivative plus the driven part: differences.
    np.testing.assert_allclose(
        backward[1], scipy.linalg.expm(1.5 * np.asarray(linear.A)), atol=3e-5 if options else 2e-7
    )
    step = 1e-4
    difference = (last(point[0], point[1], point[2] + step) - last(point[0], point[1], point[2] - step)) / (2 * step)
    np.testing.assert_allclose(backward[2], difference, atol=1e-6)


def test_other_adjoints_are_taken(linear):
    def loss(start, adjoint):
        return jnp.sum(dw.simulate(linear, start, ts=TS, adjoint=adjoint) ** 2)

    start = jnp.asarray(START)
    expected = jax.grad(loss)(start, None)
    adjoint = diffrax.RecursiveCheckpointAdjoint()
    np.testing.assert_allclose(jax.grad(loss)(start, adjoint), expected, atol=1e-10)


def test_jit_and_vmap(linear):
    starts = jnp.stack([jnp.asarray(START), -2 * jnp.asarray(START)])
    for options in (dict(), dict(dt=0.1)):
        run = eqx.filter_jit(lambda f, s, o=options: dw.simulate(f, s, ts=TS, **o))
        single = run(linear, starts[0])
        np.testing.assert_allclose(single, dw.simulate(linear, starts[0], ts=TS, **options), atol=1e-14)
        batch = jax.vmap(lambda s, run=run: run(linear, s))(starts)
        np.testing.assert_allclose(batch[0], single, atol=1e-8)
        np.testing.assert_allclose(batch[1], -2 * single, atol=1e-6)


# ---- Noise, solvers, failures.


def test_noise_is_euler_maruyama():
    """Brownian motion for a field that stands still; the stationary variance of an Ornstein-Uhlenbeck process."""
    still = Linear(1, 1, jnp.zeros((1, 1)), jnp.ones((1, 1)))
    keys = jax.random.split(jax.random.key(0), 4000)

    def run(field, key, **options):
        return dw.simulate(field, jnp.zeros(1), noise=0.5, key=key, **options)

    ends = jax.vmap(lambda k: run(still, k, ts=[0.0, 1.0, 3.0], dt=0.3))(keys)[:, :, 0]
    np.testing.assert_allclose(jnp.var(ends, axis=0), [0.0, 0.25, 0.75], rtol=0.1)
    decay = Linear(1, 1, -jnp.ones((1, 1)), jnp.ones((1, 1)))
    path = run(decay, keys[0], steps=100_000, dt=0.05)[200:, 0]
    # 0.5^2 / 2, up to O(dt); 5000 correlation times.
    assert float(jnp.var(path)) == pytest.approx(0.125, rel=0.12)
    np.testing.assert_array_equal(run(decay, keys[0], steps=5, dt=0.1), run(decay, keys[0], steps=5, dt=0.1))


def test_a_stiff_solver_is_taken():
    stiff = Linear(2, 1, jnp.array([[-1e4, 0.0], [0.0, -1.0]]), jnp.zeros((2, 1)))
    start, ts = jnp.ones(2), [0.0, 1.0]
    states = dw.simulate(stiff, start, ts=ts, solver=diffrax.Kvaerno5(), max_steps=400)
    np.testing.assert_allclose(states[-1], [0.0, np.exp(-1)], atol=1e-6)
    with pytest.raises(errors.ConvergenceError, match="max_steps"):
        dw.simulate(stiff, start, ts=ts, max_steps=400)
    left = dw.simulate(stiff, start, ts=ts, max_steps=400, throw=False)
    assert bool(jnp.isinf(left[-1]).all())


def test_a_state_that_turns_nan_is_named():
    class Broken(dw.models.AbstractField):
        state_size: int
        input_size: int

        def __call__(self, t, state, input=None):
            return jnp.where(t > 0.5, jnp.nan, 1.0) * state

    with pytest.raises(errors.ConvergenceError, match="NaN"):
        dw.simulate(Broken(1, 0), jnp.ones(1), ts=[0.0, 1.0])
    states = jax.jit(lambda s: dw.simulate(Broken(1, 0), s, ts=np.array([0.0, 1.0])))(jnp.ones(1))
    assert not bool(jnp.isfinite(states[-1]).any())
    assert bool(jnp.isnan(dw.simulate(Broken(1, 0), jnp.ones(1), ts=[0.0, 1.0], dt=0.1)[-1]).all())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (dict(), errors.ArgumentError, "a field needs `ts`, or `dt`"),
        (dict(steps=3), errors.ArgumentError, "`steps`.*Give `dt`"),
        (dict(ts=TS, noise=0.1, key=0), errors.ArgumentError, "`noise`.*Give `dt`"),
        (dict(ts=TS, remat=2), errors.ArgumentError, "`remat`"),
        (dict(ts=TS, steps=3, dt=0.1), errors.ArgumentError, "either `ts` or `steps`"),
        (dict(dt=0.1), errors.ArgumentError, "either `ts` or `steps`"),
        (dict(ts=TS, dt=-0.1), errors.ArgumentError, "`dt`"),
        (dict(ts=TS, dt=0.1, adjoint=diffrax.DirectAdjoint()), errors.ArgumentError, "without `adjoint`"),
        (dict(ts=TS[::-1]), errors.ArgumentError, "`ts` must increase; entry 1"),
        (dict(ts=[0.0, 1.0, 1.0]), errors.ArgumentError, "entry 2"),
        (dict(ts=[]), errors.ArgumentError, "at least one time"),
        (dict(ts=[0.0, np.nan]), errors.NonFiniteError, "`ts`"),
        (dict(ts=TS[None]), errors.ShapeError, "`ts`"),
        (dict(ts=TS, max_steps=0), errors.ArgumentError, "`max_steps`"),
        (dict(ts=TS, mode="fft"), errors.ModelError, "Pendulum is a field"),
        (dict(ts=TS, inputs=jnp.zeros((5, 1))), errors.ArgumentError, "diffrax.LinearInterpolation"),
        (
            dict(ts=TS, inputs=lambda t: jnp.zeros(3), dt=0.1),
            errors.ShapeError,
            r"`inputs\(t\)` must have shape \(1,\)",
        ),
        (dict(ts=TS, breakpoints=[[0.1]]), errors.ShapeError, "`breakpoints`"),
        (dict(ts=TS, state0=jnp.zeros(3)), errors.ShapeError, "`state0`"),
    ],
)
def test_bad_arguments_are_named(options, error, words):
    if "key" in options:
        options = options | {"key": jax.random.key(0)}
    with pytest.raises(error, match=words):
        dw.simulate(Pendulum(2, 1), **({"state0": jnp.zeros(2)} | options))


def test_traced_times_are_refused_by_the_fixed_steps(linear):
    with pytest.raises(errors.ArgumentError, match="cannot be traced"):
        jax.jit(lambda ts: dw.simulate(linear, jnp.asarray(START), ts=ts, dt=0.1))(jnp.asarray(TS))
    traced = jax.jit(lambda ts: dw.simulate(linear, jnp.asarray(START), ts=ts))(jnp.asarray(TS))
    np.testing.assert_allclose(traced, _exact(linear, TS), atol=1e-7)
