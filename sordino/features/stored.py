"""Features computed once and kept on disk, in memory-mapped files that later runs only open."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.data.places import cache_folder
from sordino.features.feature import Chain, Feature, as_array

_FORMAT = 2
_BLOCK = 500


def stored(
    feature: Feature,
    examples: NDArray[Any],
    *,
    dtype: str = "float32",
    cache: Path | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> NDArray[Any]:
    """The examples' descriptions, read-only, from the cache or else computed into it.

    The file is found by a hash of the examples, the feature's constants, the type and the version of this package. It
    tells as much as the examples themselves: the folder is readable to its owner only.
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f"features are stored in float32 or float16, not {dtype}")
    folder = cache_folder(cache) / "features"
    path = folder / f"{_key(feature, examples, dtype)}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # whatever the umask is, and also if it was there before
        _compute(*_remaining(feature, examples, folder), np.dtype(dtype), path, on_progress)
    return np.asanyarray(np.load(path, mmap_mode="r"))


def _key(feature: Feature, examples: NDArray[Any], dtype: str) -> str:
    words = f"{_FORMAT} {version('sordino')} {feature.identity} {dtype} {examples.dtype.str} {examples.shape}"
    digest = hashlib.blake2b(words.encode(), digest_size=20)
    digest.update(np.ascontiguousarray(examples).data.cast("B") if examples.size else b"")
    return digest.hexdigest()


def _remaining(feature: Feature, examples: NDArray[Any], folder: Path) -> tuple[Feature, Any]:
    """What there is to do, and to what: the last steps of a chain may find on disk what the steps before them left."""
    steps = feature.steps if isinstance(feature, Chain) else ()
    for done in range(len(steps) - 1, 0, -1):
        path = folder / f"{_key(Chain(steps[:done]), examples, 'float32')}.npy"
        if path.exists():
            # Copy on write: torch wants what it could write on.
            return Chain(steps[done:]), torch.from_numpy(np.load(path, mmap_mode="c"))
    return feature, examples


def _compute(
    feature: Feature, examples: Any, dtype: np.dtype[Any], path: Path, on_progress: Callable[[int], None]
) -> None:
    """Under another name until it is whole, so that a killed process leaves nothing that looks finished."""
    first = as_array(feature(examples[:_BLOCK]))
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        out = np.lib.format.open_memmap(name, mode="w+", dtype=dtype, shape=(len(examples), *first.shape[1:]))
        for start in range(0, len(examples), _BLOCK):
            rows = slice(start, start + _BLOCK)
            out[rows] = as_array(feature(examples[rows])) if start else first
            on_progress(min(start + _BLOCK, len(examples)))
        out.flush()
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
