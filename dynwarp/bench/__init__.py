"""How fast it is: benchmark cases, the runner that measures them, and what a result file holds."""

import importlib
from typing import TYPE_CHECKING

from dynwarp.bench._case import CASES as CASES
from dynwarp.bench._case import Case as Case
from dynwarp.bench._case import Kernel as Kernel
from dynwarp.bench._case import case as case
from dynwarp.bench._command import add_arguments as add_arguments
from dynwarp.bench._command import main as main
from dynwarp.bench._command import run as run
from dynwarp.bench._compare import Change as Change
from dynwarp.bench._compare import Comparison as Comparison
from dynwarp.bench._compare import compare as compare
from dynwarp.bench._compare import read_document as read_document
from dynwarp.bench._report import to_html as to_html
from dynwarp.bench._report import to_markdown as to_markdown
from dynwarp.bench._schema import validate as validate

if TYPE_CHECKING:
    from dynwarp.bench._runner import gate as gate
    from dynwarp.bench._runner import run_bench as run_bench

_NEED_JAX = {"gate": "dynwarp.bench._runner", "run_bench": "dynwarp.bench._runner"}


def __getattr__(name: str):
    # The command line reads its options from here without JAX.
    if name in _NEED_JAX:
        return getattr(importlib.import_module(_NEED_JAX[name]), name)
    raise AttributeError(f"module 'dynwarp.bench' has no attribute {name!r}")
