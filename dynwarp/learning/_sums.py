"""Geometric sums of one and two variables, to n terms or to infinity.

Finite sums are built by doubling: about log2(n) steps, no division, nothing cancels for arguments of one sign, and
arguments beyond 1 are as good as any. With G, D and K below,

- G_n(x) = sum_{m<n} x^m,
- D_n(x, y) = sum_{i+j=n-1} x^i y^j = (x^n - y^n) / (x - y),
- K_n(x, y) = sum_{i+j<n} x^i y^j = (G_{n+1}(x) - G_{n+1}(y)) / (x - y).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


class Sums(eqx.Module):
    """G_n(x), G_n(y), D_n(x, y), K_n(x, y) and K_{n-1}(x, y), element by element."""

    gx: Array
    gy: Array
    d: Array
    k: Array
    k_before: Array


def sums(x: Array, y: Array, n: int | None) -> Sums:
    """All sums to n terms; None is the limit, which needs |x| < 1 and |y| < 1."""
    if n is None:
        gx, gy = 1 / (1 - x), 1 / (1 - y)
        return Sums(gx, gy, jnp.zeros_like(gx * gy), gx * gy, gx * gy)
    _, _, gx, gy, d, k = _build(x, y, n)
    return Sums(gx, gy, d, k, _build(x, y, n - 1)[-1])


def mean_sums(x: Array, y: Array, n: int) -> Sums:
    """The mean over j = 1 ... n of the sums to j terms."""
    x, y = jnp.broadcast_arrays(x, y)
    one, zero = jnp.ones_like(x), jnp.zeros_like(x)

    def add(_, carry):
        (xn, yn, gx, gy, d, before), total = carry
        xn, yn, gx, gy, d, k = _add_one(x, y, xn, yn, gx, gy, d, before)
        total = jax.tree.map(jnp.add, total, (gx, gy, d, k, before))
        return (xn, yn, gx, gy, d, k), total

    _, total = jax.lax.fori_loop(0, n, add, ((one, one, zero, zero, zero, zero), (zero,) * 5))
    return Sums(*(part / n for part in total))


def windowed(x: Array, y: Array, terms: int, length: int) -> Array:
    """sum_{m < terms} x^m G_{length - m}(y), for terms <= length."""
    head = sums(x, y, terms)
    return head.k + y * sums(y, y, length - terms).gx * head.d


def first_moment(x: Array, n: int | None) -> Array:
    """sum_{m<n} m x^m."""
    if n is None:
        return x / (1 - x) ** 2
    # m x^m summed by parts: x times the derivative of G_n, which is K_{n-1}(x, x).
    return x * sums(x, x, n).k_before


def _build(x, y, n):
    x, y = jnp.broadcast_arrays(x, y)
    one, zero = jnp.ones_like(x), jnp.zeros_like(x)
    carry = (one, one, zero, zero, zero, zero)
    for bit in format(n, "b"):
        carry = _double(y, *carry)
        if bit == "1":
            carry = _add_one(x, y, *carry)
    return carry


def _double(y, xn, yn, gx, gy, d, k):
    # K_2n: the pairs with i + j < n; those with i >= n; those with i < n <= i + j, by how far j passes n - i.
    return xn * xn, yn * yn, gx * (1 + xn), gy * (1 + yn), d * (xn + yn), k * (1 + xn) + y * gy * d


def _add_one(x, y, xn, yn, gx, gy, d, k):
    d = x * d + yn
    return x * xn, y * yn, 1 + x * gx, 1 + y * gy, d, k + d
