"""What seeds show: means with their 95 % intervals, and verdicts that follow from the intervals alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

from sordino.papers.records import Series
from sordino.selection import crossover

LEVEL = 0.95
_ROUNDING = 1e-9
"""The mean of equal scores may round above them; no two different scores are so close."""
_SHOWS = {None: "one seed cannot tell", True: "the phenomenon shows", False: "it does not show in full"}


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval by Student's t; a single seed has none."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        if len(values) < 2:
            return cls(mean(values), None)
        return cls(mean(values), float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values)))

    @classmethod
    def of_scores(cls, results: Sequence[Mapping[str, Any]]) -> "Interval":
        return cls.of([result["score"] for result in results])

    def percent(self) -> str:
        return f"{100 * self.mean:.2f}" + ("" if self.half is None else f" ± {100 * self.half:.2f}")

    def plain(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.half is None else f" ± {self.half:.4f}")

    def above(self, other: "Interval") -> bool | None:
        """Whether it lies above the other without overlap; None where there is no interval."""
        if self.half is None or other.half is None:
            return None
        return self.mean - self.half > other.mean + other.half

    def exceeds(self, value: float) -> bool:
        """Whether all of it (the mean, if there is one seed) lies above the value."""
        return self.mean - (self.half or 0.0) > value + _ROUNDING

    def beside(self, other: "Interval") -> str:
        """Whether the two overlap, in words."""
        either = self.above(other), other.above(self)
        return "no interval" if None in either else f"intervals {'' if any(either) else 'not '}apart"

    def ahead_of(self, other: "Interval") -> str:
        """The difference in points, and whether the intervals overlap."""
        return f"{100 * (self.mean - other.mean):+.2f} points ({self.beside(other)})"

    def better_than(self, other: "Interval", name: str = "") -> str:
        """The difference without a sign: so many points better or worse."""
        gap = 100 * (self.mean - other.mean)
        than = f" than {name}" if name else ""
        return f"{abs(gap):.2f} points {'better' if gap > 0 else 'worse'}{than} ({self.beside(other)})"

    def sign(self) -> str:
        """What the interval of a difference says."""
        if self.half is None:
            return "one split has no interval"
        if self.mean - self.half > 0:
            return "above 0"
        return "below 0" if self.mean + self.half < 0 else "not apart from 0"


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Of two things measured on the same splits, split by split."""
    return Interval.of([a - b for a, b in zip(first, second, strict=True)])


@dataclass(frozen=True)
class Comparison:
    """A complex network and a simple one, each with noise and without."""

    name: str
    complex_private: Interval
    simple_private: Interval
    complex_plain: Interval
    simple_plain: Interval

    @property
    def shows(self) -> bool | None:
        """Whether the simple one wins with noise and the complex one without, both beyond their intervals."""
        parts = (self.simple_private.above(self.complex_private), self.complex_plain.above(self.simple_plain))
        return None if None in parts else all(parts)

    def words(self, simple: str = "the simple network is better", complex_: str = "the complex one") -> str:
        private = 100 * (self.simple_private.mean - self.complex_private.mean)
        plain = 100 * (self.complex_plain.mean - self.simple_plain.mean)
        return (
            f"{self.name}: {simple} by {private:+.2f} points under noise "
            f"({self.simple_private.beside(self.complex_private)}), {complex_} by {plain:+.2f} without "
            f"({self.complex_plain.beside(self.simple_plain)}): {_SHOWS[self.shows]}"
        )


def phenomenon(noisy: Mapping[int, Sequence[float]], plain: Mapping[int, Sequence[float]]) -> str:
    """The same of features, of accuracies by their number: do fewer win with noise, and all of them without?"""
    every = max(plain)
    best = best_size({size: values for size, values in noisy.items() if size != every})
    fewer, more = difference(noisy[best], noisy[every]), difference(plain[every], plain[best])
    shows = fewer.sign() == more.sign() == "above 0"
    return (
        f"the best subset ({best} features, read off the test records) is ahead of all {every} by {fewer.percent()} "
        f"points with noise ({fewer.sign()}), all are ahead of it by {more.percent()} without ({more.sign()}): "
        f"{_SHOWS[shows]}"
    )


def best_size(curve: Mapping[int, Sequence[float]]) -> int:
    """The number of features with the highest mean; of equals the fewest."""
    return max(curve, key=lambda size: (mean(curve[size]), -size))


Scored = dict[float, list[float]]
"""The scores of every seed at each ε."""


def crossing(simple: Scored, complex_: Scored, names: tuple[str, str] = ("the simple network", "the complex")) -> str:
    """The crossover of Definition 2 with its interval, and what that interval shows."""
    budgets = sorted(simple)
    if min(len(values) for scored in (simple, complex_) for values in scored.values()) < 2:
        return "one seed has no interval"
    found = crossover(budgets, [simple[e] for e in budgets], [complex_[e] for e in budgets], LEVEL)
    if found.low == inf:
        shown = f"{names[0]} is ahead even at ε={budgets[-1]:g}"
    elif found.high == 0:
        shown = f"{names[1]} is ahead from ε={budgets[0]:g} on"
    else:
        ahead, overtaken = ("shows" if each else "does not show" for each in (found.low > 0, found.high < inf))
        shown = f"that {names[0]} is ahead below it {ahead}, that {names[1]} overtakes {overtaken}"
    at, low, high = ("∞" if e == inf else f"{e:.2g}" for e in (found.epsilon, found.low, found.high))
    more = f"; the means cross {found.crossings} times, and this is the last" if found.crossings > 1 else ""
    return f"crossover at ε of {at} ({LEVEL:.0%} interval {low} to {high}): {shown}{more}"


def line(label: str, points: Sequence[tuple[float, Interval]], panel: str = "", scale: float = 100) -> Series:
    """A line of a figure with its intervals."""
    return Series(
        label,
        [x for x, _ in points],
        [scale * found.mean for _, found in points],
        panel,
        [scale * (found.half or 0.0) for _, found in points],
    )
