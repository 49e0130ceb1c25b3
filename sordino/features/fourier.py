"""Real Fourier analysis as matrices: cosines and sines, and what a wavelet does to them.

A side of N pixels at the resolution N/fold has the frequencies m = 0 … N/fold/2; the frequencies of the full side that
fold into ±m when it is subsampled are ±(m + b·N/fold), b < fold. Each gives a cosine and a sine.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
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
    matrices = np.einsum(
        "lsmbSMB,sm,SM,ts,TS,us,US->umMUltbTB",
        *(at, down[1], across[1], _WAVE.conj(), _WAVE.conj(), _WAVE, _WAVE),
        optimize=True,
    ) / (height * width)
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
    """Places of ±frequencies in a transform, and which count: nought and the highest are their own negatives."""
    folding = _folding(side, fold)
    frequency, highest = folding[:, 0], side // fold / 2
    own = (frequency == 0) | (frequency == highest)
    return (_SIGNS[:, None, None] * folding) % side, np.stack([np.ones(len(own)), ~own]).astype(np.float64)
