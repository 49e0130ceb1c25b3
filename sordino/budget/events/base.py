"""What an event is: a pure description of what was done to private data, which knows its name, its words and its price.

Noise multipliers are relative to the sensitivity under zero-out (the clip): the standard deviation of the noise on the
SUM, divided by the most that one present record can add to it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.special import gammaln

from sordino.budget.losses import Losses

Array = NDArray[np.float64]
Adjacency = Literal["zero-out", "add-remove", "replace-one"]
ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)
NEIGHBOURS = {
    "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "add-remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# Connecting the dots needs exp(interval); above this the interval is coarse because ε is huge, and rounding up will do.
LARGEST_CONNECTED_INTERVAL = 100.0
_DEEPEST = 32
_MOST_REPETITIONS = 2**53


class UnsupportedEvent(ValueError):  # noqa: N818 (the name says what it is)
    """No sound price is known for this event under this adjacency."""


class Event:
    """Base class of all events: subclass it as a frozen dataclass, with the name that it has in JSON.

    A subclass gives its `words` and at least one of `rdp` (Rényi DP) and `losses` (privacy loss distribution; alone it
    needs `precision` too). An accountant refuses events without the method it needs; the ledger charges the smallest
    of the prices it can get. `adjacencies` are those under which all its prices hold: zero-out alone, unless it lists
    others. The fields are the JSON form: positive numbers, positive integers or events, unless `__post_init__` allows
    others. Import the module with the subclass before you open a ledger that holds such events:
    an unknown name is refused.

    >>> from dataclasses import dataclass
    >>> from sordino import events
    >>> from sordino.budget import cost
    >>> @dataclass(frozen=True)
    ... class ZeroConcentrated(events.Event, name="zero-concentrated"):
    ...     rho: float
    ...     words = "{rho:g}-zCDP"
    ...
    ...     def rdp(self, adjacency, orders):
    ...         return self.rho * orders
    >>> event = events.Repeated(ZeroConcentrated(0.01), 3)
    >>> events.from_json(events.to_json(event)) == event
    True
    >>> round(cost(event, 1e-5).epsilon, 2)
    0.99
    """

    json_name: ClassVar[str] = ""
    words: ClassVar[str] = ""
    """What the privacy statement calls it, with its fields in braces."""
    sampling: ClassVar[str] = ""
    """How it samples records, in the words of the privacy statement."""
    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero-out",)
    """Under which its prices hold."""
    depth = 0
    """How deep events are nested in this one."""

    def __init_subclass__(cls, name: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        known = _REGISTERED.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"there is another event named {name!r}, {known.__qualname__}: choose another name")
        cls.json_name = name  # never inherited: a subclass is another event, and has no name until it is given one
        if name:
            _REGISTERED[name] = cls

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in (int, "int"):
                check_whole(field.name, value, 1)
            elif field.type in (float, "float"):
                check_positive(field.name, value)

    def describe(self) -> str:
        """The event in a few words."""
        return self.words.format(**vars(self))

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raise UnsupportedEvent if no price is known under this adjacency."""
        if adjacency not in self.adjacencies:
            raise UnsupportedEvent(
                f"{type(self).__name__} is priced under {', '.join(self.adjacencies)} only, not under {adjacency}: use "
                "such a ledger, or list in its `adjacencies` what else its prices hold for"
            )

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        """An upper bound on the Rényi divergence at each order."""
        raise UnsupportedEvent(f"RDP does not know {type(self).__name__}")

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        """Pessimistic privacy losses of a record removed and of one added, on a grid of this interval.

        Return the same object twice if they are alike.
        """
        raise UnsupportedEvent(f"no privacy loss distribution is known for {type(self).__name__}")

    def as_gaussian(self) -> float | None:
        """The noise multiplier if this is a plain Gaussian release: those are merged exactly, as 1/σ² adds up."""
        return None

    def known_to_pld(self) -> bool:
        return self.as_gaussian() is not None or type(self).losses is not Event.losses

    def pure_epsilon(self, adjacency: Adjacency) -> Fraction | None:
        """Its ε if it is pure, whatever δ is."""
        return None

    # Rough figures from which grids and searches start; no price depends on their being right.

    def precision(self, adjacency: Adjacency, count: int) -> float:
        """1/σ² of the Gaussian release that so many of these resemble."""
        return count * float(self.rdp(adjacency, np.array([2.0]))[0])

    def loss_range(self) -> float:
        """How wide the privacy loss of one of these spreads."""
        precision = self.precision("zero-out", 1)
        return 20 * math.sqrt(precision) + precision

    def participation_variance(self, count: int) -> float:
        """What the chance of joining a sample adds to the variance of the loss of so many."""
        return 0.0

    # Structure; only compositions override it.

    def walk(self, count: int) -> Iterator[tuple["Event", int]]:
        """The elementary events inside so many repetitions of this one, with how often each happens."""
        yield self, count

    def samplings(self) -> set[str]:
        """How the events inside sample records."""
        return {self.sampling} if self.sampling else set()

    def exceptions(self) -> float:
        """The probability, at most, that any exception inside happens: the sum over all of them."""
        return 0.0

    def without_exceptions(self) -> "Event":
        return self


_REGISTERED: dict[str, type[Event]] = {}


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values; `from_json` returns an equal event."""
    check_events(event)
    return {"type": event.json_name} | {f.name: _value_to_json(getattr(event, f.name)) for f in fields(event)}  # type: ignore[arg-type]


def _value_to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [to_json(event) for event in value]
    if isinstance(value, Event):
        return to_json(value)
    return "infinity" if value == math.inf else value


def from_json(document: Any, depth: int = 0) -> Event:
    """Rebuild an event from `to_json`'s form; anything else raises ValueError."""
    if depth > _DEEPEST:
        raise ValueError(f"events are nested more than {_DEEPEST} deep")
    kind = document.get("type") if isinstance(document, Mapping) else None
    if not isinstance(kind, str) or kind not in _REGISTERED:
        raise ValueError(
            f"not a privacy event: its type is {kind[:40] if isinstance(kind, str) else type(kind).__name__}"
        )
    cls = _REGISTERED[kind]
    expected = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    given = set(document) - {"type"}
    if given != expected:
        raise ValueError(f"a {kind} event has the fields {sorted(expected)}, found {sorted(given)}")
    return cls(**{name: _value_from_json(document[name], depth + 1) for name in expected})


def _value_from_json(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return tuple(from_json(event, depth) for event in value)
    if isinstance(value, Mapping):
        return from_json(value, depth)
    return math.inf if value == "infinity" else value


def leaves(event: Event) -> dict[Event, int]:
    """The elementary events inside a composition with how often each happens, equal ones counted together.

    Exceptions are left out: price the leaves at `delta_besides_exceptions`.
    """
    counts: dict[Event, int] = {}
    for leaf, count in event.walk(1):
        if count:
            counts[leaf] = counts.get(leaf, 0) + count
    if any(count > _MOST_REPETITIONS for count in counts.values()):
        raise UnsupportedEvent("an event repeated more than 2^53 times: floating point no longer counts it exactly")
    return counts


def delta_besides_exceptions(event: Event, delta: float) -> float:
    """What is left of δ after the event's exceptions."""
    return delta_besides(event.exceptions(), delta)


def delta_besides(taken: float, delta: float) -> float:
    """What is left of δ after exceptions of this probability."""
    left = delta - taken * (1 + 1e-12)  # rounding is never in favour of a smaller price
    if left <= 0:
        raise UnsupportedEvent(
            f"the exceptions of this event have a probability of up to {taken:.3g} and δ is {delta:g}: no ε holds; "
            "choose a larger δ or rarer exceptions"
        )
    return left


def pure_sum(event: Event, adjacency: Adjacency) -> Fraction | None:
    """The sum of the ε of pure events, whatever δ is; None unless all of them are pure."""
    total = Fraction(0)
    for leaf, count in leaves(event).items():
        one = leaf.pure_epsilon(adjacency)
        if one is None:
            return None
        leaf.check_adjacency(adjacency)
        if one < 0:
            raise UnsupportedEvent(f"{type(leaf).__name__} gives a negative pure ε: correct its `pure_epsilon`")
        total += count * one
    return total


def event_rdp(event: Event, adjacency: Adjacency, orders: tuple[float, ...]) -> Array:
    """RDP of an event at each order, its exceptions aside; raises UnsupportedEvent where no bound is known."""
    total = np.zeros(len(orders))
    for leaf, count in leaves(event).items():
        total += count * _leaf_rdp(leaf, adjacency, orders)
    return total


@lru_cache(maxsize=4096)
def _leaf_rdp(leaf: Event, adjacency: Adjacency, orders: tuple[float, ...]) -> Array:
    leaf.check_adjacency(adjacency)
    alphas = np.array(orders)
    with np.errstate(all="ignore"):  # what overflows becomes inf or nan, and costs inf below
        values = leaf.rdp(adjacency, alphas)
    # The sums of binomials behind sampled events are rounded: never let a rounding error lower a price.
    rounding = 1e-13 * np.maximum(1, gammaln(alphas + 1)) / (alphas - 1)
    if np.any(values < -1e4 * rounding):
        raise UnsupportedEvent(f"{type(leaf).__name__} gives a negative Rényi divergence: correct its `rdp`")
    return np.asarray(np.where(np.isnan(values), np.inf, np.maximum(values, 0)) + rounding)


def library_rdp(event: dp_accounting.DpEvent, adjacency: Adjacency, orders: Array) -> Array:
    """RDP of one of dp_accounting's events."""
    accountant = RdpAccountant(tuple(map(float, orders)), NEIGHBOURS[adjacency]).compose(event)
    return np.asarray(accountant.rdp, dtype=np.float64)


def moved_by(adjacency: Adjacency) -> float:
    """How far one record moves a sum, in clips: a replaced record moves it by two."""
    return 2.0 if adjacency == "replace-one" else 1.0


# Checks


def check_events(*events: object) -> None:
    """Refuse what is not an event, or has no name in JSON: a ledger could not write it."""
    for event in events:
        if not isinstance(event, Event) or _REGISTERED.get(event.json_name) is not type(event):
            raise UnsupportedEvent(
                f"{type(event).__name__} is not a privacy event; use one of sordino.events, or define it with "
                "`class MyEvent(Event, name=…)`"
            )
        parameters = vars(type(event)).get("__dataclass_params__")
        if parameters is None or not parameters.frozen:
            raise UnsupportedEvent(
                f"{type(event).__name__} could change after it is priced: put @dataclass(frozen=True) before its class"
            )


def nest(outer: Event, *events: object) -> None:
    """Check what an event is made of; its depth is bounded, so that what a ledger writes can be read and walked."""
    check_events(*events)
    depth = 1 + max((event.depth for event in events if isinstance(event, Event)), default=0)
    if depth > _DEEPEST:
        raise UnsupportedEvent(f"events are nested more than {_DEEPEST} deep; list them side by side in one Composed")
    object.__setattr__(outer, "depth", depth)


def check_adjacency(adjacency: str) -> Adjacency:
    for known in ADJACENCIES:
        if adjacency == known:
            return known
    raise ValueError(f"unknown adjacency {adjacency!r}; use one of {', '.join(ADJACENCIES)}")


def check_fixed_order(adjacency: Adjacency) -> None:
    if adjacency == "add-remove":
        raise UnsupportedEvent(
            "batches of a fixed or shuffled order under add-remove: one record more moves every batch; "
            "use zero-out or replace-one"
        )


def refuse_add_remove(adjacency: str) -> None:
    """Called by everything that uses the number of records n: sample rate, steps, partitions, ridge, division by n.

    Under add-remove neighbouring datasets differ in n, so a plan or a mean made with it is not private at any ε.
    """
    if check_adjacency(adjacency) == "add-remove":
        raise ValueError("under add-remove the number of records is private: use a zero-out or replace-one ledger")


def check_delta(delta: float) -> float:
    if not (isinstance(delta, int | float) and 0 < delta < 1):
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}; well below 1/n is usual")
    return float(delta)


def check_positive(name: str, value: float) -> None:
    # bool is an int to Python, but True is never a noise multiplier.
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")
    # Squares of such numbers, a few million times over, stay far from the ends of floating point.
    if not 1e-30 <= value <= 1e30:
        raise ValueError(f"{name} must lie between 1e-30 and 1e30 to be priced, not {value!r}")


def check_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
