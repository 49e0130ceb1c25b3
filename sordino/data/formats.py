"""Bytes of the public formats → arrays. Every function raises DataError on bytes that are not what they claim to be."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.errors import DataError, reading
from sordino.mechanisms import memory

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IDX_MOST_DIMENSIONS = 8
_READ = 2**20
GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""
_CIFAR_PIXELS = 3 * 32 * 32
# ITU-R 601 luma in 16-bit fixed point, rounding as Pillow's convert("L") does.
_LUMA = np.array([19595, 38470, 7471], np.uint32)


def gunzip(data: bytes, where: object) -> bytes:
    """The content of gzipped bytes; anything else is returned as it is."""
    if data[:2] != GZIP:
        return data
    with reading(str(where), "gzip"), gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return limited(stream, where)


def read_bytes(path: Path) -> bytes:
    """A file's content, gunzipped if need be."""
    with reading(path, "data"), path.open("rb") as stream:
        data = limited(stream, path)
    return gunzip(data, path)


def most_bytes() -> int:
    """What a file may hold when it is unpacked: a quarter of the free memory, for examples take several times that."""
    return int(min(memory.available() / 4, 2**40))


def limited(stream: IO[bytes] | gzip.GzipFile, where: object) -> bytes:
    """All of a stream, which may be a bomb: a few bytes that unpack to more than there is memory for."""
    most, content = most_bytes(), io.BytesIO()
    while block := stream.read(_READ):
        check_unpacked(content.tell() + len(block), where, most)
        content.write(block)
    return content.getvalue()


def check_unpacked(size: float, where: object, most: int | None = None) -> None:
    """Refuse what would take so many bytes."""
    most = most_bytes() if most is None else most
    if size > most:
        raise DataError(
            f"{where} unpacks to more than {most / 2**30:,.3g} GiB, a quarter of the free memory: it is damaged, or "
            "too large for this machine"
        )


def is_idx(data: bytes) -> bool:
    """Whether bytes begin as an IDX file does: two zero bytes, a known type, a sane number of dimensions."""
    return len(data) > 4 and data[:2] == b"\0\0" and data[2] in _IDX_TYPES and 1 <= data[3] <= _IDX_MOST_DIMENSIONS


def idx(data: bytes, where: object) -> NDArray[Any]:
    """One array in the IDX format of the MNIST family."""
    if not is_idx(data):
        raise DataError(f"{where} is not an IDX file (wrong first bytes); get the original file again")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{where} is a truncated IDX file; get the original file again")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if 0 in shape:
        raise DataError(f"{where} holds no examples (n=0)")
    dtype = np.dtype(_IDX_TYPES[data[2]])
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected:
        raise DataError(
            f"{where} is damaged: its header asks for {expected:,} bytes and {len(data) - start:,} follow; "
            "get the original file again"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def idx_images(images: bytes, labels: bytes, where: object) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, height, width) and labels (n,) from a pair of IDX files."""
    x, y = idx(images, f"{where} (images)"), idx(labels, f"{where} (labels)")
    if x.ndim != 3 or x.dtype != np.uint8 or y.ndim != 1 or y.dtype != np.uint8:
        raise DataError(f"{where}: expected greyscale images and one label each, found other arrays; check the files")
    return x, y


def cifar(data: bytes, where: object, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 32, 32, 3) and their last label byte from the binary version of CIFAR (planes become channels)."""
    width = label_bytes + _CIFAR_PIXELS
    if not data or len(data) % width:
        raise DataError(
            f"{where} is not a CIFAR binary file: {len(data):,} bytes are no whole number of rows of {width:,}; "
            "get the original file again"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    x = np.empty((len(rows), 32, 32, 3), np.uint8)
    for channel, plane in enumerate(np.split(rows[:, label_bytes:], 3, axis=1)):
        x[..., channel] = plane.reshape(-1, 32, 32)
    return x, rows[:, label_bytes - 1].copy()


def cifar_rows(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bytes:
    """The inverse of `cifar` for one label byte, to store images that came in another container."""
    return np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1).tobytes()


def luma(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGB → grey, pixel for pixel as image libraries do it."""
    return ((x.astype(np.uint32) @ _LUMA + 0x8000) >> 16).astype(np.uint8)


def svhn(data: bytes, where: object) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Grey images (n, 32, 32) and digits from SVHN's MATLAB file, in which the digit 0 has label 10."""
    from scipy.io import loadmat

    with reading(str(where), "MATLAB"):
        content = loadmat(io.BytesIO(data), variable_names=["X", "y"])  # type: ignore[arg-type]  # takes streams too
        x, y = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
        if x.ndim != 4 or x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.shape[3] != len(y):
            raise DataError(f"{where} is not an SVHN file: it needs X of 32×32×3×n bytes and n labels y")
        parts = [luma(np.moveaxis(x[..., i : i + 5000], 3, 0)) for i in range(0, len(y), 5000)]
        return np.concatenate(parts), (y % 10).astype(np.uint8)


def npz(data: bytes, names: tuple[str, ...], where: object) -> tuple[NDArray[Any], ...]:
    """The named arrays of an .npz archive; never unpickles."""
    with reading(str(where), ".npz"), np.load(io.BytesIO(data), allow_pickle=False) as content:
        lacking = [name for name in names if name not in content.files]
        if lacking:
            raise DataError(f"{where} lacks the array {lacking[0]!r}; it needs {', '.join(names)}")
        check_unpacked(unpacked_npz(content), where)
        return tuple(content[name] for name in names)


def unpacked_npz(content: np.lib.npyio.NpzFile) -> int:
    """Bytes of all its arrays, as the archive's directory has them; no member gives more than is said there."""
    return sum(member.file_size for member in content.zip.infolist()) if content.zip is not None else 0


def text(data: bytes, where: object) -> str:
    """UTF-8 text, without the mark that some programs put first."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text (byte {error.start:,}); save it as UTF-8") from None


def check_text(data: bytes, where: object) -> None:
    """The same refusal, without making the text: a piece at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _READ):
        try:
            decoder.decode(data[start : start + _READ], final=start + _READ >= len(data))
        except UnicodeDecodeError as error:
            place = start - len(decoder.getstate()[0]) + error.start
            raise DataError(f"{where} is not UTF-8 text (byte {place:,}); save it as UTF-8") from None


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
