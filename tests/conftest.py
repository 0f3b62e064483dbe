"""Shared set-up. The environment is set before anything imports equinox or jax."""

import os
import tempfile
from importlib.metadata import version

# Programs with host callbacks are never cached by JAX; equinox's runtime errors are callbacks, NaNs are not.
os.environ.setdefault("EQX_ON_ERROR", "nan")
# One compile cache for the run: the controller makes and removes it, workers inherit it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = tempfile.TemporaryDirectory(prefix="dynwarp-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache.name
# A small program is read from the cache in a third of the time in which it is compiled.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most programs of the tests run once: the compiler's optimisations cost more than they save.
# The other flags halve the time of compiling; a version that does not know them would end the process.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * version("jaxlib").startswith("0.10."),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="module")
def _release_programs():
    """Most programs of a file are of no use to the next one, which reads the others from the cache."""
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)
