"""The studies that `dynwarp reproduce` runs, one module each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

# Name -> a function that imports the study and runs it: `run(preset, out) -> result`. A study module adds itself here.
STUDIES: dict[str, Callable[[str, Path], Any]] = {}
