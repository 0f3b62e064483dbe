"""Shared set-up. The environment is set before anything imports equinox or jax."""

import os
import tempfile

# Programs with host callbacks are never cached by JAX; equinox's runtime errors are callbacks, NaNs are not.
os.environ.setdefault("EQX_ON_ERROR", "nan")
# One compile cache for the run: the controller makes it, workers inherit it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="dynwarp-tests-")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# Most programs of the tests run once: the compiler's optimisations cost more than they save.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="module")
def _release_programs():
    """The programs of a file are of no use to the next one, and all of them together fill the memory."""
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)
