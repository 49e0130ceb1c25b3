"""The wavelets of a scattering transform as real Fourier transforms, and Fourier analysis as real matrices.

The filter bank of kymatio (Andreux et al. 2020), which T&B use: envelopes of width 0.8·2^j, waves of frequency
3π/4·2⁻ʲ in L directions, envelopes stretched across the wave by L/4.

A side of N pixels at the resolution N/fold has the frequencies m = 0 … N/fold/2; the frequencies of the full side that
fold into ±m when it is subsampled are ±(m + b·N/fold), b < fold. Each gives a cosine and a sine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_WIDTH, _FREQUENCY = 0.8, 3 * np.pi / 4
_PI = 3.1415
"""As in kymatio's norm of a Gaussian, whose coefficients are 3e-5 larger for it."""
_PERIODS = 2
"""Filters are periodic: so many periods on either side of the image are added up."""


@dataclass(frozen=True)
class Bank:
    """Filters for images of one (padded) shape."""

    waves: Sequence[Array]
    """By scale j, (L, height, width): each direction's Fourier transform at full resolution."""
    blurs: tuple[Array, Array]
    """The Gaussian's, down and across: it is a product of the two."""


def bank(shape: tuple[int, int], scales: int, directions: int) -> Bank:
    waves = []
    for scale in range(scales):
        turns = [np.pi * (int(directions / 2 - 1) - turn) / directions for turn in range(directions)]
        width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
        found = [_morlet(shape, width, turn, frequency, 4 / directions) for turn in turns]
        waves.append(np.stack([np.fft.fft2(wave).real for wave in found]))
    blurs = [np.fft.fft(_gaussian(side, _WIDTH * 2 ** (scales - 1))).real for side in shape]
    return Bank(waves, (blurs[0], blurs[1]))


def coarser(transform: Array, halvings: int, axes: Sequence[int]) -> Array:
    """The filter for an image of half the resolution, so many times: frequencies that no longer exist are dropped."""
    for axis in axes:
        side = transform.shape[axis]
        kept = np.ones(side)
        start = side // 2 ** (halvings + 1)
        kept[start : start + side - side // 2**halvings] = 0
        shape = [side if place == axis % transform.ndim else 1 for place in range(transform.ndim)]
        transform = transform * kept.reshape(shape)
        transform = sum(np.split(transform, 2**halvings, axis=axis), np.zeros(()))
    return transform


def _gabor(shape: tuple[int, int], width: float, turn: float, frequency: float, slant: float) -> NDArray[np.complex128]:
    """A wave in the direction `turn` under a Gaussian envelope, periodic in the image's shape."""
    down, across = (
        np.arange(-_PERIODS * side, (_PERIODS + 1) * side, dtype=np.float64).reshape(order)
        for side, order in zip(shape, ((-1, 1), (1, -1)), strict=True)
    )
    along, aside = np.cos(turn) * down + np.sin(turn) * across, np.cos(turn) * across - np.sin(turn) * down
    envelope = np.exp(-(along**2 + (slant * aside) ** 2) / (2 * width**2)) * slant / (2 * _PI * width**2)
    wave = envelope * np.exp(1j * frequency * along)
    periods = 2 * _PERIODS + 1
    return np.asarray(wave.reshape(periods, shape[0], periods, shape[1]).sum((0, 2)))


def _morlet(
    shape: tuple[int, int], width: float, turn: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """A Gabor wave minus as much of its envelope as makes its mean zero."""
    wave, envelope = (_gabor(shape, width, turn, each, slant) for each in (frequency, 0.0))
    return np.asarray(wave - envelope * (wave.sum() / envelope.sum()))


def _gaussian(side: int, width: float) -> Array:
    places = np.arange(-_PERIODS * side, (_PERIODS + 1) * side, dtype=np.float64)
    values = np.exp(-(places**2) / (2 * width**2)) / (np.sqrt(2 * _PI) * width)
    return np.asarray(values.reshape(-1, side).sum(0))


# By parity: a wave of frequency ±k is cos ± i·sin; its transform takes the conjugate.
_WAVE = np.array([[1, 1], [1j, -1j]])
_SIGNS = np.array([1, -1])


def analysis(side: int, fold: int) -> Array:
    """(frequencies · 2 · fold, side): the products with the cosines, then the sines, of what folds into a frequency."""
    turns = 2 * np.pi / side * _folding(side, fold)[:, :, None] * np.arange(side)
    return np.stack([np.cos(turns), np.sin(turns)], axis=1).reshape(-1, side)


def synthesis(side: int) -> Array:
    """(side, frequencies, 2): the values of each frequency's cosine and sine."""
    turns = 2 * np.pi / side * np.outer(np.arange(side), np.arange(side // 2 + 1))
    return np.stack([np.cos(turns), np.sin(turns)], axis=2)


def wavelet_matrices(waves: Array, fold: int) -> Array:
    """Transforms of filters (L, height, width) → (2, frequencies, 2·2·L, 2·fold·2·fold), for real images.

    At each pair of frequencies, down and across: from what `analysis` gives of both sides to what `synthesis` takes,
    first by parity down, then parity across, real and imaginary part, filter.
    """
    filters, height, width = waves.shape
    down, across = (_signed(side, fold) for side in (height, width))
    at = waves[:, down[0][..., None, None, None], across[0]]  # filter, then sign, frequency, fold of either side
    operands = (at, down[1], across[1], _WAVE.conj(), _WAVE.conj(), _WAVE, _WAVE)
    matrices = np.einsum("lsmbSMB,sm,SM,ts,TS,us,US->umMUltbTB", *operands, optimize=True) / (height * width)
    matrices = np.stack([matrices.real, matrices.imag], axis=4)
    return matrices.reshape(2, -1, 4 * filters, 4 * fold**2)


def averaging(blur: Array, step: int) -> Array:
    """The matrix of a circular convolution with a filter of this transform, at every step-th place inside the ends."""
    circular = np.fft.ifft(np.fft.fft(np.eye(len(blur)), axis=0) * blur[:, None], axis=0).real
    return np.asarray(circular[::step][1:-1])


def _folding(side: int, fold: int) -> NDArray[np.int64]:
    coarse = side // fold
    return np.arange(coarse // 2 + 1)[:, None] + coarse * np.arange(fold)


def _signed(side: int, fold: int) -> tuple[NDArray[np.int64], Array]:
    """Places of ±frequencies in a transform, and which count: zero and the highest are their own negatives."""
    folding = _folding(side, fold)
    frequency, highest = folding[:, 0], side // fold / 2
    own = (frequency == 0) | (frequency == highest)
    return (_SIGNS[:, None, None] * folding) % side, np.stack([np.ones(len(own)), ~own]).astype(np.float64)
