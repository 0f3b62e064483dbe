"""A run in progress, of one model or of a batch of seeds in step: what the host does between compiled calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._results import RESULTS
from dynwarp.training._checkpoint import Checkpoint
from dynwarp.training._fit_result import FitResult, History
from dynwarp.training._loop import CHUNK, LoopState
from dynwarp.training._progress import Report

# Seconds of work between two looks at the keyboard and the progress bar.
_PATIENCE = 0.5

Advance = Callable[[LoopState, Any, Any], tuple[LoopState, Any]]
Score = Callable[[LoopState], Any] | None


class Run:
    """The state of the loop, the best models so far, and the history. `lanes`: () for one model, (S,) for S seeds;
    `every`: steps between validations."""

    def __init__(self, state: LoopState, steps: int, every: int, limit: int, lanes: tuple[int, ...]):
        self.state, self.best, self.lanes, self.limit = state, state.model, lanes, limit
        self.best_score, self.best_step = np.full(lanes, np.inf), np.zeros(lanes, np.int64)
        self.history = np.full((*lanes, steps, 2), np.nan)
        self.scores = np.zeros((*lanes, 0))
        self.validated: list[int] = []
        self.steps, self.every, self.step = steps, every, 0
        self.interrupted, self.seconds, self.taken = False, 0.0, 0

    @property
    def failed(self) -> np.ndarray:
        """Which lanes ended in steps that were not finite."""
        return np.asarray(self.state.failures) >= self.limit

    def ended(self, patience: int | None, goal: float | None) -> bool:
        """Whether no lane has anything left to do: failed, without a better score for `patience` steps, or done."""
        stale = False if patience is None or self.step % self.every else self.step - self.best_step >= patience
        done = False if goal is None else self.best_score <= goal
        return bool(np.all(self.failed | stale | done))

    def go(
        self, advance: Advance, score: Score, patience: int | None, goal: float | None, checkpoint: Checkpoint | None,
        report: Report,
    ) -> None:  # fmt: skip
        """Trains to the end, or until Ctrl-C."""
        began, count = time.perf_counter(), 1
        try:
            # An interrupt during a validation leaves it to be done first.
            self._validate_if_due(score)
            while self.step < self.steps and not self.ended(patience, goal):
                until = min(self.steps, (self.step // self.every + 1) * self.every)
                count = max(1, min(count, CHUNK, until - self.step))
                chunk_began = time.perf_counter()
                step = jnp.asarray(self.step, jnp.int32)
                state, history = advance(self.state, step, jnp.asarray(count, jnp.int32))
                history = np.asarray(history)[..., :count, :]
                # From here on nothing waits for the device: an interrupt finds either the old state or the new one.
                self.state = state
                self.history[..., self.step : self.step + count, :] = history
                self.step += count
                self.taken += count
                spent = time.perf_counter() - chunk_began
                if self.step == until:
                    self._validate_if_due(score)
                    if checkpoint is not None:
                        self.save(checkpoint)
                report(self.step, self.steps, self._figures(history[..., -1, 0], time.perf_counter() - began))
                # The first call compiles, which says nothing about the pace.
                count = 8 if self.taken == 1 else max(1, min(2 * count, round(count * _PATIENCE / spent)))
        except KeyboardInterrupt:
            self.interrupted = True
            if checkpoint is not None:
                self.save(checkpoint)
        self.seconds = time.perf_counter() - began

    def _figures(self, losses, seconds: float) -> dict[str, float]:
        losses = np.atleast_1d(losses)
        known = losses[np.isfinite(losses)]
        figures = {"loss": float(np.median(known)) if known.size else float("nan")}
        if np.isfinite(self.best_score).any():
            figures["best"] = float(np.min(self.best_score))
        figures["steps/s"] = self.taken * losses.size / seconds
        if self.lanes:
            figures["seeds alive"] = float(np.sum(~self.failed))
        return figures

    def _validate_if_due(self, score: Score) -> None:
        due = self.step > 0 and (self.step % self.every == 0 or self.step == self.steps)
        done = bool(self.validated) and self.validated[-1] == self.step
        if score is None or done or not due:
            return
        values = np.asarray(score(self.state), float)
        better = values < self.best_score
        best = _where(better, self.state.model, self.best)
        self.scores = np.concatenate([self.scores, values[..., None]], axis=-1)
        self.validated.append(self.step)
        self.best, self.best_score = best, np.where(better, values, self.best_score)
        self.best_step = np.where(better, self.step, self.best_step)

    def _tree(self):
        """All that a checkpoint holds, with room for every validation."""
        scores = np.zeros((*self.lanes, self.steps))
        scores[..., : len(self.validated)] = self.scores
        validated = np.zeros(self.steps, np.int64)
        validated[: len(self.validated)] = self.validated
        counts = np.array([self.step, len(self.validated)])
        return self.state, self.best, self.history, scores, validated, counts, self.best_score, self.best_step

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes the run to its file."""
        checkpoint.write(self._tree())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes the run up from its file, if there is one."""
        tree = checkpoint.read(self._tree())
        if tree is not None:
            self.state, self.best, self.history, scores, validated, counts, self.best_score, self.best_step = tree
            self.history, self.best_score, self.best_step = (
                np.array(x) for x in (self.history, self.best_score, self.best_step)
            )
            self.step, count = (int(c) for c in counts)
            self.scores, self.validated = np.array(scores)[..., :count], [int(s) for s in validated[:count]]

    def fit_result(self) -> FitResult:
        """What `fit` returns."""
        last = self.state.model
        chosen = _where(self.best_step > 0, self.best, last)
        history = self.history[..., : self.step, :]
        skipped = np.isnan(history).any(-1).sum(-1)
        # A restart gives a seed another chance, but no finite step at all is no training.
        failed = self.failed | ((skipped == self.step) & (self.step > 0))
        stats: dict[str, Any] = {
            "steps": self.step,
            "best_step": np.where(self.best_step > 0, self.best_step, self.step),
            "best_score": self.best_score,
            "skipped": skipped,
            "restarts": np.asarray(self.state.restarts),
        }
        if not self.lanes:
            stats = {name: np.asarray(value).item() for name, value in stats.items()}
        stats["interrupted"], stats["seconds"] = self.interrupted, self.seconds
        stats["steps_per_second"] = self.taken * math.prod(self.lanes) / max(self.seconds, 1e-9)
        code = _code if not self.lanes else eqx.filter_vmap(_code)
        result = code(jnp.asarray(failed))
        validation = np.array(self.validated, int)
        return FitResult(
            chosen.map, chosen, last, self.state.forcing,
            History(history[..., 0], history[..., 1], validation, self.scores), result, stats,
        )  # fmt: skip


def _code(failed) -> RESULTS:
    return RESULTS.where(failed, RESULTS.non_finite, RESULTS.successful)


def _where(which: np.ndarray, a, b):
    """`a` in the lanes of `which`, `b` in the others."""
    if which.ndim == 0:
        return a if which else b

    def pick(x, y):
        return jnp.where(which.reshape(which.shape + (1,) * (jnp.ndim(x) - which.ndim)), x, y) if eqx.is_array(x) else x

    return jax.tree.map(pick, a, b)
