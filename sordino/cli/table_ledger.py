"""The ledger of a private table, as every command opens it: bound to the table, on its terms, and told at the end."""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.budget import Event, Ledger

_ELSEWHERE = "account.json"
SELECTION = "selection.json"
"""What `select` found."""
_TOLD = ("epsilon", "epsilon_drawn", "delta", "accountant", "seeded")


@dataclass(eq=False)
class TableLedger:
    """Where the account of a command is kept, and of which table it is; nothing is written before `bind` or `opened`.

    A ledger's parts are lists of row numbers: of a table with one row more or less they are other records, and a record
    that is in both parts by turns pays twice while the ledger counts the larger part alone. So a ledger, and a folder
    with what was found, is good for one state of one table, and each command refuses any other before it spends.

    Guarantee: the table's bytes are kept as an HMAC under a fresh key, both in the private folder and readable by their
    owner alone. A public hash, salted or not, would leak: whoever knows all records but one could try guesses at it.
    """

    table: str
    epsilon: float
    delta: float
    ledger: Path | None
    """The one to go on with, or its folder; None is that of the command's folder."""
    out: Path | None
    """The folder, if there is one already."""
    schema: Path | None = None
    """Whatever `select` has left as a schema was read off private records: with it goes the ledger that paid."""
    seen: dict[str, str] = field(init=False, repr=False)
    """The table before its records are read, under a fresh key: what changes meanwhile does not pass as the same."""

    def __post_init__(self) -> None:
        from sordino.budget import calibration, check_delta
        from sordino.mechanisms import new_secret

        if self.ledger is not None and self.ledger.is_dir():
            self.ledger /= "ledger.json"
        if self.out is not None:
            self.ledger = _account_of(self.out, self.ledger)
        calibration.check_target(self.epsilon)
        check_delta(self.delta)
        if self.epsilon < self.delta:
            raise ValueError(f"ε={self.epsilon:g} is below δ={self.delta:g}, which then says all: give a larger ε")
        self.now()
        for path in self._paths(self.out):
            _is_bound(path, self.table)
        self._check_schema()
        key = new_secret()
        self.seen = {"key": key.hex(), "table": _tag(key, self.table)}

    def now(self) -> "Ledger":
        """As it stands, to plan with: the one to go on with, or in memory what a new one would be."""
        from sordino.budget import Ledger

        path = self.ledger or (self.out and self.out / "ledger.json")
        if path is None or (self.ledger is None and not path.exists()):
            return Ledger(self.epsilon, self.delta)
        return self._on_its_terms(path)

    def bind(self, folder: Path | None) -> None:
        """Ledger and folder to this table, or refuse another."""
        from sordino.budget import locked
        from sordino.runs import Run

        for path in self._paths(folder):
            if not _is_bound(path, self.table):
                run, kept = Run.at(path.parent), _binding(path)
                with locked(kept):
                    if not kept.exists():
                        run.write_private(kept.name, self.seen)
                _is_bound(path, self.table)  # another process may have been faster, or have changed the table
        if folder is not None and self.ledger is not None and not _same(self.ledger, folder / "ledger.json"):
            Run(folder).write_json(_ELSEWHERE, {"ledger": str(self.ledger.resolve())})

    def opened(self, folder: Path | None, planned: Iterable[tuple["Event", str, str]] = ()) -> "Ledger":
        """The ledger to spend from, told of what is planned as far as that can be: all of it, or nothing is recorded.

        On a part that was drawn from before, the ledger's filter sums up instead.
        """
        from sordino.budget import Ledger, Planned
        from sordino.selection import check_budget

        self.bind(folder)
        [path, *_] = self._paths(folder)
        if not path.exists():
            ledger = Ledger(self.epsilon, self.delta, path=path, planned=planned)
            self._marked(ledger, folder)
            return ledger
        ledger = self._on_its_terms(path)
        self._marked(ledger, folder)
        drawn = {entry.part for entry in ledger.entries}
        new = [Planned(*item) for item in planned if item[2] not in drawn and Planned(*item) not in ledger.plan]
        check_budget(ledger, new)
        for item in new:
            ledger.announce(*item)
        return ledger

    def _marked(self, ledger: "Ledger", folder: Path | None) -> None:
        """The folder notes how far the ledger has come that it draws from: an older copy of that one is refused."""
        from sordino.budget import marks

        if folder is not None:
            ledger.mark_in(marks.in_folder(folder))

    def _check_schema(self) -> None:
        from sordino.budget import LedgerError

        paid = None if self.schema is None else _paid_for(self.schema)
        if paid is None or not _is_of(paid, self.table):
            return
        if not any(_same(path, paid) for path in self._paths(self.out)):
            raise LedgerError(
                f"{self.schema} was chosen on these records, which is counted in {paid}: add --ledger {paid}"
            )

    def _on_its_terms(self, path: Path) -> "Ledger":
        from sordino.budget import Ledger, LedgerError

        ledger = Ledger.open(path)
        ledger.refuse_add_remove()  # the table is split, and everything planned, by its number of rows
        if (ledger.terms.target_epsilon, ledger.terms.target_delta) != (self.epsilon, self.delta):
            terms = f"ε={ledger.terms.target_epsilon}, δ={ledger.terms.target_delta}"
            raise LedgerError(f"the ledger {path} was opened at {terms}: give the same --epsilon and --delta")
        return ledger

    def _paths(self, folder: Path | None) -> list[Path]:
        """The ledger first. A folder whose ledger lies elsewhere is bound as well: what it holds is of one table."""
        own = None if folder is None else folder / "ledger.json"
        return list(dict.fromkeys(path.resolve() for path in (self.ledger, own) if path is not None))


def told(ledger: "Ledger") -> dict[str, Any]:
    """What a command says at its end of all that was read off the private records, as JSON values."""
    statement = ledger.statement()
    return {name: statement[name] for name in _TOLD} | {"adaptive": ledger.adaptive, "ledger": str(ledger.path)}


def state(ledger: "Ledger", folder: Path, tuning: str) -> None:
    """The privacy statement, into the folder."""
    from sordino.runs import Run

    Run(folder).write_statement(ledger.statement(unit="one row of the table", tuning=tuning))


def in_words(answer: Mapping[str, Any]) -> str:
    """The last line of every command that spends."""
    from sordino.budget import printed

    # Of events chosen along the way a filter guarantees the target, whatever was drawn of it.
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
    from sordino.budget import LedgerError

    kept = folder / _ELSEWHERE
    if not kept.exists():
        return None
    try:
        return Path(json.loads(kept.read_text(encoding="utf-8"))["ledger"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise LedgerError(f"{kept} cannot be read: it is damaged or not a file of sordino") from None


def _paid_for(schema: Path) -> Path | None:
    """The ledger that paid for a schema which `select` has left; None of any other schema."""
    try:
        document = json.loads((schema.parent / SELECTION).read_text(encoding="utf-8"))
        if Path(document["schema"]).name != schema.name or not document["epsilon"]:
            return None
        places = (schema.parent / "ledger.json", Path(document["ledger"]))  # the folder may have been moved
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return next((place for place in places if place.exists()), None)


def _account_of(folder: Path, asked: Path | None) -> Path | None:
    """The ledger that a folder goes on with, which is always the one that it began with; None for one of its own."""
    from sordino.budget import LedgerError

    kept, own = ledger_elsewhere(folder), folder / "ledger.json"
    began = kept or (own if own.exists() else None)
    if asked is None or began is None:
        return asked or kept
    if began.exists() and not _same(asked, began):
        raise LedgerError(f"{folder} began with the ledger {began}: go on with that one, or choose another --out")
    return asked


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def holds_account(folder: Path) -> bool:
    """Whether a command for tables has worked in this folder."""
    return _binding(folder / "ledger.json").exists()


def is_unspent(folder: Path) -> bool:
    """Whether a command for tables was stopped in this folder before it charged anything to the folder's own ledger."""
    from sordino.budget import Ledger, partial_of

    own = folder / "ledger.json"
    names = {path.name for path in folder.iterdir()} if holds_account(folder) else {"nothing of ours"}
    ours = {own.name, f"{own.name}.lock", partial_of(own).name, "private", _ELSEWHERE}
    return names <= ours and not (own.exists() and Ledger.open(own).entries)


def _binding(path: Path) -> Path:
    return path.parent / "private" / f"{path.stem}.table.json"


def _is_bound(path: Path, table: str) -> bool:
    """Whether this ledger is the table's; False where it is nobody's yet, and refused where it is another's."""
    from sordino.budget import Ledger, LedgerError
    from sordino.runs import Run

    kept = _binding(path)
    if not kept.exists():
        if not path.exists():
            Run(path.parent).check_free()
        elif Ledger.open(path).entries:
            raise LedgerError(
                f"the ledger {path} has entries, and {kept}, which tells of which table, is not there: put it back, or "
                "begin anew with another --out, where what was spent so far is not counted"
            )
        return False
    if not _is_of(path, table):
        raise LedgerError(
            f"{path} is bound to another table than {table}, or to another state of that file: records would change "
            "parts, and ε would be false. Give the file as it was, or begin anew with another --out: whoever is in "
            "both then pays both"
        )
    return True


def _is_of(path: Path, table: str) -> bool:
    """Whether a bound ledger is of this table as it is now."""
    from sordino.budget import LedgerError

    kept = _binding(path)
    try:
        document = json.loads(kept.read_text(encoding="utf-8"))
        key, tag = bytes.fromhex(document["key"]), str(document["table"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise LedgerError(f"{kept} cannot be read: restore it from a backup, do not start a new one") from None
    return hmac.compare_digest(tag.encode(), _tag(key, table).encode())


def _tag(key: bytes, table: str) -> str:
    from sordino.data import is_named, reading

    if is_named(table):
        return hmac.new(key, f"dataset {table}".encode(), hashlib.sha256).hexdigest()
    with reading(table, "data"), Path(table).open("rb") as file:
        return hashlib.file_digest(file, lambda: hmac.new(key, b"file ", hashlib.sha256)).hexdigest()
