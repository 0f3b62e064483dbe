"""Names for the arrays that pass everywhere: shapes in jaxtyping's notation."""

from collections.abc import Callable
from typing import TypeAlias

import jax
from jaxtyping import Array, Complex, Float, Key

State: TypeAlias = Float[Array, " n"]
States: TypeAlias = Float[Array, "T n"]
Input: TypeAlias = Float[Array, " d"]
Inputs: TypeAlias = Float[Array, "T d"]
Scalar: TypeAlias = Float[Array, ""]
Spectrum: TypeAlias = Complex[Array, " n"]
PRNGKey: TypeAlias = Key[Array, ""] | jax.Array
Activation: TypeAlias = Callable[[Array], Array]
