"""What is asked of the metric of a network while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_choice, check_finite, check_positive, check_shape
from dynwarp._compat import concrete
from dynwarp._typing import Scalar
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.geometry._observation import as_readout
from dynwarp.geometry._representation_metric import RepresentationMetric, representation_metric
from dynwarp.geometry._setting import in_precision
from dynwarp.geometry._warping import spectral
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.models._cell import computing_dtype, prepared
from dynwarp.tasks import InputManifold

_CALLER = "MetricPenalty"
_TARGETS = ("ratio", "uniform", "rigid", "isometry", "average_ratio")
_SPACES = ("state", "rate", "readout")


class MetricPenalty(eqx.Module):
    """How far the metric of a network is from one that it is asked to have: a penalty for training.

    At each point p of the inputs and each time t the metric G is compared with a reference R, in which the squares of
    lengths along the relevant coordinates count `ratio` times as much. With ell = log(R^-1/2 G R^-1/2), m coordinates
    and s = tr(ell) / m, it is `strength` times the mean over points and times of

    | `target` | | 0 where, and only where |
    | --- | --- | --- |
    | `"ratio"` | the square of ell - s I | G = s(p, t) R: its shape is that of R, its scale is free |
    | `"uniform"` | of ell - mean_p ell | G is the same at all points, if R is |
    | `"rigid"` | of ell - mean_p s I | G = s(t) R: a similarity |
    | `"isometry"` | of ell | G = R |
    | `"average_ratio"` | of log(mean_p G_rel / mean_p G_irr) - log `ratio` | lengths have the ratio in the mean |

    with the Frobenius norm. All but the last hold the whole tensor: where only its diagonal is held, a network gets
    round it by letting the coordinates lean on each other. `full=False` holds the diagonals alone, ell then being that
    of diag(G) and diag(R).

    **Arguments:**

    - `manifold`: an [`InputManifold`][dynwarp.geometry.InputManifold], of m coordinates.
    - `thetas`: the points, `(..., m)`. What happens between them is not seen: look at the trained network on a finer
      grid with `metric`.
    - `target`: see above.
    - `relevant`: the indices of the coordinates that matter; needed where `ratio` is not 1 and for `"average_ratio"`.
    - `ratio`: c, positive: a number, or one a time, `(T,)`.
    - `reference`: R before `ratio`: symmetric and positive definite, `(m, m)`, `(T, m, m)`, or with the axes of the
      points `(..., T, m, m)`; the identity if None. The metric of another network makes `"isometry"` copy its warping.
    - `full`: the whole tensor, or its diagonal.
    - `space`: where lengths are measured: `"state"`; `"rate"`, of the activation of the readout, or else of a network
      whose state is what its activation is given; `"readout"`, of what is emitted; or a function `(n,) -> (o,)`.
    - `strength`: not negative.
    - `state0`: the initial state, `(n,)`, or a function of theta; zeros if None.
    - `at`: of a map, the states that count, as for
      [`representation_metric`][dynwarp.geometry.representation_metric]; all if None. All coordinates must have reached
      the state by then: the logarithm of a degenerate metric is not finite.
    - `ts`, `dt`: of a field, increasing times and the fixed step between them; the state at the first of them does not
      count.
    - `floor`: adds floor tr(A) / m to the eigenvalues of A = R^-1/2 G R^-1/2: for degenerate metrics, such as that of
      fewer outputs than coordinates.

    Called with a model, or with a [`Reconstruction`][dynwarp.training.Reconstruction], as
    [`fit`][dynwarp.training.fit] does: a scalar, in the precision of the model. `metric(model)` is the
    [`RepresentationMetric`][dynwarp.geometry.RepresentationMetric] behind it.

    **Raises:** `ShapeError`, `ArgumentError`, `NonFiniteError` for what does not fit; `ModelError` where the model has
    no readout or no activation. A metric that is degenerate gives NaN.

    **Cost:** the forward method, 1 + m simulations of all points, and reverse mode over it, about three times as much;
    only states and tangents of each step are kept, `P T n (1 + m)` numbers, since steps are computed again backwards.

    **Source:** the constraint on the ratio is after Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310, who hold
    the diagonal; the logarithm of matrices makes it the same for stretching and for compressing.

    **Example:** two variables that a network is to keep equally far apart.

    >>> net = dw.models.LeakyRNN(2, 8, dt=0.5, key=jax.random.key(0))
    >>> plane = dw.tasks.Product([dw.tasks.Line(jnp.ones(5), jnp.ones(1)), dw.tasks.Line(jnp.ones(5), jnp.ones(1))])
    >>> penalty = dw.geometry.MetricPenalty(plane, plane.grid(3), target="rigid", at=(2, 4))
    >>> gradient = eqx.filter_grad(penalty)(net)
    >>> bool(penalty(net) > 0), gradient.recurrent_weight.shape
    (True, (8, 8))
    """

    manifold: InputManifold
    thetas: Float[Array, "P m"]
    ratio: Float[Array, "..."]
    reference: Float[Array, "..."] | None
    state0: Any
    space: Any
    strength: float = eqx.field(static=True)
    target: str = eqx.field(static=True)
    relevant: tuple[int, ...] | None = eqx.field(static=True)
    full: bool = eqx.field(static=True)
    at: tuple[int, ...] | None = eqx.field(static=True)
    ts: tuple[float, ...] | None = eqx.field(static=True)
    dt: float | None = eqx.field(static=True)
    floor: float = eqx.field(static=True)

    def __init__(
        self,
        manifold: InputManifold,
        thetas: Float[Array, "... m"],
        *,
        target: Literal["ratio", "uniform", "rigid", "isometry", "average_ratio"] = "ratio",
        relevant: Sequence[int] | None = None,
        ratio: Any = 1.0,
        reference: Any = None,
        full: bool = True,
        space: Literal["state", "rate", "readout"] | Callable[[Array], Array] = "state",
        strength: float = 1.0,
        state0: Any = None,
        at: Sequence[int] | None = None,
        ts: Sequence[float] | None = None,
        dt: float | None = None,
        floor: float = 0.0,
    ):
        if not isinstance(manifold, InputManifold):
            raise ArgumentError(f"{_CALLER}: `manifold` must be an InputManifold; got {type(manifold).__name__}.")
        m = manifold.dim
        thetas = as_real(thetas, "thetas", caller=_CALLER)
        points = thetas.shape[:-1]
        check_shape(thetas, "thetas", (*points, m), caller=_CALLER)
        check_finite(thetas, "thetas", caller=_CALLER)
        check_choice(target, "target", _TARGETS, caller=_CALLER)
        if not callable(space):
            check_choice(space, "space", _SPACES, caller=_CALLER)
        for name, value in (("strength", strength), ("floor", floor)):
            if not (isinstance(value, int | float | np.floating) and 0 <= value < float("inf")):
                raise ArgumentError(f"{_CALLER}: `{name}` must be a number that is not negative; got {value!r}.")
        self.manifold, self.thetas, self.space = manifold, thetas.reshape(-1, m), space
        self.state0 = state0 if state0 is None or callable(state0) else as_real(state0, "state0", caller=_CALLER)
        self.strength, self.floor, self.target, self.full = float(strength), float(floor), target, bool(full)
        self.at = None if at is None else _indices(at, "at")
        self.ts, self.dt = None if ts is None else tuple(float(t) for t in ts), dt
        self.relevant = _relevant(relevant, m)
        self.ratio = as_real(ratio, "ratio", caller=_CALLER)
        check_positive(self.ratio, "ratio", caller=_CALLER)
        known = concrete(self.ratio)
        if self.relevant is None and (target == "average_ratio" or known is None or (known != 1).any()):
            raise ArgumentError(
                f"{_CALLER}: a `ratio` and 'average_ratio' need `relevant`, the coordinates they favour."
            )
        if target == "average_ratio" and reference is not None:
            raise ArgumentError(f"{_CALLER}: 'average_ratio' knows no `reference`.")
        self.reference = None if reference is None else _reference(reference, points, m)

    def __call__(self, model: Any) -> Scalar:
        map, readout = _parts(model, self.space)
        if readout is not None and self.full and self.floor == 0 and self.target != "average_ratio":
            seen = eqx.filter_eval_shape(readout, jax.ShapeDtypeStruct((map.state_size,), computing_dtype(map)))
            if seen.size < self.manifold.dim:
                raise ArgumentError(
                    f"{_CALLER}: the metric of {seen.size} observed dimensions is degenerate for "
                    f"{self.manifold.dim} coordinates; use `full=False`, or a `floor`."
                )
        found = self.metric(model)
        # The initial state of a field is among those returned, and knows nothing of the inputs.
        first = 0 if self.ts is None else 1
        return self.strength * _distance(
            found.G[:, first:], found.log_scale[:, first:], self.ratio, self.reference,
            target=self.target, relevant=self.relevant, full=self.full, floor=self.floor,
        )  # fmt: skip

    def metric(
        self, model: Any, thetas: Float[Array, "... m"] | None = None, *, at: Sequence[int] | None = None
    ) -> RepresentationMetric:
        """The metric that is held to the reference, `keep="metric"`, at the points and times of the penalty or at
        others."""
        map, readout = _parts(model, self.space)
        dtype = computing_dtype(map)
        points = self.thetas if thetas is None else as_real(thetas, "thetas", caller=_CALLER)
        manifold, state0, points = in_precision(dtype, (self.manifold, self.state0, points))
        return representation_metric(
            prepared(map),
            manifold,
            points,
            state0=jnp.zeros(map.state_size, dtype) if state0 is None else state0,
            at=self.at if at is None else at,
            ts=self.ts,
            dt=self.dt,
            method="forward",
            readout=readout,
            keep="metric",
            # An adaptive solve is without `remat`.
            remat=None if self.ts is not None and self.dt is None else 1,
            throw=False,
        )


class _Emission(eqx.Module):
    """A readout as a function of the state alone."""

    readout: Any

    def __call__(self, state):
        return self.readout(state, None)


def _parts(model: Any, space: Any) -> tuple[Any, Any]:
    """The map or field, and the function of its state whose metric is meant, None for the state itself."""
    whole = isinstance(model, AbstractMap | AbstractField)
    map: Any = model if whole else getattr(model, "map", None)
    if not isinstance(map, AbstractMap | AbstractField):
        raise ModelError(f"{_CALLER} needs a model or a Reconstruction; got {type(model).__name__}.")
    if callable(space) or space == "state":
        return map, space if callable(space) else None
    readout = model.readout if not whole else model.readout() if hasattr(model, "readout") else None
    if space == "readout":
        if readout is None:
            raise ModelError(
                f"{_CALLER}: `space` is 'readout', but a {type(model).__name__} has none; give a function "
                "(n,) -> (o,), or a Reconstruction."
            )
        return map, _Emission(readout)
    activation = getattr(readout, "activation", None)
    return map, as_readout(map, "rate", computing_dtype(map), _CALLER) if activation is None else activation


def _indices(values, name):
    """Whole numbers in a sequence, as a tuple."""
    known = np.asarray(values)
    if known.ndim != 1 or (known.size and not np.issubdtype(known.dtype, np.integer)):
        raise ArgumentError(f"{_CALLER}: `{name}` must be a list of whole numbers; got {values!r}.")
    return tuple(int(i) for i in known)


def _relevant(relevant, m):
    if relevant is None:
        return None
    chosen = tuple(sorted(set(_indices(relevant, "relevant"))))
    if not chosen or chosen[0] < 0 or chosen[-1] >= m or len(chosen) == m:
        raise ArgumentError(f"{_CALLER}: `relevant` must be some but not all of the {m} coordinates; got {relevant!r}.")
    return chosen


def _reference(reference, points, m):
    """R as (m, m), (T, m, m) or (P, T, m, m), checked."""
    reference = as_real(reference, "reference", caller=_CALLER)
    shape = {2: (m, m), 3: ("T", m, m)}.get(reference.ndim, (*points, "T", m, m))
    check_shape(reference, "reference", shape, caller=_CALLER)
    known = concrete(reference)
    if known is not None:
        check_finite(known, "reference", caller=_CALLER)
        symmetric = np.allclose(known, np.swapaxes(known, -1, -2), rtol=1e-6, atol=0)
        if not symmetric or not (np.linalg.eigvalsh(known) > 0).all():
            raise ArgumentError(f"{_CALLER}: `reference` must be symmetric and positive definite.")
    return reference if reference.ndim <= 3 else reference.reshape(-1, *reference.shape[-3:])


@eqx.filter_jit
def _distance(G, log_scale, ratio, reference, *, target, relevant, full, floor) -> Scalar:
    """The mean over points and times, of metrics `(P, T, m, m)`, without `strength`."""
    m, times = G.shape[-1], G.shape[1]
    ratio = ratio.astype(G.dtype)
    check_shape(ratio, "ratio", ratio.shape and (times,), caller=_CALLER)
    favoured = np.isin(np.arange(m), relevant or ())
    if target == "average_ratio":
        lengths = jnp.diagonal(G, axis1=-2, axis2=-1) * jnp.exp(2 * log_scale)[..., None]
        along, across = (jnp.mean(lengths[..., chosen], axis=(0, -1)) for chosen in (favoured, ~favoured))
        return jnp.mean((jnp.log(along / across) - jnp.log(ratio)) ** 2)

    eye = jnp.eye(m, dtype=G.dtype)
    if reference is None:
        reference = eye
    else:
        reference = reference.astype(G.dtype)
        check_shape(reference, "reference", (*reference.shape[:-3], *(times, m, m)[3 - min(reference.ndim, 3) :]))
    root = jnp.where(favoured, jnp.sqrt(ratio)[..., None], 1)
    reference = reference * root[..., :, None] * root[..., None, :]
    if full:
        whitening = spectral(reference, "inverse root")
        relative = jnp.matmul(jnp.matmul(whitening, G, precision="highest"), whitening, precision="highest")
    else:
        lengths = jnp.diagonal(G, axis1=-2, axis2=-1) / jnp.diagonal(reference, axis1=-2, axis2=-1)
        relative = lengths[..., None] * eye
    relative += floor / m * jnp.trace(relative, axis1=-2, axis2=-1)[..., None, None] * eye
    log = spectral(relative, "log") + 2 * log_scale[..., None, None] * eye
    scale = jnp.trace(log, axis1=-2, axis2=-1)[..., None, None] / m * eye
    free = {
        "ratio": scale,
        "uniform": jnp.mean(log, axis=0),
        "rigid": jnp.mean(scale, axis=0),
        "isometry": jnp.zeros((), G.dtype),
    }[target]
    return jnp.mean(jnp.sum((log - free) ** 2, axis=(-2, -1)))
