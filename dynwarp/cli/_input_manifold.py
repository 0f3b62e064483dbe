"""The file that says which inputs `dynwarp analyze --inputs` varies: TOML, read strictly."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from dynwarp.errors import ArgumentError, DynwarpError

_CHARTS = ("line", "circle", "torus", "product", "task", "spline")
_REQUIRED = object()
# Points of a grid of all coordinates; a trajectory is kept for each.
_MOST_POINTS = 20000


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A manifold of inputs, how finely it is looked at, and what is known of it."""

    manifold: Any
    chart: str
    points: tuple[int, ...]
    relevant: tuple[int, ...] | None
    dt: float


def read_inputs(path: Path) -> InputFile:
    """The manifold of a file.

    **Raises:** `ArgumentError`, one sentence that names the file and the key.
    """
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ArgumentError(f"`--inputs` {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"`--inputs` {str(path)!r} is no TOML: {error}.") from error
    top = _Table(content, "", path)
    table = top.table("manifold")
    chart = table.choice("chart", _CHARTS)
    own = chart in ("task", "spline")
    dt = 1.0 if own else top.number("dt", 1.0, positive=True)
    steps = None if own else top.integer("steps")
    manifold = _manifold(table, chart, steps, dt)
    if chart == "task":
        dt = float(manifold.dt)
    elif chart == "spline":
        dt = top.number("dt", 1.0, positive=True)
    manifold = _section(table, manifold)
    m = manifold.dim
    points = top.get("points", 12 if m < 3 else 5)
    points = points if isinstance(points, list) else [points] * m
    if len(points) != m or not all(_whole(n) and n >= 2 for n in points):
        top.refuse("points", f"a whole number of at least 2, or {m} of them", points)
    if math.prod(points) > _MOST_POINTS:
        top.refuse("points", f"at most {_MOST_POINTS} in all", math.prod(points))
    relevant = top.get("relevant", None)
    if relevant is not None:
        inside = isinstance(relevant, list) and all(_whole(i) and 0 <= i < m for i in relevant)
        if not inside or not relevant or len(set(relevant)) in (0, m):
            top.refuse("relevant", f"a list of some but not all of the coordinates 0 to {m - 1}", relevant)
        relevant = tuple(sorted(set(relevant)))
    table.finish()
    top.finish()
    return InputFile(manifold, chart, tuple(points), relevant, dt)


class _Table:
    """One table of the file: every key is asked for, and what is left over is an error."""

    def __init__(self, content: dict[str, Any], name: str, path: Path):
        self.content, self.name, self.path = dict(content), name, path
        self.known: list[str] = []

    def refuse(self, key: str, wanted: str, got: Any):
        raise ArgumentError(f"{self.path}: `{self.name}{key}` must be {wanted}; got {got!r}.")

    def complain(self, message: str):
        raise ArgumentError(f"{self.path}: {message}")

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        self.known.append(key)
        if key in self.content:
            return self.content.pop(key)
        if default is _REQUIRED:
            self.complain(f"`{self.name}{key}` is missing.")
        return default

    def table(self, key: str, default: Any = _REQUIRED) -> _Table:
        value = self.get(key, default)
        if not isinstance(value, dict):
            self.refuse(key, "a table", value)
        return _Table(value, f"{self.name}{key}.", self.path)

    def choice(self, key: str, choices: tuple[str, ...], default: Any = _REQUIRED) -> str:
        value = self.get(key, default)
        if value not in choices:
            self.refuse(key, "one of " + ", ".join(map(repr, choices)), value)
        return value

    def number(self, key: str, default: Any = _REQUIRED, *, positive: bool = False) -> float:
        value = self.get(key, default)
        if not _number(value) or (positive and value <= 0):
            self.refuse(key, "a positive number" if positive else "a number", value)
        return float(value)

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.get(key, default)
        if not _whole(value) or value < 1:
            self.refuse(key, "a whole number of at least 1", value)
        return value

    def array(self, key: str, ndim: int, default: Any = _REQUIRED) -> Any:
        """Numbers in lists of lists, as a NumPy array."""
        import numpy as np

        value = self.get(key, default)
        if value is None:
            return None
        if not _nested(value, ndim):
            self.refuse(key, ("numbers in a list", "lists of numbers in a list")[ndim - 1], value)
        try:
            return np.array(value, float)
        except ValueError:
            self.refuse(key, "lists of equal length", value)

    def finish(self) -> None:
        """Raises where a key was never asked for."""
        for key in self.content:
            known = ", ".join(f"`{name}`" for name in sorted(set(self.known)))
            self.complain(f"`{self.name}{key}` is not known here; the keys are {known}.")


def _manifold(table: _Table, chart: str, steps: int | None, dt: float) -> Any:
    """The manifold of one table; those of simple charts have `steps` rows, one every `dt`."""
    make = {"task": _task, "spline": _spline}.get(chart)
    try:
        if make is not None:
            return make(table)
        return _simple(table, chart, steps, dt)
    except DynwarpError as error:
        if str(error).startswith(f"{table.path}:"):
            raise
        raise ArgumentError(f"{table.path}: {error}") from error


def _simple(table: _Table, chart: str, steps: Any, dt: float) -> Any:
    import numpy as np

    from dynwarp import tasks

    if chart == "product":
        factors = table.get("factors")
        if not isinstance(factors, list) or not factors or not all(isinstance(f, dict) for f in factors):
            table.refuse("factors", "a list of tables", factors)
        parts = []
        for i, factor in enumerate(factors):
            inner = _Table(factor, f"{table.name}factors[{i}].", table.path)
            parts.append(_manifold(inner, inner.choice("chart", ("line", "circle", "torus")), steps, dt))
            inner.finish()
        return tasks.Product(parts, combine=table.choice("combine", ("concatenate", "sum"), "concatenate"))  # pyright: ignore[reportArgumentType]
    if chart == "torus":
        windows = table.get("on")
        if not isinstance(windows, list) or not windows:
            table.refuse("on", "a list with the windows of each angle", windows)
        envelopes = np.stack([_envelope(table, w, f"on[{i}]", steps, dt) for i, w in enumerate(windows)])
        shared = table.get("shared", True)
        if not isinstance(shared, bool):
            table.refuse("shared", "true or false", shared)
        return tasks.Torus(envelopes, shared=shared)
    windows = table.get("on", None)
    envelope = np.ones(steps) if windows is None else _envelope(table, windows, "on", steps, dt)
    if chart == "circle":
        return tasks.Circle(envelope, axes=table.array("axes", 2, None), centre=table.array("centre", 1, None))
    bounds = table.array("bounds", 1, [-1.0, 1.0])
    if bounds.shape != (2,) or not bounds[0] < bounds[1]:
        table.refuse("bounds", "two numbers that increase", bounds.tolist())
    direction, origin = table.array("direction", 1), table.array("origin", 1, None)
    return tasks.Line(envelope, direction, origin=origin, bounds=(float(bounds[0]), float(bounds[1])))


def _envelope(table: _Table, windows: Any, key: str, steps: int, dt: float):
    """1 in the steps that begin within one of the windows [from, to), in the unit of `dt`."""
    import numpy as np

    if not _nested(windows, 2) or not all(len(w) == 2 and w[0] < w[1] for w in windows):
        table.refuse(key, "a list of windows, each [from, to] in the unit of `dt`", windows)
    edges = np.rint(np.array(windows) / dt).astype(int)
    envelope = np.zeros(steps)
    for begin, end in edges:
        envelope[max(begin, 0) : max(end, 0)] = 1.0
    if not envelope.any():
        table.refuse(key, f"windows within the {steps} steps", windows)
    return envelope


def _task(table: _Table) -> Any:
    from dynwarp import tasks

    classes = {
        name: kind
        for name, kind in vars(tasks).items()
        # Trials that were recorded are arrays, which a text cannot give.
        if isinstance(kind, type)
        and issubclass(kind, tasks.AbstractTask)
        and kind not in (tasks.AbstractTask, tasks.RecordedTrials)
    }
    kind = classes[table.choice("name", tuple(sorted(classes)))]
    parameters = table.table("parameters", {})
    given = {}
    for field in dataclasses.fields(kind):
        if field.init and field.name in parameters.content:
            value = parameters.get(field.name)
            value = tuple(value) if isinstance(value, list) else value
            if not _like(value, field.default):
                wanted = "of the kind of its default, " + repr(field.default)
                parameters.refuse(field.name, wanted, list(value) if isinstance(value, tuple) else value)
            given[field.name] = value
        else:
            parameters.known += [field.name] if field.init else []
    parameters.finish()
    return kind(**given)


def _spline(table: _Table) -> Any:
    import numpy as np

    from dynwarp import tasks

    name = table.get("file")
    if not isinstance(name, str):
        table.refuse("file", "the name of an npz file", name)
    file = table.path.parent / name
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = dict(found)
    except (OSError, ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ArgumentError(f"{table.path}: `{table.name}file` {str(file)!r} cannot be read as npz.") from error
    if "inputs" not in arrays or np.ndim(arrays["inputs"]) < 3 or not np.issubdtype(arrays["inputs"].dtype, np.number):
        table.complain(f"{str(file)!r} must hold numbers `inputs` of shape (n_1, ..., n_m, T, d).")
    m = arrays["inputs"].ndim - 2
    names = [f"knots_{i}" for i in range(m)]
    missing = [key for key in names if key not in arrays]
    if missing:
        table.complain(f"{str(file)!r} has no `{missing[0]}`, the values of coordinate {missing[0][6:]}.")
    for key in names:
        if not np.issubdtype(arrays[key].dtype, np.number):
            table.complain(f"`{key}` of {str(file)!r} must hold numbers; got an array of {arrays[key].dtype}.")
    periods = table.array("periods", 1, [0.0] * m)
    if periods.shape != (m,) or (periods < 0).any():
        table.refuse("periods", f"{m} numbers, 0 where a coordinate is not periodic", periods.tolist())
    return tasks.SplineManifold(
        [arrays[key] for key in names], arrays["inputs"], periods=tuple(p or None for p in periods.tolist())
    )


def _section(table: _Table, manifold: Any) -> Any:
    """Some coordinates of a manifold of many."""
    import jax.numpy as jnp

    from dynwarp import tasks

    vary, base = table.get("vary", None), table.array("base", 1, None)
    if vary is None:
        if base is not None:
            table.complain(f"`{table.name}base` goes with `{table.name}vary`.")
        return manifold
    if not isinstance(vary, list) or not all(_whole(i) for i in vary):
        table.refuse("vary", "a list of coordinates", vary)
    try:
        return tasks.Section(manifold, vary, jnp.zeros(manifold.dim) if base is None else jnp.asarray(base))
    except DynwarpError as error:
        raise ArgumentError(f"{table.path}: {error}") from error


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _nested(value: Any, ndim: int) -> bool:
    """Whether these are numbers in so many lists."""
    if ndim == 0:
        return _number(value)
    return isinstance(value, list) and bool(value) and all(_nested(x, ndim - 1) for x in value)


def _like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of a default: a whole number will do for a number."""
    if default is dataclasses.MISSING or default is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return _number(value)
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_like(x, default[0] if default else dataclasses.MISSING) for x in value)
    return isinstance(value, type(default))
