"""The rules of the house as tests: floors, lazy imports without side effects, forbidden names, documented surface."""

import ast
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import equinox as eqx
import pytest

import dynwarp

ROOT = pathlib.Path(dynwarp.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Imports point down only; within a floor, only where the design draws an arrow.
FLOORS = {
    **dict.fromkeys(["_typing", "_checks", "_results", "_compat", "_linalg", "errors", "_version"], 0),
    **dict.fromkeys(["models", "systems", "tasks", "_simulate"], 1),
    **dict.fromkeys(["dynamics", "metrics"], 2),
    **dict.fromkeys(["piecewise", "geometry", "learning", "gradients"], 3),
    **dict.fromkeys(["io", "sweep", "training"], 4),
    **dict.fromkeys(["plot", "report"], 5),
    **dict.fromkeys(["studies", "bench"], 6),
    **dict.fromkeys(["cli", "__main__"], 7),
}
SAME_FLOOR = {
    ("_simulate", "models"),
    ("systems", "models"),
    ("systems", "_simulate"),
    ("tasks", "models"),
    ("tasks", "systems"),
    ("tasks", "_simulate"),
    ("metrics", "dynamics"),
    ("sweep", "io"),
    ("training", "io"),
    ("training", "sweep"),
    ("report", "plot"),
    ("__main__", "cli"),
}


def _package(path: pathlib.Path) -> str:
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def _imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    package = _package(path)
    if package == "__init__":
        return
    assert package in FLOORS, f"{package} stands on no floor"
    for name, line in _imported(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "dynwarp" or len(parts) < 2 or parts[1] == package:
            continue
        target = {"simulate": "_simulate", "RESULTS": "_results", "__version__": "_version"}.get(parts[1], parts[1])
        down = FLOORS[target] < FLOORS[package] or (package, target) in SAME_FLOOR or FLOORS[package] == 0
        assert down, f"{path.name}:{line} imports {name}: floor {FLOORS[package]} from floor {FLOORS[target]}"


FORBIDDEN = [
    r"jax\._src",
    r"jax\.core",
    r"equinox\.internal",
    r"import pickle",
    r"allow_pickle=True",
    r"\beval\(",
    r"error_if\(",
    r"debug\.print",
    r"pure_callback",
    r"io_callback",
    r"\bTODO\b",
    r"\bFIXME\b",
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_forbidden_names(path):
    text = path.read_text()
    for pattern in FORBIDDEN:
        found = re.search(pattern, text)
        assert not found, f"{path.name} has {found.group()}"
    if _package(path) in {"cli", "__main__", "bench"}:
        return  # the program, not the library, chooses the precision
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert "jax.config.update" not in calls, f"{path.name} flips a global switch"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_readable(path):
    assert len(path.read_text().splitlines()) <= 600


def _public():
    for package in sorted(dynwarp._SUBPACKAGES):
        module = importlib.import_module(f"dynwarp.{package}")
        for name, thing in vars(module).items():
            if not name.startswith("_") and (inspect.isclass(thing) or inspect.isfunction(thing)):
                yield pytest.param(thing, id=f"{package}.{name}")


@pytest.mark.parametrize("thing", list(_public()))
def test_public_names_are_documented(thing):
    assert thing.__doc__, f"{thing} has no docstring"
    assert len(thing.__doc__.strip().splitlines()[0]) > 10
    if inspect.isclass(thing) and issubclass(thing, eqx.Module) and not inspect.isabstract(thing):
        # Equinox writes a signature as docstring when there is none.
        assert not thing.__doc__.startswith(f"{thing.__name__}("), f"{thing} has no docstring of its own"


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_is_lazy_and_without_side_effects():
    code = """
import sys, warnings, logging
filters, handlers = list(warnings.filters), list(logging.root.handlers)
import dynwarp
assert not {"jax", "equinox", "numpy", "scipy"} & set(sys.modules), "the root imports JAX"
import dynwarp.models, dynwarp.systems, dynwarp.dynamics, dynwarp.metrics, dynwarp.io, dynwarp.training, dynwarp.tasks
dynwarp.simulate
import jax
heavy = {"matplotlib", "plotly", "h5py", "pywt", "safetensors", "torch", "pandas", "IPython"} & set(sys.modules)
assert not heavy, heavy
assert not jax.config.jax_enable_x64
assert logging.root.handlers == handlers
print("fine")
"""
    assert _python(code) == "fine"


def test_help_needs_no_jax():
    code = """
import sys
from dynwarp.__main__ import main
try:
    main(["--help"])
except SystemExit as stop:
    assert not stop.code
assert "jax" not in sys.modules and "numpy" not in sys.modules
print("fine")
"""
    assert _python(code).endswith("fine")


def test_unknown_attribute_names_the_package():
    with pytest.raises(AttributeError, match="no attribute 'dinamics'"):
        dynwarp.dinamics  # noqa: B018
    assert set(dir(dynwarp)) >= {"models", "simulate", "__version__"}
