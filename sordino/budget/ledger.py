"""The one account of everything that read private data, and the only source of ε.

Each part of the data is accounted in one of two ways. *Planned*: all parameters were fixed before the first output
about its records (events announced, or a single first event), and PLD, the tightest accountant, gives the headline.
*Adaptive*: as soon as one more event is chosen after such outputs, refusal and headline use a Rényi filter (Feldman &
Zrnic 2021) at the order fixed at opening; the plan counts in full, drawn or not; PLD is shown as "if planned".
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any
from uuid import uuid4

from sordino.budget import ledger_file, marks, statement
from sordino.budget.account import Account, BudgetExceeded
from sordino.budget.entries import (
    Entry,
    Planned,
    Terms,
    entry_to_json,
    from_document,
    to_document,
    with_lines,
)
from sordino.budget.events import Event, Repeated, composed
from sordino.budget.ledger_file import LedgerError, Seen
from sordino.budget.marks import Mark


class Ledger(Account):
    """Append-only account of privacy spending; with a path, kept in a file that other processes may spend from too.

    Guarantee: everything spent on one part of the data, together, is (target_epsilon, target_delta)-DP for one record
    under the adjacency; more precisely (the statement's ε, target_delta). Parts hold disjoint sets of records, assigned
    record by record. epsilon() is what has been drawn so far: a guarantee once all that was announced has been drawn.

    Parameters
    ----------
    target_epsilon, target_delta : the budget; a charge beyond it raises BudgetExceeded. Without a target nothing is
        refused. δ has no default: well below 1/n is usual.
    adjacency : "zero-out" (one record replaced by an empty one), "replace-one" or "add-remove".
    path : the file to keep it in; if it exists, its terms must be these (`Ledger.open` takes them from the file).
    planned : events announced in advance, as (event, what) or (event, what, part): cheaper than events chosen later.

    >>> from sordino import Ledger, events
    >>> step = events.PoissonGaussian(sample_rate=0.01, noise_multiplier=1.1)
    >>> ledger = Ledger(target_epsilon=1.0, target_delta=1e-5)
    >>> entry = ledger.spend(events.Repeated(step, 100), "training")
    >>> round(ledger.epsilon(), 2), round(ledger.remaining(), 2)
    (0.55, 0.45)
    >>> ledger.spend(events.Gaussian(1.0), "mean of the ages")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    BudgetExceeded: 'mean of the ages' would bring ε to 5.8, above the target 1 …
    """

    _seen: Seen | None
    _marked: list[Path]
    _is_named: bool

    def __init__(
        self,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        *,
        adjacency: str = "zero-out",
        path: str | Path | None = None,
        planned: Iterable[tuple[Event, str] | tuple[Event, str, str]] = (),
    ) -> None:
        self.terms = Terms.new(target_epsilon, target_delta, adjacency)
        self._one_at_a_time = RLock()
        # Resolved: whatever links lead to a file, its lock has one name.
        self.path = Path(path).resolve() if path is not None else None
        self._plan = tuple(Planned(*item) for item in planned)
        self._entries: tuple[Entry, ...] = ()
        self._fresh()
        with ledger_file.locked(self.path):
            if self.path is not None and self.path.exists():
                terms, plan = self.terms, self._plan
                self._reload()
                if terms != self.terms or plan != self._plan[: len(plan)]:  # the plan may have grown since
                    raise LedgerError(
                        f"the ledger {self.path} was opened with other terms; use Ledger.open to resume it"
                    )
                return
            self._check_plan(self._plan)
            self._save(self._plan, ())

    @classmethod
    def open(cls, path: str | Path) -> "Ledger":
        """Resume the ledger in this file, on the terms it was opened with."""
        ledger = cls.__new__(cls)
        ledger._one_at_a_time = RLock()
        ledger.path = Path(path).resolve()
        ledger._fresh()
        ledger._reload()
        return ledger

    def reload(self) -> None:
        """Read what other processes have spent since."""
        with self._one_at_a_time, ledger_file.locked(self.path):
            self._reload()

    def mark_in(self, place: Path) -> None:
        """From now on write to this file, too, how far the ledger has come (see `marks`).

        That binds a folder to a ledger elsewhere: an older copy of the ledger is refused there.
        """
        if self.path is not None and place not in self._marked:
            with self._turn():
                self._check_marks([marks.noted(place)])
                self._marked.append(place)
                marks.note(place, self._mark())

    @contextmanager
    def marking(self, place: Path) -> Iterator[None]:
        """`mark_in` while a run draws; afterwards the mark stays as it is."""
        new = place not in self._marked
        self.mark_in(place)
        try:
            yield
        finally:
            if new and place in self._marked:
                self._marked.remove(place)

    def is_other_than(self, place: Path) -> bool:
        """Whether the mark in this file belongs to another ledger."""
        mark = marks.noted(place)
        return mark is not None and mark.ledger != self._name

    def refuse_old_copy(self, folder: Path | None = None) -> None:
        """Reload, and raise LedgerError if the file is behind one of its marks, or behind that of this folder.

        The ε of an old copy is too small: what was spent from the ledger since is not in it.
        """
        if self.path is not None:
            with self._one_at_a_time:
                # Marks are noted after the file is written: read before it, they are never ahead of it.
                known = [marks.noted(place) for place in self._places()]
                known += [] if folder is None else [marks.noted(marks.in_folder(folder))]
                self._reload()
                self._check_marks(known)

    def spend(
        self,
        event: Event,
        what: str,
        part: str = "train",
        *,
        seeded: bool = False,
        claimed: Event | None = None,
        run: str = "",
    ) -> Entry:
        """Charge an event before it reads the data; raises BudgetExceeded, and records nothing, if it does not fit.

        `what` says what it is for, `part` which part of the data it reads. `seeded`: its randomness can be predicted.
        `claimed`: what a paper would have charged instead. `run` names the run that makes the release, which alone may
        repeat it (see `number_of`).
        """
        step, count = (event.event, event.count) if isinstance(event, Repeated) else (event, 1)
        with self._turn():
            number = self._enter(Entry(step, count, count, what, part, _now(), True, seeded, claimed, run))
            return self._entries[number]

    def begin(
        self,
        step: Event,
        steps: int,
        what: str,
        part: str = "train",
        *,
        seeded: bool = False,
        claimed: Event | None = None,
        run: str = "",
    ) -> int:
        """Reserve up to `steps` repetitions of an event and return the entry's number; `raise_count` then draws them.

        All of them are checked against the budget here: a long run is refused at its start and not halfway.
        """
        # With `spend`'s options, spelled out again for help() and types.
        with self._turn():
            return self._enter(Entry(step, 0, steps, what, part, _now(), True, seeded, claimed, run))

    def raise_count(self, number: int, count: int) -> Entry:
        """Record that `count` repetitions of an entry are about to have been drawn: on disk before this returns."""
        with self._turn():
            if not 0 <= number < len(self._entries):
                raise LedgerError(f"the ledger has no entry number {number}")
            entry = self._entries[number]
            if not entry.count <= count <= entry.committed:
                raise BudgetExceeded(
                    f"'{entry.what}' reserved {entry.committed} steps and has drawn {entry.count}: "
                    f"its count cannot become {count}"
                )
            entry = replace(entry, count=count)
            entries = (*self._entries[:number], entry, *self._entries[number + 1 :])
            self._save(self._plan, entries, {"number": number, "count": count})
            return entry

    def announce(self, event: Event, what: str, part: str = "train") -> None:
        """Add to the plan, which is possible until the first event is spent; refused if the plan would overspend."""
        with self._turn():
            if self._totals().drawn_from(part):
                raise LedgerError("the plan is closed: an event announced now may depend on outputs; spend it instead")
            plan = (*self._plan, Planned(event, what, part))
            self._check_plan(plan)
            self._save(plan, self._entries)

    def announce_all(self, items: Iterable[Planned]) -> None:
        """Refuse what does not fit together, before any of it is spent; what fits and is not planned yet is announced.

        On a part that was drawn from before, the filter sums up instead, and nothing is announced.
        """
        with self._turn():
            asked = list(items)
            new = [item for item in asked if not self._is_planned(item.normal())]
            plan = (*self._plan, *(item for item in new if not self._totals().drawn_from(item.part)))
            for part in dict.fromkeys(item.part for item in new):
                here = [item for item in new if item.part == part]
                if self._totals().drawn_from(part):
                    self._check_filter(
                        composed([item.event for item in here]), " and ".join(item.what for item in here), part
                    )
            if plan != self._plan:
                self._check_plan(plan)
                self._save(plan, self._entries)

    def document(self) -> dict[str, Any]:
        """All that the ledger holds, as JSON values, for `mirror`."""
        return to_document(self._name, self.terms, self._plan, self._entries)

    def mirror(self, document: dict[str, Any]) -> None:
        """From now on show what another process's ledger holds, in memory, and charge nothing.

        Guarantee: no second account. Of the processes of one training one keeps the ledger, and the others are refused.
        """
        with self._one_at_a_time:
            self.path, self._keeper = None, False
            self.terms, self._plan, self._entries = from_document(document, Path("of the first process"))
            self._sums = None

    def statement(self, **facts: Any) -> dict[str, Any]:
        """The privacy statement: what this ledger proves, and what it does not, as plain JSON values.

        An old copy is refused (`refuse_old_copy`).
        """
        self.refuse_old_copy()
        return statement.statement(self, **facts)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One spender at a time, each starting from what is in the file, and never from an older copy of it."""
        with self._one_at_a_time, ledger_file.locked(self.path):
            if not self._keeper:
                raise LedgerError("the process of rank 0 keeps this ledger: charge it there, and in no other process")
            self._reload()
            if not self._is_named:  # from version 0.1: before a mark refers to its name, the name must be on the disk
                self._seen = None
                self._save(self._plan, self._entries)
            if self.path is not None:
                self._check_marks(map(marks.noted, self._places()))
            yield

    def _enter(self, entry: Entry) -> int:
        asked = Planned(entry.reserved, entry.what, entry.part)
        plan, line = self._plan, None
        if self._is_planned(asked):
            line = {"entry": entry_to_json(entry)}
        elif not self._totals().drawn_from(entry.part):
            # The first event on a part is chosen before any output about its records: it joins the plan for that part.
            plan = (*plan, asked)
            self._check_plan(plan)
        else:
            entry = replace(entry, planned=False)
            self._check_filter(entry.reserved, entry.what, entry.part)
            line = {"entry": entry_to_json(entry)}
        self._save(plan, (*self._entries, entry), line)
        return len(self._entries) - 1

    def _fresh(self) -> None:
        """Nothing is known of the file yet."""
        self._name, self._keeper = uuid4().hex, True
        self._seen, self._sums, self._marked, self._is_named = None, None, [], True

    def _save(self, plan: tuple[Planned, ...], entries: tuple[Entry, ...], line: dict[str, Any] | None = None) -> None:
        """On the disk first: what cannot be written is not in memory either.

        The line says what is new, where that is one entry or one count.
        """
        if self.path is not None:
            if line is None or self._seen is None or 2 * self._seen.lines >= len(entries):
                document = to_document(self._name, self.terms, plan, entries)
                self._seen = ledger_file.write(self.path, document)
            else:
                self._seen = ledger_file.append(self.path, line, self._seen)
        self._plan, self._entries = plan, entries
        if self.path is not None:
            self._note_marks()

    def _reload(self) -> None:
        if self.path is None:
            return
        document, lines, self._seen = ledger_file.read(self.path, self._seen)
        if document is not None:
            terms, plan, entries = from_document(document, self.path)
            name = document.get("name", self._name)  # the oldest have none, and get one when they are written
            if not (isinstance(name, str) and name.isalnum()):
                raise LedgerError(f"the ledger {self.path} holds something this sordino does not understand (its name)")
            self._name, self.terms, self._plan, self._sums = name, terms, plan, None
            self._is_named = "name" in document
            self._entries = with_lines(entries, lines, self.path)
        elif lines:
            self._entries = with_lines(self._entries, lines, self.path)

    def _mark(self) -> Mark:
        drawn = sum(entry.count for entry in self._entries)
        digest = self._totals().digests[-1]
        return Mark(self._name, str(self.path), len(self._plan), len(self._entries), drawn, digest)

    def _places(self) -> list[Path]:
        """Where marks of this ledger may lie: a folder with its own ledger keeps one too."""
        assert self.path is not None
        return [marks.in_registry(self._name), marks.in_folder(self.path.parent), *self._marked]

    def _check_marks(self, known: Iterable[Mark | None]) -> None:
        digests, now = self._totals().digests, self._mark()
        for mark in known:
            marks.check(mark, now, digests)

    def _note_marks(self) -> None:
        mark = self._mark()
        for place in (marks.in_registry(self._name), *self._marked):
            marks.note(place, mark)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
