"""What a ledger holds: its terms, plan and entries, their form in a file, and sums over them."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from sordino.budget import rdp
from sordino.budget.accountant import pure_epsilon, rounded_up
from sordino.budget.calibration import check_target
from sordino.budget.events import Adjacency, Event, Repeated, UnsupportedEvent, from_json, to_json
from sordino.budget.events.base import check_adjacency, check_delta, delta_besides
from sordino.budget.ledger_file import LedgerError


class Planned(NamedTuple):
    """An event announced before the first output."""

    event: Event
    what: str
    part: str = "train"

    def normal(self) -> "Planned":
        """A single event written as one repetition, so that equal announcements compare equal."""
        return self if isinstance(self.event, Repeated) else self._replace(event=Repeated(self.event, 1))


@dataclass(frozen=True)
class Entry:
    """One reading of private data: `count` of at most `committed` repetitions of an event have been drawn."""

    event: Event
    count: int
    committed: int
    what: str
    part: str
    when: str
    planned: bool
    seeded: bool = False
    claimed: Event | None = None
    run: str = ""
    """The public name of the run that draws from this entry, if one does."""

    def __post_init__(self) -> None:
        words = (self.what, self.part, self.when)
        if not all(isinstance(word, str) and word for word in words):
            raise ValueError("an entry needs words for what it was for and which part of the data it read")
        Repeated(self.event, self.committed)  # checks both
        if type(self.count) is not int or not 0 <= self.count <= self.committed:
            raise ValueError(f"a count must be a whole number from 0 to {self.committed}, not {self.count!r}")

    @property
    def spent(self) -> Event:
        return Repeated(self.event, self.count)

    @property
    def reserved(self) -> Event:
        return Repeated(self.event, self.committed)


@dataclass(frozen=True)
class Terms:
    """What was fixed when the ledger was opened."""

    target_epsilon: float | None
    target_delta: float | None
    adjacency: Adjacency
    filter_order: float

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        if self.target_epsilon is not None:
            check_target(self.target_epsilon)
            if self.target_delta is None:
                raise ValueError("a target ε needs a target δ: give target_delta (well below 1/n is usual)")
        if self.target_delta is not None:
            check_delta(self.target_delta)
        if not (isinstance(self.filter_order, int | float) and 1 < self.filter_order < math.inf):
            raise ValueError(f"the filter's Rényi order must be a number above 1, not {self.filter_order!r}")

    @classmethod
    def new(cls, target_epsilon: float | None, target_delta: float | None, adjacency: str) -> "Terms":
        """With the order at which a Gaussian workload of this budget gets the most out of a filter."""
        epsilon, delta = target_epsilon or 3.0, target_delta or 1e-5
        orders = [order for order in rdp.ORDERS if order > 1.01]
        best = max(orders, key=lambda order: (epsilon - rdp.conversion_cost(order, delta)) / order)
        return cls(target_epsilon, target_delta, check_adjacency(adjacency), best)


def to_document(name: str, terms: Terms, plan: tuple[Planned, ...], entries: tuple[Entry, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "terms": vars(terms),
        "plan": [{"event": to_json(item.event), "what": item.what, "part": item.part} for item in plan],
        "entries": [entry_to_json(entry) for entry in entries],
    }


def entry_to_json(entry: Entry) -> dict[str, Any]:
    claimed = None if entry.claimed is None else to_json(entry.claimed)
    return vars(entry) | {"event": to_json(entry.event), "claimed": claimed}


def with_lines(entries: tuple[Entry, ...], lines: list[dict[str, Any]], path: Path) -> tuple[Entry, ...]:
    """Entries after what was appended to their document: new ones, and counts that were raised."""
    found = list(entries)
    with _understood(path):
        for line in lines:
            if "entry" in line:
                found.append(_entry_from_json(line["entry"]))
            else:
                found[line["number"]] = replace(found[line["number"]], count=line["count"])
    return tuple(found)


def from_document(document: dict[str, Any], path: Path) -> tuple[Terms, tuple[Planned, ...], tuple[Entry, ...]]:
    with _understood(path):
        terms = Terms(**document["terms"])
        plan = tuple(Planned(from_json(item["event"]), item["what"], item["part"]) for item in document["plan"])
        return terms, plan, tuple(_entry_from_json(item) for item in document["entries"])


def _entry_from_json(item: dict[str, Any]) -> Entry:
    claimed = None if item["claimed"] is None else from_json(item["claimed"])
    return Entry(**item | {"event": from_json(item["event"]), "claimed": claimed})


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as problem:
        raise LedgerError(f"the ledger {path} holds something this sordino does not understand ({problem})") from None


@dataclass(frozen=True)
class Sum:
    """What a Rényi filter needs of events one after the other, whatever they depended on: all of it adds up."""

    adjacency: Adjacency
    order: float
    rdp: float = 0.0
    pure: Fraction | None = Fraction(0)
    """The sum of their ε; None unless all of them are pure."""
    exceptions: float = 0.0
    problem: str = ""
    """Why RDP has no price for one of them."""

    def plus(self, event: Event) -> "Sum":
        """With one event more; raises UnsupportedEvent where RDP has no price for it or for those before."""
        if self.problem:
            raise UnsupportedEvent(self.problem)
        pure = pure_epsilon(event, self.adjacency)
        return replace(
            self,
            rdp=self.rdp + rdp.rdp_at(event, self.adjacency, self.order),
            pure=None if pure is None or self.pure is None else self.pure + Fraction(pure),
            exceptions=self.exceptions + event.exceptions(),
        )

    def epsilon(self, delta: float) -> float:
        """ε at δ by the filter.

        One order, fixed at opening, may be summed whatever the events depended on. So may the ε of pure events. The
        smaller of the two holds: where pure events sum to at most ε, the privacy loss never exceeds it, and over all
        other outcomes together the filter bounds it.
        """
        left = delta_besides(self.exceptions, delta)
        filtered = max(0.0, self.rdp + rdp.conversion_cost(self.order, left))
        return filtered if self.pure is None else min(filtered, rounded_up(self.pure))


class Totals:
    """Sums over a plan and the entries so far; adding an entry takes the same time at any size."""

    def __init__(self, plan: tuple[Planned, ...], terms: Terms) -> None:
        self.plan = plan
        self.entries = 0
        self.taken: Counter[Planned] = Counter()
        """How often each item of the plan has been drawn."""
        self.digests = [""]
        """Hashes of the first 0, 1, 2, … entries, without their counts, which change."""
        self._empty = Sum(terms.adjacency, terms.filter_order)
        self._committed: dict[str, Sum] = {}
        self._parts: set[str] = set()
        self._waiting: dict[str, list[Event]] = {}
        for item in plan:
            self._waiting.setdefault(item.part, []).append(item.event)

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.entries += 1
            self._parts.add(entry.part)
            if entry.planned:
                self.taken[Planned(entry.reserved, entry.what, entry.part)] += 1
            else:
                self._waiting.setdefault(entry.part, []).append(entry.reserved)
            text = json.dumps(entry_to_json(entry) | {"count": 0}, sort_keys=True)
            self.digests.append(hashlib.sha256((self.digests[-1] + text).encode()).hexdigest())

    def drawn_from(self, part: str) -> bool:
        return part in self._parts

    def committed(self, part: str) -> Sum:
        """All that may be drawn from a part: the plan in full, drawn or not, and every unplanned entry."""
        total = self._committed.get(part, self._empty)
        for event in self._waiting.pop(part, []):
            try:
                total = total.plus(event)
            except UnsupportedEvent as problem:
                total = replace(total, problem=str(problem))
        self._committed[part] = total
        return total
