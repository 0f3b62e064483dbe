"""All regions in which a preimage may lie, by branching on ReLUs with linear programs (host, scipy's HiGHS).

F(x) = z is a complementarity problem: with u = relu(y) and v = relu(-y) it is linear, A x + W1 u = z - h1 and
u - v = W2 x + h2, but for u v = 0. Relaxed to the triangle between the ends of the range of y it is a linear program.
States are homogeneous, x = w / t, so that those without bound are points of a box as well.
"""

from __future__ import annotations

import numpy as np

from dynwarp.piecewise._host import HostMap

# With this many undecided ReLUs all patterns are tried.
_LEAF = 8
# The solver's tolerances are 1e-7; numbers are of order 1.
_SLACK = 1e-6
_ROUNDS = 3


class Search:
    """The patterns of the regions that may hold a preimage of z.

    `run()` yields them in blocks, `(n, H)`; afterwards `complete` says whether the tree was finished and `programs`
    how many linear programs were solved, at most about `max_programs`.
    """

    def __init__(self, f: HostMap, z: np.ndarray, max_programs: int):
        self.f, self.max_programs = f, max_programs
        self.programs, self.complete = 0, True
        norms = np.linalg.norm(f.W2, axis=1)
        distance = np.abs(f.h2[norms > 0]) / norms[norms > 0]
        # The inner box, where t is 1 / reach and |w| <= 1; outside of it some |w_j| is 1 and t below 1 / reach.
        self.reach = 4 * max(1.0, np.abs(z).max(initial=0.0), np.abs(f.h1).max(initial=0.0), distance.max(initial=0.0))
        self.rows = np.column_stack([f.W2, f.h2])
        scale = np.maximum(np.linalg.norm(self.rows, axis=1), 1e-300)
        # ReLUs are measured in units in which their values are of order 1, and so are the equations.
        self.rows = self.rows / scale[:, None]
        equations = np.column_stack([f.A, f.h1 - z, f.W1 * scale])
        self.equations = equations / np.maximum(np.abs(equations).max(axis=1, keepdims=True), 1e-300)

    def run(self):
        start = np.where(np.any(self.f.W2 != 0, axis=1), -1, self.f.h2 > 0)
        for lower, upper in self._boxes():
            ends = np.maximum(self.rows, 0), np.minimum(self.rows, 0)
            low, high = ends[0] @ lower + ends[1] @ upper, ends[0] @ upper + ends[1] @ lower
            stack = [(start, low, high)]
            while stack:
                state, low, high = stack.pop()
                if self.programs >= self.max_programs:
                    self.complete = False
                    return
                tight = self._tighten(lower, upper, state, low, high)
                if tight is None:
                    continue
                state, low, high, w = tight
                free = np.flatnonzero(state < 0)
                if len(free) <= _LEAF:
                    bits = (np.arange(2 ** len(free))[:, None] >> np.arange(len(free))) & 1 == 1
                    patterns = np.tile(state == 1, (len(bits), 1))
                    patterns[:, free] = bits
                    yield patterns
                    continue
                # The relaxed solution's own pattern is a guess that costs nothing.
                yield (self.rows @ w > 0)[None]
                split = free[np.argmax((-low * high / np.maximum(high - low, 1e-300))[free])]
                for side in (0, 1):
                    child = state.copy()
                    child[split] = side
                    stack.append((child, low, high))

    def _boxes(self):
        """Bounds of (w, t): the inside, then what lies beyond each face of it."""
        m = self.f.size
        yield np.append(-np.ones(m), 1 / self.reach), np.append(np.ones(m), 1 / self.reach)
        for j in range(m):
            for side in (1.0, -1.0):
                lower, upper = np.append(-np.ones(m), 0.0), np.append(np.ones(m), 1 / self.reach)
                lower[j] = upper[j] = side
                yield lower, upper

    def _tighten(self, lower, upper, state, low, high):
        """The ranges of the ReLUs in a node, which of them are decided, a point of it; None where it is empty."""
        state, low, high, w = state.copy(), low.copy(), high.copy(), None
        for _ in range(_ROUNDS):
            before = np.sum(state < 0), np.sum((high - low)[state < 0])
            for i in np.flatnonzero(state < 0):
                for sign in (1.0, -1.0):
                    found = self._program(lower, upper, state, low, high, sign * self.rows[i])
                    if found is None:
                        return None
                    value, w = found
                    if sign > 0:
                        low[i] = max(low[i], value - _SLACK)
                    else:
                        high[i] = min(high[i], -value + _SLACK)
                if low[i] > _SLACK:
                    state[i] = 1
                elif high[i] < -_SLACK:
                    state[i] = 0
            free = state < 0
            if np.sum(free) <= _LEAF:
                break
            if np.sum(free) == before[0] and np.sum((high - low)[free]) > 0.8 * before[1]:
                break
        if w is None:
            found = self._program(lower, upper, state, low, high, np.zeros(self.f.size + 1))
            if found is None:
                return None
            w = found[1]
        return state, low, high, w

    def _program(self, lower, upper, state, low, high, cost):
        """The least cost (w, t) over the relaxed node: (value, (w, t)); None where the node is empty."""
        from scipy.optimize import linprog

        self.programs += 1
        n, hidden = self.f.size + 1, len(self.f.h2)
        on, off, free = state == 1, state == 0, state < 0
        eye = np.eye(hidden)
        equal = [self.equations, np.column_stack([-self.rows, eye])[on]]
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        slope = high / np.maximum(high - low, 1e-300)
        above = np.column_stack([self.rows, -eye])[free]  # u >= y
        below = np.column_stack([-slope[:, None] * self.rows, eye])[free]  # u <= slope (y - low)
        signs = np.column_stack([self.rows, 0 * eye])
        inequalities = np.concatenate([above, below, signs[off], -signs[on]])
        limits = np.concatenate([np.zeros(free.sum()), (-slope * low)[free], np.zeros(off.sum() + on.sum())])
        bounds = np.concatenate(
            [
                np.column_stack([lower, upper]),
                np.column_stack([np.zeros(hidden), np.where(off, 0.0, high)]),
            ]
        )
        answer = linprog(
            np.concatenate([cost, np.zeros(hidden)]),
            A_ub=inequalities,
            b_ub=limits + _SLACK,
            A_eq=np.concatenate(equal),
            b_eq=np.zeros(sum(map(len, equal))),
            bounds=bounds,
            method="highs",
        )
        if answer.status == 2:
            return None
        if answer.x is None:  # the solver gave up: nothing is learnt
            return float(np.maximum(cost, 0) @ lower + np.minimum(cost, 0) @ upper), 0.5 * (lower + upper)
        return float(answer.fun), answer.x[:n]
