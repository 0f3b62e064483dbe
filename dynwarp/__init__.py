"""dynwarp: differentiable dynamics of recurrent networks.

Models are Equinox modules that move a state; every analysis is a pure, batched, differentiable function of a model.
Subpackages load on first use, so that importing the package costs little and `dynwarp --help` needs no JAX.
"""

import importlib
from typing import TYPE_CHECKING

from dynwarp._version import __version__ as __version__

if TYPE_CHECKING:
    from dynwarp import bench as bench
    from dynwarp import dynamics as dynamics
    from dynwarp import errors as errors
    from dynwarp import geometry as geometry
    from dynwarp import gradients as gradients
    from dynwarp import io as io
    from dynwarp import learning as learning
    from dynwarp import metrics as metrics
    from dynwarp import models as models
    from dynwarp import piecewise as piecewise
    from dynwarp import plot as plot
    from dynwarp import report as report
    from dynwarp import systems as systems
    from dynwarp import tasks as tasks
    from dynwarp import training as training
    from dynwarp._results import RESULTS as RESULTS
    from dynwarp._simulate import simulate as simulate

_SUBPACKAGES = frozenset(
    [
        "bench",
        "dynamics",
        "errors",
        "geometry",
        "gradients",
        "io",
        "learning",
        "metrics",
        "models",
        "piecewise",
        "plot",
        "report",
        "systems",
        "tasks",
        "training",
    ]
)
_NAMES = {"RESULTS": "dynwarp._results", "simulate": "dynwarp._simulate"}

__all__ = ["RESULTS", "__version__", "simulate", *sorted(_SUBPACKAGES)]


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return importlib.import_module(f"dynwarp.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'dynwarp' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__():
    return sorted(__all__)
