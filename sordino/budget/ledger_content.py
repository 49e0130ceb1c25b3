"""What a ledger holds: its terms, its plan and its entries, and their form in a file."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sordino.budget.calibration import check_target
from sordino.budget.events import Adjacency, Event, Repeated, from_json, to_json
from sordino.budget.events.base import check_adjacency, check_delta
from sordino.budget.ledger_file import LedgerError


class Planned(NamedTuple):
    """An event announced before the first output."""

    event: Event
    what: str
    part: str = "train"


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
    """What was fixed at opening."""

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
