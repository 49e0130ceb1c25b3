"""The ledger on disk: one JSON document, replaced whole and fsynced, so that a killed process never leaves half of it.

A chain of hashes over terms and entries finds damage and truncation by accident; it does not stop a forger.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

FORMAT = "sordino-ledger"
VERSION = 1


class LedgerError(ValueError):
    """A ledger file that cannot be trusted or does not fit what was asked."""


def read(path: Path) -> dict[str, Any]:
    """The terms, plan and entries of a file, or LedgerError with what to do."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
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
    if chain is None or chain != document.get("chain"):
        raise LedgerError(f"the ledger {path} is damaged (its hashes do not match): restore it from a backup")
    return document


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step and wait until it is on the disk."""
    document = {"format": FORMAT, "version": VERSION, **content}
    document["chain"] = _chain(document)
    write_durably(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode())


def partial_of(path: Path) -> Path:
    """Where a file is written before it takes its name; a crash may leave it, and the next write takes it over."""
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
    """Hold the ledger's lock: spenders of one file, in whatever process, take turns."""
    if path is None:
        yield
        return
    with FileLock(f"{path}.lock"):
        yield


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
