"""Tables and vectors of numbers → vectors on a public scale: documented categories and bounds, never the rows' own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data import Column, DataError
from sordino.features.feature import Feature

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Scaled(Feature):
    """Vectors (n, d) with entries in [low, high] → [0, 1]; entries outside are cut at the bounds."""

    low: float
    high: float

    def __call__(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        if vectors.ndim != 2:
            raise DataError(f"expected vectors (n, d), not an array of shape {vectors.shape}")
        unit = (vectors.astype(np.float32) - self.low) / (self.high - self.low)
        return np.asarray(np.clip(unit, 0, 1), dtype=np.float32)


@dataclass(frozen=True)
class OneHot(Feature):
    """Rows of a table → numbers scaled to [0, 1] by public bounds, and an indicator for each documented category."""

    columns: Sequence[Column]

    def __call__(self, table: "pd.DataFrame") -> NDArray[np.float32]:
        missing = [column.name for column in self.columns if column.name not in table]
        if missing:
            raise DataError(f"the table lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
        blocks = [self._encode(column, table[column.name]) for column in self.columns]
        return np.concatenate(blocks, axis=1).astype(np.float32)

    def _encode(self, column: Column, values: "pd.Series[Any]") -> NDArray[Any]:
        if column.bounds is not None:
            from pandas import to_numeric  # half a second that runs on images need not wait for

            numbers = to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
            _refuse_first(~np.isfinite(numbers), column, "is not a number")
            low, high = column.bounds
            return np.clip((numbers - low) / (high - low), 0, 1)[:, None]
        categories = column.categories or ()
        _refuse_first(~values.isin(categories).to_numpy(), column, f"is none of the {len(categories)} documented ones")
        return np.stack([(values == category).to_numpy() for category in categories], axis=1)


def _refuse_first(wrong: NDArray[np.bool_], column: Column, what: str) -> None:
    """Name the first wrong cell by row and column, never by its value."""
    if wrong.any():
        raise DataError(f"row {int(wrong.argmax()) + 1}, column {column.name}: the value {what}")
