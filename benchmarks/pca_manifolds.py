"""The published construction of manifolds, by PCA and kernel PCA on sampled points, beside the exact one.

Run it: `python benchmarks/pca_manifolds.py`. Each line holds Delta_sigma of both for one saddle.

**Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814: algorithm 1, algorithm 2 (preimages) and equation 6.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import NamedTuple

import numpy as np

DATA = pathlib.Path(__file__).parents[2] / "shared" / "data"
SCALES = (0.01, 0.1, 0.5)


class Map(NamedTuple):
    """F(z) = A z + W1 relu(W2 z + h2) + h1."""

    A: np.ndarray
    W1: np.ndarray
    W2: np.ndarray
    h1: np.ndarray
    h2: np.ndarray

    def pattern(self, z):
        return self.W2 @ z + self.h2 > 0

    def affine(self, pattern):
        gated = self.W1 * pattern
        return self.A + gated @ self.W2, gated @ self.h2 + self.h1

    def step(self, z):
        J, b = self.affine(self.pattern(z))
        return J @ z + b

    def back(self, z, pool):
        """A preimage by the published search, None where it finds none: the region of z, that of the candidate, the
        regions met before, flips of up to two ReLUs."""
        tried = self.pattern(z)
        for _ in range(2):
            x = self._branch(tried, z)
            if x is None or (self.pattern(x) == tried).all():
                return x
            tried = self.pattern(x)
        flips = (
            np.logical_xor(tried, np.isin(np.arange(len(tried)), chosen))
            for distance in (0, 1, 2)
            for chosen in itertools.combinations(range(len(tried)), distance)
        )
        for other in itertools.chain(pool, flips):
            x = self._branch(other, z)
            if x is not None and (self.pattern(x) == other).all():
                return x
        return None

    def _branch(self, pattern, z):
        J, b = self.affine(pattern)
        try:
            return np.linalg.solve(J, z - b)
        except np.linalg.LinAlgError:
            return None


class Flat(NamedTuple):
    """A piece of a manifold in one region: a plane through a support point, as far as its points reached."""

    centre: np.ndarray
    components: np.ndarray
    spread: np.ndarray

    @classmethod
    def fit(cls, points, dimension):
        centre = points.mean(axis=0)
        components = np.linalg.svd(points - centre, full_matrices=False)[2][:dimension]
        return cls(centre, components, np.abs((points - centre) @ components.T).max(axis=0))

    def sample(self, rng):
        return self.centre + (rng.uniform(-1, 1, len(self.spread)) * self.spread) @ self.components


class Curved(NamedTuple):
    """A piece by kernel PCA with a Gaussian kernel; its points are pre-images of projections (Mika et al., 1999)."""

    points: np.ndarray
    gamma: float
    projector: np.ndarray

    @classmethod
    def fit(cls, points, dimension):
        squares = np.sum((points[:, None] - points) ** 2, axis=2)
        gamma = 1 / max(np.median(squares), 1e-300)
        kernel = np.exp(-gamma * squares)
        n = len(points)
        centring = np.eye(n) - 1 / n
        values, vectors = np.linalg.eigh(centring @ kernel @ centring)
        kept = vectors[:, -dimension:] / np.sqrt(np.maximum(values[-dimension:], 1e-12))
        # Coefficients of the projection of phi(x) in the images of the points: mean + projector (k(x) - mean k).
        return cls(points, gamma, centring @ kept @ kept.T @ centring)

    def sample(self, rng):
        i, j = rng.integers(len(self.points), size=2)
        x = self.points[i] + rng.uniform() * (self.points[j] - self.points[i])
        mean = np.full(len(self.points), 1 / len(self.points))
        kernel = self._kernel(self.points) @ mean
        weights = mean + self.projector @ (self._kernel(x[None])[0] - kernel)
        for _ in range(50):
            pull = weights * self._kernel(x[None])[0]
            if abs(pull.sum()) < 1e-12:
                break
            x = pull @ self.points / pull.sum()
        return x

    def _kernel(self, x):
        return np.exp(-self.gamma * np.sum((x[:, None] - self.points) ** 2, axis=2))


def local_points(f, p, J, kind, n, rng):
    """Points of the eigenspace of a fixed point in its own region, Gaussian along each direction, at three scales."""
    values, vectors = np.linalg.eig(J)
    chosen = np.abs(values) < 1 if kind == "stable" else np.abs(values) > 1
    directions = np.concatenate([vectors[:, chosen].real, vectors[:, chosen].imag], axis=1)
    u, s, _ = np.linalg.svd(directions)
    basis = u[:, : np.sum(s > 1e-9)]
    rates = np.abs(values[chosen]) ** (1 if kind == "stable" else -1)
    points = [p]
    for _ in range(1000 * n):
        if len(points) > n:
            break
        scale = rng.choice(SCALES) * rates[: basis.shape[1]]
        z = p + basis @ (scale * rng.normal(size=basis.shape[1]))
        if (f.pattern(z) == f.pattern(p)).all():
            points.append(z)
    return np.array(points), basis.shape[1]


def pca_manifold(f, p, kind="stable", *, n_support=150, iterations=30, reach=1e3, rng=None):
    """Algorithm 1: pieces of the manifold of the saddle p by region, one for each region that points enter."""
    rng = rng or np.random.default_rng(0)
    J, _ = f.affine(f.pattern(p))
    points, dimension = local_points(f, p, J, kind, n_support, rng)
    pieces = {f.pattern(p).tobytes(): _piece(J, points, dimension)}
    pool = [f.pattern(p)]
    for _ in range(iterations):
        moved = [f.back(z, pool) if kind == "stable" else f.step(z) for z in points]
        moved = [z for z in moved if z is not None and np.abs(z).max() < reach]
        groups = {}
        for z in moved:
            groups.setdefault(f.pattern(z).tobytes(), []).append(z)
        for name, members in groups.items():
            if name in pieces or len(members) <= dimension:
                continue
            pattern = np.frombuffer(name, bool)
            pool.append(pattern)
            pieces[name] = _piece(f.affine(pattern)[0], np.array(members), dimension)
        if not moved:
            break
        # Support points go on from every region, drawn from those that arrived.
        points = np.array(moved)[rng.integers(len(moved), size=n_support)]
    return list(pieces.values())


def _piece(J, points, dimension):
    """A plane; kernel PCA where the Jacobian of the region turns or shears."""
    values, vectors = np.linalg.eig(J)
    curved = np.any(np.abs(values.imag) > 1e-12) or np.linalg.cond(vectors) > 1e8
    return (Curved if curved and len(points) > 2 * dimension + 1 else Flat).fit(points, dimension)


def sample(pieces, n, box, rng):
    """Points of the pieces inside a box, `(n, M)`; fewer where the pieces hardly meet it."""
    lower, upper = box
    found = []
    for _ in range(200 * n):
        if len(found) == n:
            break
        z = pieces[rng.integers(len(pieces))].sample(rng)
        if np.all((z >= lower) & (z <= upper)):
            found.append(z)
    return np.array(found)


def compare(model, itinerary, box, *, kind="stable", iterations=20, n=300, **options):
    """Delta_sigma of the published construction and of the exact manifold, with the same points off them."""
    import jax
    import jax.numpy as jnp

    import dynwarp as dw

    form = model.canonical()
    cycle = dw.piecewise.cycle_at(form, jnp.asarray(itinerary))
    f = Map(*(np.asarray(getattr(form, name)) for name in Map._fields))
    rng = np.random.default_rng(0)
    pieces = pca_manifold(f, np.asarray(cycle.points[0]), kind, rng=rng, **options)
    on = jnp.asarray(sample(pieces, n, box, rng))
    off = jnp.asarray(rng.uniform(*box, size=(n, form.state_size)))
    # One rule for all three samples; the snap lets points that are exact reach the saddle in spite of rounding.
    delta = [np.asarray(dw.piecewise.delta_sigma(form, cycle, z, kind=kind, snap=1e-9)) for z in (on, off)]
    exact = dw.piecewise.trace_manifold(form, cycle, kind=kind, iterations=iterations, box=box)
    return {
        "published": float(np.mean(delta[1] > np.nanmax(delta[0])) - np.nanmedian(delta[0])),
        "exact": dw.piecewise.manifold_quality(form, exact, box=box, key=jax.random.key(0), n=n),
        "pieces": len(pieces),
        "worst_on_manifold": float(np.nanmax(delta[0])),
    }


def main():
    """Prints one line for the toy map and one for the Duffing oscillator, where its network is at hand."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    import dynwarp as dw

    toy = dw.systems.BorderCollisionMap.preset("fig3a_right")
    box = (np.full(2, -3.0), np.full(2, 3.0))
    print(json.dumps({"map": "fig3a_right"} | compare(toy, [[True]], box)))
    path = DATA / "shplrnn_duffing_m2_h10.npz"
    if not path.exists():
        return
    data = np.load(path)
    network = dw.models.ShallowPLRNN.from_parameters(*(jnp.asarray(data[k]) for k in ("A", "W1", "W2", "h1", "h2")))
    fixed_points = dw.piecewise.find_cycles(network, 1, key=jax.random.key(0))
    saddle = next(cycle for cycle in fixed_points if cycle.kind == "saddle")
    print(json.dumps({"map": "duffing"} | compare(network, saddle.itinerary, (np.full(2, -5.0), np.full(2, 5.0)))))


if __name__ == "__main__":
    main()
