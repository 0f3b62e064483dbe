"""The published cycle search as plain NumPy loops, and how much faster the batched programs are, in one run.

Run it: `python benchmarks/numpy_cycle_search.py`. Each line is one ratio; nothing else should be running.
"""

from __future__ import annotations

import json
import time

import numpy as np


def candidates(A, W, h, period, n, rng):
    """n candidates of the search of Eisenmann et al. (2023), one after the other: how many were cycles.

    An itinerary is solved for its cycle; from that point the map is followed; the itinerary of the orbit is the next.
    """
    size = len(A)
    found = 0
    patterns = rng.random((period, size)) < 0.5
    for _ in range(n):
        motion, constant = np.eye(size), np.zeros(size)
        for j in range(period):
            jacobian = A + W * patterns[j]
            motion, constant = jacobian @ motion, jacobian @ constant + h
        try:
            z = np.linalg.inv(np.eye(size) - motion) @ constant
        except np.linalg.LinAlgError:
            patterns = rng.random((period, size)) < 0.5
            continue
        visited = np.empty_like(patterns)
        for j in range(period):
            visited[j] = z > 0
            z = A @ z + W @ np.maximum(z, 0) + h
        if (visited == patterns).all():
            found += 1
            patterns = rng.random((period, size)) < 0.5
        else:
            patterns = visited
    return found


def fixed_points(A, W1, W2, h1, h2):
    """All fixed points of one map with the number of its unstable directions, and whether all determinants agree."""
    size, hidden = W1.shape
    points, signs = [], []
    for code in range(2**hidden):
        gate = np.array([code >> i & 1 for i in range(hidden)], float)
        jacobian = A + (W1 * gate) @ W2
        signs.append(np.sign(np.linalg.det(jacobian)))
        z = np.linalg.solve(np.eye(size) - jacobian, (W1 * gate) @ h2 + h1)
        if ((W2 @ z + h2 > 0) == (gate > 0)).all():
            points.append((z, int(np.sum(np.abs(np.linalg.eigvals(jacobian)) > 1))))
    return points, abs(sum(signs)) == len(signs)


def best(function, repetitions=5):
    """The least seconds of a call."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def compare_search(period, *, size=10, lanes=128, jumps=64, loop=300):
    """Candidates per second of the loop and of the batched program."""
    import jax
    import jax.numpy as jnp

    from dynwarp.models import PLRNN
    from dynwarp.piecewise._jump import jump

    rng = np.random.default_rng(0)
    A, W, h = rng.uniform(0.3, 0.9, size), 0.4 * rng.normal(size=(size, size)), rng.normal(size=size)
    form = PLRNN.from_parameters(jnp.asarray(A), jnp.asarray(W), jnp.asarray(h)).canonical()
    fresh = jnp.asarray(rng.random((jumps, 16, size, lanes)) < 0.5)
    arguments = (form, fresh[0], jnp.zeros(lanes, int), fresh, jnp.asarray(period), jnp.asarray(30))
    jax.block_until_ready(jump(*arguments))
    batched = lanes * jumps / best(lambda: jax.block_until_ready(jump(*arguments)))
    plain = loop / best(lambda: candidates(np.diag(A), W, h, period, loop, np.random.default_rng(0)), 3)
    return {"period": period, "loop_per_second": plain, "batched_per_second": batched, "ratio": batched / plain}


def random_maps(n, rng):
    """n maps of 2 to 5 dimensions and 1 to 5 ReLUs, and the same padded to 5 and 5 with all their regions.

    Further coordinates halve, further ReLUs are off.
    """
    maps, padded, patterns, owner = [], [], [], []
    for i in range(n):
        m = int(rng.integers(2, 6))
        p = int(rng.integers(1, m + 1))
        maps.append(
            (
                np.diag(rng.uniform(-0.9, 0.9, m)),
                rng.normal(size=(m, p)),
                np.eye(m)[m - p :],
                rng.normal(size=m),
                np.zeros(p),
            )
        )
        A, W1, W2, h1, h2 = 0.5 * np.eye(5), np.zeros((5, 5)), np.zeros((5, 5)), np.zeros(5), -np.ones(5)
        for whole, part in zip((A, W1, W2, h1, h2), maps[-1], strict=True):
            whole[tuple(slice(s) for s in part.shape)] = part
        padded.append((A, W1, W2, h1, h2))
        patterns.append((np.arange(2**p)[:, None] >> np.arange(5)) & 1 == 1)
        owner.append(np.full(2**p, i))
    return maps, [np.stack(x) for x in zip(*padded, strict=True)], np.concatenate(patterns), np.concatenate(owner)


def compare_maps(n=1000):
    """Seconds for all fixed points, kinds and determinant signs of n random maps: loop and batched program."""
    import jax
    import jax.numpy as jnp

    from dynwarp.models import PiecewiseLinearMap
    from dynwarp.piecewise import fixed_points_of_maps

    maps, padded, patterns, owner = random_maps(n, np.random.default_rng(0))
    arguments = jax.vmap(PiecewiseLinearMap)(*map(jnp.asarray, padded)), jnp.asarray(patterns), jnp.asarray(owner)

    def program():
        return jax.block_until_ready(fixed_points_of_maps(*arguments, capacity=n + 24))

    found = program()
    expected = [fixed_points(*f) for f in maps]
    assert int(found.count.sum()) == int(found.valid.sum())
    for i, (points, coherent) in enumerate(expected):
        assert int(found.count[i]) == len(points)
        assert bool(found.is_coherent[i]) == coherent
    unstable = np.asarray(found.n_unstable)[np.asarray(found.valid)].tolist()
    for i, (points, _) in enumerate(expected):
        own, unstable = unstable[: len(points)], unstable[len(points) :]
        assert sorted(own) == sorted(u for _, u in points), i
    batched = best(program, 20)
    plain = best(lambda: [fixed_points(*f) for f in maps], 3)
    return {"maps": n, "loop_seconds": plain, "batched_seconds": batched, "ratio": plain / batched}


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    for result in (compare_search(10), compare_search(1), compare_maps()):
        print(json.dumps(result))
