"""The clipped Gaussian sum: the mechanism under every training step and every private statistic."""

from collections.abc import Iterable
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Gaussian, Ledger
from sordino.mechanisms.exact import check_noise, noisy_sum
from sordino.mechanisms.streams import Stream, Streams, charge

Array = NDArray[np.float64]
GRAM_BITS = 18
_BITS = 2 * GRAM_BITS
BLOCK = 2**16
MOST_RECORDS = 2**26


def gaussian_noise(generator: np.random.Generator, shape: tuple[int, ...], standard_deviation: float) -> Array:
    """Independent normal numbers of this standard deviation, in double precision.

    For what is not released number by number, such as the noise of training's steps: in a released statistic their last
    bits would show it (`exact`).
    """
    return generator.normal(0.0, standard_deviation, shape)


def clip_rows(rows: NDArray[np.floating], l2_clip: float) -> Array:
    """Each row scaled down to at most this norm; a row with anything non-finite counts as zero."""
    rows = np.ascontiguousarray(rows, dtype=np.float64)  # each row is then summed alone, in one order
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(finite, rows, 0.0)
    # A huge row's square may overflow: measure it in units of its largest entry.
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    norms = np.sqrt((scaled**2).sum(axis=1))
    factors = np.minimum(largest, l2_clip / np.where(norms > 0, norms, 1.0))
    return np.asarray(scaled * factors[:, None])


def whole_rows(rows: NDArray[np.floating], l2_clip: float, bits: int) -> Array:
    """Each row clipped and rounded to whole numbers of l2_clip·2^−bits, of norm at most 2^bits: exactly, as numbers.

    Rounding moves d coordinates by half a unit each at most, so rows are clipped by √d/2 units more, and by a bound on
    the clip's own rounding (a sum of d squares is off by less than d·2⁻⁵³ of itself, and a few operations follow).
    """
    d = rows.shape[1]
    room = 1 - sqrt(d) / 2 * 2.0**-bits - (d + 16) * 2.0**-50
    if not room > 0:
        raise ValueError(f"vectors of {d:,} numbers are too long to be summed exactly")
    return np.asarray(np.rint(np.ldexp(clip_rows(rows, l2_clip * room) / l2_clip, bits)))


def clipped_sum(rows: NDArray[np.floating], l2_clip: float) -> tuple[NDArray[np.int64], float]:
    """Σ of the rows, each clipped to l2_clip and rounded by itself: whole numbers, and the unit that they count.

    Guarantee: one row zeroed out moves unit·sum by at most l2_clip, exactly: nothing is lost in the sum of whole
    numbers, so no row changes how another one is rounded.
    """
    total = np.zeros(rows.shape[1], dtype=np.int64)
    for start in range(0, len(rows), BLOCK):
        total += whole_rows(rows[start : start + BLOCK], l2_clip, _BITS).astype(np.int64).sum(axis=0)
    return total, l2_clip * 2.0**-_BITS


def gram_sum(blocks: Iterable[tuple[Array, Array]]) -> NDArray[np.int64]:
    """Σ of leftᵀ·right over blocks of at most 2¹⁶ `whole_rows` with GRAM_BITS bits, in units of 2^(−2·GRAM_BITS).

    A block's products are whole numbers below 2⁵³, which doubles add exactly in whatever order.
    """
    return np.asarray(sum((left.T @ right).astype(np.int64) for left, right in blocks))


def noisy_gram(generator: np.random.Generator, gram: NDArray[np.int64], unit: float, deviation: float) -> Array:
    """A symmetrical matrix of so many units, with this noise on the diagonal and 1/√2 of it off the diagonal.

    Guarantee: with the entries off the diagonal multiplied by √2 its upper triangle has the matrix's Frobenius norm,
    and the noise is `noisy_sum`'s on that triangle.
    """
    places = np.triu_indices(len(gram), 1)
    noisy = np.diag(noisy_sum(generator, np.diag(gram), unit, deviation))
    noisy[places] = noisy_sum(generator, gram[places], unit, deviation / sqrt(2) * (1 + 2.0**-50))
    return np.asarray(np.triu(noisy) + np.triu(noisy, 1).T)


def check_length(n: int) -> None:
    """Refuse, before anything is charged, more records than whole numbers of 64 bits can sum."""
    if n >= MOST_RECORDS:
        raise ValueError(f"{n:,} records are too many for one exact sum: the limit is {MOST_RECORDS:,}")


def check_sum_noise(l2_clip: float, noise_multiplier: float) -> None:
    """Refuse, before anything is charged, noise that a `clipped_sum` cannot take."""
    check_noise(l2_clip * 2.0**-_BITS, noise_multiplier * l2_clip)


def clipped_gaussian_sum(
    rows: Array,
    l2_clip: float,
    noise_multiplier: float,
    ledger: Ledger,
    what: str,
    part: str = "train",
    streams: Streams | None = None,
) -> Array:
    """Σ of the rows, each clipped to l2_clip, plus N(0, (noise_multiplier·l2_clip)²) in every coordinate, on a grid.

    Guarantee: one row present or zeroed out moves the sum by at most l2_clip, so the release is Gaussian with this
    noise multiplier, in finite precision too (`exact`); it is charged before the rows are read. Divide it by public
    numbers only. Streams that are given must be used for nothing else.

    >>> from sordino import Ledger
    >>> rows = np.random.default_rng(0).normal(0.5, 0.1, (10_000, 3))
    >>> total = clipped_gaussian_sum(rows, 2.0, 10.0, Ledger(1.0, 1e-6), "mean of the features")
    >>> bool(np.abs(total / 10_000 - 0.5).max() < 0.05)
    True
    """
    if not 0 < l2_clip < np.inf:
        raise ValueError(f"l2_clip must be a positive finite number, not {l2_clip!r}")
    check_length(len(rows))
    check_sum_noise(l2_clip, noise_multiplier)
    generator = charge(ledger, Gaussian(noise_multiplier), what, part, streams).generator(Stream.NOISE)
    total, unit = clipped_sum(np.asarray(rows), l2_clip)
    return noisy_sum(generator, total, unit, noise_multiplier * l2_clip)
