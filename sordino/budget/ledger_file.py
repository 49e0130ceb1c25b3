"""The ledger on disk: a JSON document; in a large ledger lines follow, so that a charge costs the same at any size.

A document is replaced whole and fsynced: a killed process never leaves half of it. A line is appended and fsynced, then
counted in a slot of fixed width before the lines, and only then is the charge made. Lines that are counted and missing
are damage; a torn line belongs to a charge that was never made; a line that is complete and not counted counts. When
lines are half of the entries, all of it becomes one document again.

A chain of hashes over terms, entries and lines finds damage and truncation by accident; it does not stop a forger.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

FORMAT = "sordino-ledger"
VERSION = 1
# Smaller ledgers are one document. After a larger one, whose head says so, come the slot and then the lines.
LARGE = 64
_SLOT = b'{"lines": "%010d", "link": "%s"}\n'
_SLOT_PLACE = len(b'{"lines": "')
_WARN_AFTER, _GIVE_UP_AFTER = 5.0, 300.0
_log = logging.getLogger(__name__)


class LedgerError(ValueError):
    """A ledger file that cannot be trusted or does not fit what was asked."""


@dataclass(frozen=True)
class Seen:
    """How far a ledger's lines were read: where the last of them begins and ends, its hash, and how many there are."""

    file: int
    slot: int
    begin: int
    end: int
    link: str
    lines: int


def read(path: Path, seen: Seen | None = None) -> tuple[dict[str, Any] | None, list[dict[str, Any]], Seen | None]:
    """The document and the lines after it, or LedgerError with what to do.

    If the file was seen before and has only grown: None and the new lines. Without lines there is no Seen.
    """
    try:
        if seen is not None:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino == seen.file:
                    file.seek(seen.begin)
                    found = _lines(file.read(), seen)
                    if found is not None:
                        return None, *found
        with path.open("rb") as file:
            number, content = os.fstat(file.fileno()).st_ino, file.read()
        text = content.decode()
        document, end = json.JSONDecoder().raw_decode(text.lstrip())
        chain = _chain(document) if isinstance(document, dict) and isinstance(document.get("entries"), list) else None
    except FileNotFoundError:
        raise LedgerError(f"there is no ledger at {path}") from None
    except (OSError, ValueError, RecursionError) as problem:
        kind = "cannot be read" if isinstance(problem, OSError) else "is truncated or damaged (not valid JSON)"
        raise LedgerError(f"the ledger {path} {kind}: restore it from a backup, do not start a new one") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise LedgerError(f"{path} is not a ledger of sordino")
    if document.get("version") != VERSION:
        raise LedgerError(f"{path} is a ledger of version {document.get('version')!r}; this sordino reads {VERSION}")
    damaged = LedgerError(f"the ledger {path} is damaged (its hashes do not match): restore it from a backup")
    if chain is None or chain != document.get("chain"):
        raise damaged
    after = text.lstrip()[end:]
    if not document.get("lines_follow"):
        if after.strip():
            raise damaged
        return document, [], None
    slot = len(content) - len(after.encode()) + 1
    lines = _lines(content[slot:], Seen(number, slot, slot, slot, chain[-1], 0))
    if lines is None:
        raise damaged
    return document, *lines


def write(path: Path, content: dict[str, Any]) -> Seen | None:
    """Replace the file in one step and wait until it is on the disk."""
    document = {"format": FORMAT, "version": VERSION, **content}
    large = len(content["entries"]) >= LARGE
    if large:
        document["lines_follow"] = True
    document["chain"] = chain = _chain(document)
    text = json.dumps(document, indent=None if large else 1, ensure_ascii=False, allow_nan=False).encode()
    if not large:
        write_durably(path, text)
        return None
    slot = _SLOT.replace(b"%s", chain[-1].encode()) % 0
    write_durably(path, text + b"\n" + slot)
    begin = len(text) + 1
    return Seen(path.stat().st_ino, begin, begin, begin + len(slot), chain[-1], 0)


def append(path: Path, line: dict[str, Any], seen: Seen) -> Seen:
    """One more line, on the disk and counted when this returns."""
    link = _digest(seen.link, line)
    text = json.dumps(line | {"link": link}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with path.open("r+b", buffering=0) as file:
        file.truncate(seen.end)  # of a torn line, if there is one
        file.seek(seen.end)
        try:
            if file.write(text) != len(text):
                raise OSError(f"the disk is full: the charge could not be written to {path}")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(seen.end)
            raise
        file.seek(seen.slot + _SLOT_PLACE)
        file.write(b"%010d" % (seen.lines + 1))
        os.fsync(file.fileno())
    return replace(seen, begin=seen.end, end=seen.end + len(text), link=link, lines=seen.lines + 1)


def _lines(content: bytes, seen: Seen) -> tuple[list[dict[str, Any]], Seen] | None:
    """The lines after the last one seen, or after the slot if none was seen; None if they do not fit together.

    What follows the last line break is torn.
    """
    known, *texts = content.split(b"\n")[:-1] or [b""]
    try:
        first = json.loads(known)
        if first.get("link") != seen.link:
            return None
        new, end = [], seen.begin + len(known) + 1
        for text in texts:
            line = json.loads(text)
            link = line.pop("link")
            if link != _digest(seen.link, line):
                return None
            new.append(line)
            seen = replace(seen, begin=end, link=link, lines=seen.lines + 1)
            end += len(text) + 1
        counted = int(first["lines"]) if "lines" in first else 0
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return None
    return (new, replace(seen, end=end)) if counted <= seen.lines else None


def partial_of(path: Path) -> Path:
    """Where a file is written before it is renamed; a crash may leave it, and the next write replaces it."""
    return path.with_name(f".{path.name}.partial")


def write_durably(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that after a crash either the old or the new content is there in full (one writer at a time)."""
    partial = partial_of(path)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Hold the ledger's lock: processes that spend from one file take turns.

    After some seconds the log says which process holds it; after some minutes LedgerError is raised.
    """
    if path is None:
        yield
        return
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=_WARN_AFTER)
    except Timeout:
        _log.warning("waiting for the ledger %s: its lock is held by %s", path, _holder(path))
        try:
            lock.acquire(timeout=_GIVE_UP_AFTER)
        except Timeout:
            raise LedgerError(
                f"the ledger {path} is in use: its lock {lock.lock_file} is held by {_holder(path)}, which does not "
                "release it. Let that process continue or end it, then repeat. Nothing was recorded"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """The process that holds a ledger's lock, as far as the system says."""
    try:
        inode = str(Path(f"{path}.lock").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "->" not in fields and fields[5].split(":")[-1] == inode:
                name = Path(f"/proc/{fields[4]}/comm").read_text().strip()
                return f"process {fields[4]} ({name})"
    except (OSError, IndexError):
        pass
    return "another process"


def _chain(document: dict[str, Any]) -> list[str]:
    """A hash for the terms and plan, then one for each entry that also covers all before it."""
    head = {key: value for key, value in document.items() if key not in ("entries", "chain")}
    links = [_digest("", head)]
    for entry in document["entries"]:
        links.append(_digest(links[-1], entry))
    return links


def _digest(before: str, value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256((before + text).encode()).hexdigest()
