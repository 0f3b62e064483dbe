"""The gradients study on local representation alignment: how far its signals reach, and what its program does."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import plot
from dynwarp.learning import BPTT, LocalRepresentationAlignment, half_squared_error
from dynwarp.models import Elman, Readout
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure

# So small that it moves no state, and large enough for its derivative to be exact.
_PROBE = 1e-6
_OUTPUTS = 4
_PLAIN, _REGULARISED = "alignment, alpha = 0", "alignment, alpha = 1"


def alignment(config) -> Part:
    """Whether training by targets in place of errors teaches early steps."""
    T, n = config.alignment_steps, config.alignment_units
    net, readout, inputs, targets = _setting(T, n, config.seed + 70)
    rules = {
        "gradient": BPTT(),
        _PLAIN: LocalRepresentationAlignment(regularisation=0.0),
        f"{_PLAIN}, nothing cut": LocalRepresentationAlignment(regularisation=0.0, max_norm=None),
        _REGULARISED: LocalRepresentationAlignment(regularisation=1.0),
    }
    signals = {name: np.asarray(_signals(rule, net, readout, inputs[0], targets[0])) for name, rule in rules.items()}
    decays = {name: _decay(x) for name, x in signals.items()}
    uncut = decays[f"{_PLAIN}, nothing cut"]
    updates = [
        np.asarray(
            _update(LocalRepresentationAlignment(regularisation=0.1, compat=compat), net, readout, inputs, targets)
        )
        for compat in ("published", "released")
    ]
    cosine = float(np.vdot(*updates) / np.prod([np.linalg.norm(u) for u in updates]))
    claims = (
        Claim(
            "targets and local losses do not save early steps: their signals vanish as well",
            "said of the algorithm by its authors",
            f"{n} tanh units with orthogonal weights, a loss after {T} steps: log of the signal by lag falls by "
            + "; ".join(f"{name} {-x:.2f}" for name, x in decays.items())
            + " a step",
            "holds" if decays[_PLAIN] < -0.05 else "fails",
        ),
        Claim(
            "cutting the norms of these signals has little to no effect",
            "said by the authors",
            f"decay {-decays[_PLAIN]:.3f} a step with norms cut to 1, {-uncut:.3f} with none",
            "holds" if abs(decays[_PLAIN] - uncut) < 0.1 * abs(uncut) else "fails",
        ),
        Claim(
            "the regulariser Omega helps",
            "far better results on three tasks",
            f"alpha = 1: the signal falls by {-decays[_REGULARISED]:.2f} a step, not by {-decays[_PLAIN]:.2f}; "
            "no network was trained",
            "holds in part" if decays[_REGULARISED] > 0.5 * decays[_PLAIN] else "fails",
        ),
        Claim(
            "the released program is the published algorithm",
            "implied",
            f"updates of W on {len(inputs)} sequences, alpha = 0.1: cosine {cosine:.2f}",
            "holds" if cosine > 0.99 else "fails",
        ),
    )
    figure, ax = new_figure()
    plot.gradient_profile({name: signals[name] for name in ("gradient", _PLAIN, _REGULARISED)}, ax=ax)
    drawn = StudyFigure(
        "alignment", figure, "Signals by lag: of the gradient, and of local representation alignment.",
        "The gradient falls with the lag, alignment without its regulariser much faster, with it hardly at all.",
    )  # fmt: skip
    values = {"decay": decays, "cosine": cosine}
    text = (
        "Local representation alignment is a way of training a plain network, no network of its own. Its signal at a "
        "step is the derivative of the local loss there, read from the update of a weight whose input is a tiny pulse "
        "at that step alone; for the gradient likewise."
    )
    return Part("Targets in place of errors", text, claims, values, (drawn,))


def _setting(T, n, seed):
    """A network at its start, sequences whose second input is left for the pulse, and targets of the last step."""
    keys = jax.random.split(jax.random.key(seed), 4)
    inputs = jnp.zeros((8, T, 2)).at[..., 0].set(jax.random.normal(keys[2], (8, T)))
    targets = jnp.zeros((8, T, _OUTPUTS + 1)).at[:, -1].set(1.0)
    targets = targets.at[..., :-1].set(jax.random.normal(keys[3], (8, 1, _OUTPUTS)))
    return Elman(2, n, key=keys[0]), Readout(n, _OUTPUTS, key=keys[1]), inputs, targets


def _last(output, target):
    """The loss of the last step, whose weight comes with the target."""
    return target[-1] * half_squared_error(output, target[:-1])


@eqx.filter_jit
def _signals(rule, net, readout, inputs, targets):
    """The size of what each step is told, latest first, `(T,)`."""

    def one(pulse):
        x = inputs.at[:, 1].set(_PROBE * pulse)
        _, (of_net, _) = rule.gradients(net, readout, x, targets, state0=jnp.zeros(net.state_size), loss=_last)
        return jnp.linalg.norm(of_net.input_weight[:, 1]) / _PROBE

    return jax.vmap(one)(jnp.eye(len(inputs)))[::-1]


def _decay(signals) -> float:
    """The slope of the logarithm over the lag, as far down as differences of states are more than rounding errors."""
    kept = np.flatnonzero(signals > 1e-12 * signals.max())
    return float(np.polyfit(kept, np.log(signals[kept]), 1)[0])


@eqx.filter_jit
def _update(rule, net, readout, inputs, targets):
    def one(x, y):
        return rule.gradients(net, readout, x, y, state0=jnp.zeros(net.state_size), loss=_last)[1][0].recurrent_weight

    return jnp.mean(jax.vmap(one)(inputs, targets), axis=0)
