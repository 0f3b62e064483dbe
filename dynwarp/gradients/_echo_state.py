"""Whether a driven reservoir forgets where it started."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from dynwarp._checks import check_finite, check_float64, check_inputs, check_positive_integer
from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS
from dynwarp._simulate import simulate
from dynwarp._typing import Inputs, PRNGKey, Scalar
from dynwarp.dynamics import lyapunov_spectrum
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import EchoStateNetwork

# Where the slope of an activation is looked for.
_GRID = np.linspace(-20.0, 20.0, 4001)
# Two runs are taken to have met at this share of where they started; the exponent then says the rest.
_MET = 1e-3


class EchoStateReport(eqx.Module):
    """What [`echo_state_report`][dynwarp.gradients.echo_state_report] returns.

    **Attributes:**

    - `conditional_exponent`, `standard_error`: the largest Lyapunov exponent of the driven network on these inputs, in
      nats per step.
    - `spread`: the largest distance at the end between runs from different states, over that at the start.
    - `holds`: the operational verdict for these inputs: the exponent is negative and the runs met.
    - `sufficient_bound`: (1 - a) + a g min(sigma_max(W), rho(|W|)) for the largest slope g of the activation. Below 1,
      every input is forgotten. Where leaks differ, with the slowest unit's, and sigma_max with (1 - min a) + max a.
    - `necessary_radius`: the spectral radius of the step at the zero state without input and bias. At 1 or above, and
      with phi(0) = 0, inputs near zero are not forgotten.
    - `guaranteed`, `excluded_at_zero`: whether these two bounds decide.
    - `spectral_radius`: of the recurrent matrix; it decides nothing by itself.
    - `result`: that of the exponent.
    """

    conditional_exponent: Scalar
    standard_error: Scalar
    spread: Scalar
    holds: Bool[jax.Array, ""]
    sufficient_bound: Scalar
    necessary_radius: Scalar
    guaranteed: Bool[jax.Array, ""]
    excluded_at_zero: Bool[jax.Array, ""]
    spectral_radius: Scalar
    result: RESULTS


def echo_state_report(
    reservoir: EchoStateNetwork,
    inputs: Inputs,
    *,
    washout: int | None = None,
    starts: int = 8,
    key: PRNGKey | None = None,
    throw: bool = True,
) -> EchoStateReport:
    """Whether the states of a reservoir are echoes of its inputs: three bounds and one measurement.

    A spectral radius below one neither implies that the start is forgotten nor is needed for it. Below one, the
    sufficient bound is a proof for every input; the conditional exponent is the answer for the inputs at hand. For
    leaky units the norm of (1 - a) I + a W, which is often quoted, proves nothing: the slopes of the units differ, and
    rows of it are mixed with rows of (1 - a) I.

    **Arguments:**

    - `reservoir`: an `EchoStateNetwork` in float64.
    - `inputs`: shape `(T, d)`.
    - `washout`: the first steps, without which the exponent is averaged; a tenth of T by default.
    - `starts`: how many states, uniform on [-1, 1]^n, the runs start from.
    - `key`: of the starts; `jax.random.key(0)` by default.
    - `throw`: raise where the exponent failed.

    **Returns:** an [`EchoStateReport`][dynwarp.gradients.EchoStateReport]. The slope of the activation is sought on a
    grid of [-20, 20]. Cost: `starts` runs, one run with a tangent, and the eigenvalues and singular values of W.

    **Raises:** `PrecisionError` for float32, `ShapeError`, `NonFiniteError`, `ArgumentError`, `ModelError` for another
    model (whose exponent [`lyapunov_spectrum`][dynwarp.dynamics.lyapunov_spectrum] gives); `ConvergenceError`.

    **Source:** Yildiz, Jaeger & Kiebel, Neural Networks 35 (2012) 1; scaling by the Perron vectors: Buehner & Young,
    IEEE Trans. Neural Netw. 17 (2006) 820; Manjunath & Jaeger, Neural Computation 25 (2013) 671.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.EchoStateNetwork(1, 20, spectral_radius=0.5, topology="cycle", key=jax.random.key(0))
    >>> report = dw.gradients.echo_state_report(net, jnp.sin(jnp.arange(300.0))[:, None])
    >>> bool(report.holds), bool(report.guaranteed), round(float(report.sufficient_bound), 6)
    (True, True, 0.5)
    """
    caller = "echo_state_report"
    if not isinstance(reservoir, EchoStateNetwork):
        raise ModelError(f"{caller}: `reservoir` must be an EchoStateNetwork; got {type(reservoir).__name__}.")
    check_float64(reservoir, "reservoir", caller=caller)
    check_inputs(reservoir, inputs, caller=caller)
    check_finite(inputs, "inputs", caller=caller)
    starts = check_positive_integer(starts, "starts", minimum=2, caller=caller)
    length = len(inputs)
    washout = length // 10 if washout is None else check_positive_integer(washout, "washout", minimum=0, caller=caller)
    if length - washout < 2:
        raise ArgumentError(f"{caller}: a washout of {washout} leaves no two of {length} steps.")
    key = jax.random.key(0) if key is None else key
    states = jax.random.uniform(key, (starts, reservoir.state_size), jnp.float64, -1, 1)
    spectrum = lyapunov_spectrum(
        reservoir, states[0], steps=length - washout, transient=washout, k=1, inputs=inputs, throw=throw
    )
    exponent = spectrum.exponents[0]
    spread, sufficient, necessary, radius, origin = _bounds(reservoir, inputs, states)
    return EchoStateReport(
        conditional_exponent=exponent,
        standard_error=spectrum.standard_error[0],
        spread=spread,
        holds=(exponent < 0) & (spread < _MET),
        sufficient_bound=sufficient,
        necessary_radius=necessary,
        guaranteed=sufficient < 1,
        excluded_at_zero=(necessary >= 1) & origin,
        spectral_radius=radius,
        result=spectrum.result,
    )


@eqx.filter_jit
def _bounds(reservoir, inputs, states):
    ends = jax.vmap(lambda state: simulate(reservoir, state, inputs, last_only=True))(states)

    def widest(points):
        return jnp.max(jnp.linalg.norm(points[1:] - points[0], axis=1))

    W, leak = reservoir.recurrent_matrix(), reservoir.leak
    slopes = jax.vmap(jax.grad(lambda z: reservoir.activation(z[None])[0]))(jnp.asarray(_GRID))
    # A step contracts in the largest entry, weighted by the Perron vector of |W|, unit by unit; in the Euclidean norm
    # rows of different leaks cannot be told apart.
    slope, perron = jnp.max(jnp.abs(slopes)), jnp.abs(eigenvalues(jnp.abs(W))[0])
    by_unit = jnp.max((1 - leak) + leak * slope * perron)
    sufficient = jnp.minimum(by_unit, 1 - jnp.min(leak) + jnp.max(leak) * slope * jnp.linalg.norm(W, 2))
    rows = jnp.broadcast_to(leak, len(W))[:, None]
    at_zero = jnp.eye(len(W)) * (1 - rows) + rows * slopes[len(_GRID) // 2] * W
    necessary = jnp.abs(eigenvalues(at_zero)[0])
    origin = reservoir.activation(jnp.zeros(1))[0] == 0
    return widest(ends) / widest(states), sufficient, necessary, jnp.abs(eigenvalues(W)[0]), origin
