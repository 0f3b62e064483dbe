"""What starting costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from dynwarp.bench._case import Kernel, case

_FLOORS = "import dynwarp.dynamics, dynwarp.io, dynwarp.metrics, dynwarp.models, dynwarp.systems; dynwarp.simulate"


def _run(code: str) -> np.ndarray:
    return np.asarray(subprocess.run([sys.executable, "-c", code], check=True).returncode)


@case(group="start", check={"what": "root"}, quick=[{"what": "root"}], full=[{"what": "floors"}])
def import_time(*, what: str, seed: int) -> Kernel:
    """A fresh interpreter imports the package, alone or with its lower floors, beside one that imports their stack."""
    code, beside = {
        "root": ("import dynwarp", {"python": "pass"}),
        "floors": (_FLOORS, {"stack": "import jax, equinox, diffrax, optimistix, optax"}),
    }[what]
    return Kernel(
        function=_run,
        arguments=(code,),
        reference=lambda: np.zeros(()),
        tolerance=0.0,
        unit="imports",
        variants={name: (_run, (other,)) for name, other in beside.items()},
        compiled=False,
    )
