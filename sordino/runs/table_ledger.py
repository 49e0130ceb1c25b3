"""The ledger of a private table: bound to the table, opened on its own terms, and summed up at the end."""

import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.budget import (
    BudgetExceeded,
    Event,
    Ledger,
    LedgerError,
    Planned,
    check_delta,
    check_target,
    composed,
    locked,
    marks,
    partial_of,
    printed,
)
from sordino.mechanisms import new_secret
from sordino.runs.run import DESCRIPTION, Run

_ELSEWHERE = "account.json"
SELECTION = "selection.json"
"""The file with what `sordino select` found."""
_SPENT = ("epsilon", "epsilon_drawn", "delta", "accountant", "seeded")


@dataclass(eq=False)
class TableLedger:
    """Which ledger pays for a folder, and for which table; nothing is written before `bind` or `opened`.

    A ledger's parts are lists of row numbers: in a table with one row more or less they are other records, and a record
    that is in both parts by turns pays twice while the ledger counts the larger part alone. So a ledger, and a folder
    with what was found, is good for one state of one table, and any other is refused before anything is spent.

    Guarantee: the table's fingerprint is an HMAC under a fresh key, both in the private folder and readable by their
    owner alone. A public hash, salted or not, would leak: those who know all records but one could try guesses at it.
    """

    table: str
    """Its name, for messages."""
    fingerprint: Callable[[bytes], str]
    """The keyed fingerprint of the table as it is now."""
    epsilon: float
    delta: float
    ledger: Path | None
    """An existing ledger, or its folder; None is the one in the command's folder."""
    out: Path | None
    """The folder, if there is one already."""
    schema: Path | None = None
    """A schema that `select` has left was read off private records: it is used with the ledger that paid for it."""
    kind: str | None = None
    """What the folder will hold (`kinds`)."""
    seen: dict[str, str] = field(init=False, repr=False)
    """The table before its records are read, under a fresh key: a change in between is noticed."""

    def __post_init__(self) -> None:
        if self.ledger is not None and self.ledger.is_dir():
            self.ledger /= "ledger.json"
        if self.out is not None:
            self.ledger = _ledger_of(self.out, self.ledger)
        check_target(self.epsilon)
        check_delta(self.delta)
        if self.epsilon < self.delta:
            raise ValueError(f"ε={self.epsilon:g} is below δ={self.delta:g}, which then says all: give a larger ε")
        self.now()
        for path in self._paths(self.out):
            self._is_bound(path)
        self._check_schema()
        key = new_secret()
        self.seen = {"key": key.hex(), "table": self.fingerprint(key)}

    def now(self) -> Ledger:
        """The ledger as it is now, to plan with; in memory, if it is yet to be made."""
        path = self.ledger or (self.out and self.out / "ledger.json")
        if path is None or (self.ledger is None and not path.exists()):
            return Ledger(self.epsilon, self.delta)
        return self._on_its_terms(path)

    def bind(self, folder: Path | None) -> None:
        """Ledger and folder to this table, or refuse another."""
        for path in self._paths(folder):
            if not self._is_bound(path):
                run, kept = Run.at(path.parent), _binding(path)
                with locked(kept):
                    if not kept.exists():
                        run.write_private(kept.name, self.seen)
                self._is_bound(path)  # another process may have been faster, or have changed the table
        if folder is not None and self.kind is not None:
            Run(folder).write_kind(self.kind)
        if folder is not None and self.ledger is not None and not _same(self.ledger, folder / "ledger.json"):
            Run(folder).write_json(_ELSEWHERE, {"ledger": str(self.ledger.resolve())})

    def opened(self, folder: Path | None, planned: Iterable[tuple[Event, str, str]] = ()) -> Ledger:
        """The ledger to spend from, with what is planned announced as far as that can be: all of it, or nothing.

        On a part that was drawn from before, the ledger's filter sums up instead.
        """
        self.bind(folder)
        [path, *_] = self._paths(folder)
        known = path.exists()
        ledger = self._on_its_terms(path) if known else Ledger(self.epsilon, self.delta, path=path, planned=planned)
        if folder is not None:  # an older copy of the ledger is refused from here on
            ledger.mark_in(marks.in_folder(folder))
        if known:
            drawn = {entry.part for entry in ledger.entries}
            new = [Planned(*item) for item in planned if item[2] not in drawn and Planned(*item) not in ledger.plan]
            check_budget(ledger, new)
            for item in new:
                ledger.announce(*item)
        return ledger

    def _check_schema(self) -> None:
        paid = None if self.schema is None else _paid_for(self.schema)
        if paid is None or not self._is_of(paid):
            return
        if not any(_same(path, paid) for path in self._paths(self.out)):
            raise LedgerError(
                f"{self.schema} was chosen on these records, which is counted in {paid}: add --ledger {paid}"
            )

    def _on_its_terms(self, path: Path) -> Ledger:
        ledger = Ledger.open(path)
        ledger.refuse_add_remove()  # the table is split, and everything planned, by its number of rows
        if (ledger.terms.target_epsilon, ledger.terms.target_delta) != (self.epsilon, self.delta):
            terms = f"ε={ledger.terms.target_epsilon}, δ={ledger.terms.target_delta}"
            raise LedgerError(f"the ledger {path} was opened at {terms}: give the same --epsilon and --delta")
        return ledger

    def _paths(self, folder: Path | None) -> list[Path]:
        """The ledger first. A folder whose ledger is elsewhere is bound as well: what it holds is of one table."""
        own = None if folder is None else folder / "ledger.json"
        return list(dict.fromkeys(path.resolve() for path in (self.ledger, own) if path is not None))

    def _is_bound(self, path: Path) -> bool:
        """Whether this ledger is bound to the table; refused if it is bound to another, or unbound with entries."""
        kept = _binding(path)
        if not kept.exists():
            if not path.exists():
                Run(path.parent).check_free()
            elif Ledger.open(path).entries:
                raise LedgerError(
                    f"the ledger {path} has entries, and {kept}, which says which table it is for, is missing: put it "
                    "back, or start again with another --out, where what was spent so far is not counted"
                )
            return False
        if not self._is_of(path):
            raise LedgerError(
                f"{path} is bound to another table than {self.table}, or to another state of that file: records would "
                "change parts, and ε would be false. Give the file as it was, or start again with another --out: "
                "records present in both then spend both budgets"
            )
        return True

    def _is_of(self, path: Path) -> bool:
        """Whether a bound ledger is for the table as it is now."""
        kept = _binding(path)
        try:
            document = json.loads(kept.read_text(encoding="utf-8"))
            key, tag = bytes.fromhex(document["key"]), str(document["table"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise LedgerError(f"{kept} cannot be read: restore it from a backup, do not start a new one") from None
        return hmac.compare_digest(tag.encode(), self.fingerprint(key).encode())


def check_budget(ledger: Ledger, items: list[Planned]) -> None:
    """All parts before anything is announced: what is announced counts, drawn or not."""
    target = ledger.terms.target_epsilon
    if target is None:
        return
    for part in dict.fromkeys(item.part for item in items):
        epsilon = ledger.epsilon_if(composed([item.event for item in items if item.part == part]), part)
        if not epsilon <= target:
            raise BudgetExceeded(
                f"all of it would bring ε on the {part} records to {epsilon:.4g}, above the target {target:g}: "
                "use more noise, fewer steps or fewer trials. Nothing was recorded"
            )


def spending(ledger: Ledger) -> dict[str, Any]:
    """What a workflow reports at its end of all that it has spent, as JSON values."""
    statement = ledger.statement()
    return {name: statement[name] for name in _SPENT} | {"adaptive": ledger.adaptive, "ledger": str(ledger.path)}


def spending_in_words(answer: Mapping[str, Any]) -> str:
    """What `spending` says, as a line of text."""
    # With events chosen along the way a filter guarantees the target, whatever was drawn of it.
    epsilon, drawn = printed(answer["epsilon"]), printed(answer["epsilon_drawn"])
    drawn = f", of which {drawn} is drawn" if answer["adaptive"] and drawn != epsilon else ""
    whole = f"{epsilon} at δ={answer['delta']:g} ({answer['accountant']}){drawn}"
    if answer["seeded"]:
        return (
            f"nothing here is private: the seed is fixed, so the noise can be predicted (with secret noise, ε={whole})"
        )
    return f"ε of the whole workflow: {whole}"


def ledger_elsewhere(folder: Path) -> Path | None:
    """The ledger that paid for what a folder holds, where that is not the folder's own."""
    kept = folder / _ELSEWHERE
    if not kept.exists():
        return None
    try:
        return Path(json.loads(kept.read_text(encoding="utf-8"))["ledger"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise LedgerError(f"{kept} cannot be read: it is damaged or not a file of sordino") from None


def holds_account(folder: Path) -> bool:
    """Whether a command for tables has worked in this folder."""
    return _binding(folder / "ledger.json").exists()


def is_unspent(folder: Path) -> bool:
    """Whether a command for tables was stopped in this folder before it charged anything to the folder's own ledger."""
    own = folder / "ledger.json"
    names = {path.name for path in folder.iterdir()} if holds_account(folder) else {"nothing of ours"}
    files = (own, folder / _ELSEWHERE, folder / DESCRIPTION)
    ours = {f"{own.name}.lock", "private", *(each.name for path in files for each in (path, partial_of(path)))}
    return names <= ours and not (own.exists() and Ledger.open(own).entries)


def _paid_for(schema: Path) -> Path | None:
    """The ledger that paid for a schema which `select` has left; None for any other schema."""
    try:
        document = json.loads((schema.parent / SELECTION).read_text(encoding="utf-8"))
        if Path(document["schema"]).name != schema.name or not document["epsilon"]:
            return None
        places = (schema.parent / "ledger.json", Path(document["ledger"]))  # the folder may have been moved
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return next((place for place in places if place.exists()), None)


def _ledger_of(folder: Path, asked: Path | None) -> Path | None:
    """The ledger that a folder is resumed with, always the one that it began with; None for one of its own."""
    kept, own = ledger_elsewhere(folder), folder / "ledger.json"
    began = kept or (own if own.exists() else None)
    if asked is None or began is None:
        return asked or kept
    if began.exists() and not _same(asked, began):
        raise LedgerError(f"{folder} began with the ledger {began}: resume with that one, or choose another --out")
    return asked


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _binding(path: Path) -> Path:
    return path.parent / "private" / f"{path.stem}.table.json"
