"""Sums over a ledger's entries that grow by one entry at a time, so that a charge costs the same at any size."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from sordino.budget import rdp
from sordino.budget.accountant import pure_epsilon, rounded_up
from sordino.budget.events import Adjacency, Event, UnsupportedEvent
from sordino.budget.ledger_content import Entry, Planned, Terms, entry_to_json


@dataclass(frozen=True)
class Sum:
    """What a filter needs of events one after the other, whatever they depended on: all of it adds up."""

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

    @property
    def pure_epsilon(self) -> float:
        return math.inf if self.pure is None else rounded_up(self.pure)


class Totals:
    """Of a plan and the entries added so far."""

    def __init__(self, plan: tuple[Planned, ...], terms: Terms) -> None:
        self.plan = plan
        self.entries = 0
        self.taken: Counter[Planned] = Counter()
        """What of the plan has been drawn."""
        self.digests = [""]
        """Of the first 0, 1, 2, … entries, but for their counts, which change."""
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
