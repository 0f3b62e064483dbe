"""The one place for names that may move between versions of the stack."""

import jax
import numpy as np

# What a traced value raises when its entries are asked for.
TRACED_ERRORS = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


def concrete(x) -> np.ndarray | None:
    """`x` as a numpy array, or None if it is traced and its entries cannot be looked at."""
    try:
        return np.asarray(x)
    except TRACED_ERRORS:
        return None
