"""Which images there are, and of which class: a folder with a folder for each class, or a table of paths and labels.

No image is opened here. Public are how many images there are and what the classes are called; which image is of which
class is private.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import shuffled
from sordino.data.files import read_cells
from sordino.data.raw_files import DataError, read_bytes
from sordino.data.tables import as_words

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TABLES = (".csv", ".parquet")
TRAIN, TEST = "train", "test"
_PATH, _LABEL = "path", "label"
_HELD_OUT = 10
_NAMED = 5
"""So many examples of one problem are named."""


@dataclass(frozen=True)
class ImageIndex:
    """Paths of images and their classes; its repr shows sizes only, since paths and labels are private."""

    root: Path
    paths: tuple[str, ...] = field(repr=False)
    """Below the root, or absolute."""
    labels: NDArray[np.int64] = field(repr=False)
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, place: int) -> str:
        return os.path.join(self.root, self.paths[place])

    def take(self, rows: NDArray[np.integer]) -> ImageIndex:
        """The images at these places."""
        return replace(self, paths=tuple(self.paths[row] for row in rows.tolist()), labels=self.labels[rows])


def read_index(source: str | Path, classes: str | Path | None = None) -> tuple[ImageIndex, ImageIndex]:
    """The images to train on, and those that are held out for the score.

    `source` is a folder with a folder of images for each class; or one with `train/` and `test/`, which have those; or
    a .csv or .parquet table with the columns path and label. For a table `classes` names a file with the name of a
    class in each line. Without `test/` a tenth is held out.

    Guarantee: which images are held out depends on how many there are, and for each on its own number alone, so it
    costs nothing, and no image is in both parts. An image's number is its place in the order of the files' names; in a
    table it is its row.
    """
    source = Path(source)
    if not source.is_dir():
        if classes is None:
            raise DataError(
                f"the classes of a table are public knowledge and are never read off its rows: name them with "
                f"`--classes FILE`, one a line, to train on {source}"
            )
        return _without_a_tenth(_of_table(source, read_classes(classes)), source)
    if classes is not None:
        raise DataError(f"the classes of {source} are the names of its folders: leave --classes out")
    inside = _folders(source)
    if TRAIN not in inside:
        return _without_a_tenth(_of_folder(source, _checked_names(tuple(inside), source)), source)
    beside = [name for name in inside if name not in (TRAIN, TEST)]
    if beside:
        raise DataError(
            f"{source} has {_some(beside)} beside {TRAIN}/: only {TRAIN}/ and {TEST}/ are read; rename or move the rest"
        )
    train = source / TRAIN
    names = _checked_names(tuple(_folders(train)), train)
    index = _of_folder(train, names)
    if TEST not in inside:
        return _without_a_tenth(index, train)
    test = source / TEST
    unknown = [name for name in _folders(test) if name not in names]
    if unknown:
        raise DataError(f"{test} has classes that {train} lacks: {_some(unknown)}; move or rename these folders")
    return index, _of_folder(test, names, may_lack=True)


def read_classes(file: str | Path) -> tuple[str, ...]:
    """The names of classes, one a line."""
    try:
        lines = read_bytes(Path(file)).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{file} is not text in UTF-8: give the name of a class in each line") from None
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) < len(names):
        raise DataError(f"{file} names a class twice: give each once")
    return _checked_names(names, Path(file))


def _without_a_tenth(index: ImageIndex, where: Path) -> tuple[ImageIndex, ImageIndex]:
    n = len(index)
    if n < _HELD_OUT:
        raise DataError(
            f"{where} has {n} images: at least {_HELD_OUT} are needed, since a tenth is held out for scores"
        )
    order = shuffled(n, seed=0)
    held = n // _HELD_OUT
    return index.take(np.sort(order[held:])), index.take(np.sort(order[:held]))


def _folders(folder: Path) -> list[str]:
    found = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    if not found:
        raise DataError(f"{folder} has no class folders: put the images of each class into a folder of its own")
    return found


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder and not hidden. Links are refused: by one, an image would be two records, or elsewhere."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    raise DataError(
                        f"{entry.path} is a link, by which an image may count twice: put the file itself there, or "
                        "list paths in a table"
                    )
                yield entry
    except OSError as problem:
        raise DataError(f"{folder}: {problem.strerror}; check its permissions") from None


def _checked_names(names: tuple[str, ...], where: Path) -> tuple[str, ...]:
    if len(names) < 2:
        raise DataError(f"{where} has {len(names)} class{'es' * (not names)}: a model needs two or more to tell apart")
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None:
        raise DataError(f"{where}: the name of the class {odd!r} is not printable text; rename it")
    return names


def _of_folder(folder: Path, classes: tuple[str, ...], may_lack: bool = False) -> ImageIndex:
    """All images below the folders of these classes, in the order of their files' names.

    In that order an image's number does not depend on the classes of others.
    """
    found: list[tuple[str, str, int]] = []
    empty = []
    for label, name in enumerate(classes):
        before = len(found)
        if (folder / name).is_dir() or not may_lack:
            found += [(os.path.basename(path), path, label) for path in _images(folder, name)]
        if len(found) == before:
            empty.append(name)
    if empty and not may_lack:
        raise DataError(
            f"{folder} has classes without images ({', '.join(IMAGES)}): {_some(empty)}; fill or remove them"
        )
    if not found:
        raise DataError(f"{folder} holds no images ({', '.join(IMAGES)})")
    found.sort()
    return ImageIndex(
        folder, tuple(path for _, path, _ in found), np.array([label for *_, label in found], np.int64), classes
    )


def _images(root: Path, below: str) -> Iterator[str]:
    """Paths below the root."""
    waiting = [below]
    while waiting:
        place = waiting.pop()
        for entry in _entries(root / place):
            path = f"{place}/{entry.name}"
            if entry.is_dir():
                waiting.append(path)
            elif entry.is_file() and entry.name.lower().endswith(IMAGES):
                yield path


def _of_table(file: Path, classes: tuple[str, ...]) -> ImageIndex:
    """All problems of the rows are named together, by row and never by value."""
    cells = read_cells(file)
    missing = [name for name in (_PATH, _LABEL) if name not in cells]
    if missing:
        raise DataError(f"{file} lacks the column{'s' * (len(missing) > 1)} {' and '.join(missing)}: add or rename")
    paths = [str(each) for each in as_words(cells[_PATH]).fillna("")]
    known = {name: label for label, name in enumerate(classes)}
    labels = np.array([known.get(str(each), -1) for each in as_words(cells[_LABEL]).fillna("")], np.int64)
    seen: set[str] = set()
    absent, foreign, again = [], [], []
    for row, path in enumerate(paths, start=1):
        real = os.path.realpath(file.parent / path)
        if not path or not os.path.isfile(real):
            absent.append(row)
        elif not real.lower().endswith(IMAGES):
            foreign.append(row)
        elif real in seen:
            again.append(row)
        seen.add(real)
    problems = (
        (absent, "there is no such file"),
        (foreign, f"the file is no image ({', '.join(IMAGES)})"),
        (again, "an earlier row has the same image"),
        ((np.flatnonzero(labels < 0) + 1).tolist(), f"the label is none of the {len(classes)} classes"),
    )
    said = [f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}: {what}" for rows, what in problems if rows]
    if said:
        raise DataError(f"{file}: {'; '.join(said)}. Correct or drop these rows")
    return ImageIndex(file.parent, tuple(paths), labels, classes)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {more:,} more" if more > 0 else "")
