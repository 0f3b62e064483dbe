"""Expected updates of whole networks, diagonal ones and aligned ones, against correlations written out one by one."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dynwarp as dw
from dynwarp import learning as l
from dynwarp._linalg import solve_stein
from dynwarp._linalg._shared_stein import solve_shared_stein
from dynwarp.errors import ArgumentError, ConvergenceError, ShapeError

RNG = np.random.default_rng(0)
N, M, O, I = 7, 5, 2, 3  # noqa: E741


def network(n, radius):
    W = RNG.normal(size=(n, n))
    W *= radius / np.abs(np.linalg.eigvals(W)).max()
    return dw.models.LinearRNN(
        jnp.asarray(W), jnp.asarray(RNG.normal(size=(n, I))), jnp.asarray(RNG.normal(size=(O, n)))
    )


STUDENT, TEACHER = network(N, 0.8), network(M, 0.7)
R = RNG.normal(size=(O, N))
W, A = np.asarray(STUDENT.W), np.asarray(STUDENT.A)
# name: rule, F, Z, horizon, chunked
RULES = {
    "bptt": (l.BPTT(), A.T, W.T, None, False),
    "tbptt1": (l.TBPTT(1), A.T, W.T, 1, False),
    "tbptt4": (l.TBPTT(4), A.T, W.T, 4, False),
    "chunked4": (l.ChunkedTBPTT(4), A.T, W.T, 4, True),
    "rflo": (l.RFLO(R, 0.5), R.T, 0.5 * np.eye(N), None, False),
    "eprop": (l.EProp(R), R.T, np.diag(np.diag(W)), None, False),
    "eprop_symmetric": (l.EProp(), A.T, np.diag(np.diag(W)), None, False),
    "alignment": (l.FeedbackAlignment(R), R.T, W.T, None, False),
    "snap1": (l.SnAp(1), A.T, np.diag(np.diag(W)), None, False),
    "snap2": (l.SnAp(2), A.T, W.T, None, False),
    "user": (
        l.Rule(l.Mixed(R, 0.3), lambda W: 0.5 * W + 0.1 * W.T, 6),
        0.7 * A.T + 0.3 * R.T,
        0.5 * W + 0.1 * W.T,
        6,
        False,
    ),
}


def brute(F, Z, window, T, chunked, student=STUDENT, teacher=TEACHER):
    W, B, A = (np.asarray(x) for x in (student.W, student.B, student.A))
    V, D, C = (np.asarray(x) for x in (teacher.W, teacher.B, teacher.A))
    hidden, target = [B], [D]
    for _ in range(T):
        hidden.append(W @ hidden[-1])
        target.append(V @ target[-1])
    error = [A @ h - C @ k for h, k in zip(hidden, target)]
    zero = np.zeros((A.shape[0], W.shape[0]))
    lag = [sum((error[k + 1 + m] @ hidden[k].T for k in range(T - 1 - m)), zero) for m in range(T)]

    def cut(tau):
        dW, dB, power = np.zeros_like(W), np.zeros_like(B), np.eye(len(W))
        for m in range(min(tau, T)):
            dW, dB = dW + power @ F @ lag[m], dB + power @ F @ error[m]
            power = Z @ power
        return dW, dB

    if chunked:
        dW, dB = (np.mean(parts, axis=0) for parts in zip(*[cut(j) for j in range(1, window + 1)]))
    else:
        dW, dB = cut(window or T)
    return dW, dB, sum(error[k] @ hidden[k].T for k in range(T))


@pytest.mark.parametrize("name", RULES)
def test_updates_equal_the_brute_expectation(name):
    rule, *pair = RULES[name]
    F, Z, window, chunked = pair
    for T, options, tolerance in ((150, {}, 1e-12), (3, {"horizon": 3}, 1e-14), (9, {"horizon": 9}, 1e-14)):
        update = l.expected_update(rule, STUDENT, TEACHER, **options)
        for mine, theirs in zip(update, brute(F, Z, window, T, chunked)):
            assert np.abs(mine - theirs).max() < tolerance * np.abs(theirs).max()


def test_the_rules_differ():
    distinct = ("bptt", "tbptt1", "tbptt4", "chunked4", "rflo", "eprop", "eprop_symmetric", "alignment", "user")
    updates = [np.asarray(l.expected_update(RULES[name][0], STUDENT, TEACHER).dW) for name in distinct]
    for i, one in enumerate(updates):
        assert all(np.abs(one - other).max() > 1e-3 for other in updates[:i])


@pytest.mark.parametrize("options", [{}, {"horizon": 6}])
def test_bptt_is_the_gradient_of_the_loss(options):
    def loss(W, B, A):
        return l.expected_loss(SimpleNamespace(W=W, B=B, A=A), TEACHER, **options)

    gradient = jax.grad(loss, argnums=(0, 1, 2))(STUDENT.W, STUDENT.B, STUDENT.A)
    for mine, exact in zip(l.expected_update(l.BPTT(), STUDENT, TEACHER, **options), gradient):
        assert np.abs(mine - exact).max() < 1e-11
    assert float(l.expected_loss(TEACHER, TEACHER, **options)) < 1e-13


def test_the_loss_keeps_its_curvature_at_the_teacher():
    def loss(A):
        return l.expected_loss(SimpleNamespace(W=TEACHER.W, B=TEACHER.B, A=A), TEACHER)

    gramian = scipy.linalg.solve_discrete_lyapunov(np.asarray(TEACHER.W), np.asarray(TEACHER.B @ TEACHER.B.T))
    for output, block in enumerate(np.asarray(jax.hessian(loss)(TEACHER.A))):
        assert np.abs(block[:, output] - gramian).max() < 1e-12 * np.abs(gramian).max()


def test_snap_on_a_sparse_network_is_the_masked_influence():
    # A chain: SnAp-2 keeps each row's influence on itself and on the next unit.
    chain = jnp.diag(jnp.array([0.5, 0.4, 0.3])) + jnp.diag(jnp.array([0.6, -0.7]), -1)
    student = dw.models.LinearRNN(chain, STUDENT.B[:3], STUDENT.A[:, :3])
    mask = np.asarray((chain != 0).astype(float).T)  # [i, j]: unit j hears unit i
    expected_W, expected_B = np.zeros((3, 3)), np.zeros((3, I))
    for i in range(3):
        Z = mask[i][:, None] * np.asarray(chain).T * mask[i][None]
        dW, dB, _ = brute(np.asarray(student.A).T, Z, None, 60, False, student)
        expected_W[i], expected_B[i] = dW[i], dB[i]
    for options, tolerance in (({}, 1e-9), ({"horizon": 60}, 1e-13)):
        update = l.expected_update(l.SnAp(2), student, TEACHER, **options)
        assert np.abs(update.dW - expected_W).max() < tolerance
        assert np.abs(update.dB - expected_B).max() < tolerance
    assert np.abs(update.dW - l.expected_update(l.BPTT(), student, TEACHER, horizon=60).dW).max() > 1e-3
    full = l.expected_update(l.SnAp(3), student, TEACHER, horizon=60)
    assert np.abs(full.dW - l.expected_update(l.BPTT(), student, TEACHER, horizon=60).dW).max() < 1e-13


def test_derivatives_of_updates():
    def update(W, decay):
        rule = l.RFLO(jnp.asarray(R), decay)
        return l.expected_update(rule, SimpleNamespace(W=W, B=STUDENT.B, A=STUDENT.A), TEACHER).dW

    forward = jax.jacfwd(update, argnums=(0, 1))(STUDENT.W, 0.5)
    reverse = jax.jacrev(update, argnums=(0, 1))(STUDENT.W, 0.5)
    assert max(np.abs(a - b).max() for a, b in zip(forward, reverse)) < 1e-11
    E = jnp.zeros((N, N)).at[1, 2].set(1e-6)
    by_difference = (update(STUDENT.W + E, 0.5) - update(STUDENT.W - E, 0.5)) / 2e-6
    assert np.abs(by_difference - forward[0][:, :, 1, 2]).max() < 1e-6
    assert np.abs((update(STUDENT.W, 0.5 + 1e-6) - update(STUDENT.W, 0.5 - 1e-6)) / 2e-6 - forward[1]).max() < 1e-6


def test_noether_invariants_of_the_bptt_flow():
    # The invariants' rate of change along the flow: zero for BPTT, not for others.
    def rate(rule):
        dW, dB, dA = l.expected_update(rule, STUDENT, TEACHER)
        moved = lambda t: l.network_invariants(  # noqa: E731
            SimpleNamespace(W=STUDENT.W - t * dW, B=STUDENT.B - t * dB, A=STUDENT.A - t * dA)
        )
        return np.abs(jax.jacfwd(moved)(0.0)).max()

    assert rate(l.BPTT()) < 1e-12
    assert rate(l.TBPTT(1)) > 1e-2
    assert rate(l.RFLO(jnp.asarray(R), 0.5)) > 1e-2


def test_rflo_moves_in_the_span_of_its_feedback():
    dW, dB, _ = l.expected_update(l.RFLO(R, 0.5), STUDENT, TEACHER)
    outside = np.eye(N) - R.T @ np.linalg.pinv(R.T)
    assert np.abs(outside @ dW).max() < 1e-14 * np.abs(dW).max()
    assert np.abs(outside @ dB).max() < 1e-14 * np.abs(dB).max()


def test_one_unit_is_a_mode():
    one = lambda w, b, a: SimpleNamespace(W=jnp.array([[w]]), B=jnp.array([[b]]), A=jnp.array([[a]]))  # noqa: E731
    mode, target = (0.7, 1.3, 0.55), (1.1, 0.8, -0.35)
    for rule, scalar in ((l.RFLO(jnp.array([[-0.6]]), 0.45), l.RFLO(-0.6, 0.45)), (l.TBPTT(3), l.TBPTT(3))):
        dW, dB, dA = l.expected_update(rule, one(*mode[::-1]), one(*target[::-1]))
        flow = -l.mode_flow(scalar, l.Teacher(*target))(0.0, jnp.array(mode))
        assert np.abs(np.array([dA[0, 0], dB[0, 0], dW[0, 0]]) - flow).max() < 1e-14


MODES = jnp.array([[0.7, 1.3, 0.55], [0.4, -0.9, 0.2]])
TARGETS = jnp.array([[1.1, 0.8, -0.35], [0.9, 0.5, 0.6]])
STRENGTHS = jnp.array([-0.6, 0.8])


@pytest.fixture(scope="module")
def aligned():
    sizes = {"inputs": 4, "units": 6, "outputs": 3, "teacher_units": 5}
    return l.aligned_networks(MODES, TARGETS, STRENGTHS, **sizes, key=jax.random.key(1))


def test_aligned_networks_split_into_modes(aligned):
    for rule, per_mode in (
        (l.BPTT(), l.BPTT()),
        (l.TBPTT(3), l.TBPTT(3)),
        (l.RFLO(aligned.feedback, 0.45), l.RFLO(STRENGTHS, 0.45)),
        (l.FeedbackAlignment(aligned.feedback), l.FeedbackAlignment(STRENGTHS)),
    ):
        dW, dB, dA = l.expected_update(rule, aligned.student, aligned.teacher)
        P = aligned.P
        modes = [aligned.U.T @ dA @ P, P.T @ dB @ aligned.V, P.T @ dW @ P]
        whole = [dA, dB, dW]
        for i in range(2):
            one = jax.tree.map(lambda x, i=i: x[i] if x.shape == (2,) else x, per_mode)
            flow = -l.mode_flow(one, l.Teacher(*TARGETS[i]))(0.0, MODES[i])
            assert np.abs(np.array([m[i, i] for m in modes]) - flow).max() < 1e-13
        for m, full in zip(modes, whole):
            assert float(jnp.sum(full**2) - jnp.sum(jnp.diagonal(m) ** 2)) == pytest.approx(0, abs=1e-13)  # no leak


def test_measured_alignment(aligned):
    found = l.measure_alignment(aligned.student, aligned.U, aligned.V, aligned.feedback)
    for share in (found.recurrent, found.input, found.output, found.feedback):
        assert float(share) == pytest.approx(1, abs=1e-12)
    noise = jax.random.normal(jax.random.key(2), (6, 6))
    loose = SimpleNamespace(W=aligned.student.W + noise, B=aligned.student.B, A=aligned.student.A)
    assert float(l.measure_alignment(loose, aligned.U, aligned.V).recurrent) < 0.5


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_diagonal_update(kind):
    poles = np.array([0.6, -0.3, 0.2]) if kind == "real" else np.array([0.5 + 0.3j, 0.5 - 0.3j, 0.2])
    B, C = RNG.normal(size=(3, I)), RNG.normal(size=(O, 3))
    if kind == "complex":
        B, C = B + 1j * RNG.normal(size=B.shape), C + 1j * RNG.normal(size=C.shape)
        B[1], C[:, 1] = B[0].conj(), C[:, 0].conj()
        B[2], C[:, 2] = B[2].real, C[:, 2].real
    student = l.DiagonalNetwork(poles, B, C)
    teacher = l.DiagonalNetwork(np.array([0.7, 0.1]), RNG.normal(size=(2, I)), RNG.normal(size=(O, 2)))
    feedback = RNG.normal(size=(O, 3))
    dense = SimpleNamespace(W=np.diag(poles), B=B, A=C)
    target = SimpleNamespace(W=np.diag(np.asarray(teacher.poles)), B=np.asarray(teacher.B), A=np.asarray(teacher.C))
    for rule, F, Z, window in (
        (l.BPTT(), C.T, np.diag(poles), None),
        (l.TBPTT(3), C.T, np.diag(poles), 3),
        (l.RFLO(feedback, 0.45), feedback.T, 0.45 * np.eye(3), None),
        (l.EProp(feedback), feedback.T, np.diag(poles), None),
    ):
        dpoles, dB, dC = l.diagonal_update(rule, student, teacher)
        errors, hidden = [], []
        h, k = B, target.B
        for _ in range(150):
            errors.append(C @ h - target.A @ k)
            hidden.append(h)
            h, k = dense.W @ h, target.W @ k
        g = [np.zeros_like(B)] * 151
        for m in reversed(range(150)):
            if window is None:
                g[m] = F @ errors[m] + Z @ g[m + 1]
            else:
                ahead = range(min(window, 150 - m))
                g[m] = sum(np.linalg.matrix_power(Z, j) @ F @ errors[m + j] for j in ahead)
        assert np.abs(dB - g[0]).max() < 1e-12
        assert np.abs(dC - sum(e @ h.T for e, h in zip(errors, hidden))).max() < 1e-12
        assert np.abs(dpoles - np.diagonal(sum(a @ h.T for a, h in zip(g[1:], hidden)))).max() < 1e-12


def test_shared_stein_equals_single_solves():
    Z = 0.4 * jnp.eye(N)
    matrices = (STUDENT.W, TEACHER.W, Z)
    constants = (STUDENT.B @ STUDENT.B.T, TEACHER.B @ STUDENT.B.T, jnp.asarray(R).T @ STUDENT.A)
    equations = (((0, False), (0, True)), ((1, False), (0, True)), ((2, False), (0, False)))
    found = solve_shared_stein(matrices, equations, constants)
    singles = [
        solve_stein(STUDENT.W, STUDENT.W.T, constants[0]),
        solve_stein(TEACHER.W, STUDENT.W.T, constants[1]),
        solve_stein(Z, STUDENT.W, constants[2]),
    ]
    for mine, single in zip(found.values, singles):
        assert np.abs(mine - single.value).max() < 1e-12
    assert bool(found.converged)
    assert float(found.residual) < 1e-13
    assert not bool(solve_shared_stein((1.3 * STUDENT.W,), (((0, False), (0, True)),), constants[:1]).converged)


def test_near_the_circle_and_float32():
    student = dw.models.LinearRNN(STUDENT.W * (0.9999 / 0.8), STUDENT.B, STUDENT.A)
    S = l.expected_update(l.BPTT(), student, TEACHER).dA
    long = l.expected_update(l.BPTT(), student, TEACHER, horizon=200_000).dA
    assert np.abs(S - long).max() < 1e-8 * np.abs(long).max()
    low = jax.tree.map(lambda x: x.astype(jnp.float32), (STUDENT, TEACHER))
    for mine, exact in zip(l.expected_update(l.BPTT(), *low), l.expected_update(l.BPTT(), STUDENT, TEACHER)):
        assert mine.dtype == jnp.float32
        assert np.abs(np.asarray(mine, float) - exact).max() < 1e-5 * np.abs(exact).max()


def test_divergence_is_said_never_returned():
    unstable = dw.models.LinearRNN(STUDENT.W * 1.3, STUDENT.B, STUDENT.A)
    with pytest.raises(ConvergenceError, match=r"W 1\.04"):
        l.expected_update(l.BPTT(), unstable, TEACHER)
    with pytest.raises(ConvergenceError, match=r"Z 1\.3"):
        l.expected_update(l.RFLO(R, 1.3), STUDENT, TEACHER)
    with pytest.raises(ConvergenceError):
        l.expected_loss(unstable, TEACHER)
    assert np.isfinite(l.expected_update(l.RFLO(R, 1.3), unstable, TEACHER, horizon=5).dW).all()
    # A decay above 1 is fine as long as its product with the radii is below.
    assert np.isfinite(l.expected_update(l.RFLO(R, 1.1), STUDENT, TEACHER).dW).all()
    traced = jax.jit(lambda s: l.expected_update(l.BPTT(), s, TEACHER).dW)(unstable)
    assert np.isnan(traced).all()


def test_vmap_over_students():
    scales = jnp.array([0.5, 1.0])
    batch = jax.vmap(
        lambda c: l.expected_update(l.BPTT(), SimpleNamespace(W=c * STUDENT.W, B=STUDENT.B, A=STUDENT.A), TEACHER).dW
    )(scales)
    assert np.abs(batch[1] - l.expected_update(l.BPTT(), STUDENT, TEACHER).dW).max() < 1e-12


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: l.expected_update(l.RFLO(R[:, :3], 0.5), STUDENT, TEACHER), ShapeError, "`feedback`"),
        (lambda: l.expected_update(l.RFLO(1.0, 0.5), STUDENT, TEACHER), ShapeError, "`feedback`"),
        (
            lambda: l.expected_update(l.BPTT(), STUDENT, SimpleNamespace(W=TEACHER.W, B=TEACHER.B[:, :2], A=TEACHER.A)),
            ShapeError,
            "`teacher.B`",
        ),
        (lambda: l.expected_update(l.BPTT(), STUDENT, TEACHER, horizon=0), ArgumentError, "`horizon`"),
        (
            lambda: l.aligned_networks(MODES, TARGETS, STRENGTHS, inputs=1, units=6, outputs=3, key=jax.random.key(0)),
            ArgumentError,
            "`inputs`",
        ),
        (
            lambda: l.diagonal_update(l.BPTT(), *(l.DiagonalNetwork([1.0], [[1.0]], [[1.0]]),) * 2),
            ArgumentError,
            "unit circle",
        ),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()
