"""Powers of complex multipliers by squaring, carried as unevaluated sums of two numbers.

Plain squaring doubles the relative error each time: after a thousand steps of a slow mode it is what separates a
parallel form from the sequential one in float32. Carried with its rounding errors, a power is right to rounding.

Source: Dekker, Numer. Math. 18 (1971) 224, for the exact product; Knuth for the exact sum.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float


class Power(NamedTuple):
    """A complex number as (re + re_rest) + i (im + im_rest)."""

    re: Float[Array, " modes"]
    im: Float[Array, " modes"]
    re_rest: Float[Array, " modes"]
    im_rest: Float[Array, " modes"]

    @property
    def value(self) -> Complex[Array, " modes"]:
        """The power, rounded."""
        return jax.lax.complex(self.re, self.im)


def first_power(multipliers: Complex[Array, " modes"]) -> Power:
    """The multipliers themselves."""
    rest = jnp.zeros_like(multipliers.real)
    return Power(multipliers.real, multipliers.imag, rest, rest)


def powers(multipliers: Complex[Array, " modes"], count: int) -> Complex[Array, "count modes"]:
    """The powers 1, 2, 4, ... of the multipliers, as many as asked for.

    By a loop, which the compiler keeps apart: written out, they would be computed anew for every element that they
    multiply, six hundred times slower on a CPU.
    """
    return jax.lax.scan(lambda x, _: (squared(x), x.value), first_power(multipliers), length=count)[1]


def squared(x: Power) -> Power:
    """The square of a power."""
    re_re, error_re = _product(x.re, x.re)
    im_im, error_im = _product(x.im, x.im)
    re_im, error_mixed = _product(x.re, x.im)
    difference, error = _sum(re_re, -im_im)
    rest = error + error_re - error_im + 2 * (x.re * x.re_rest - x.im * x.im_rest)
    mixed_rest = 2 * (error_mixed + x.re * x.im_rest + x.im * x.re_rest)
    re, re_rest = _sum(difference, rest)
    im, im_rest = _sum(2 * re_im, mixed_rest)
    return Power(re, im, re_rest, im_rest)


def _product(a, b):
    """The product and its rounding error."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _sum(a, b):
    """The sum and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _halves(a):
    """Two numbers of half the digits whose sum is `a`. A rounding that the compiler keeps, unlike a difference."""
    info = jnp.finfo(a.dtype)
    high = jax.lax.reduce_precision(a, info.nexp, (info.nmant - 1) // 2)
    return high, a - high
