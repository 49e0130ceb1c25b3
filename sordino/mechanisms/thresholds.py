"""Thresholds of the private moments from private quantiles: T&B take the medians of the norms, without any noise."""

from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Ledger, Pure, Repeated
from sordino.mechanisms.moments import ChannelMoments
from sordino.mechanisms.quantile import check_quantile, draw_quantile
from sordino.mechanisms.streams import Stream, Streams


@dataclass(frozen=True)
class ThresholdQuantiles:
    """Both clips of `ChannelMoments` as a quantile of the examples' norms, between public bounds, on a scale of ratios.

    Guarantee: two quantiles, each pure epsilon-DP. What the moments cost does not depend on them, only on
    noise_multiplier and sample_rate, so both events can be planned before anything is told.
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
        """How to tell the moments, from each example's means and mean squares over its places, (n, K).

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
        streams = Streams.fresh() if streams is None else streams
        if not paid:
            ledger.spend(self.event, what, part, seeded=streams.predictable, run=run)
        # One generator for both: the second quantile goes on where the first one stopped.
        generator = streams.generator(Stream.NOISE)
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
