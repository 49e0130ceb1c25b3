"""Images in files, decoded or described once into shards on disk, and read from there batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import Decoded, ImageFiles
from sordino.features.base import Feature, as_array
from sordino.features.storage import stored
from sordino.mechanisms import memory

_SHARD_BYTES, _MOST_IMAGES = 2**28, 2**14
_BLOCK = 500


@dataclass(frozen=True)
class _FromFiles(Feature):
    """What is kept of a block of decoded images: their features, NaN where there is no image; or their pixels.

    Pixels are flat in uint8, with a number behind them that says whether they could be read.
    """

    decoding: str
    feature: Feature | None

    @property
    def identity(self) -> str:
        return f"{self.decoding} >> {self.feature.identity if self.feature else 'pixels'}"

    def __call__(self, decoded: Decoded) -> NDArray[Any]:
        if self.feature is None:
            flat = decoded.images.reshape(len(decoded.images), -1)
            return np.concatenate([flat, decoded.readable[:, None].astype(np.uint8)], axis=1)
        return _where_readable(self.feature, decoded)


class StoredImages:
    """The features of images in files, as a read-only array of single precision that stays on disk, and as Records.

    Rows by a slice or by indices are read when they are asked for, so that memory holds a batch and never the whole; as
    NumPy's array it is read into memory. Features that are `slow` are kept themselves, of others the pixels. Both are
    kept by `stored`, in shards: after a kill it continues with the shard that was interrupted. A file that does not
    decode is a row of NaN, whose gradient and moments every mechanism counts as zero.

    Guarantee: if the feature costs no privacy, neither does this: a row is a function of its own file.
    """

    def __init__(
        self,
        files: ImageFiles,
        feature: Feature,
        *,
        slow: bool = False,
        cache: Path | None = None,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.files, self._feature = files, None if slow else feature
        decoding = f"images {files.shape[1:]}, converted={files.converted}, Pillow {PIL.__version__}"
        kept = _FromFiles(decoding, feature if slow else None)
        each = int(np.prod(files.shape[1:]))
        self._rows = min(_MOST_IMAGES, max(_BLOCK, _SHARD_BYTES // each // _BLOCK * _BLOCK))
        self._shards: list[tuple[str, np.dtype[Any], int, tuple[int, ...]]] = []
        for start in range(0, len(files), self._rows):
            shard, dtype = files.part(start, start + self._rows), "float32" if slow else "uint8"

            def on_images(done: int, start: int = start) -> None:
                on_progress(start + done)

            found: Any = stored(kept, shard, dtype=dtype, cache=cache, on_progress=on_images)
            # Opened anew for each batch: pages of a map that is kept count as this process's memory.
            self._shards.append((found.filename, found.dtype, found.offset, found.shape))
            on_progress(start + len(shard))
        self.shape: tuple[int, ...] = (len(files), *self[:1].shape[1:])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        indices = np.arange(len(self))[rows]
        if not len(indices):
            return np.empty((0, *self.shape[1:]), np.float32)
        kept = self._kept(indices)
        if self._feature is None:
            return kept
        images = kept[:, :-1].reshape(len(kept), *self.files.shape[1:])
        return _where_readable(self._feature, Decoded(images, kept[:, -1] != 0))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        needed = 4.0 * float(np.prod(self.shape))
        memory.require(2 * needed, f"the features of {len(self):,} images", "choose a recipe with fewer features")
        found = np.empty(self.shape, np.float32)
        for start in range(0, len(self), _BLOCK):
            found[start : start + _BLOCK] = self[start : start + _BLOCK]
        return found if dtype is None else found.astype(dtype, copy=False)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self[indices]), torch.from_numpy(self.files.index.labels[indices])

    def fingerprint(self, key: bytes) -> str:
        return self.files.fingerprint(key)

    def unreadable(self) -> list[str]:
        """The files that do not decode: private."""
        found = []
        for number, shard in enumerate(self._shards):
            rows = _mapped(shard)
            lost = rows[:, -1] == 0 if self._feature is not None else np.isnan(rows.reshape(len(rows), -1)[:, 0])
            found += [self.files.index.paths[number * self._rows + place] for place in np.flatnonzero(lost).tolist()]
        return found

    def _kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        _, dtype, _, shape = self._shards[0]
        found = np.empty((len(indices), *shape[1:]), dtype)
        places = indices // self._rows
        for number in np.unique(places).tolist():
            own = np.flatnonzero(places == number)
            found[own] = _mapped(self._shards[number])[indices[own] - number * self._rows]
        return found


def _mapped(shard: tuple[str, np.dtype[Any], int, tuple[int, ...]]) -> NDArray[Any]:
    path, dtype, offset, shape = shard
    return np.memmap(path, dtype, "r", offset, shape)


def _where_readable(feature: Feature, decoded: Decoded) -> NDArray[np.float32]:
    found = np.asarray(as_array(feature(decoded.images)), np.float32)
    found[~decoded.readable] = np.nan
    return found
