"""Backpropagation through time against autodiff, PyTorch's formulas in NumPy and truncation by definition; profiles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

gr = dw.gradients
T, N, D, OUT = 9, 4, 2, 3


def _loss(output, target):
    return 0.5 * jnp.sum((output - target) ** 2)


@pytest.fixture(scope="module")
def problem():
    keys = jax.random.split(jax.random.key(0), 5)
    model = dw.models.Elman(D, N, recurrent_init=dw.models.GaussianInit(1.3), key=keys[0])
    readout = dw.models.Readout(N, OUT, key=keys[1])
    inputs, targets = jax.random.normal(keys[2], (T, D)), jax.random.normal(keys[3], (T, OUT))
    return model, readout, inputs, targets, 0.5 * jax.random.normal(keys[4], (N,))


def _mean_loss(arguments, mask):
    model, readout, inputs, targets, state0 = arguments
    states = dw.simulate(model, state0, inputs)
    losses = jax.vmap(lambda z, x, y: _loss(readout(z, x), y))(states, inputs, targets)
    return jnp.sum(jnp.where(mask, losses, 0)) / jnp.sum(mask).astype(float)


def _torch_formulas(problem, mask):
    """What torch.nn.RNN and torch.nn.Linear give for the masked mean of half squared errors, written out."""
    model, readout, inputs, targets, state0 = problem
    W, U, b = (np.asarray(x) for x in (model.recurrent_weight, model.input_weight, model.bias))
    V, c = np.asarray(readout.weight), np.asarray(readout.bias)
    h = [np.asarray(state0)]
    for x in np.asarray(inputs):
        h.append(np.tanh(U @ x + b + W @ h[-1]))
    dW, dU, db, dV, dc = (np.zeros_like(x) for x in (W, U, b, V, c))
    carried, adjoints = np.zeros(N), np.zeros((T, N))
    for t in reversed(range(T)):
        error = mask[t] * (V @ h[t + 1] + c - np.asarray(targets[t])) / mask.sum()
        dV += np.outer(error, h[t + 1])
        dc += error
        adjoints[t] = V.T @ error + carried
        delta = (1 - h[t + 1] ** 2) * adjoints[t]
        dW += np.outer(delta, h[t])
        dU += np.outer(delta, np.asarray(inputs[t]))
        db += delta
        carried = W.T @ delta
    return dW, dU, db, dV, dc, carried, adjoints


MASK = np.arange(T) % 3 != 1


def test_exact_equals_autodiff_and_the_formulas_written_out(problem):
    found = gr.backpropagate(*problem[:4], state0=problem[4], mask=jnp.asarray(MASK))
    value, gradient = eqx.filter_value_and_grad(_mean_loss)(problem, jnp.asarray(MASK))
    np.testing.assert_allclose(found.loss, value, rtol=1e-14)
    ours = (found.model, found.readout, found.inputs, found.state0)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves((*gradient[:3], gradient[4]))):
        np.testing.assert_allclose(a, b, atol=1e-13)
    dW, dU, db, dV, dc, d_state0, adjoints = _torch_formulas(problem, MASK)
    np.testing.assert_allclose(found.model.recurrent_weight, dW, atol=1e-12)
    np.testing.assert_allclose(found.model.input_weight, dU, atol=1e-12)
    np.testing.assert_allclose(found.model.bias, db, atol=1e-12)
    np.testing.assert_allclose(found.readout.weight, dV, atol=1e-12)
    np.testing.assert_allclose(found.readout.bias, dc, atol=1e-12)
    np.testing.assert_allclose(found.state0, d_state0, atol=1e-12)
    np.testing.assert_allclose(found.adjoints, adjoints, atol=1e-12)
    assert (found.signals[~MASK] == 0).all()
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, problem)
    close = gr.backpropagate(*single[:4], state0=single[4], mask=jnp.asarray(MASK))
    assert close.state0.dtype == jnp.float32
    np.testing.assert_allclose(close.model.recurrent_weight, dW, atol=2e-6)


class Clocked(dw.models.AbstractMap):
    """A user's own cell that knows the time."""

    W: jax.Array
    state_size: int = N
    input_size: int = D

    def __call__(self, state, input=None, *, step=None):
        drive = jnp.concatenate([input, input])
        return jnp.tanh(self.W @ state * (1 + 0.1 * step.astype(state.dtype)) + drive)


def _truncated(problem, every, reach):
    """By definition: the graph is cut `reach` steps before the end of each chunk, for the losses of that chunk."""
    model, readout, inputs, targets, state0 = problem
    total = jax.tree.map(jnp.zeros_like, eqx.filter((model, state0), eqx.is_inexact_array))
    for begin in range(0, T, every):
        end = min(begin + every, T)
        start = max(begin + every - reach, 0)

        def chunk(arguments, begin=begin, end=end, start=start):
            model, state = arguments
            loss = 0.0
            for t in range(end):
                if t == start and t > 0:
                    state = jax.lax.stop_gradient(dw.simulate(problem[0], state0, inputs[:t])[-1])
                if t < start:
                    continue
                state = model(state, inputs[t], step=jnp.asarray(t))
                if t >= begin:
                    loss = loss + _loss(readout(state, inputs[t]), targets[t]) / T
            return loss

        total = jax.tree.map(jnp.add, total, eqx.filter_grad(chunk)((model, state0)))
    return total


@pytest.mark.parametrize(("every", "reach"), [(1, 3), (2, 5), (4, 4), (5, 20)])
def test_truncation_by_definition(problem, every, reach):
    clocked = (Clocked(1.2 * problem[0].recurrent_weight), *problem[1:])
    found = gr.backpropagate(*clocked[:4], state0=clocked[4], truncation=(every, reach))
    of_model, of_state0 = _truncated(clocked, every, reach)
    np.testing.assert_allclose(found.model.W, of_model.W, atol=1e-13)
    np.testing.assert_allclose(found.state0, of_state0, atol=1e-13)


def test_truncation_of_the_learning_rules(problem):
    model, readout, inputs, targets, state0 = problem
    for rule, pair in (
        (dw.learning.TBPTT(3), (1, 3)),
        (dw.learning.ChunkedTBPTT(4), (4, 4)),
        (dw.learning.BPTT(), (T, T)),
    ):
        _, (of_model, of_readout) = rule.gradients(model, readout, inputs, targets, state0=state0, loss=_loss)
        found = gr.backpropagate(model, readout, inputs, targets, state0=state0, truncation=pair)
        np.testing.assert_allclose(found.model.recurrent_weight, of_model.recurrent_weight, atol=1e-13)
        np.testing.assert_allclose(found.readout.weight, of_readout.weight, atol=1e-13)


# ---- profiles


def test_profile_against_automatic_derivatives(problem):
    model, readout, inputs, targets, state0 = problem
    found = gr.gradient_profile(model, readout, inputs, targets, state0=state0, mask=jnp.asarray(MASK))

    # Zeros added to every state collect the derivative with respect to it.
    def losses(shifts):
        def step(state, x):
            input, shift = x
            state = model(state, input) + shift
            return state, state

        states = jax.lax.scan(step, state0, (inputs, shifts))[1]
        each = jax.vmap(lambda z, x, y: _loss(readout(z, x), y))(states, inputs, targets)
        return jnp.where(MASK, each, 0) / float(MASK.sum())

    terms = np.asarray(jax.jacrev(losses)(jnp.zeros((T, N))))
    np.testing.assert_allclose(found.norms, np.linalg.norm(terms.sum(0), axis=1), rtol=1e-11)
    expected = np.full((T, T), -np.inf)
    for lag in range(T):
        for s in range(lag, T):
            if MASK[s]:
                expected[lag, s] = np.log(np.linalg.norm(terms[s, s - lag]))
    np.testing.assert_allclose(found.log_term_norms, expected, atol=1e-10)
    for lag in range(T):
        rows = [np.exp(2 * expected[lag, s]) for s in range(lag, T) if MASK[s]]
        np.testing.assert_allclose(found.lag_norms[lag], np.sqrt(np.mean(rows)), rtol=1e-9)
    np.testing.assert_allclose(found.decay, (expected[T - 1, T - 1] - expected[0, T - 1]) / (T - 1), rtol=1e-9)
    np.testing.assert_allclose(found.signal_norms[MASK], np.exp(expected[0][MASK]), rtol=1e-10)
    assert found.result == dw.RESULTS.successful


def test_ragged_batches_by_masks(problem):
    model, readout, inputs, targets, state0 = problem
    lengths = jnp.array([T, 5])
    mask = jnp.arange(T) < lengths[:, None]
    # What fills the padding does not matter, not even NaN in the targets.
    batch = jnp.stack([inputs, jnp.where(mask[1][:, None], inputs, 7.0)])
    goals = jnp.stack([targets, jnp.where(mask[1][:, None], targets, jnp.nan)])

    @jax.jit
    @jax.vmap
    def profile(inputs, targets, mask):
        return gr.gradient_profile(model, readout, inputs, targets, state0=state0, mask=mask, lags=4)

    found = profile(batch, goals, mask)
    short = gr.gradient_profile(model, readout, inputs[:5], targets[:5], state0=state0, lags=4)
    np.testing.assert_allclose(found.norms[1, :5], short.norms, rtol=1e-11)
    assert (found.norms[1, 5:] == 0).all()
    np.testing.assert_allclose(found.lag_norms[1], short.lag_norms, rtol=1e-11)
    np.testing.assert_allclose(found.loss[1], short.loss, rtol=1e-12)
    np.testing.assert_allclose(found.decay[1], short.decay, rtol=1e-10)


def test_no_underflow_and_zero_gradients():
    tiny = dw.models.LinearRNN(jnp.array([[1e-3]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    found = gr.gradient_profile(
        tiny, tiny.readout(), jnp.ones((150, 1)), jnp.zeros((150, 1)), mask=jnp.arange(150) == 149, lags=149
    )
    np.testing.assert_allclose(found.decay, np.log(1e-3), rtol=1e-12)
    np.testing.assert_allclose(found.log_term_norms[149, 149] - found.log_term_norms[0, 149], 149 * np.log(1e-3))
    # A target that is met, then units that are dead.
    met = gr.gradient_profile(tiny, tiny.readout(), None, jnp.zeros((5, 1)), throw=False)
    assert met.result == dw.RESULTS.vanished
    assert jnp.isnan(met.decay)
    with pytest.raises(dw.errors.ConvergenceError, match="exactly zero"):
        gr.gradient_profile(tiny, tiny.readout(), None, jnp.zeros((5, 1)))
    dead = dw.models.Elman(1, 1, activation=jax.nn.relu, key=jax.random.key(0))
    dead = eqx.tree_at(lambda m: m.bias, dead, jnp.array([-100.0]))
    out = dw.models.Readout(1, 1, key=jax.random.key(1))
    found = gr.gradient_profile(dead, out, jnp.ones((5, 1)), jnp.ones((5, 1)))
    np.testing.assert_allclose(found.norms, found.signal_norms)
    assert (found.log_term_norms[1:] == -jnp.inf).all()
    assert found.state0_norm == 0
    gradient = eqx.filter_grad(
        lambda m: jnp.sum(gr.gradient_profile(m, out, jnp.ones((5, 1)), jnp.ones((5, 1))).norms)
    )(dead)
    assert jnp.isfinite(gradient.recurrent_weight).all()


def test_errors(problem):
    model, readout, inputs, targets, _ = problem
    with pytest.raises(dw.errors.ArgumentError, match="`lags` must be below the 9 steps of the sequence; got 9"):
        gr.gradient_profile(model, readout, inputs, targets, lags=9)
    with pytest.raises(dw.errors.ShapeError, match="`inputs` has 9 steps and `targets` 8"):
        gr.backpropagate(model, readout, inputs, targets[:8])
    with pytest.raises(dw.errors.ShapeError, match=r"`mask` must have shape \(9,\); got \(8,\)"):
        gr.backpropagate(model, readout, inputs, targets, mask=jnp.ones(8, bool))
    with pytest.raises(dw.errors.ArgumentError, match="`mask` must be boolean; got float64"):
        gr.backpropagate(model, readout, inputs, targets, mask=jnp.ones(9))
    with pytest.raises(dw.errors.ArgumentError, match="needs k1 <= k2"):
        gr.backpropagate(model, readout, inputs, targets, truncation=(5, 2))
    with pytest.raises(dw.errors.ModelError, match="Lorenz63 is a field"):
        gr.backpropagate(dw.systems.Lorenz63(), readout, None, targets)
    with pytest.raises(dw.errors.NonFiniteError, match="`inputs` must be finite"):
        gr.backpropagate(model, readout, inputs.at[0, 0].set(jnp.nan), targets)
