"""How every file is read: never more than memory holds, and damage ends in one DataError without private values."""

from __future__ import annotations

import codecs
import gzip
import io
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sordino.mechanisms import memory

GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""
_BLOCK = 2**20
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IDX_MOST_DIMENSIONS = 8


class DataError(ValueError):
    """Data that is missing, damaged or not what it should be, in one line that holds no private value."""


@contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Turn whatever a decoder raises on damaged bytes into one DataError.

    The cause is dropped on purpose: parsers quote the offending cell, and a cell is private.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{where} does not exist; check the path") from None
    except IsADirectoryError:
        raise DataError(f"{where} is a folder, not a {kind} file") from None
    except PermissionError:
        raise DataError(f"{where} may not be read; check its permissions") from None
    except MemoryError:
        raise DataError(f"{where} announces more data than fits in memory; it is damaged or too large") from None
    except Exception:
        raise DataError(
            f"{where} is not a readable {kind} file: it is truncated, damaged or of another format"
        ) from None


@dataclass(frozen=True)
class Files:
    """The files of one folder; each may be there gzipped, as its name with .gz."""

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
        """A file's content, gunzipped if necessary."""
        return read_bytes(self.path(name))


def read_bytes(path: Path) -> bytes:
    """A file's content, gunzipped if necessary."""
    with reading(path, "data"), path.open("rb") as stream:
        data = limited(stream, path)
    return gunzip(data, path)


def gunzip(data: bytes, where: object) -> bytes:
    """The content of gzipped bytes; anything else is returned as it is."""
    if data[:2] != GZIP:
        return data
    with reading(str(where), "gzip"), gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return limited(stream, where)


def most_bytes() -> int:
    """The most a file may unpack to: a quarter of the free memory, since examples take several times that."""
    return int(min(memory.available() / 4, 2**40))


def limited(stream: IO[bytes] | gzip.GzipFile, where: object) -> bytes:
    """All of a stream, unless it is a bomb: a few bytes that unpack to more than there is memory for."""
    most, content = most_bytes(), io.BytesIO()
    while block := stream.read(_BLOCK):
        check_unpacked(content.tell() + len(block), where, most)
        content.write(block)
    return content.getvalue()


def check_unpacked(size: float, where: object, most: int | None = None) -> None:
    """Refuse content of this size if it is more than memory allows."""
    most = most_bytes() if most is None else most
    if size > most:
        raise DataError(
            f"{where} unpacks to more than {most / 2**30:,.3g} GiB, a quarter of the free memory: it is damaged, or "
            "too large for this machine"
        )


def npz_size(content: np.lib.npyio.NpzFile) -> int:
    """Bytes of all arrays according to the archive's directory; no member unpacks to more than that says."""
    return sum(member.file_size for member in content.zip.infolist()) if content.zip is not None else 0


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


def text(data: bytes, where: object) -> str:
    """UTF-8 text, without a byte-order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text (byte {error.start:,}); save it as UTF-8") from None


def check_text(data: bytes, where: object) -> None:
    """The same refusal, decoding a block at a time to save memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _BLOCK):
        try:
            decoder.decode(data[start : start + _BLOCK], final=start + _BLOCK >= len(data))
        except UnicodeDecodeError as error:
            place = start - len(decoder.getstate()[0]) + error.start
            raise DataError(f"{where} is not UTF-8 text (byte {place:,}); save it as UTF-8") from None
