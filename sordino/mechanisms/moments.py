"""Private means and variances of features' channels (T&B Algorithm 2)."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger, PoissonGaussian
from sordino.mechanisms.exact import noisy_sum
from sordino.mechanisms.gaussian import check_length, check_sum_noise, clipped_sum
from sordino.mechanisms.streams import Stream, Streams


@dataclass(frozen=True)
class ChannelMoments:
    """How the channels' means and mean squares are told: each example's are clipped to public norms, and summed.

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
        """The standard deviation of the noise on a channel's mean square: a variance below it tells nothing."""
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
        streams = Streams.fresh() if streams is None else streams
        if not paid:
            ledger.spend(self.event, what, part, seeded=streams.predictable, run=run)
        if self.sample_rate < 1:
            joins = streams.generator(Stream.SAMPLING).random(len(means)) < self.sample_rate
            means, squares, n = means[joins], squares[joins], self.sample_rate * len(means)
        else:
            n = float(len(means))
        generator = streams.generator(Stream.NOISE)
        told = []
        for rows, clip in ((means, self.mean_clip), (squares, self.square_clip)):
            total, unit = clipped_sum(rows, clip)
            told.append(noisy_sum(generator, total, unit, self.noise_multiplier * clip) / n)
        mean, square = told
        return mean, square - mean**2
