"""Which records a step reads. A sampler draws them and knows the privacy event of its draw, so the two cannot differ.

Steps draw from keyed streams: asking again for a step gives the same records again.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from sordino.budget import Event, FixedSizeGaussian, Gaussian, PoissonGaussian, ShuffledGaussian
from sordino.mechanisms import Stream, Streams

Indices = NDArray[np.int64]
_OFTEN = 0.01
"""Of all draws: more of them than this left empty would waste the budget."""
_SPARSE = 0.1
"""Up to this rate it is faster to draw the distances between those who join than a coin for everyone."""


class Sampler(Protocol):
    """What a plan needs: sizes that are public, a draw, and the event that prices it."""

    @property
    def n(self) -> int: ...

    @property
    def expected_batch_size(self) -> int: ...

    @property
    def sample_rate(self) -> float: ...

    def draw(self, streams: Streams, step: int) -> Indices: ...

    def event(self, noise_multiplier: float) -> Event: ...

    def claimed(self, noise_multiplier: float) -> Event | None: ...

    @property
    def memoryless(self) -> bool: ...


@dataclass(frozen=True)
class _Sizes:
    n: int
    expected_batch_size: int

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 1:
            raise ValueError(f"there must be at least one record to sample from, not n={self.n!r}")
        if type(self.expected_batch_size) is not int or not 1 <= self.expected_batch_size <= self.n:
            raise ValueError(
                f"the batch size must be a whole number from 1 to n={self.n}, not {self.expected_batch_size!r}"
            )

    @property
    def sample_rate(self) -> float:
        return self.expected_batch_size / self.n

    @property
    def memoryless(self) -> bool:
        """Whether a step's price holds whatever key the steps before it were drawn under."""
        return True

    def claimed(self, noise_multiplier: float) -> Event | None:
        """What others would charge for this sampler without proof; None where there is no such claim."""
        return None


@dataclass(frozen=True)
class PoissonSampler(_Sizes):
    """Each record joins each step on its own with probability sample_rate; a batch may be empty.

    With `most`, no batch is larger, for compilers and accelerators that want one shape: a draw of more records is left
    empty. `most_for` says how many to allow.

    Guarantee: the event of Poisson sampling without a limit, at no further cost, under every adjacency that leaves n
    alone. Fix what the others draw. If they are fewer than `most`, the record joins with probability sample_rate, as
    without a limit. Otherwise it never does: with `most` others the step holds them alone or nobody, with more it holds
    nobody. So given who else is in the step, the record is there with probability sample_rate or less, and mixing less
    of it in cannot tell more (joint convexity). Cutting a large draw down to `most` has no such proof: there a record
    that joins drives another one out.
    """

    most: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most is None:
            return
        if type(self.most) is not int or self.most < 1:
            raise ValueError(f"the largest batch must be a whole number of at least 1, not {self.most!r}")
        if self.most < self.n and binom.sf(self.most, self.n, self.sample_rate) > _OFTEN:
            least = self.most_for(_OFTEN)
            raise ValueError(
                f"more than one draw in a hundred would be larger than most={self.most:,} and be left empty: allow "
                f"{least:,} or more"
            )

    def most_for(self, probability: float) -> int:
        """The least `most` that a draw exceeds with no more than this probability."""
        if not 0 < probability < 1:
            raise ValueError(f"a probability lies between 0 and 1, not {probability!r}")
        return min(self.n, max(1, int(binom.isf(probability, self.n, self.sample_rate))))

    def draw(self, streams: Streams, step: int) -> Indices:
        drawn = self._drawn(streams, step)
        return drawn if self.most is None or len(drawn) <= self.most else drawn[:0]

    def _drawn(self, streams: Streams, step: int) -> Indices:
        generator = streams.generator(Stream.SAMPLING, step)
        if self.sample_rate > _SPARSE:
            return np.flatnonzero(generator.random(self.n) < self.sample_rate)
        # The distances between independent successes are independent and geometric: the same law as a coin for each
        # record, by as many numbers as records join. NumPy rounds an exponential up for them, in double precision.
        most = self.expected_batch_size + 6 * math.isqrt(self.expected_batch_size) + 16
        places = [np.array([-1])]
        while places[-1][-1] < self.n - 1:
            distances = np.minimum(generator.geometric(self.sample_rate, most), self.n + 1)  # beyond the end is beyond
            places.append(places[-1][-1] + np.cumsum(distances))
        drawn = np.concatenate(places[1:])
        return drawn[: np.searchsorted(drawn, self.n)]

    def event(self, noise_multiplier: float) -> Event:
        return PoissonGaussian(self.sample_rate, noise_multiplier)


@dataclass(frozen=True)
class FullBatchSampler(_Sizes):
    """Every step reads every record."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected_batch_size != self.n:
            raise ValueError(f"a full batch has n={self.n} records, not {self.expected_batch_size}")

    def draw(self, streams: Streams, step: int) -> Indices:
        return np.arange(self.n)

    def event(self, noise_multiplier: float) -> Event:
        return Gaussian(noise_multiplier)


@dataclass(frozen=True)
class ShuffledSampler(_Sizes):
    """Epochs in a fresh random order, cut into batches; the last batch of an epoch may be smaller.

    Charged without amplification: one participation an epoch. Accounting it as Poisson, as is common, is a claim.
    """

    @property
    def memoryless(self) -> bool:
        return False  # a new order in the middle of an epoch would let a record take part in it twice

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.n / self.expected_batch_size)

    def draw(self, streams: Streams, step: int) -> Indices:
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.expected_batch_size
        return np.sort(_permutation(streams, self.n, epoch)[start : start + self.expected_batch_size])

    def event(self, noise_multiplier: float) -> Event:
        return ShuffledGaussian(self.steps_per_epoch, noise_multiplier)

    def claimed(self, noise_multiplier: float) -> Event | None:
        return PoissonGaussian(self.sample_rate, noise_multiplier)


@dataclass(frozen=True)
class FixedSizeSampler(_Sizes):
    """Exactly expected_batch_size records each step, without replacement: for replace-one ledgers."""

    def draw(self, streams: Streams, step: int) -> Indices:
        generator = streams.generator(Stream.SAMPLING, step)
        return np.sort(generator.choice(self.n, self.expected_batch_size, replace=False, shuffle=False))

    def event(self, noise_multiplier: float) -> Event:
        return FixedSizeGaussian(self.n, self.expected_batch_size, noise_multiplier)


_SAMPLERS: dict[str, type[PoissonSampler | FullBatchSampler | ShuffledSampler | FixedSizeSampler]] = {
    "poisson": PoissonSampler,
    "full-batch": FullBatchSampler,
    "shuffled": ShuffledSampler,
    "fixed-size": FixedSizeSampler,
}


def sampler_to_json(sampler: Sampler) -> dict[str, Any]:
    """The sampler as plain JSON values."""
    name = next(name for name, cls in _SAMPLERS.items() if type(sampler) is cls)
    most = getattr(sampler, "most", None)
    document = {"sampler": name, "n": sampler.n, "expected_batch_size": sampler.expected_batch_size}
    return document if most is None else document | {"most": most}


def sampler_from_json(document: dict[str, Any]) -> Sampler:
    most = {"most": document["most"]} if "most" in document else {}
    return _SAMPLERS[document["sampler"]](document["n"], document["expected_batch_size"], **most)


@lru_cache(maxsize=2)
def _permutation(streams: Streams, n: int, epoch: int) -> Indices:
    # Kept for the epoch; shuffling a million records anew at every step would dominate small steps.
    return streams.generator(Stream.SAMPLING, epoch).permutation(n)
