"""Whether a piecewise-linear map is a homeomorphism, with a proof either way where there is one (host)."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from dynwarp._checks import check_positive_integer
from dynwarp._typing import Input
from dynwarp.piecewise._arrangement import arrangement, count_bound
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._branches import branches, solve
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._regions import Regions, enumerate_regions

# Doubtful signs are found in rational arithmetic, at most so many and of matrices at most so large.
_MAX_EXACT = 64
_MAX_EXACT_SIZE = 64
_MAX_MINORS = 22
_ENTRIES = 2**22
_SAMPLES = 4096
# Matrices of larger condition, and pivots below this share of the entries, prove nothing.
_REGULAR = 1e12
_DOUBT = 1e-11


class Homeomorphism(eqx.Module):
    """What [`is_homeomorphism`][dynwarp.piecewise.is_homeomorphism] returns; true in a condition where `value` is.

    **Attributes:**

    - `value`: True or False where that is proved, None where it is not.
    - `certificate`: what was proved, and how.
    - `n_positive`, `n_negative`, `n_zero`: the signs of the determinants of the regions that were looked at.
    - `complete`: whether these were all regions.
    - `degree`: where all determinants agree and were counted: the number of preimages of almost every point; else None.
    - `counterexample`: the patterns `(2, H)` of two regions whose determinants differ in sign, or `(1, H)` of one that
      the map flattens; None where there is none.
    """

    value: bool | None = eqx.field(static=True)
    certificate: str = eqx.field(static=True)
    n_positive: int = eqx.field(static=True)
    n_negative: int = eqx.field(static=True)
    n_zero: int = eqx.field(static=True)
    complete: bool = eqx.field(static=True)
    degree: int | None = eqx.field(static=True)
    counterexample: Bool[Array, "k H"] | None

    def __bool__(self) -> bool:
        return self.value is True


class _Signs(NamedTuple):
    """The signs of determinants: 1, -1, 0, and NaN where nothing is known."""

    patterns: np.ndarray
    values: np.ndarray

    def report(self, value, certificate, *, complete, degree=None, counterexample=None) -> Homeomorphism:
        positive, negative, zero = (int(np.sum(self.values == sign)) for sign in (1, -1, 0))
        if counterexample is not None:
            counterexample = jnp.asarray(counterexample)
        return Homeomorphism(value, certificate, positive, negative, zero, complete, degree, counterexample)

    def contradiction(self) -> tuple[str, np.ndarray] | None:
        """Why these signs are not those of a homeomorphism, and the regions that show it."""
        first = {sign: np.flatnonzero(self.values == sign)[:1] for sign in (1, -1, 0)}
        if len(first[0]):
            return "a region is flattened: its determinant is zero", self.patterns[first[0]]
        if len(first[1]) and len(first[-1]):
            both = np.concatenate([first[1], first[-1]])
            return "two regions have determinants of opposite signs: the map folds", self.patterns[both]
        return None


def is_homeomorphism(
    map: Any, *, input: Input | None = None, regions: Regions | None = None, max_regions: int = 65_536
) -> Homeomorphism:
    """Whether a piecewise-linear map is one-to-one and onto, with a continuous inverse (host).

    A piecewise-linear map is a homeomorphism if and only if the determinants of all its regions have one sign, none is
    zero, and some point off the images of the borders has exactly one preimage. (Equal signs make the map open, and
    regular Jacobians make it proper, so that almost all points have as many preimages as its degree says; if that is
    one, no point can have two, since both would have open images.) Where the rows of W2 are linearly independent, as in
    a PLRNN or an AL-RNN, equal signs are enough: any two states satisfy F(x) - F(y) = (A + W1 D W2) (x - y) with D in
    the cube [0, 1]^H, on which the determinant is affine in every entry, so that it has no zero if its 2^H corners
    agree. These corners, divided by one of them, are the principal minors of a matrix.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `input`: a constant input, `(d,)`.
    - `regions`: from [`enumerate_regions`][dynwarp.piecewise.enumerate_regions], to use them again.
    - `max_regions`: up to so many regions are looked at one by one. Where there are more: a sample for a fold; the
      contraction bound rho(|W2 B^-1 W1|) < 2 with B = A + W1 W2 / 2, or the same with the 2-norm, which rules out any
      zero on the cube; then, for at most 22 ReLUs, all principal minors.

    **Returns:** a [`Homeomorphism`][dynwarp.piecewise.Homeomorphism]; `value` is None where nothing was proved. Signs
    that rounding could change are found in rational arithmetic; a region is flattened only if its determinant is zero
    exactly. Cost O(R M^3), or O(2^H) for the minors.

    **Raises:** `ArgumentError`, `ShapeError`, `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Source:** Scholtes, Introduction to Piecewise Differentiable Equations (2012), chapter 2; Samelson, Thrall and
    Wesler, Proc. AMS 9 (1958) 805, for principal minors; Tsatsomeros and Li, Linear Algebra Appl. 333 (2001) 221, for
    the test of all of them.

    **Example:**

    >>> import dynwarp as dw
    >>> found = dw.piecewise.is_homeomorphism(dw.systems.BorderCollisionMap.preset("fig3a_left"))
    >>> found.value, found.n_negative, found.degree
    (True, 2, 1)
    """
    caller = "is_homeomorphism"
    form = as_map(map, input, caller=caller)
    check_positive_integer(max_regions, "max_regions", caller=caller)
    f = HostMap.of(form)
    normals = arrangement(f.W2, f.h2).normals
    independent = normals.shape[0] == normals.shape[1]
    corners = independent and len(normals) == len(f.h2)
    patterns, how = _patterns(form, f, regions, corners, count_bound(*normals.shape), max_regions)
    signs = _signs(f, patterns)
    against = signs.contradiction()
    if against is not None:
        return signs.report(False, against[0], complete=how is not None, counterexample=against[1])
    if how is not None:
        return _of_all(f, signs, independent, how)
    return _of_some(f, signs, corners)


def _patterns(form, f: HostMap, regions: Regions | None, corners: bool, count: int, max_regions: int):
    """The regions to look at, and how it is known that they are all; None if they are not."""
    if regions is None:
        if corners and count > max_regions:
            return np.random.default_rng(0).random((_SAMPLES, len(f.h2))) < 0.5, None
        method = "auto" if count <= max_regions else "sample"
        regions = enumerate_regions(
            form, method=method, max_regions=max_regions, n_samples=_SAMPLES, key=jax.random.key(0)
        )
    return np.asarray(regions.patterns), regions.certificate if regions.complete else None


def _of_all(f: HostMap, signs: _Signs, independent: bool, how: str) -> Homeomorphism:
    """The verdict when all regions are known and no two contradict each other."""
    unknown = int(np.sum(np.isnan(signs.values)))
    if unknown:
        return signs.report(
            None,
            f"none: {unknown} determinants have signs that rounding hides, too many to find exactly",
            complete=True,
        )
    count = f"the determinants of all {len(signs.values)} regions have the same sign ({how})"
    if independent:
        why = "the borders are independent, so that these are the corners of the cube of all slopes"
        return signs.report(True, f"{count}; {why}", complete=True, degree=1)
    generator = np.random.default_rng(0)
    for _ in range(8):
        target = f.step(generator.normal(size=f.size) * (1 + np.abs(f.h1)))
        preimages = _count(f, signs.patterns, target)
        if preimages is not None:
            text = f"{count}; a point off the images of the borders has {preimages} preimage(s), the degree"
            return signs.report(preimages == 1, text, complete=True, degree=preimages)
    return signs.report(None, f"{count}; none: no point was told from the images of the borders", complete=True)


def _count(f: HostMap, patterns: np.ndarray, target: np.ndarray) -> int | None:
    """The number of preimages of a point; None where one lies on a border or cannot be told from it."""
    total = 0
    for block in branches(f, patterns):
        found = solve(f, block, target)
        if not block.regular.all() or np.any(np.abs(found.values) <= found.errors):
            return None
        total += len(found.points)
    return total


def _of_some(f: HostMap, signs: _Signs, corners: bool) -> Homeomorphism:
    """The verdict from bounds on all slopes at once, where the regions are too many."""
    bound = _contraction(f)
    if bound < 2 * (1 - 1e-9):
        text = f"the slopes stay near B = A + W1 W2 / 2: the bound on |W2 B^-1 W1| is {bound:.6g}, less than 2"
        return signs.report(True, text, complete=False, degree=1)
    matrix, base = _minors_matrix(f)
    if matrix is not None and len(f.h2) <= _MAX_MINORS:
        found = _negative_minor(matrix)
        if found is None:
            text = f"all 2^{len(f.h2)} principal minors are positive: a P-matrix"
            return signs.report(True, text, complete=False, degree=1)
        # Where the borders are not independent the pattern may be no region.
        pair = _signs(f, np.stack([base, base ^ found]))
        against = pair.contradiction()
        if corners and against is not None:
            return signs.report(False, against[0], complete=False, counterexample=against[1])
    seen = len(signs.values)
    return signs.report(None, f"none: {seen} sampled regions agree, and no bound on all of them holds", complete=False)


def _contraction(f: HostMap) -> float:
    """A bound b on W2 B^-1 W1 with B = A + W1 W2 / 2: below 2, A + W1 D W2 is regular for all D in the cube.

    det(A + W1 D W2) / det B = det(1 + (D - 1/2) N), and the spectral radius of (D - 1/2) N is at most half that of |N|,
    and half the norm of N.
    """
    middle = f.A + 0.5 * f.W1 @ f.W2
    if np.linalg.cond(middle) > _REGULAR:
        return np.inf
    N = f.W2 @ np.linalg.solve(middle, f.W1)
    return float(min(np.abs(np.linalg.eigvals(np.abs(N))).max(initial=0.0), np.linalg.norm(N, 2) if N.size else 0.0))


def _minors_matrix(f: HostMap) -> tuple[np.ndarray | None, np.ndarray]:
    """The matrix whose principal minors are det J(pattern) / det J(base), by the ReLUs in which the two differ."""
    for base in (np.zeros(len(f.h2), bool), np.ones(len(f.h2), bool)):
        J, _ = f.affine(base)
        if np.linalg.cond(J) < _REGULAR:
            side = np.where(base, -1.0, 1.0)[:, None]
            return np.eye(len(base)) + side * (f.W2 @ np.linalg.solve(J, f.W1)), base
    return None, base


def _negative_minor(matrix: np.ndarray) -> np.ndarray | None:
    """The index set of a principal minor that is not certainly positive, None if all are.

    The first index is left out or eliminated: of the Schur complements after k of them there are 2^k, and their pivots
    are quotients of principal minors.
    """
    hidden = len(matrix)
    # With each matrix goes the largest entry on the way to it, which sets the rounding error.
    stack = [(matrix[None], np.zeros((1, 0), bool), np.ones(1))]
    while stack:
        matrices, chosen, largest = stack.pop()
        size = matrices.shape[1]
        if not size:
            continue
        if len(matrices) > 1 and matrices.size > _ENTRIES:
            half = len(matrices) // 2
            stack += [
                (matrices[:half], chosen[:half], largest[:half]),
                (matrices[half:], chosen[half:], largest[half:]),
            ]
            continue
        pivots = matrices[:, 0, 0]
        largest = np.maximum(largest, np.abs(matrices).max(axis=(1, 2)))
        doubtful = pivots <= _DOUBT * largest
        if doubtful.any():
            row = int(np.argmin(np.where(doubtful, pivots, np.inf)))
            found = np.zeros(hidden, bool)
            found[: hidden - size] = chosen[row]
            found[hidden - size] = True
            return found
        rest = matrices[:, 1:, 1:]
        reduced = rest - matrices[:, 1:, :1] * (matrices[:, :1, 1:] / pivots[:, None, None])
        stack.append((np.concatenate([rest, reduced]), _extended(chosen), np.tile(largest, 2)))
    return None


def _extended(chosen: np.ndarray) -> np.ndarray:
    none, one = np.zeros((len(chosen), 1), bool), np.ones((len(chosen), 1), bool)
    return np.concatenate([np.concatenate([chosen, none], axis=1), np.concatenate([chosen, one], axis=1)])


def _signs(f: HostMap, patterns: np.ndarray) -> _Signs:
    """The signs of the determinants of regions, by elimination, or exactly where rounding could change them."""
    values = []
    for block in branches(f, patterns):
        values.append(np.where(block.regular, block.signs, np.nan))
    signs = np.concatenate(values)
    if f.size <= _MAX_EXACT_SIZE:
        for i in np.flatnonzero(np.isnan(signs))[:_MAX_EXACT]:
            signs[i] = _exact_sign(f, patterns[i])
    return _Signs(patterns, signs)


def _exact_sign(f: HostMap, pattern: np.ndarray) -> int:
    """The sign of det(A + W1 D W2), the entries taken as the rational numbers they are."""
    on = np.flatnonzero(pattern)
    rows = []
    for i in range(f.size):
        row = []
        for j in range(f.size):
            terms = (Fraction(float(f.W1[i, h])) * Fraction(float(f.W2[h, j])) for h in on)
            row.append(Fraction(float(f.A[i, j])) + sum(terms))
        common = lcm(*(entry.denominator for entry in row))
        rows.append([int(entry * common) for entry in row])
    return _integer_sign(rows)


def _integer_sign(rows: list[list[int]]) -> int:
    """The sign of a determinant of integers (Bareiss's elimination: all divisions are exact)."""
    sign, previous = 1, 1
    while rows:
        at = next((i for i, row in enumerate(rows) if row[0]), None)
        if at is None:
            return 0
        if at:
            rows[0], rows[at], sign = rows[at], rows[0], -sign
        top, pivot = rows[0], rows[0][0]
        if len(rows) == 1:
            return sign if pivot > 0 else -sign
        rows = [[(pivot * b - row[0] * a) // previous for a, b in zip(top[1:], row[1:])] for row in rows[1:]]
        previous = pivot
    return sign
