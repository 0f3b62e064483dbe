"""The echo state network: a fixed random reservoir of units, and a readout that is fitted to its states."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_choice, check_finite, check_positive, check_positive_integer, check_shape
from dynwarp._compat import concrete
from dynwarp._typing import Activation, PRNGKey, Scalar
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_activation, check_step, parameter_dtype
from dynwarp.models._topologies import TOPOLOGIES, Topology, draw_topology, matrix_radius, multiply, to_dense


class EchoStateNetwork(AbstractMap):
    """An echo state network, h' = (1 - a) h + a phi(rho W h + V (s * x) + c b).

    W is drawn once, at random, with the spectral radius 1 (the true one, max |eigenvalue|), so that rho is the
    spectral radius of the recurrent matrix rho W. What is fitted is a readout of the states:
    [`fit_readout`][dynwarp.training.fit_readout].

    **Arguments:**

    - `input_size`: d, the length of x; 0 for none. Outputs that are fed back are inputs too: see
      [`ClosedLoop`][dynwarp.models.ClosedLoop].
    - `state_size`: n, the number of units.
    - `spectral_radius`: rho.
    - `leak`: a, in (0, 1]; one number, or one a unit.
    - `input_scaling`: s; one number, or one a channel.
    - `bias_scaling`: c. With c = 0 and an odd phi the network is odd in its inputs.
    - `density`: the share of entries of W that are not zero; every unit hears round(density n) units. Not used by
      `"dense"` and `"cycle"`.
    - `topology`: `"sparse"`, at random; `"block_sparse"`, at random in blocks of `block_size` units, which on a CPU is
      about six times as fast a step at the same density; `"k_regular"`, every unit also sends to as many units as it
      hears; `"cycle"`, each unit hears the one before it, all with the same weight; `"dense"`.
    - `block_size`: of `"block_sparse"`.
    - `activation`: phi. `jax.nn.identity` makes a linear reservoir.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw. It must be concrete, since the eigenvalues are found on the host: reservoirs of several
      keys are built in a loop and stacked by `jax.tree.map(lambda *x: jnp.stack(x), *nets)`.

    **Attributes:** the hyperparameters `spectral_radius` `()`, `leak`, `input_scaling`, `bias_scaling` `()` are arrays:
    they can be differentiated, and replaced by `eqx.tree_at` or mapped by `jax.vmap` without a new draw. The weights,
    normal in W and uniform on (-1, 1) elsewhere, are `recurrent_values`, `recurrent_columns` (W in the form of its
    topology), `input_weight` V `(n, d)` and `bias` b `(n,)`; `output_map` is the fitted readout or None.
    Cost of a step: density n^2 + n d multiplications; of the constructor: the eigenvalues of W.

    **Raises:** `ArgumentError` for sizes, choices and numbers that are none, and under a trace; a step raises
    `ShapeError` unless it is given one state and one input.

    **Source:** Jaeger, GMD report 148 (2001); leaky units: Jaeger, Lukoševičius, Popovici & Siewert, Neural Networks 20
    (2007) 335; the cycle: Rodan & Tiňo, IEEE Trans. Neural Netw. 22 (2011) 131.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.EchoStateNetwork(1, 30, spectral_radius=0.9, density=0.2, key=jax.random.key(0))
    >>> round(float(abs(jnp.linalg.eigvals(net.recurrent_matrix())).max()), 10)
    0.9
    >>> dw.simulate(net, jnp.zeros(30), jnp.ones((5, 1))).shape
    (5, 30)
    """

    recurrent_values: Float[Array, "..."]
    recurrent_columns: Int[Array, "..."] | None
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"]
    spectral_radius: Scalar
    leak: Float[Array, "..."]
    input_scaling: Float[Array, "..."]
    bias_scaling: Scalar
    output_map: Any
    activation: Activation = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        spectral_radius: float = 0.9,
        leak: float | Float[Array, "..."] = 1.0,
        input_scaling: float | Float[Array, "..."] = 1.0,
        bias_scaling: float = 0.1,
        density: float = 0.1,
        topology: Topology = "sparse",
        block_size: int = 20,
        activation: Activation = jnp.tanh,
        dtype: Any = None,
        key: PRNGKey,
    ):
        caller = "EchoStateNetwork"
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller=caller)
        self.state_size = n = check_positive_integer(state_size, "state_size", caller=caller)
        check_positive(spectral_radius, "spectral_radius", caller=caller)
        if not 0 < density <= 1:
            raise ArgumentError(f"{caller}: `density` must lie in (0, 1]; got {density!r}.")
        check_choice(topology, "topology", TOPOLOGIES, caller=caller)
        block_size = min(n, check_positive_integer(block_size, "block_size", caller=caller))
        self.activation = check_activation(activation, caller)
        dtype = parameter_dtype(dtype, caller)
        known = concrete(jax.random.bits(key, (4,), jnp.uint32))
        if known is None:
            raise ArgumentError(
                f"{caller}: `key` is traced, and the spectral radius is found on the host. Build reservoirs outside of "
                "jit and vmap; their hyperparameters are arrays, which both may change."
            )
        rng = np.random.default_rng(known)
        values, columns = draw_topology(topology, n, density, block_size, rng)
        values = values / matrix_radius(values, columns, n)
        self.recurrent_values = jnp.asarray(values, dtype)
        self.recurrent_columns = None if columns is None else jnp.asarray(columns, jnp.int32)
        self.input_weight = jnp.asarray(rng.uniform(-1, 1, (n, self.input_size)), dtype)
        self.bias = jnp.asarray(rng.uniform(-1, 1, n), dtype)
        self.spectral_radius = jnp.asarray(spectral_radius, dtype)
        self.leak, self.input_scaling, self.bias_scaling = _hyperparameters(
            leak, input_scaling, bias_scaling, n, self.input_size, dtype
        )
        self.output_map = None

    @classmethod
    def from_parameters(
        cls,
        recurrent_matrix: Float[Array, "n n"],
        input_weight: Float[Array, "n d"],
        *,
        bias: Float[Array, " n"] | None = None,
        leak: float | Float[Array, "..."] = 1.0,
        activation: Activation = jnp.tanh,
    ) -> EchoStateNetwork:
        """A reservoir of given weights: h' = (1 - a) h + a phi(W h + V x + b).

        `spectral_radius` is that of W, found on the host; where it is 0 (a delay line) it is set to 1, and a factor of
        it is a factor of W.

        **Raises:** `ShapeError` unless W is square and the others fit; `NonFiniteError`.
        """
        caller = "EchoStateNetwork.from_parameters"
        check_shape(recurrent_matrix, "recurrent_matrix", ("n", "n"), caller=caller)
        n = recurrent_matrix.shape[0]
        check_shape(input_weight, "input_weight", (n, "d"), caller=caller)
        bias = jnp.zeros(n) if bias is None else bias
        check_shape(bias, "bias", (n,), caller=caller)
        arrays = {"recurrent_matrix": recurrent_matrix, "input_weight": input_weight, "bias": bias}
        for name, array in arrays.items():
            check_finite(array, name, caller=caller)
        known = concrete(recurrent_matrix)
        if known is None:
            raise ArgumentError(f"{caller}: `recurrent_matrix` is traced, and its eigenvalues are found on the host.")
        matrix = jnp.asarray(recurrent_matrix)
        dtype = parameter_dtype(matrix.dtype if jnp.issubdtype(matrix.dtype, jnp.floating) else None, caller)
        radius = matrix_radius(known.astype(np.float64), None, n) or 1.0
        template = cls(
            input_weight.shape[1],
            n,
            topology="cycle",
            leak=leak,
            bias_scaling=1.0,
            activation=activation,
            dtype=dtype,
            key=jax.random.key(0),
        )
        names = ("recurrent_values", "input_weight", "bias", "spectral_radius")
        new = (known / radius, input_weight, bias, radius)
        return eqx.tree_at(
            lambda net: [getattr(net, name) for name in names], template, [jnp.asarray(x, dtype) for x in new]
        )

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        drive = self.spectral_radius * multiply(self.recurrent_values, self.recurrent_columns, state)
        drive = drive + self.bias_scaling * self.bias
        if input is not None:
            drive = drive + self.input_weight @ (self.input_scaling * input)
        return state + self.leak * (self.activation(drive) - state)

    def recurrent_matrix(self) -> Float[Array, "n n"]:
        """The recurrent matrix rho W, dense, `(n, n)`."""
        return self.spectral_radius * to_dense(self.recurrent_values, self.recurrent_columns, self.state_size)

    def with_readout(self, readout: Any) -> EchoStateNetwork:
        """The same reservoir as the owner of a readout, a module called as `readout(state, input)`."""
        if not callable(readout):
            raise ModelError(f"EchoStateNetwork: `readout` must be callable as readout(state, input); got {readout!r}.")
        return eqx.tree_at(lambda net: net.output_map, self, readout, is_leaf=lambda x: x is None)

    def readout(self) -> Any:
        """The fitted output map; raises `ModelError` where there is none yet."""
        if self.output_map is None:
            raise ModelError(
                "EchoStateNetwork: there is no readout yet. Fit one by dynwarp.training.fit_readout and keep it by "
                "`with_readout`."
            )
        return self.output_map


def _hyperparameters(leak, input_scaling, bias_scaling, n, d, dtype):
    """The three as arrays, checked."""
    caller = "EchoStateNetwork"
    leak, input_scaling, bias_scaling = (jnp.asarray(x, dtype) for x in (leak, input_scaling, bias_scaling))
    for value, name, size in ((leak, "leak", n), (input_scaling, "input_scaling", d)):
        if value.ndim:
            check_shape(value, name, (size,), caller=caller)
    check_shape(bias_scaling, "bias_scaling", (), caller=caller)
    check_positive(leak, "leak", caller=caller)
    known = concrete(leak)
    if known is not None and (known > 1).any():
        raise ArgumentError(f"{caller}: `leak` must lie in (0, 1]; got {leak!r}.")
    check_finite(input_scaling, "input_scaling", caller=caller)
    check_finite(bias_scaling, "bias_scaling", caller=caller)
    return leak, input_scaling, bias_scaling
