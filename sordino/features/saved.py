"""Features that the user computed elsewhere and saved, a row for each example."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data import DataError, reading

_ROWS = 4096


def saved(path: str | Path, rows: int, *, key: str | None = None) -> NDArray[Any]:
    """The array (rows, D) in an .npy file, read-only and mapped, or under `key` (or alone) in an .npz file.

    Guarantee: none but that there is a finite row for each of the dataset's. That a row is a function of its example
    and of public weights alone cannot be seen from it: if it is, it costs no privacy.
    """
    path = Path(path)
    if path.suffix not in (".npy", ".npz"):
        raise DataError(f"{path} is neither an .npy nor an .npz file: save features with numpy.save or numpy.savez")
    with reading(path, path.suffix):
        found = _member(path, key) if path.suffix == ".npz" else np.load(path, mmap_mode="r", allow_pickle=False)
    if found.ndim != 2 or not found.shape[1]:
        raise DataError(f"{path} holds an array of shape {found.shape}, not features (rows, D)")
    if not np.issubdtype(found.dtype, np.floating):
        raise DataError(f"{path} holds {found.dtype}, not floating-point features")
    if len(found) != rows:
        raise DataError(f"{path} holds features of {len(found)} rows, but the data has {rows}: one for each is needed")
    for start in range(0, rows, _ROWS):
        wrong = ~np.isfinite(found[start : start + _ROWS]).all(axis=1)
        if wrong.any():
            raise DataError(f"{path}, row {start + int(wrong.argmax()) + 1}: a feature is not a finite number")
    return found


def _member(path: Path, key: str | None) -> NDArray[Any]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
        names = content.files
        if key is None and len(names) == 1:
            key = names[0]
        if key not in names:
            raise DataError(f"{path} holds the arrays {', '.join(sorted(names)) or '(none)'}: say which by key")
        return np.asarray(content[key])
