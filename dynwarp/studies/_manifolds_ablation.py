"""The manifolds study's ablation: does a penalty on folds make networks invertible, and does it cost training?"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp import training
from dynwarp.models import ALRNN
from dynwarp.studies import _manifolds_networks as networks
from dynwarp.studies._manifolds_maps import judge
from dynwarp.studies._study import Claim, Part
from dynwarp.systems import DampedOscillators
from dynwarp.training import AbstractPenalty, invertibility_penalty

_HORIZON = 20
_CHUNK = 2048


class FoldPenalty(AbstractPenalty):
    """The invertibility penalty on one in a hundred of the regions that a batch visits, at least two."""

    strength: float = eqx.field(static=True)

    def __call__(self, model, states):
        form = model.map.canonical()
        flat = states.reshape(-1, states.shape[-1])
        some = flat[:: min(100, max(1, flat.shape[0] // 2))]
        return self.strength * invertibility_penalty(form, jax.vmap(form.pattern)(some))


class Error(eqx.Module):
    """PE(20), the mean squared error 20 steps ahead, in standard deviations."""

    values: jax.Array

    def __call__(self, model):
        predicted = model.predict(self.values[:-_HORIZON], _HORIZON)
        return jnp.mean((predicted - self.values[_HORIZON:]) ** 2)


def invertibility(config) -> Part:
    """Figure 2: the invertibility regulariser on and off."""
    systems = {
        "damped oscillators": (_oscillators(config), 40, 15, config.oscillator_steps, 25, 10, 1e-3, "p = .023"),
        "Lorenz-63": (networks.lorenz(config.seed), 30, 8, config.ablation_lorenz_steps, 50, 15, 5e-3, "p = .122"),
    }
    claims, values = [], {}
    for name, (recording, m, p, steps, length, interval, rate, published) in systems.items():
        runs = {
            on: _runs(config, recording, m, p, steps, length, interval, rate, FoldPenalty(0.1) if on else None)
            for on in (False, True)
        }
        reached = {on: _first_below(run, 0.5) for on, run in runs.items()}
        test = _mann_whitney(reached[True], reached[False])
        # Of three networks: counting 2^15 determinants takes longer than the training.
        seeds = range(min(3, config.ablation_seeds))
        shares = {on: [_agreeing_share(run.seed(i).model) for i in seeds] for on, run in runs.items()}
        medians = {on: float(np.median(x)) for on, x in reached.items()}
        values[name] = {"steps_to_half": reached, "p": test, "agreement": shares, "medians": medians}
        shown = {on: "never" if not np.isfinite(x) else f"{x:.0f}" for on, x in medians.items()}
        fewer = "fewer" if name == "damped oscillators" else "as many"
        supported = test < 0.05 if fewer == "fewer" else test >= 0.05
        # Where no visited region folds, the penalty is zero and says nothing about itself.
        idle = min(shares[False]) > 0.99
        if idle or not (np.isfinite(medians[True]) or np.isfinite(medians[False])):
            verdict = "not reached"
        else:
            verdict = judge(supported)
        claims.append(
            Claim(
                f"with the regulariser PE(20) <= 0.5 takes {fewer} steps: {name}",
                published,
                f"median steps with {shown[True]}, without {shown[False]}; {config.ablation_seeds} seeds each, "
                f"one-sided Mann-Whitney p = {test:.3f}" + ("; no network folds without it either" if idle else ""),
                verdict,
            )
        )
        share = {on: float(np.median(x)) for on, x in shares.items()}
        claims.append(
            Claim(
                f"penalising 1 % of the visited regions makes nearly all determinants agree: {name}",
                "det > 0 nearly everywhere",
                f"of all {2**p} regions, the share with the sign of the majority: with {share[True]:.3f}, without "
                f"{share[False]:.3f} (medians)" + ("; so it has nothing to do" if share[False] > 0.99 else ""),
                "fails" if share[True] <= 0.99 else "holds" if share[True] > share[False] else "holds in part",
            )
        )
    text = (
        "AL-RNNs on the bank of ten damped oscillators (M = 40, P = 15) and on Lorenz-63 (M = 30, P = 8). The penalty "
        "asks for determinants of one sign, not for positive ones: equal signs are what an invertible map needs. The "
        "count is over all regions, not over those visited."
    )
    return Part("Invertibility regulariser", text, tuple(claims), values)


def _oscillators(config) -> networks.Recording:
    n = 10
    box = np.concatenate([np.full(n, 1.0), np.full(n, 0.5)])
    return networks.recorded(
        DampedOscillators(), -box, box, seed=config.seed, orbits=20, steps=200, dt=0.2, substeps=4
    )  # fmt: skip


def _runs(config, recording, m, p, steps, length, interval, rate, penalty) -> Any:
    return training.fit_seeds(
        lambda key: ALRNN(m, p, key=key),
        recording.values,
        keys=jax.random.split(jax.random.key(config.seed), config.ablation_seeds),
        steps=steps,
        sequence_length=length,
        forcing=training.SparseTeacherForcing(interval),
        penalty=penalty,
        optimizer=_optimizer(rate),
        validation=Error(jnp.asarray(recording.values[0][:300])),
        validate_every=max(1, steps // 40),
        throw=False,
    )


def _optimizer(rate: float):
    return optax.radam(rate)


def _first_below(run, limit: float) -> list[float]:
    """The first validated step with an error of at most `limit`, infinite where there is none, of each seed."""
    history = run.history
    steps, scores = np.asarray(history.validation_step), np.asarray(history.validation)
    scores = scores.reshape(-1, scores.shape[-1])
    steps = np.broadcast_to(steps, scores.shape)
    return [float(t[s <= limit][0]) if (s <= limit).any() else np.inf for t, s in zip(steps, scores)]


def _mann_whitney(first, second) -> float:
    from scipy.stats import mannwhitneyu

    # Those that never get there are the slowest of all.
    top = 1e12
    return float(mannwhitneyu(np.minimum(first, top), np.minimum(second, top), alternative="less").pvalue)


def _agreeing_share(map) -> float:
    """The share of all regions whose determinant has the sign of the majority."""
    form = map.canonical()
    hidden = form.h2.shape[0]
    patterns = (np.arange(2**hidden)[:, None] >> np.arange(hidden)) & 1 == 1
    signs = np.concatenate(
        [np.asarray(_signs(form, jnp.asarray(patterns[i : i + _CHUNK]))) for i in range(0, len(patterns), _CHUNK)]
    )
    return float(max(np.mean(signs > 0), np.mean(signs < 0)))


@eqx.filter_jit
def _signs(form, patterns):
    return jax.vmap(lambda pattern: jnp.linalg.slogdet(form.affine(pattern)[0]).sign)(patterns)
