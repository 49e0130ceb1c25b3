"""How far a ledger has come, kept outside of it: an older copy of the file must not regain what was spent since.

A mark is kept in the user's registry (SORDINO_STATE, or the system's folder for the state of programs) and in folders
that drew from the ledger. A ledger that is behind one of its marks is refused: nothing is spent from it, or stated.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_state_path

from sordino.budget.ledger_file import LedgerError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mark:
    """A state of a ledger; every charge raises one of the three numbers, and no number ever falls."""

    ledger: str
    """The ledger's random name: copies share it."""
    path: str
    planned: int
    entries: int
    drawn: int
    digest: str
    """Of all entries but for their counts: copies that were both spent from differ in it."""


def registry() -> Path:
    """The folder of marks of this user: for its owner alone."""
    return Path(os.environ.get("SORDINO_STATE") or user_state_path("sordino", appauthor=False)) / "ledgers"


def in_registry(ledger: str) -> Path:
    return registry() / f"{ledger}.json"


def in_folder(folder: Path) -> Path:
    """Where a folder that draws from a ledger keeps that ledger's mark."""
    return folder.resolve() / "private" / "ledger.mark.json"


def note(place: Path, mark: Mark) -> None:
    """Write a mark. The charge is on the disk already, so if the mark cannot be written that is only logged."""
    content = json.dumps(asdict(mark)).encode()
    with suppress(OSError):
        if place.read_bytes() == content:
            return
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        os.replace(partial, place)
    except OSError as problem:
        _log.warning("%s cannot be written (%s): an older copy of the ledger would not be noticed", place, problem)


def noted(place: Path) -> Mark | None:
    try:
        document = json.loads(place.read_text(encoding="utf-8"))
        mark = Mark(**document)
        if not all(type(number) is int for number in (mark.planned, mark.entries, mark.drawn)):
            raise TypeError("counts are whole numbers")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as problem:  # of a folder that is another user's
        _log.warning("%s cannot be read (%s): an older copy of the ledger would not be noticed", place, problem)
        return None
    except (OSError, ValueError, TypeError, RecursionError):
        raise LedgerError(
            f"{place}, which says how far a ledger has come, is damaged: make sure that the ledger is not an old copy, "
            "then delete that file"
        ) from None
    return mark


def check(mark: Mark | None, now: Mark, digests: Sequence[str]) -> None:
    """Refuse a ledger that is behind a mark, or a copy that was spent from elsewhere meanwhile.

    The digests are those of the ledger's first 0, 1, 2, … entries.
    """
    if mark is None or mark.ledger != now.ledger:
        return
    newer = f"{mark.path} has had {mark.entries} entries with {mark.drawn} draws"
    remedy = "Use the newest copy, or what was spent from it would not be counted"
    if now.entries < mark.entries or now.drawn < mark.drawn or now.planned < mark.planned:
        raise LedgerError(
            f"the ledger {now.path} is an old copy: it has {now.entries} entries with {now.drawn} draws, and {newer}. "
            f"{remedy}"
        )
    if digests[mark.entries] != mark.digest:
        raise LedgerError(f"the ledger {now.path} is a copy without some entries of its original: {newer}. {remedy}")
