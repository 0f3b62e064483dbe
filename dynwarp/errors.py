"""The errors dynwarp raises, one class per explained failure; each docstring is the help page.

All of them derive from [`DynwarpError`][dynwarp.errors.DynwarpError], and from the built-in error a reader would expect
(`ValueError`, `RuntimeError`, ...), so that either can be caught.
"""


class DynwarpError(Exception):
    """The base of every error that dynwarp explains."""


class ShapeError(DynwarpError, ValueError):
    """An array has the wrong shape.

    The message names the argument, the shape that was expected and the shape that came. Functions take single examples:
    a leading batch axis is added with `jax.vmap`, not by passing it.
    """


class ArgumentError(DynwarpError, ValueError):
    """An argument has a value that has no meaning here: a negative count, an unknown choice, options that exclude each
    other. The message names the argument, what was expected and what came.
    """


class PrecisionError(DynwarpError, TypeError):
    """An analysis needs float64 and was given float32.

    Switch on 64-bit numbers before the first array is made, `jax.config.update("jax_enable_x64", True)`, and give the
    model in that precision: `jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, model)`.
    """


class NonFiniteError(DynwarpError, ValueError):
    """An input holds NaN or infinity. The message names the argument and the first position."""


class ConvergenceError(DynwarpError, RuntimeError):
    """Some lanes of a batched computation failed.

    The message names the lanes and the reason of each. With `throw=False` the same call returns instead, and `.result`
    holds a code per lane.
    """


class ModelError(DynwarpError, TypeError):
    """A model lacks what the function needs: it is not piecewise linear, has no parallel form, owns no readout."""


class SeriesError(DynwarpError, ValueError):
    """A recording cannot be used: empty, too short, constant or NaN columns, an unknown or truncated file."""


class CheckpointError(DynwarpError, ValueError):
    """A model file is damaged, of another format, or holds something this version does not know.

    Nothing is returned from a file any part of which fails its hash; the message names the first leaf that differs.
    """


class MissingDependencyError(DynwarpError, ImportError):
    """An optional dependency is not installed. The message names the extra that brings it."""


class DeviceError(DynwarpError, RuntimeError):
    """A device was asked for that this machine, or this build of jaxlib, does not have."""
