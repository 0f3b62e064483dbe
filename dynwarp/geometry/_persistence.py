"""What clouds of states look like to topology and to estimators of dimension: two optional packages, on the host."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from dynwarp._checks import check_choice, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError, MissingDependencyError, NonFiniteError
from dynwarp.geometry._topology import checked_cloud

_ESTIMATORS = {"two_nn": "TwoNN", "mle": "MLE", "correlation": "CorrInt", "local_pca": "lPCA"}


class Persistence(eqx.Module):
    """What [`persistent_homology`][dynwarp.geometry.persistent_homology] returns.

    **Attributes:**

    - `bars`: for each dimension the births and deaths of its holes, `(k, 2)`, the longest first; infinite deaths last
      for ever.
    - `betti`: how many of them count: those that outlive the scale at which the points hang together.
    - `gap`: for each dimension how many times longer the shortest bar that counts is than the longest that does not:
      the larger, the surer. Infinite where there is no other bar, NaN where none counts.
    - `scale`: at which the points hang together, the largest death of a component.
    - `landmarks`: the indices of the points that were used, `(L,)`.
    """

    bars: tuple[Float[np.ndarray, "k 2"], ...]
    betti: tuple[int, ...]
    gap: tuple[float, ...]
    scale: float
    landmarks: np.ndarray


def persistent_homology(
    states: Any = None, *, distances: Any = None, max_dimension: int = 2, landmarks: int | None = 200
) -> Persistence:
    """The holes in a cloud of states, by the persistent homology of its Vietoris-Rips complex (host).

    A ring has Betti numbers 1, 1, a torus 1, 2, 1, a sphere 1, 0, 1. Where a representation is much longer in one
    direction than in another its short holes drown; geodesic distances, from a metric that has been evened out, help.

    **Arguments:**

    - `states`: `(..., n)`, the axes in front being those of the points.
    - `distances`: between all points, `(P, P)`, in place of `states`.
    - `max_dimension`: of the holes, 0 to 2.
    - `landmarks`: at most so many points are used, each as far from those before it as any; all if None.

    **Returns:** a [`Persistence`][dynwarp.geometry.Persistence].

    **Raises:** `MissingDependencyError` without ripser; `ShapeError`, `NonFiniteError`, `ArgumentError` for what does
    not fit.

    **Cost:** of dimension 2 about the cube of the number of points: seconds for 200, a minute for 500.

    **Source:** Bauer, *Ripser*, J. Appl. Comput. Topol. 5 (2021) 391; Tralie, Saul & Bar-On, JOSS 3 (2018) 925.

    **Example:** needs `pip install 'dynwarp[topology]'`.

    >>> angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)  # doctest: +SKIP
    >>> dw.geometry.persistent_homology(np.stack([np.cos(angles), np.sin(angles)], axis=1)).betti  # doctest: +SKIP
    (1, 1, 0)
    """
    caller = "persistent_homology"
    max_dimension = check_positive_integer(max_dimension, "max_dimension", minimum=0, caller=caller)
    if max_dimension > 2:
        raise ArgumentError(f"{caller}: `max_dimension` must be at most 2; got {max_dimension}.")
    if landmarks is not None:
        landmarks = check_positive_integer(landmarks, "landmarks", minimum=4, caller=caller)
    if (states is None) == (distances is None):
        raise ArgumentError(f"{caller}: give either `states` or `distances`.")
    if distances is None:
        cloud = checked_cloud(states, caller)
        squares = np.sum(cloud**2, axis=1)
        table = np.sqrt(np.maximum(squares[:, None] + squares - 2 * cloud @ cloud.T, 0))
        np.fill_diagonal(table, 0)
    else:
        table = np.array(distances, np.float64)
        check_shape(table, "distances", (len(table), len(table)) if table.ndim else ("P", "P"), caller=caller)
        if not np.isfinite(table).all():
            raise NonFiniteError(f"{caller}: `distances` must all be known; some are not finite.")
        if len(table) < 4 or (table < 0).any() or not np.allclose(table, table.T):
            raise ArgumentError(f"{caller}: `distances` must be symmetric and not negative, of at least 4 points.")
    try:
        from ripser import ripser  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"{caller} needs ripser: pip install 'dynwarp[topology]'.") from error
    chosen = _farthest_points(table, len(table) if landmarks is None else min(landmarks, len(table)))
    found = ripser(table[np.ix_(chosen, chosen)], maxdim=max_dimension, distance_matrix=True)["dgms"]
    bars = tuple(_by_length(np.asarray(b, float)) for b in found)
    merges = bars[0][np.isfinite(bars[0][:, 1]), 1]
    scale = float(merges.max(initial=0.0))
    lengths = [b[:, 1] - b[:, 0] for b in bars]
    # A component counts where it lasts; a hole where it is wider than the gaps between the points.
    betti = tuple(int(np.sum(x == np.inf) if k == 0 else np.sum(x > scale)) for k, x in enumerate(lengths))
    gap = tuple(_gap(x, count) for x, count in zip(lengths, betti))
    return Persistence(bars, betti, gap, scale, chosen)


def intrinsic_dimension(
    states: Any, *, method: Literal["two_nn", "mle", "correlation", "local_pca"] = "two_nn", **options: Any
) -> float:
    """The dimension of a cloud of states as an estimator sees it (host).

    An estimate beside [`immersion_rank`][dynwarp.geometry.immersion_rank], which is exact but needs the network. It is
    misled by states at few discrete times, which look like as many manifolds of one dimension less, and by
    representations that are much longer in one direction than in another.

    **Arguments:**

    - `states`: `(..., n)`, the axes in front being those of the points; some hundred of them.
    - `method`: `"two_nn"`, from the ratio of the distances to the two nearest neighbours; `"mle"`, maximum likelihood;
      `"correlation"`, the correlation integral; `"local_pca"`.
    - `options`: of the estimator in `skdim.id`: `TwoNN`, `MLE`, `CorrInt`, `lPCA`.

    **Returns:** a float.

    **Raises:** `MissingDependencyError` without scikit-dimension; `ShapeError`, `NonFiniteError`, `ArgumentError` for
    what does not fit.

    **Cost:** nearest neighbours of all points.

    **Source:** Bac, Mirkes, Gorban, Tyukin & Zinovyev, Entropy 23 (2021) 1368, *scikit-dimension*; Facco et al., Sci.
    Rep. 7 (2017) 12140, for `"two_nn"`.

    **Example:** needs `pip install 'dynwarp[topology]'`.

    >>> points = np.random.default_rng(0).normal(size=(500, 2)) @ np.ones((2, 5))  # doctest: +SKIP
    >>> round(dw.geometry.intrinsic_dimension(points))  # doctest: +SKIP
    1
    """
    caller = "intrinsic_dimension"
    check_choice(method, "method", tuple(_ESTIMATORS), caller=caller)
    cloud = checked_cloud(states, caller)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import skdim  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"{caller} needs scikit-dimension: pip install 'dynwarp[topology]'.") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(getattr(skdim.id, _ESTIMATORS[method])(**options).fit(cloud).dimension_)


def _farthest_points(table: np.ndarray, count: int) -> np.ndarray:
    """So many points, each as far from those before it as any."""
    chosen, nearest = [0], table[0].copy()
    while len(chosen) < count:
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, table[chosen[-1]])
    return np.array(chosen)


def _by_length(bars: np.ndarray) -> np.ndarray:
    return bars[np.argsort(bars[:, 0] - bars[:, 1], kind="stable")]


def _gap(lengths: np.ndarray, count: int) -> float:
    if count == 0:
        return float("nan")
    return float(lengths[count - 1] / lengths[count]) if len(lengths) > count else float("inf")
