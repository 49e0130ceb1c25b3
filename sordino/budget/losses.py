"""Privacy losses on a grid, composed by FFT: dp_accounting's arithmetic on whole arrays, on a grid that may be shifted.

Under sampling nearly all of the probability lies at one loss, log(1 − q). A grid of multiples of its interval misses
it, and every step then rounds it up; a grid shifted onto it does not, and may be far coarser.
"""

import math
import sys
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import fftconvolve

Array = NDArray[np.float64]

# What a convolution may leave out at its two ends together; it counts as infinite loss.
_TRUNCATED = 1e-15
_LARGEST_EXPONENT = 600.0


class TooLong(ValueError):  # noqa: N818
    """A composition with more points than were allowed."""


@dataclass(frozen=True)
class Losses:
    """The loss is offset + interval·(lowest + i) with probability probabilities[i], else infinite.

    Guarantee: what is built of pessimistic distributions is pessimistic: δ(ε) is never below that of what they bound,
    but for the rounding of the FFT, for which `pld` sets a part of δ aside.
    """

    interval: float
    lowest: int
    probabilities: Array
    infinite: float
    offset: float = 0.0

    @property
    def size(self) -> int:
        return len(self.probabilities)

    def then(self, other: "Losses") -> "Losses":
        """The sum of two independent losses on grids of the same interval."""
        assert self.interval == other.interval
        return Losses(
            self.interval,
            self.lowest + other.lowest,
            np.maximum(fftconvolve(self.probabilities, other.probabilities), 0),
            self.infinite + other.infinite - self.infinite * other.infinite,
            self.offset + other.offset,
        )

    def repeated(self, count: int, most_points: int) -> "Losses":
        """The sum of so many independent losses; raises TooLong where it would need more points than these."""
        if count == 1:
            return self
        first, last = _bounds(self.probabilities, count)
        points = last - first + 1
        if points > most_points:
            raise TooLong(f"{points} points")
        length = next_fast_len(points, real=True)
        # What lies outside of first…last, at most _TRUNCATED, is folded into it and counts as infinite as well.
        power = rfft(_folded(self.probabilities, length), length) ** count
        found = np.roll(irfft(power, length), -(first % length))[:points]
        return Losses(
            self.interval,
            self.lowest * count + first,
            np.maximum(found, 0),
            _TRUNCATED - math.expm1(count * math.log1p(-self.infinite)),
            self.offset * count,
        )

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at ε: the infinite part and E[1 − e^(ε − loss)] where the loss exceeds ε."""
        start = min(max(math.floor((epsilon - self.offset) / self.interval) - self.lowest, 0), self.size)
        losses = self.offset + self.interval * (self.lowest + np.arange(start, self.size))
        shares = -np.expm1(np.minimum(epsilon - losses, 0))
        return self.infinite + float(np.dot(shares, self.probabilities[start:]))

    def epsilon(self, delta: float) -> float:
        """The smallest ε from 0 on with δ(ε) at most delta; inf where there is none."""
        if self.infinite > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        # Between two losses δ(ε) is a constant less a multiple of e^ε: find these two, then solve.
        low, high = 0, self.size - 1  # δ at the last loss is what is infinite
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.delta(self._loss(middle)) <= delta else (middle + 1, high)
        top = self._loss(high)
        above = self.probabilities[high:]
        weights = np.exp(-self.interval * np.arange(len(above)))
        lower, upper = float(np.dot(weights, above)), self.infinite + float(above.sum())
        found = top if lower <= 0 else min(top, top + math.log(max(upper - delta, 1e-300) / lower))
        return max(0.0, found + 8 * sys.float_info.epsilon * (abs(self.offset) + abs(top)))

    def _loss(self, place: int) -> float:
        return self.offset + self.interval * (self.lowest + place)


def connected(interval: float, lowest: int, deltas: Array, offset: float = 0.0) -> Losses:
    """The distribution whose δ(ε) connects these at offset + interval·(lowest + i) by straight lines in e^ε.

    Algorithm 1 of Doroshenko et al. 2022 (Connect the Dots): δ is convex in e^ε, so that chords lie above it.
    """
    deltas = np.minimum.accumulate(np.clip(deltas, 0, 1))
    slopes = np.diff(deltas) / math.expm1(interval)
    probabilities = np.empty_like(deltas)
    probabilities[0] = 1 - deltas[0] + slopes[0]
    probabilities[1:-1] = slopes[1:] - slopes[:-1] * math.exp(interval)
    probabilities[-1] = -slopes[-1] * math.exp(interval)
    return Losses(interval, lowest, np.maximum(probabilities, 0), float(deltas[-1]), offset)


def library_losses(found: PrivacyLossDistribution) -> tuple[Losses, Losses]:
    """The losses of a record removed and of one added, from dp_accounting; the same object where they are alike."""
    remove = _of_pmf(found._pmf_remove)
    return remove, remove if found._symmetric else _of_pmf(found._pmf_add)


def _of_pmf(pmf: PLDPmf) -> Losses:
    dense = pmf.to_dense_pmf()
    return Losses(dense._discretization, dense._lower_loss, np.asarray(dense._probs), float(dense._infinity_mass))


def _bounds(probabilities: Array, count: int) -> tuple[int, int]:
    """First and last place of the sum of count draws, but for a probability of _TRUNCATED in all (Chernoff)."""
    places = np.arange(len(probabilities), dtype=np.float64)
    mass = float(probabilities.sum())
    mean = float(np.dot(places, probabilities)) / mass
    centred = places - mean
    variance = float(np.dot(centred**2, probabilities)) / mass
    needed = math.log(2 / _TRUNCATED)
    scale = math.sqrt(2 * needed / (count * max(variance, 1e-300)))
    slopes = {min(scale * 2.0**-halvings, _LARGEST_EXPONENT / len(places)) for halvings in range(-2, 7)}
    ends = []
    for side, most in ((centred, len(places) - 1 - mean), (-centred, mean)):
        cumulants = [(slope, math.log(float(np.dot(np.exp(slope * side), probabilities)))) for slope in slopes]
        ends.append(min(count * most, *((count * cumulant + needed) / slope for slope, cumulant in cumulants)))
    above, below = ends
    last = min(math.ceil(count * mean + above) + 1, (len(places) - 1) * count)
    return max(math.floor(count * mean - below) - 1, 0), last


def _folded(values: Array, length: int) -> Array:
    """Values at places counted modulo a length: the transform at that many frequencies is the same."""
    if len(values) <= length:
        return values
    padded = np.pad(values, (0, -len(values) % length))
    return np.asarray(padded.reshape(-1, length).sum(axis=0))
