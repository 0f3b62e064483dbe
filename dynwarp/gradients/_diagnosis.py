"""What a diagnosis holds: numbers with their errors, and verdicts with the inequality behind each."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._results import RESULTS, describe
from dynwarp._typing import Scalar
from dynwarp.gradients._envelope import Envelope
from dynwarp.gradients._learnability import LearnabilityWindow, RegimeFit


class Verdict(eqx.Module):
    """One inequality of a [`Diagnosis`][dynwarp.gradients.Diagnosis] and what follows from it.

    **Attributes:**

    - `name`: what is the case where it holds.
    - `inequality`: in words, `left < right` or `left > right`.
    - `meaning`: what it implies, and what it does not.
    - `left`, `right`: the numbers.
    - `error`: the standard error of their difference.
    - `holds`: whether the inequality does.
    - `certain`: whether the two sides are more than two standard errors apart.
    """

    left: Scalar
    right: Scalar
    error: Scalar
    holds: Bool[Array, ""]
    certain: Bool[Array, ""]
    name: str = eqx.field(static=True)
    inequality: str = eqx.field(static=True)
    meaning: str = eqx.field(static=True)


class Diagnosis(eqx.Module):
    """What [`diagnose`][dynwarp.gradients.diagnose] returns, a pytree. T steps, k exponents, S of the steps looked at.
    An `error` is one standard error.

    **Attributes:**

    - `verdicts`: a tuple of [`Verdict`][dynwarp.gradients.Verdict].
    - `loss`, `loss_error`, `losses`: the mean, and of each step, `(T,)`.
    - `gradient_norm`, `gradient_norm_error`: over all parameters.
    - `parameter_norms`, `parameter_norm_errors`: of each array of (model, readout), shaped like these.
    - `adjoint_norms`: |dL/dh_t|, `(T,)`.
    - `clip_rate`, `clip_rate_error`: the share of eighths of the sequence whose own gradient is longer than `clip`; NaN
      without.
    - `saturation`, `saturation_error`: the share of |h| > 0.97; NaN where states are not bounded by 1.
    - `looked_at`: the steps whose Jacobians were decomposed, `(S,)`; `sigma_max`, `spectral_radius` of these, `(S,)`.
    - `exponents`, `exponent_errors`: the leading ones along the orbit, nats per step, `(k,)`.
    - `envelope`, `regime`: what is left of a perturbation, exactly, and the law it follows.
    - `tail_alpha`, `tail_alpha_error`: of the matched statistic, the mean over the lags.
    - `window`: how far back so many samples (`n_samples`) can see, by the envelope, with signal and noise of the
      matched statistic at the shortest lag.
    - `result`: `vanished` where every gradient is zero, `non_finite`.
    """

    verdicts: tuple[Verdict, ...]
    loss: Scalar
    loss_error: Scalar
    losses: Float[Array, " T"]
    gradient_norm: Scalar
    gradient_norm_error: Scalar
    parameter_norms: Any
    parameter_norm_errors: Any
    adjoint_norms: Float[Array, " T"]
    clip_rate: Scalar
    clip_rate_error: Scalar
    saturation: Scalar
    saturation_error: Scalar
    looked_at: Int[Array, " S"]
    sigma_max: Float[Array, " S"]
    spectral_radius: Float[Array, " S"]
    exponents: Float[Array, " k"]
    exponent_errors: Float[Array, " k"]
    envelope: Envelope
    regime: RegimeFit
    tail_alpha: Scalar
    tail_alpha_error: Scalar
    window: LearnabilityWindow
    n_samples: Scalar
    result: RESULTS

    def verdict(self, name: str) -> Verdict:
        """The verdict of this name."""
        return next(v for v in self.verdicts if v.name == name)

    def to_markdown(self) -> str:
        """The report as text (host)."""
        regime, window = self.regime, self.window
        best = int(regime.best)
        (problem,) = describe(self.result)
        lines = ["# Diagnosis", ""]
        if problem:
            lines += [f"**{problem}**", ""]
        lines += ["## What is the case", ""]
        fired = [v for v in self.verdicts if bool(v.holds)]
        for v in fired:
            certainty = "" if bool(v.certain) else " Within two standard errors: not certain."
            lines.append(f"- **{v.name}**: {v.inequality}; {_sides(v)}. {v.meaning}{certainty}")
        lines += [] if fired else ["- None of the inequalities holds."]
        lines += ["", "## What is not", ""]
        for v in self.verdicts:
            if not bool(v.holds):
                certainty = "" if bool(v.certain) else " Within two standard errors: not certain."
                lines.append(f"- {v.name}: not {v.inequality}; {_sides(v)}.{certainty}")
        lines += ["", "## Numbers", "", "| quantity | value | standard error |", "| --- | --- | --- |"]
        rows = [
            ("mean loss", self.loss, self.loss_error),
            ("gradient norm", self.gradient_norm, self.gradient_norm_error),
        ]
        norms = jax.tree_util.tree_leaves_with_path(self.parameter_norms)
        errors = jax.tree.leaves(self.parameter_norm_errors)
        for (path, norm), error in zip(norms, errors):
            owner = ("model", "readout")[path[0].idx]
            rows.append((f"gradient norm of `{owner}{jax.tree_util.keystr(path[1:])}`", norm, error))
        if np.isfinite(self.clip_rate):
            rows.append(("clip rate", self.clip_rate, self.clip_rate_error))
        if np.isfinite(self.saturation):
            rows.append(("share of saturated states", self.saturation, self.saturation_error))
        for name, values in (("sigma_max", self.sigma_max), ("spectral radius", self.spectral_radius)):
            values = np.asarray(values)
            rows.append((f"mean {name} of a step", values.mean(), values.std() / values.size**0.5))
        for i, (exponent, error) in enumerate(zip(self.exponents, self.exponent_errors)):
            rows.append((f"exponent {i + 1}, nats per step", exponent, error))
        rows.append(("tail index alpha", self.tail_alpha, self.tail_alpha_error))
        lines += [f"| {name} | {float(value):.4g} | {float(error):.2g} |" for name, value, error in rows]
        law = ("exp(-l / tau), 1 / tau", "l^-beta, beta", "1 / log(1 + l), fixed rate")[best]
        rate, error = float(regime.rate[best]), float(regime.rate_error[best])
        if bool(self.envelope.result == RESULTS.vanished):
            decay = "At the largest lag nothing is left of a perturbation."
        else:
            decay = (
                f"The envelope decays by the {regime.names[best]} law, {law} = {rate:.4g} (error {error:.2g}); "
                f"its weight among the three is {float(regime.weights[best]):.2f}."
            )
        reach = (
            f"{float(self.n_samples):.4g} samples see {int(window.window)} steps back (between "
            f"{int(window.interval[0])} and {int(window.interval[1])})"
        )
        lines += ["", decay, reach + (", the largest lag that was measured." if bool(window.censored) else ".")]
        return "\n".join(lines) + "\n"


def _sides(verdict: Verdict) -> str:
    error = float(verdict.error)
    spread = f" (standard error {error:.2g})" if error > 0 else ""
    return f"{float(verdict.left):.4g} against {float(verdict.right):.4g}{spread}"
