"""Where a dataset's files are looked for, and whether they are the published ones."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from sordino.data.dataset import Split
from sordino.data.definition import Definition, Files, Form, Parts
from sordino.data.errors import DataError, reading

VARIABLE = "SORDINO_DATA"
CACHE = "SORDINO_CACHE"


@dataclass(frozen=True)
class Found:
    """A form of a dataset whose files are all in `folder`."""

    folder: Path
    form: Form


def cache_folder(cache: Path | None = None) -> Path:
    """The user's cache folder, unless another is given, here or by the environment."""
    return Path(os.environ.get(CACHE) or user_cache_dir("sordino")) if cache is None else Path(cache)


def _folders(form: Form, cache: Path | None) -> Iterator[Path]:
    if form.package:
        spec = importlib.util.find_spec(form.package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(root) / form.folder
        return
    variable = os.environ.get(VARIABLE)
    if variable:
        yield Path(variable).expanduser() / form.folder
    yield cache_folder(cache) / form.folder


def locate(definition: Definition, cache: Path | None = None) -> Found | None:
    """The first place that has a whole form of the dataset; a complete form wins over a partial one."""
    for form in definition.forms:
        for folder in _folders(form, cache):
            if all(Files(folder).find(name) for name in form.files):
                return Found(folder, form)
    return None


def digest(split: Split) -> str:
    """SHA-256 of decoded rows (dtype, shape and bytes in C order), so that every source is checked alike."""
    total = hashlib.sha256()
    for array in _arrays(split):
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _arrays(split: Split) -> Iterator[NDArray[Any]]:
    if not isinstance(split.x, np.ndarray):
        for name, column in split.x.items():
            yield np.frombuffer(str(name).encode(), np.uint8)
            codes = column.cat.codes.to_numpy(np.int64) if column.dtype == "category" else column.to_numpy(np.float64)
            yield codes
    elif split.x.dtype == object:
        rows = [row.encode() for row in split.x]
        yield np.array([len(row) for row in rows], np.int64)
        yield np.frombuffer(b"".join(rows), np.uint8)
    else:
        yield split.x
    yield split.y


def _stamp(found: Found, cache: Path | None) -> Path:
    """A file whose name stands for these very files (place, size, time) having met these very checksums."""
    paths = [Files(found.folder).path(name) for name in found.form.files]
    seen = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    wanted = [found.form.train, found.form.test, dict(found.form.published)]
    key = hashlib.sha256(json.dumps([seen, wanted]).encode()).hexdigest()
    return cache_folder(cache) / ".verified" / key[:32]


def verified(name: str, found: Found, cache: Path | None = None) -> Parts:
    """The decoded rows, after checking them against the published checksums (once for each state of the files)."""
    stamp = _stamp(found, cache)
    if stamp.exists():
        return found.form.decode(Files(found.folder))
    parts = check(name, found)
    with suppress(OSError):  # a cache that may not be written to only costs a second check
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return parts


def check(name: str, found: Found) -> Parts:
    """Decodes and compares with every checksum of the form."""
    files = Files(found.folder)
    for file, published in found.form.published.items():
        method, _, expected = published.partition(":")
        path = files.path(file)
        with reading(path, "data"), path.open("rb") as stream:
            actual = hashlib.file_digest(stream, method).hexdigest()
        if actual != expected:
            raise _differs(name, found.folder, file)
    parts = found.form.decode(files)
    for part, split, expected in (("training", parts.train, found.form.train), ("test", parts.test, found.form.test)):
        if expected and digest(split) != expected:
            raise _differs(name, found.folder, f"the {part} part")
    return parts


def _differs(name: str, folder: Path, what: str) -> DataError:
    return DataError(
        f"{folder} does not hold the published {name}: {what} does not match its checksum; remove that folder and run "
        f"`sordino data get {name}`"
    )
