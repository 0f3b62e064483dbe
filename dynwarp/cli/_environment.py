"""What a command sets before JAX does any work: double precision, the compile cache, the device."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from dynwarp.errors import DeviceError


def add_device_option(parser) -> None:
    """`--device`, which the commands that compute share."""
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="where to compute")


def cache_directory() -> Path:
    """Where compiled programs are kept: `JAX_COMPILATION_CACHE_DIR`, or a folder of this user alone."""
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(root) / "dynwarp" / "programs"


@contextlib.contextmanager
def computing(device: str = "auto"):
    """Sets JAX up for a command and yields the device that the command runs on.

    **Raises:** `DeviceError` where the device is not there.
    """
    # Runtime errors of Equinox are host callbacks, and programs with callbacks are never cached.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    import jax

    jax.config.update("jax_enable_x64", True)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and _private(cache_directory()):
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    try:
        found = jax.devices() if device == "auto" else jax.devices(device)
    except (RuntimeError, AssertionError) as error:
        hint = " Install dynwarp[cuda12] or dynwarp[cuda13] on a machine with an NVIDIA GPU." if device == "gpu" else ""
        wanted = "the platform in JAX_PLATFORMS" if device == "auto" else f"a {device}"
        raise DeviceError(f"JAX does not find {wanted} on this machine.{hint}") from error
    try:
        with jax.default_device(found[0]):
            yield found[0]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(str(error).splitlines()[0]) from error


def _private(folder: Path) -> bool:
    """Makes the folder; whether it is ours and nobody else may write there, since what it holds is run as code."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return False
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
