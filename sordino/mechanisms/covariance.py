"""The second moments of vectors, all in one Gaussian release: what a private PCA is made of."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger
from sordino.mechanisms import memory
from sordino.mechanisms.exact import noisy_sum
from sordino.mechanisms.gaussian import (
    GRAM_BITS,
    check_length,
    check_sum_noise,
    clipped_sum,
    gram_sum,
    noisy_gram,
    whole_rows,
)
from sordino.mechanisms.streams import Stream, Streams

Array = NDArray[np.float64]
_BLOCK = 4096
SHORTER = "project the vectors to fewer numbers by public directions first, or take other features"


def memory_of(width: int) -> float:
    """The most bytes that second moments of vectors of this width take, and then their eigenvectors."""
    return 8.0 * width * (8 * width + 6 * _BLOCK)


@dataclass(frozen=True)
class SecondMoments:
    """How the mean of x·xᵀ over vectors x of norm at most l2_clip is told, and with `with_mean` the mean of x as well.

    Guarantee: a record adds x·xᵀ, which is symmetrical: its upper triangle tells it all, and with the entries off the
    diagonal multiplied by √2 that triangle has the norm √(Σxᵢ⁴ + 2·Σᵢ﹤ⱼ xᵢ²xⱼ²) = ‖x‖² ≤ l2_clip², which a record
    zeroed out moves it by at most. Noise of noise_multiplier·l2_clip² on each entry of the scaled triangle is one
    Gaussian release with this noise multiplier, in finite precision too (`exact`); undoing the √2 leaves 1/√2 of it
    off the diagonal. The sum of x moves by at most l2_clip. If both are told, each has √2 times as much noise: two
    releases of one draw, and the same event.
    """

    l2_clip: float
    noise_multiplier: float
    with_mean: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.l2_clip < np.inf:
            raise ValueError(f"l2_clip must be a positive finite number, not {self.l2_clip!r}")
        _ = self.event
        for clip in (self.l2_clip, self.l2_clip * self.l2_clip):
            check_sum_noise(clip, self._each)

    @property
    def event(self) -> Event:
        return Gaussian(self.noise_multiplier)

    @property
    def _each(self) -> float:
        return self.noise_multiplier * (sqrt(2) if self.with_mean else 1.0)

    def noise_of_square(self, n: int) -> float:
        """The standard deviation of the noise on a diagonal entry, a mean square; √2 times less off the diagonal."""
        return self._each * self.l2_clip**2 / n

    def release(
        self,
        rows: NDArray[np.floating],
        ledger: Ledger,
        what: str = "second moments",
        part: str = "train",
        streams: Streams | None = None,
    ) -> tuple[Array, Array]:
        """The mean of x (zeros if it is not told) and the mean of x·xᵀ over rows (n, d), charged before they are read.

        Rows are clipped to l2_clip; one with anything non-finite counts as zero. Divided by n, which is public.
        """
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(f"expected vectors (n, d) with something in them, not {rows.shape}")
        ledger.refuse_add_remove()
        memory.require(memory_of(rows.shape[1]), f"second moments of vectors of {rows.shape[1]:,} numbers", SHORTER)
        check_length(len(rows))
        streams = Streams.fresh() if streams is None else streams
        ledger.spend(self.event, what, part, seeded=streams.predictable)
        generator = streams.generator(Stream.NOISE)
        n, d = rows.shape
        square = self.l2_clip**2
        blocks = (whole_rows(rows[start : start + _BLOCK], self.l2_clip, GRAM_BITS) for start in range(0, n, _BLOCK))
        gram = gram_sum((block, block) for block in blocks)
        squares = noisy_gram(generator, gram, square * 2.0 ** (-2 * GRAM_BITS), self._each * square)
        if not self.with_mean:
            return np.zeros(d), squares / n
        total, unit = clipped_sum(rows, self.l2_clip)
        return noisy_sum(generator, total, unit, self._each * self.l2_clip) / n, squares / n
