"""Events made of events: several, the same one repeated, the best of several, all but an exception; and none at all."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import dp_accounting
import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select

from sordino.budget.events.base import (
    ADJACENCIES,
    Adjacency,
    Array,
    Event,
    UnsupportedEvent,
    check_positive,
    check_whole,
    event_rdp,
    library_rdp,
    nest,
    pure_sum,
)
from sordino.budget.losses import Losses


@dataclass(frozen=True)
class Repeated(Event, name="repeated"):
    """The same event, count times, each with fresh randomness (adaptively chosen data is fine)."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        nest(self, self.event)
        check_whole("count", self.count, 0)

    def describe(self) -> str:
        return f"{self.count:,} × ({self.event.describe()})"

    def walk(self, count: int) -> Iterator[tuple[Event, int]]:
        return _times(count, self.event.walk(self.count))

    def samplings(self) -> set[str]:
        return self.event.samplings()

    def exceptions(self) -> float:
        return self.event.exceptions() * min(self.count, 10**300) if self.count else 0.0

    def without_exceptions(self) -> Event:
        return replace(self, event=self.event.without_exceptions())


@dataclass(frozen=True)
class Composed(Event, name="composed"):
    """Several events, one after the other."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple | list):
            raise UnsupportedEvent(f"Composed takes a tuple of events, not {type(self.events).__name__}")
        object.__setattr__(self, "events", tuple(self.events))
        nest(self, *self.events)

    def describe(self) -> str:
        return "; ".join(part.describe() for part in self.events) or "nothing"

    def walk(self, count: int) -> Iterator[tuple[Event, int]]:
        for part in self.events:
            yield from _times(count, part.walk(1))

    def samplings(self) -> set[str]:
        return set().union(*(part.samplings() for part in self.events))

    def exceptions(self) -> float:
        return math.fsum(part.exceptions() for part in self.events)

    def without_exceptions(self) -> Event:
        return Composed(tuple(part.without_exceptions() for part in self.events))


@dataclass(frozen=True)
class RepeatAndSelect(Event, name="repeat-and-select"):
    """The best of a random number of runs of one event; the other runs stay secret (Papernot & Steinke 2021).

    The number of runs has this mean and a truncated negative binomial law of this shape: 1 is geometric, 0
    logarithmic, infinity Poisson. Score and training together are the event.
    """

    event: Event
    mean: float
    shape: float = 1.0
    adjacencies = ADJACENCIES  # those of the event, which are checked when it is priced

    def __post_init__(self) -> None:
        nest(self, self.event)
        check_positive("mean", self.mean)
        if self.mean < 1:
            raise ValueError(f"the mean number of runs must be at least 1, not {self.mean!r}")
        if isinstance(self.shape, bool) or not isinstance(self.shape, int | float) or not self.shape >= 0:
            raise ValueError(f"shape must be a number from 0 to infinity, not {self.shape!r}")

    def describe(self) -> str:
        law = f"mean {self.mean:g}, shape {self.shape:g}"
        return f"best of a random number of runs ({law}) of ({self.event.describe()})"

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        # Its formula turns a rounding error into a small δ̂, so the runs are priced with their rounding already.
        one = event_rdp(self.event, adjacency, tuple(map(float, orders)))
        return np.asarray(_compute_rdp_repeat_and_select(orders, one, self.mean, self.shape))

    def pure_epsilon(self, adjacency: Adjacency) -> Fraction | None:
        """2 + shape times that of one run (Theorem 2 at infinite orders); a Poisson number has no pure bound."""
        one = pure_sum(self.event, adjacency) if self.shape < math.inf else None
        return None if one is None else (2 + Fraction(self.shape)) * one

    def walk(self, count: int) -> Iterator[tuple[Event, int]]:
        yield self.without_exceptions(), count

    def samplings(self) -> set[str]:
        return self.event.samplings()

    def exceptions(self) -> float:
        # Wald: so many in expectation. Given that none happens, the number of runs has a law of the same family with a
        # smaller mean (each run more is less likely by the same factor), which costs less.
        return self.mean * self.event.exceptions()

    def without_exceptions(self) -> Event:
        return replace(self, event=self.event.without_exceptions())


@dataclass(frozen=True)
class Except(Event, name="except"):
    """This event, unless something happens inside the mechanism that has at most this probability.

    The exception must be as likely on neighbouring datasets, and without it the mechanism must be the event: then
    δ(ε) is at most the event's δ(ε) plus the probability. Where several are composed, the probabilities add up.
    """

    event: Event
    probability: float

    def __post_init__(self) -> None:
        nest(self, self.event)
        check_positive("probability", self.probability)
        if self.probability >= 1:
            raise ValueError(f"the probability of an exception must lie below 1, found {self.probability!r}")

    def describe(self) -> str:
        return f"{self.event.describe()}, except with probability {self.probability:.3g}"

    def walk(self, count: int) -> Iterator[tuple[Event, int]]:
        return _times(count, self.event.walk(1))

    def samplings(self) -> set[str]:
        return set()  # the bound on a whole run no longer shows how it sampled; what is claimed for its steps does

    def exceptions(self) -> float:
        return self.probability + self.event.exceptions()

    def without_exceptions(self) -> Event:
        return Composed((self.event.without_exceptions(),))  # shuffled steps still count one by one


@dataclass(frozen=True)
class NonPrivate(Event, name="non-private"):
    """Something without any guarantee: ε = ∞."""

    words = "not private"
    adjacencies = ADJACENCIES

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        return library_rdp(dp_accounting.NonPrivateDpEvent(), adjacency, orders)

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        alike = Losses(interval, 0, np.zeros(1), infinite=1.0)
        return alike, alike


def composed(events: Iterable[Event]) -> Event:
    """Several events as one, without a needless wrapper."""
    events = tuple(events)
    return events[0] if len(events) == 1 else Composed(events)


def _times(count: int, found: Iterable[tuple[Event, int]]) -> Iterator[tuple[Event, int]]:
    for leaf, each in found:
        yield leaf, count * each
