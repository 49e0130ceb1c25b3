"""Images in files as records: decoded in parallel to one size, as they are asked for."""

from __future__ import annotations

import hashlib
import hmac
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.data.files import read_examples
from sordino.data.image_index import IMAGES, ImageIndex
from sordino.data.raw_files import DataError, reading

if TYPE_CHECKING:
    from PIL import Image

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM")
_GREY = ("1", "L", "LA", "I;16", "I;16B", "I;16L", "I;16N", "I")
_TOGETHER = 16
"""Images that a thread decodes in one go."""
_READ, _BLOCK = 2**20, 500


class Decoded(NamedTuple):
    """Images of one size in uint8, (n, side, side) or (n, side, side, 3), and which of them could be read."""

    images: NDArray[np.uint8]
    readable: NDArray[np.bool_]


class FirstImage(NamedTuple):
    """What is taken as public of the first image."""

    side: int
    """The shorter one."""
    channels: int


@dataclass(frozen=True)
class ImageFiles:
    """The images of an index, each scaled so that its shorter side fits and cut to the central square.

    `channels` is 1 for grey or 3 for colour. Images of the other kind are refused by name, unless they are to be
    `converted`. Of 16 bits the upper 8 are taken, transparency is dropped.

    Guarantee: an image's row is a function of its own file and of public constants. A file that does not decode, or
    that is larger than Pillow's limit against decompression bombs, is a record without content (a row of zeros that is
    marked as not readable): nothing else shows that it is there.

    >>> ImageFiles(ImageIndex(Path("images"), ("a/1.png",), np.array([0]), ("a", "b")), side=32, channels=3).shape
    (1, 32, 32, 3)
    """

    index: ImageIndex
    side: int
    channels: int
    converted: bool = False

    def __post_init__(self) -> None:
        if self.side < 1 or self.channels not in (1, 3):
            raise ValueError(f"images have a side of 1 or more and 1 or 3 channels, not {self.side}, {self.channels}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), self.side, self.side, *((3,) if self.channels == 3 else ()))

    def __len__(self) -> int:
        return len(self.index)

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """All images, some at a time; one that does not decode is refused by name."""
        for start in range(0, len(self), _BLOCK):
            images, readable = self[start : start + _BLOCK]
            if not readable.all():
                path = self.index.path(start + int(readable.argmin()))
                raise DataError(f"{path} is not a readable image: it is truncated, damaged or of another format")
            yield images

    def part(self, start: int, stop: int) -> ImageFiles:
        """Those from `start` up to `stop`."""
        index = self.index.take(np.arange(start, min(stop, len(self))))
        return ImageFiles(index, self.side, self.channels, self.converted)

    def __getitem__(self, rows: slice) -> Decoded:
        places = range(len(self))[rows]
        images = np.zeros((len(places), *self.shape[1:]), np.uint8)
        readable = np.zeros(len(places), np.bool_)

        def decode(start: int) -> None:
            for row in range(start, min(start + _TOGETHER, len(places))):
                path = self.index.path(places[row])
                with _opened(path) as file:
                    found = self._decoded(file, path)
                if found is not None:
                    images[row], readable[row] = found, True

        with _without_warnings():
            for _ in _workers(os.getpid()).map(decode, range(0, len(places), _TOGETHER)):
                pass
        return Decoded(images, readable)

    def fingerprint(self, key: bytes) -> str:
        """Of the images' names, classes and bytes, read piece by piece."""
        mac = hmac.new(key, f"images {self.index.classes!r} {len(self)}".encode(), hashlib.sha256)
        for place, name in enumerate(self.index.paths):
            path = self.index.path(place)
            with _opened(path) as file:
                size, words = os.fstat(file.fileno()).st_size, os.fsencode(name)
                mac.update(f"{len(words)} {self.index.labels[place]} {size}:".encode() + words)
                while size > 0:
                    block = file.read(min(size, _READ))
                    if not block:
                        raise DataError(
                            f"{path} became shorter while it was read: leave the images alone, and try again"
                        )
                    mac.update(block)
                    size -= len(block)
        return mac.hexdigest()

    def _decoded(self, file: IO[bytes], path: str) -> NDArray[np.uint8] | None:
        """None for what does not decode."""
        from PIL import Image

        try:
            with Image.open(file, formats=_FORMATS) as image:
                grey = _is_grey(image)
                if self.converted or grey == (self.channels == 1):
                    return _squared(image, self.side, "L" if self.channels == 1 else "RGB")
        except MemoryError:
            raise
        except Exception:
            return None
        kinds = ("grey", "in colour") if grey else ("in colour", "grey")
        raise DataError(
            f"{path} is {kinds[0]} and other images are {kinds[1]}: give --channels 1 or 3 to convert all of them"
        )


def pictures(path: Path, shape: tuple[int, ...]) -> Any:
    """An image, or those directly in a folder in the order of their names, scaled to this shape; or another file."""
    if not path.is_dir() and path.suffix.lower() not in IMAGES:
        return read_examples(path)
    root = path if path.is_dir() else path.parent
    with reading(path, "image"):
        files = path.iterdir() if path.is_dir() else [path]
        names = sorted(each.name for each in files if each.name.lower().endswith(IMAGES) and each.is_file())
    if not names:
        raise DataError(f"{path} holds no images ({', '.join(IMAGES)})")
    index = ImageIndex(root, tuple(names), np.zeros(len(names), np.int64), ())
    return ImageFiles(index, shape[0], 3 if len(shape) == 3 else 1, converted=True)


def first_image(index: ImageIndex) -> FirstImage:
    """The size and kind of the first image that can be read: the only one that is opened, and taken as public."""
    from PIL import Image

    with _without_warnings():
        for place in range(len(index)):
            with _opened(index.path(place)) as file:
                try:
                    with Image.open(file, formats=_FORMATS) as image:
                        return FirstImage(min(image.size), 1 if _is_grey(image) else 3)
                except Exception:  # the next one, then
                    continue
    raise DataError(f"{index.root}: none of the {len(index):,} images can be read")


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as problem:
        raise DataError(
            f"{path}: {problem.strerror or 'input/output error'}; the images must stay where they are"
        ) from None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """A warning would show what is in a file; a file that asks for too much memory does not decode."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _is_grey(image: Image.Image) -> bool:
    return image.mode in _GREY


def _squared(image: Image.Image, side: int, mode: str) -> NDArray[np.uint8]:
    from PIL import Image

    image.draft(mode, (side, side))  # a JPEG is decoded to no more pixels than it takes
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    if image.mode.startswith("I"):
        image.load()
        wide = np.asarray(image).astype(np.int64)
        image = Image.fromarray(np.clip(wide >> 8, 0, 255).astype(np.uint8))
    if image.mode != mode:
        image = image.convert(mode)
    if (width, height) != (side, side):
        box = (left, top, left + short, top + short)
        image = image.resize((side, side), Image.Resampling.BICUBIC, box, reducing_gap=2.0)
    return np.asarray(image)


@lru_cache(maxsize=1)
def _workers(process: int) -> ThreadPoolExecutor:
    """Per process, since a fork has none of its parent's threads."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode")
