"""What diagonal state-space models share: the recurrence of complex modes and its forms that are parallel in time."""

from __future__ import annotations

import abc
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from dynwarp.models._base import AbstractLinearRecurrence
from dynwarp.models._cell import check_step
from dynwarp.models._powers import powers
from dynwarp.models._recurrence import chunked_scan, fft_length

# Steps whose inputs are projected together: measured best from 16 to 64, for one sequence and for batches of 32.
BLOCK = 32


class AbstractDiagonalRecurrence(AbstractLinearRecurrence):
    """Complex modes that do not mix, h_i' = lambda_i h_i + u_i(x); the state is [Re h, Im h].

    A subclass says what lambda is and how an input drives the modes; the step and its three forms in time are here.
    """

    @abc.abstractmethod
    def multipliers(self) -> Complex[Array, " modes"]:
        """lambda, what each mode is multiplied by in one step: the eigenvalues of the recurrence."""

    @abc.abstractmethod
    def drive(self, inputs: Float[Array, "... d"]) -> Float[Array, "... n"]:
        """What inputs add to the state, [Re u, Im u]."""

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        check_step(self, state, input)
        state = _rotate(self.multipliers(), state)
        return state if input is None else state + self.drive(input)

    def sequential(self, state0: Float[Array, " n"], inputs: Float[Array, "T d"]) -> Float[Array, "T n"]:
        """The states after each input, by a scan; the drive of a block of inputs is one matrix product."""
        multipliers = self.multipliers()
        return chunked_scan(
            lambda state, drive: _rotate(multipliers, state) + drive,
            state0,
            inputs,
            len(inputs),
            chunk=BLOCK,
            prepare=self.drive,
        )

    def associative(self, state0, inputs):
        """The states after each input, by a parallel prefix scan: about 2 T products in 2 log2 T rounds."""
        multipliers, drive = self._start(state0, inputs)
        return _pack(_stationary_scan(powers(multipliers, _rounds(len(drive))), drive))

    def convolution(self, state0, inputs):
        """The states after each input, as a convolution with lambda^t by FFT: T log T."""
        multipliers, drive = self._start(state0, inputs)
        length = len(drive)
        if length == 0:
            return _pack(drive)
        response = jnp.ones_like(drive[:1])
        for power in powers(multipliers, _rounds(length)):
            response = jnp.concatenate([response, response * power])
        size = fft_length(length)
        spectrum = jnp.fft.fft(response[:length], size, axis=0) * jnp.fft.fft(drive, size, axis=0)
        return _pack(jnp.fft.ifft(spectrum, axis=0)[:length])

    def _start(self, state0, inputs):
        """The multipliers, and the complex drive with the initial state carried into its first row."""
        multipliers, drive = self.multipliers(), _unpack(self.drive(inputs))
        return multipliers, drive.at[:1].add(multipliers * _unpack(state0))


def diagonal_scan(multipliers: Array, drive: Array) -> Array:
    """h_t = a_t h_{t-1} + b_t from h_{-1} = 0 for all t at once; both `(T, modes)`, real or complex."""

    def combine(earlier, later):
        return later[0] * earlier[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(combine, (multipliers, drive))[1] if len(drive) else drive


def _rounds(length: int) -> int:
    """How often a sequence is halved until one row is left."""
    return max(length - 1, 0).bit_length()


def _stationary_scan(powers: Array, drive: Array) -> Array:
    """h_t = a h_{t-1} + b_t from h_{-1} = 0, for one `a` at all times: only the drive is reduced, by shared powers."""
    length = len(drive)
    if length < 2:
        return drive
    multipliers = powers[0]
    odd = _stationary_scan(powers[1:], multipliers * drive[:-1:2] + drive[1::2])
    even = jnp.concatenate([drive[:1], multipliers * odd[: (length - 1) // 2] + drive[2::2]])
    # A scatter into every other row would be a thousand times slower on a CPU.
    pairs = jnp.stack([even[: len(odd)], odd], axis=1).reshape(-1, *drive.shape[1:])
    return jnp.concatenate([pairs, even[len(odd) :]])


def discretise(
    rates: Complex[Array, " modes"], step: Float[Array, " modes"], method: Literal["zoh", "bilinear"]
) -> tuple[Complex[Array, " modes"], Complex[Array, " modes"]]:
    """One step of h' = a h + u(x) of length `step`: the multipliers, and the factors of the drive.

    Zero-order hold holds the input over the step and is then exact; bilinear is the trapezoidal rule.
    """
    scaled = jax.lax.complex(step * rates.real, step * rates.imag)
    if method == "zoh":
        return jnp.exp(scaled), jnp.expm1(scaled) / rates
    return (1 + scaled / 2) / (1 - scaled / 2), jax.lax.complex(step, jnp.zeros_like(step)) / (1 - scaled / 2)


def legs_normal_part(n_modes: int) -> tuple[np.ndarray, np.ndarray]:
    """The eigenvalues with positive imaginary part, ascending, and their eigenvectors `(2 n_modes, n_modes)`, of the
    normal part of the HiPPO-LegS matrix of size 2 n_modes (host, float64).

    The normal part is -1/2 plus a skew-symmetric matrix, so that the Hermitian solver has the whole answer.

    **Source:** Gu, Goel, Gupta & Ré, NeurIPS 2022 (arXiv 2206.11893).
    """
    root = np.sqrt(2 * np.arange(2 * n_modes) + 1)
    skew = np.outer(root, root) / 2
    skew = np.triu(skew, 1) - np.tril(skew, -1)
    frequencies, vectors = np.linalg.eigh(-1j * skew)
    return -0.5 + 1j * frequencies[n_modes:], vectors[:, n_modes:]


def _rotate(multipliers, state):
    # In real arithmetic: over complex numbers the gradient of a batch costs up to half as much again on a CPU.
    re, im = jnp.split(state, 2)
    a, b = multipliers.real, multipliers.imag
    return jnp.concatenate([a * re - b * im, a * im + b * re])


def _pack(modes):
    return jnp.concatenate([modes.real, modes.imag], axis=-1)


def _unpack(state):
    return jax.lax.complex(*jnp.split(state, 2, axis=-1))
