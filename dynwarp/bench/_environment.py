"""Where a benchmark ran: what must be equal for two runs to be compared, and what explains a difference."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

import dynwarp

_STACK = ("dynwarp", "jax", "jaxlib", "equinox", "diffrax", "optimistix", "lineax", "optax", "numpy", "scipy")
# What decides how fast the matrix products of NumPy, SciPy and torch are.
_BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_NUM_THREADS")


def describe(device: Any) -> dict[str, Any]:
    """The environment block of a result file. No host name, user name or path goes into it."""
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "device_count": len(jax.devices(device.platform)),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": _versions(),
        "x64": bool(jax.config.jax_enable_x64),
        "matmul_precision": str(jax.config.jax_default_matmul_precision or "default"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "blas": {name: os.environ[name] for name in _BLAS if name in os.environ},
        "on_error": os.environ.get("EQX_ON_ERROR", "raise"),
        "cache": cache_state(),
    }


def cores() -> int:
    """The processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_state() -> str:
    """`"off"`, `"cold"` or `"warm"`: whether the persistent compile cache is used, and whether it holds anything."""
    directory = jax.config.jax_compilation_cache_dir
    if not directory or not jax.config.jax_enable_compilation_cache:
        return "off"
    path = pathlib.Path(directory)
    return "warm" if path.is_dir() and any(path.iterdir()) else "cold"


def revision() -> dict[str, Any] | None:
    """The commit of the checkout that this package runs from, and whether files differ from it; None elsewhere."""
    package = pathlib.Path(dynwarp.__file__).resolve().parent
    root = _git(package, "rev-parse", "--show-toplevel")
    # An environment inside some other repository must not lend its commit.
    if root is None or pathlib.Path(root).resolve() / "dynwarp" != package:
        return None
    commit = _git(package, "rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "modified": bool(_git(package, "status", "--porcelain", "."))}


def _git(directory: pathlib.Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    versions = {}
    for package in _STACK:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
