"""The piecewise-linear normal form of a border collision in the plane, with five published settings."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_choice
from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractPiecewiseLinearModel, PiecewiseLinearMap
from dynwarp.systems._parameter import as_parameter

# tau_r, delta_r, tau_l, delta_l, c, d, h1, h2: Eisenmann et al., ICLR (2026), appendix H.1.
_PRESETS = {
    "fig3a_left": (1.2, 1.8, -0.3, 0.9, -1.5, 1.0, -0.13, -0.1),
    "fig3a_right": (1.26, 0.71, -0.39, -0.91, -0.44, 0.56, -0.28, 0.62),
    "fig3b_left": (-1.85, 0.9, -0.3, 0.9, 1.0, 0.0, -1.0, 0.0),
    "fig3b_right": (-1.85, 0.9, 0.9, 0.9, 1.0, 0.0, -1.0, 0.0),
    "fig5": (1.5, 0.75, -1.77, 0.9, 0.6, 0.15, -0.7, -0.4),
}


class BorderCollisionMap(AbstractPiecewiseLinearModel):
    """z' = A_s z + (h1, h2), A_s = [[tau_s, c], [-delta_s, d]], with s = r where x > 0 and s = l where x <= 0.

    **Arguments:** all scalars: `tau_r`, `delta_r` on the right; `tau_l`, `delta_l` on the left; `c`, `d`, `h1`, `h2`.

    The defaults are the chaotic setting "fig5" of [`preset`][dynwarp.systems.BorderCollisionMap.preset].

    **Source:** Gardini et al. (2009) for the family; Eisenmann et al., ICLR (2026), arXiv:2510.03814, appendix H.1, for
    the settings.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3b_right")
    >>> f(jnp.array([-1.0, 0.9])).tolist()
    [-1.0, 0.9]
    """

    tau_r: Scalar = eqx.field(default=1.5, converter=as_parameter)
    delta_r: Scalar = eqx.field(default=0.75, converter=as_parameter)
    tau_l: Scalar = eqx.field(default=-1.77, converter=as_parameter)
    delta_l: Scalar = eqx.field(default=0.9, converter=as_parameter)
    c: Scalar = eqx.field(default=0.6, converter=as_parameter)
    d: Scalar = eqx.field(default=0.15, converter=as_parameter)
    h1: Scalar = eqx.field(default=-0.7, converter=as_parameter)
    h2: Scalar = eqx.field(default=-0.4, converter=as_parameter)
    state_size: int = eqx.field(default=2, init=False, static=True)
    input_size: int = eqx.field(default=0, init=False, static=True)

    @classmethod
    def preset(cls, name: str) -> BorderCollisionMap:
        """A published setting.

        **Arguments:**

        - `name`: "fig3a_left" (a saddle, all else diverges), "fig3a_right" (a stable spiral and a saddle, whose stable
          manifold bounds the basin), "fig3b_left" (a stable focus in the basin bounded by a saddle 3-cycle),
          "fig3b_right" (the same with a saddle 4-cycle) or "fig5" (chaos by a homoclinic point): the figures of the
          paper.

        **Raises:** `ArgumentError` for any other name.
        """
        check_choice(name, "name", tuple(_PRESETS), caller="BorderCollisionMap.preset")
        return cls(*_PRESETS[name])

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        x, y = state
        right = jax.nn.relu(x)
        first = self.tau_l * x + (self.tau_r - self.tau_l) * right + self.c * y + self.h1
        second = -self.delta_l * x + (self.delta_l - self.delta_r) * right + self.d * y + self.h2
        return jnp.stack([first, second])

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map with one ReLU: A = A_l, W1 = (tau_r - tau_l, delta_l - delta_r), W2 = (1, 0), h2 = 0."""
        zero, one = jnp.zeros_like(self.c), jnp.ones_like(self.c)
        return PiecewiseLinearMap(
            jnp.stack([jnp.stack([self.tau_l, self.c]), jnp.stack([-self.delta_l, self.d])]),
            jnp.stack([self.tau_r - self.tau_l, self.delta_l - self.delta_r])[:, None],
            jnp.stack([one, zero])[None, :],
            jnp.stack([self.h1, self.h2]),
            zero[None],
        )

    def initial_state(self) -> State:
        """A point near the border; where it goes depends on the setting."""
        return jnp.array([-0.3, 0.1])
