"""Which inputs a network amplifies, of all inputs rather than of a manifold of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_finite, check_positive_integer, check_shape, check_state
from dynwarp._results import RESULTS, raise_failed
from dynwarp._simulate import simulate
from dynwarp._typing import State
from dynwarp.dynamics._stepping import is_field
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.geometry._representation_metric import representation_metric
from dynwarp.geometry._setting import check_step, check_times, in_precision, refuse
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.tasks import FunctionManifold


class Gramian(eqx.Module):
    """What [`controllability_gramian`][dynwarp.geometry.controllability_gramian] returns, at each of T times.

    **Attributes:** `gramians`, `(T, n, n)`; `states`, `(T, n)`; `result`, `non_finite` where they are not finite.
    """

    gramians: Float[Array, "T n n"]
    states: Float[Array, "T n"]
    result: RESULTS

    def modes(self, k: int) -> tuple[Float[Array, "T k"], Float[Array, "T n k"]]:
        """The k largest eigenvalues, decreasing, and their directions in state space: where inputs reach furthest."""
        n = self.gramians.shape[-1]
        if check_positive_integer(k, "k", caller="Gramian.modes") > n:
            raise ArgumentError(f"Gramian.modes: `k` must be at most the state size {n}; got {k}.")
        values, vectors = jnp.linalg.eigh(self.gramians)
        return values[..., ::-1][..., :k], vectors[..., ::-1][..., :k]


def controllability_gramian(
    model: AbstractMap | AbstractField, state0: State, inputs: Any, *, throw: bool = True, **options: Any
) -> Gramian:
    """The time-varying controllability Gramian along a trajectory: the states that small changes of the inputs reach.

    Of a map it is the sum over the steps s up to t of L_s B_s B_s^T L_s^T, B_s = dF/du, and L_s the product of the
    Jacobians from s to t; of a field the integral. It is the covariance of the state under weak white noise on the
    inputs, and obeys a Lyapunov recursion that runs forwards, W_t+1 = A_t W_t A_t^T + B_t B_t^T, so that all times cost
    one pass. Its eigenvalues other than 0 are those of the kernel of
    [`adjoint_kernel`][dynwarp.geometry.adjoint_kernel], the metric of the space of all inputs.

    **Arguments:**

    - `model`, `state0`, `inputs`: as for [`simulate`][dynwarp.simulate]: `(T, d)` for a map, a function of time for a
      field.
    - `options`: of [`simulate`][dynwarp.simulate], such as `ts` and `dt` of a field, or `key` of a model with dropout:
      the Gramian is then that of the network that is left.

    **Returns:** a [`Gramian`][dynwarp.geometry.Gramian] at the times at which `simulate` returns states.
    Differentiable.

    **Raises:** as [`simulate`][dynwarp.simulate]; `ConvergenceError` with `throw` where it is not finite.

    **Cost:** 2 n steps of tangents a step of the model; memory T n^2.

    **Source:** Kailath, *Linear Systems* (1980), ch. 9.

    **Example:** a leaky integrator: 1 + 1/4 + 1/16.

    >>> leaky = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> dw.geometry.controllability_gramian(leaky, jnp.zeros(1), jnp.zeros((3, 1))).gramians.ravel().tolist()
    [1.0, 1.25, 1.3125]
    """
    caller = "controllability_gramian"
    field = is_field(model, caller)
    if model.input_size == 0:
        raise ModelError(f"{caller}: a {type(model).__name__} without inputs cannot be controlled.")
    state0 = as_real(state0, "state0", caller=caller)
    check_state(model, state0, caller=caller)
    model, inputs = in_precision(state0.dtype, (model, inputs))
    check_step(model, None, None, state0, field, caller)
    joint: Any = _FieldWithGramian if field else _MapWithGramian
    n = model.state_size
    start = jnp.concatenate([state0, jnp.zeros(n * n, state0.dtype)])
    noise = options.get("noise")
    if noise is not None:
        # Noise moves the state; the Gramian is that along the path.
        if jnp.ndim(noise):
            check_shape(noise, "noise", (n,), caller=caller)
        spread = jnp.broadcast_to(jnp.asarray(noise, state0.dtype), (n,))
        options["noise"] = jnp.concatenate([spread, jnp.zeros(n * n, state0.dtype)])
    found = simulate(joint(model), start, inputs, throw=throw, **options)
    finite = jnp.all(jnp.isfinite(found))
    result = RESULTS.where(finite, RESULTS.successful, RESULTS.non_finite)
    if throw:
        raise_failed(result, caller, "Shorten the time.")
    return Gramian(found[..., n:].reshape(*found.shape[:-1], n, n), found[..., :n], result)


def _pushed(step, state, input, gramian):
    """F(x, u), A W and B B^T, of a function (x, u) -> (n,)."""
    inputs = jnp.zeros_like(state, shape=(0,)) if input is None else input
    value, push = jax.linearize(step, state, inputs)
    moved = jax.vmap(lambda v: push(v, jnp.zeros_like(inputs)), in_axes=1, out_axes=1)(gramian)
    eye = jnp.eye(inputs.shape[0], dtype=inputs.dtype)
    columns = jax.vmap(lambda e: push(jnp.zeros_like(state), e), out_axes=1)(eye)
    drive = jnp.matmul(columns, columns.T, precision="highest")
    return value, moved, drive, push


class _MapWithGramian(AbstractMap):
    """(x, W) -> (F(x, u), A W A^T + B B^T), flattened."""

    model: Any

    @property
    def state_size(self):
        return self.model.state_size * (1 + self.model.state_size)

    @property
    def input_size(self):
        return self.model.input_size

    @property
    def stochastic(self):
        return getattr(self.model, "stochastic", False)

    def __call__(self, state, input=None, *, step=None, key=None):
        n, extra = self.model.state_size, {} if key is None else {"key": key}
        x, gramian = state[:n], state[n:].reshape(n, n)
        u = jnp.zeros(self.input_size, x.dtype) if input is None else input

        def advance(x, u):
            return self.model(x, u, step=step, **extra).astype(x.dtype)

        value, moved, drive, push = _pushed(advance, x, u, gramian)
        # A W A^T = A (A W)^T, since W is symmetric.
        both = jax.vmap(lambda v: push(v, jnp.zeros_like(u)), in_axes=1, out_axes=1)(moved.T) + drive
        return jnp.concatenate([value, both.reshape(-1)])


class _FieldWithGramian(AbstractField):
    """The velocity of (x, W): f(x, u) and A W + W A^T + B B^T, flattened."""

    model: Any

    @property
    def state_size(self):
        return self.model.state_size * (1 + self.model.state_size)

    @property
    def input_size(self):
        return self.model.input_size

    def __call__(self, t, state, input=None):
        n = self.model.state_size
        x, gramian = state[:n], state[n:].reshape(n, n)
        u = jnp.zeros(self.input_size, x.dtype) if input is None else input
        value, moved, drive, _ = _pushed(lambda x, u: self.model(t, x, u), x, u, gramian)
        return jnp.concatenate([value, (moved + moved.T + drive).reshape(-1)])


class AdjointKernel(eqx.Module):
    """What [`adjoint_kernel`][dynwarp.geometry.adjoint_kernel] returns.

    **Attributes:**

    - `response`: `[a, s, i]` = d y_a / d u_i(s), of what is seen of the last state to the inputs, `(o, T, d)`.
    - `state`: that state, `(n,)`.
    - `result`: a code.
    """

    response: Float[Array, "o T d"]
    state: Float[Array, " n"]
    result: RESULTS

    def kernel(self) -> Float[Array, "T d T d"]:
        """k(s, s') = sum_a d y_a / d u(s) d y_a / d u(s'): the metric on the space of all inputs."""
        return jnp.einsum("asi,atj->sitj", self.response, self.response, precision="highest")

    def gramian(self) -> Float[Array, "o o"]:
        """The controllability Gramian of what is seen, whose eigenvalues are those of the kernel."""
        return jnp.einsum("asi,bsi->ab", self.response, self.response, precision="highest")

    def metric(self, tangents: Float[Array, "T d m"]) -> Float[Array, "m m"]:
        """The metric of any manifold of inputs through the same ones, from their derivatives d u / d theta."""
        tangents = as_real(tangents, "tangents", caller="AdjointKernel.metric")
        check_shape(tangents, "tangents", (*self.response.shape[1:], "m"), caller="AdjointKernel.metric")
        seen = jnp.einsum("asi,sim->am", self.response, tangents, precision="highest")
        return jnp.matmul(seen.T, seen, precision="highest")

    def modes(self, k: int) -> tuple[Float[Array, " k"], Float[Array, "k T d"], Float[Array, "k o"]]:
        """The inputs that are amplified most: the k largest singular values of the response, decreasing, the inputs, of
        length 1 each, and the directions of what is seen that they move.
        """
        o, T, d = self.response.shape
        if check_positive_integer(k, "k", caller="AdjointKernel.modes") > min(o, T * d):
            raise ArgumentError(f"AdjointKernel.modes: `k` must be at most {min(o, T * d)}; got {k}.")
        left, values, right = jnp.linalg.svd(self.response.reshape(o, T * d), full_matrices=False)
        return values[:k], right[:k].reshape(k, T, d), left.T[:k]


def adjoint_kernel(
    model: AbstractMap | AbstractField,
    state0: State,
    inputs: Any,
    *,
    at: int = -1,
    ts: Any = None,
    dt: float | None = None,
    readout: Callable[[Array], Array] | None = None,
    throw: bool = True,
) -> AdjointKernel:
    """How the state at one time responds to the inputs at all times before: the metric of the space of all inputs.

    One backward pass serves every manifold of inputs: that of [`representation_metric`][dynwarp.geometry.
    representation_metric] is a contraction of the kernel with the tangents of the manifold.

    **Arguments:**

    - `model`: a map or a field.
    - `state0`, `(n,)`.
    - `inputs`: along which the response is taken: of a map `(T, d)`; of a field a function of time, a diffrax path, or
      None for none, as for [`simulate`][dynwarp.simulate].
    - `at`: the index of the state, one of T; negative ones count from the end. Inputs after it have no response.
    - `ts`: of a field, T + 1 increasing times: `state0` holds at the first, and the response is that to changes of the
      input which are held from one of them to the next. Divided by the lengths of these it tends to the functional
      derivative, and the Gramian of [`controllability_gramian`][dynwarp.geometry.controllability_gramian] is then the
      limit of the sum of response response^T / length.
    - `dt`: of a field, the longest of fixed steps, whose adjoint is exact; without it steps are adaptive.
    - `readout`: a function `(n,) -> (o,)` of the state; the state itself if None.

    **Returns:** an [`AdjointKernel`][dynwarp.geometry.AdjointKernel]. Differentiable.

    **Raises:** `ModelError`, `ShapeError`, `NonFiniteError`, `ArgumentError`; `ConvergenceError` with `throw`.

    **Cost:** one to two simulations a dimension of what is seen; memory o T d.

    **Source:** Cao, Li, Petzold & Serban, SIAM J. Sci. Comput. 24 (2003) 1076.

    **Example:**

    >>> leaky = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> found = dw.geometry.adjoint_kernel(leaky, jnp.zeros(1), jnp.zeros((3, 1)))
    >>> found.response.ravel().tolist(), found.gramian().tolist()
    ([0.25, 0.5, 1.0], [[1.3125]])
    """
    caller = "adjoint_kernel"
    field, d = is_field(model, caller), model.input_size
    if d == 0:
        raise ModelError(f"{caller}: a {type(model).__name__} without inputs has no response to them.")
    if field:
        if inputs is not None and not callable(getattr(inputs, "evaluate", inputs)):
            raise ArgumentError(
                f"{caller}: the `inputs` of a field must be a function of time, a diffrax path or None; got "
                f"{type(inputs).__name__}."
            )
        times = check_times(ts, caller)
        T = len(times) - 1
        if not isinstance(at, int | np.integer) or not -T <= at < T:
            raise ArgumentError(f"{caller}: `at` must be the index of one of the {T} states; got {at!r}.")
        last = int(at) % T + 1
        shift: Any = _Held(inputs, T, d, tuple(times[1:-1].tolist()))
        theta = jnp.zeros(T * d)
        options: dict[str, Any] = dict(ts=times[[0, last]], dt=dt, breakpoints=times[1:last])
    else:
        refuse(caller, "a map moves in discrete time, without", ts=ts, dt=dt)
        inputs = as_real(inputs, "inputs", caller=caller)
        check_shape(inputs, "inputs", ("T", d), caller=caller)
        check_finite(inputs, "inputs", caller=caller)
        if inputs.size == 0:
            raise ArgumentError(f"{caller}: `inputs` must hold at least one number; got shape {inputs.shape}.")
        T = len(inputs)
        shift, theta, options = _Rows(T, d), inputs.reshape(-1), dict(at=(at,))
    everything = FunctionManifold(shift, dim=T * d)
    found: Any = representation_metric(
        model, everything, theta, state0=state0, method="adjoint", readout=readout, throw=throw, **options
    )
    return AdjointKernel(found.tangents[-1].reshape(-1, T, d), found.states[-1], found.result)


class _Rows(eqx.Module):
    """Inputs of all steps from one vector."""

    steps: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __call__(self, theta):
        return theta.reshape(self.steps, self.size)


class _Held(eqx.Module):
    """An input with a row of changes added, each held from one time to the next."""

    signal: Any
    steps: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    inner: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, theta, t):
        # Steps end at the inner times and see them from their own side.
        row = jnp.sum(t > jnp.asarray(self.inner, t.dtype))
        change = theta.reshape(self.steps, self.size)[row]
        if self.signal is None:
            return change
        return getattr(self.signal, "evaluate", self.signal)(t) + change
