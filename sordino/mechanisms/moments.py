"""Private moments of features: means and variances of channels (T&B Algorithm 2) and second moments of vectors."""

from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger, PoissonGaussian, Pure, Repeated
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
from sordino.mechanisms.quantile import check_quantile, draw_quantile
from sordino.mechanisms.streams import Stream, Streams, charge

Array = NDArray[np.float64]
_BLOCK = 4096
SHORTER = "project the vectors to fewer numbers by public directions first, or take other features"


@dataclass(frozen=True)
class ChannelMoments:
    """How the channels' means and mean squares are released: each example's are clipped to public norms, and summed.

    Guarantee: two sums over one draw, of vectors of norm at most mean_clip and square_clip, each with Gaussian noise of
    noise_multiplier times its clip: one Gaussian release with noise_multiplier/√2, over all records or, with a
    sample_rate below 1, over a secret Poisson sample; in finite precision too (`exact`). They are divided by the
    public expected number of records.
    """

    mean_clip: float
    square_clip: float
    noise_multiplier: float = 8.0
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mean_clip", "square_clip"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be a positive finite number, not {getattr(self, name)!r}")
        _ = self.event
        for clip in (self.mean_clip, self.square_clip):
            check_sum_noise(clip, self.noise_multiplier)

    @property
    def event(self) -> Event:
        together = self.noise_multiplier / sqrt(2)
        return Gaussian(together) if self.sample_rate == 1 else PoissonGaussian(self.sample_rate, together)

    def noise_of_mean_square(self, n: int) -> float:
        """The standard deviation of the noise on a channel's mean square: a variance below it means nothing."""
        return self.noise_multiplier * self.square_clip / (self.sample_rate * n)

    def release(
        self,
        means: NDArray[np.floating],
        squares: NDArray[np.floating],
        ledger: Ledger,
        what: str = "normalisation",
        part: str = "train",
        streams: Streams | None = None,
        run: str = "",
        paid: bool = False,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of each channel, from each example's means and mean squares over its places, (n, K).

        Charged before they are summed. Streams that are given must be used for nothing else. `run` names
        the run in the ledger. `paid` repeats a release that was charged and lost: only with the same streams and the
        same arrays, so that it shows nothing new.
        """
        if means.ndim != 2 or means.shape != squares.shape:
            raise ValueError(f"expected two arrays (n, channels), not {means.shape} and {squares.shape}")
        ledger.refuse_add_remove()
        check_length(len(means))
        streams = charge(ledger, self.event, what, part, streams, run=run, paid=paid)
        if self.sample_rate < 1:
            joins = streams.generator(Stream.SAMPLING).random(len(means)) < self.sample_rate
            means, squares, n = means[joins], squares[joins], self.sample_rate * len(means)
        else:
            n = float(len(means))
        generator = streams.generator(Stream.NOISE)
        released = []
        for rows, clip in ((means, self.mean_clip), (squares, self.square_clip)):
            total, unit = clipped_sum(rows, clip)
            released.append(noisy_sum(generator, total, unit, self.noise_multiplier * clip) / n)
        mean, square = released
        return mean, square - mean**2


@dataclass(frozen=True)
class ThresholdQuantiles:
    """Both clips of `ChannelMoments` as a quantile of the examples' norms, between public bounds, on a log scale.

    T&B take the medians, without any noise.

    Guarantee: two quantiles, each pure epsilon-DP. What the moments cost does not depend on them, only on
    noise_multiplier and sample_rate, so both events can be planned before anything is released.
    """

    mean_bounds: tuple[float, float]
    square_bounds: tuple[float, float]
    epsilon: float
    quantile: float = 0.5
    noise_multiplier: float = 8.0
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mean_bounds", "square_bounds"):
            low, high = getattr(self, name)
            if not 0 < low < high < np.inf:
                raise ValueError(f"{name} must be two positive finite numbers, the lower one first, not {(low, high)}")
            check_quantile(self.quantile, (log(low), log(high)), self.epsilon)
        _ = self.event, [self.moments_with(*clips) for clips in zip(self.mean_bounds, self.square_bounds, strict=True)]

    @property
    def event(self) -> Event:
        """What the thresholds cost; the moments' own event comes on top."""
        return Repeated(Pure(self.epsilon), 2)

    @property
    def moments_event(self) -> Event:
        """What the moments will cost, whatever the thresholds turn out to be."""
        return self.moments_with(1.0, 1.0).event

    def moments_with(self, mean_clip: float, square_clip: float) -> ChannelMoments:
        return ChannelMoments(mean_clip, square_clip, self.noise_multiplier, self.sample_rate)

    def release(
        self,
        means: NDArray[np.floating],
        squares: NDArray[np.floating],
        ledger: Ledger,
        what: str = "thresholds of the normalisation",
        part: str = "train",
        streams: Streams | None = None,
        run: str = "",
        paid: bool = False,
    ) -> ChannelMoments:
        """How to release the moments, from each example's means and mean squares over its places, (n, K).

        Charged before they are read. An example with anything non-finite counts in no rank, as it adds nothing to the
        moments. Streams that are given must be used for nothing else: not for the moments either. `run` names
        the run in the ledger. `paid` repeats a release that was charged and lost: only with the same streams and the
        same arrays, so that it shows nothing new.
        """
        if means.ndim != 2 or means.shape != squares.shape:
            raise ValueError(f"expected two arrays (n, channels), not {means.shape} and {squares.shape}")
        ledger.refuse_add_remove()  # the moments would refuse it once the thresholds are paid for
        if len(means) == 0:
            raise ValueError("thresholds need at least one record")
        # One generator for both: the second quantile continues where the first one stopped.
        generator = charge(ledger, self.event, what, part, streams, run=run, paid=paid).generator(Stream.NOISE)
        clips = []
        for rows, (low, high) in ((means, self.mean_bounds), (squares, self.square_bounds)):
            scale = (log(low), log(high))
            found = draw_quantile(
                _log_norms(rows), self.quantile, scale, self.epsilon, ledger.terms.adjacency, generator
            )
            clips.append(exp(found))
        return self.moments_with(*clips)


def _log_norms(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of each row the logarithm of its norm: −∞ for nothing, ∞ for what overflows, NaN for what is not finite."""
    with np.errstate(divide="ignore", over="ignore"):
        norms = np.log(np.linalg.norm(rows.astype(np.float64), axis=1))
    return np.where(np.isfinite(rows).all(axis=1), norms, np.nan)


def memory_of(width: int) -> float:
    """The most bytes that second moments of vectors of this width take, and then their eigenvectors."""
    return 8.0 * width * (8 * width + 6 * _BLOCK)


@dataclass(frozen=True)
class SecondMoments:
    """How the mean of x·xᵀ over vectors x of norm at most l2_clip is released, with `with_mean` that of x as well.

    Guarantee: a record adds x·xᵀ, which is symmetric: its upper triangle determines it, and with the entries off the
    diagonal multiplied by √2 that triangle has the norm √(Σxᵢ⁴ + 2·Σᵢ﹤ⱼ xᵢ²xⱼ²) = ‖x‖² ≤ l2_clip², which a record
    zeroed out moves it by at most. Noise of noise_multiplier·l2_clip² on each entry of the scaled triangle is one
    Gaussian release with this noise multiplier, in finite precision too (`exact`); undoing the √2 leaves 1/√2 of it
    off the diagonal. The sum of x moves by at most l2_clip. If both are released, each has √2 times as much noise: two
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

    def release(
        self,
        rows: NDArray[np.floating],
        ledger: Ledger,
        what: str = "second moments",
        part: str = "train",
        streams: Streams | None = None,
    ) -> tuple[Array, Array]:
        """The mean of x (zeros if it is not released) and the mean of x·xᵀ over rows (n, d).

        Charged before they are read. Rows are clipped to l2_clip; one with anything non-finite counts as zero. Divided
        by n, which is public.
        """
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(f"expected vectors (n, d) with something in them, not {rows.shape}")
        ledger.refuse_add_remove()
        memory.require(memory_of(rows.shape[1]), f"second moments of vectors of {rows.shape[1]:,} numbers", SHORTER)
        check_length(len(rows))
        generator = charge(ledger, self.event, what, part, streams).generator(Stream.NOISE)
        n, d = rows.shape
        square = self.l2_clip**2
        blocks = (whole_rows(rows[start : start + _BLOCK], self.l2_clip, GRAM_BITS) for start in range(0, n, _BLOCK))
        gram = gram_sum((block, block) for block in blocks)
        squares = noisy_gram(generator, gram, square * 2.0 ** (-2 * GRAM_BITS), self._each * square)
        if not self.with_mean:
            return np.zeros(d), squares / n
        total, unit = clipped_sum(rows, self.l2_clip)
        return noisy_sum(generator, total, unit, self._each * self.l2_clip) / n, squares / n
