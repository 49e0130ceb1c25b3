"""The clipped Gaussian sum: the mechanism under every training step and every private statistic."""

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Gaussian, Ledger
from sordino.mechanisms.streams import Stream, Streams

Array = NDArray[np.float64]


def gaussian_noise(generator: np.random.Generator, shape: tuple[int, ...], standard_deviation: float) -> Array:
    """Independent normal numbers of this standard deviation, in double precision."""
    return generator.normal(0.0, standard_deviation, shape)


def clip_rows(rows: Array, l2_clip: float) -> Array:
    """Each row scaled down to at most this norm; a row with anything non-finite counts as zero."""
    rows = np.asarray(rows, dtype=np.float64)
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(finite, rows, 0.0)
    # A huge row's square may overflow: measure it in units of its largest entry.
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    norms = np.sqrt((scaled**2).sum(axis=1))
    factors = np.minimum(largest, l2_clip / np.where(norms > 0, norms, 1.0))
    return np.asarray(scaled * factors[:, None])


def clipped_gaussian_sum(
    rows: Array,
    l2_clip: float,
    noise_multiplier: float,
    ledger: Ledger,
    what: str,
    part: str = "train",
    streams: Streams | None = None,
) -> Array:
    """Σ of the rows, each clipped to l2_clip, plus N(0, (noise_multiplier·l2_clip)²) in every coordinate.

    Guarantee: one row present or zeroed out moves the sum by at most l2_clip, so the release is Gaussian with this
    noise multiplier; it is charged before the rows are read. Divide it by public numbers only. Streams that are
    given must be used for nothing else.
    """
    if not 0 < l2_clip < np.inf:
        raise ValueError(f"l2_clip must be a positive finite number, not {l2_clip!r}")
    streams = Streams.fresh() if streams is None else streams
    ledger.spend(Gaussian(noise_multiplier), what, part, seeded=streams.predictable)
    generator = streams.generator(Stream.NOISE)
    total = clip_rows(rows, l2_clip).sum(axis=0)
    return np.asarray(total + gaussian_noise(generator, total.shape, noise_multiplier * l2_clip))


def noisy_accuracy(
    correct: NDArray[np.bool_],
    noise_multiplier: float,
    ledger: Ledger,
    what: str,
    part: str,
    streams: Streams | None = None,
) -> float:
    """The share of correct predictions on private records, with Gaussian noise on their number.

    Guarantee: one record moves the number by at most 1; it is divided by the number of records, which is public under
    every adjacency but add-remove. Streams that are given must be used for nothing else.
    """
    ledger.refuse_add_remove()
    counts = np.asarray(correct, dtype=np.float64)[:, None]
    if len(counts) == 0:
        raise ValueError("an accuracy needs at least one record")
    noisy = clipped_gaussian_sum(counts, 1.0, noise_multiplier, ledger, what, part, streams)
    return float(np.clip(noisy[0] / len(counts), 0.0, 1.0))
