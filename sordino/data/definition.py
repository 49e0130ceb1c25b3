"""How a named dataset is described: what is public about it, the forms it may be stored in, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from sordino.data.dataset import Column, Split
from sordino.data.errors import DataError
from sordino.data.formats import read_bytes


class Parts(NamedTuple):
    """What a form decodes to."""

    train: Split
    test: Split


@dataclass(frozen=True)
class Files:
    """The files of one folder; each may also be there gzipped, under its name with .gz."""

    folder: Path

    def find(self, name: str) -> Path | None:
        """The original .gz wins over an unpacked copy, since published checksums are of the former."""
        return next((p for p in (self.folder / f"{name}.gz", self.folder / name) if p.is_file()), None)

    def path(self, name: str) -> Path:
        found = self.find(name)
        if found is None:
            raise DataError(f"{self.folder / name} does not exist; put the file {name} (or {name}.gz) there")
        return found

    def read(self, name: str) -> bytes:
        """A file's content, gunzipped if need be."""
        return read_bytes(self.path(name))


@dataclass(frozen=True)
class Form:
    """One way in which a dataset is stored, and the checksums it must meet.

    `train` and `test` are digests of decoded arrays, the same for every source. `published` holds checksums of
    original files ("md5:…", "sha256:…") for forms whose decoded digest is not known.
    """

    folder: str
    files: tuple[str, ...]
    decode: Callable[[Files], Parts]
    train: str = ""
    test: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    """What the published dataset has and this form lacks; empty if complete."""
    package: str = ""
    """The installed package that carries the files, where one does; `folder` is then relative to it."""


class Source(Protocol):
    """Something that can write a form's files into an empty folder, or raise UnreachableError."""

    def save(self, into: Path) -> None: ...


@dataclass(frozen=True)
class Definition:
    """A named dataset. Everything in here is public."""

    name: str
    what: str
    task: str
    kind: str
    classes: tuple[str, ...] | None
    shape: tuple[int, ...]
    value_range: tuple[float, float] | None
    n_train: int
    n_test: int
    source: str
    licence: str
    protected: str
    forms: tuple[Form, ...]
    """The complete form first; it is the one that the sources save."""
    sources: tuple[Source, ...] = ()
    """Tried in order: the public source, then package-index archives with the same content."""
    note: str = ""
    columns: tuple[Column, ...] | None = None
    target_range: tuple[float, float] | None = None
