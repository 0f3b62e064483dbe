"""Training that can be put down and taken up again: the whole state of the loop in one file, written in one step."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import io
from dynwarp.errors import ArgumentError, CheckpointError

_NAME = "training.dyn"


class Checkpoint:
    """The file of a training run in a folder, and what the run must have in common with it."""

    def __init__(self, directory: Any, settings: dict[str, Any]):
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"fit: `directory` {str(folder)!r} cannot be made: {error.strerror}.") from error
        self.path = folder / _NAME
        self.settings = json.loads(json.dumps(settings))

    def write(self, tree: Any) -> None:
        """Saves the arrays of a pytree; the old file stays until the new one is whole."""
        io.save(self.path, list(jax.tree.leaves(eqx.filter(tree, eqx.is_array))), metadata={"settings": self.settings})

    def read(self, like: Any) -> Any | None:
        """The pytree that was saved, or None if nothing was.

        **Raises:** `CheckpointError` for a damaged file; `ArgumentError` where the run had other settings.
        """
        if not self.path.exists():
            return None
        saved = io.load_metadata(self.path).get("settings", {})
        for name, value in self.settings.items():
            if saved.get(name) != value:
                raise ArgumentError(
                    f"fit: the run in {str(self.path)!r} had another `{name}`, {saved.get(name)!r}; this one has "
                    f"{value!r}. Resume with the same arguments, or use another `directory`."
                )
        leaves = io.load(self.path)
        arrays, static = eqx.partition(like, eqx.is_array)
        old, structure = jax.tree.flatten(arrays)
        described = [(x.shape, str(x.dtype)) for x in old]
        if [(np.shape(x), str(x.dtype)) for x in leaves] != described[: len(leaves)] or len(leaves) != len(old):
            raise CheckpointError(f"{str(self.path)!r} is of a model or an optimizer of another structure.")
        return eqx.combine(jax.tree.unflatten(structure, leaves), static)


def digest(*trees: Any) -> str:
    """A short fingerprint of arrays, keys and text."""
    sha = hashlib.sha256()
    for x in jax.tree.leaves(trees):
        if eqx.is_array(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if eqx.is_array(x):
            array = np.ascontiguousarray(x)
            sha.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
        elif isinstance(x, str):
            sha.update(x.encode())
    return sha.hexdigest()[:16]
