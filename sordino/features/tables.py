"""Tables and vectors → vectors on a public scale: by documented categories and bounds, never those of the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data import Column, DataError, one_hot, refuse_too_wide
from sordino.features.base import Feature, without_warning

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Scaled(Feature):
    """Vectors (n, d) with entries in [low, high] → [0, 1]; entries outside are cut at the bounds."""

    low: float
    high: float

    @without_warning
    def __call__(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        if vectors.ndim != 2:
            raise DataError(f"expected vectors (n, d), not an array of shape {vectors.shape}")
        unit = (vectors.astype(np.float32) - self.low) / (self.high - self.low)
        return np.asarray(np.clip(unit, 0, 1), dtype=np.float32)


@dataclass(frozen=True)
class OneHot(Feature):
    """Rows of a table → numbers scaled to [0, 1] by public bounds, and an indicator for each documented category.

    Guarantee: a function of one row and of the public schema: it costs no privacy.

    >>> import pandas as pd
    >>> from sordino.data import Column
    >>> columns = [Column("age", bounds=(0, 100)), Column("smokes", categories=("no", "yes"))]
    >>> OneHot(columns)(pd.DataFrame({"age": [25, 50], "smokes": ["yes", "no"]}))
    array([[0.25, 0.  , 1.  ],
           [0.5 , 1.  , 0.  ]], dtype=float32)
    """

    columns: Sequence[Column]

    @property
    def owners(self) -> NDArray[np.intp]:
        """For each number of a row, the index of the column it comes from."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns])

    def __call__(self, table: "pd.DataFrame") -> NDArray[np.float32]:
        _refuse_missing(self.columns, table)
        refuse_too_wide(len(table), self.columns)
        return one_hot(self.columns, [_values(column, table[column.name]) for column in self.columns])


@dataclass(frozen=True)
class CentredOneHot(Feature):
    """One-hot rows about the middle of each domain: an indicator minus 1/m (of m categories), a number minus ½.

    Rows are shorter, so that the same noise costs less accuracy, and a model with a bias loses nothing. Numbers with
    public `cuts` become indicators of the bins between them.
    """

    columns: Sequence[Column]
    cuts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numeric = {column.name for column in self.columns if column.bounds is not None}
        for name, cuts in self.cuts.items():
            if name not in numeric:
                raise DataError(f"there are cuts for {name!r}, which is not a column of numbers")
            if not cuts or not np.isfinite(cuts).all() or any(not low < high for low, high in pairwise(cuts)):
                raise DataError(f"the cuts of {name!r} must be finite and increasing")

    @property
    def width(self) -> int:
        return sum(map(self._size, self.columns))

    @property
    def row_norm(self) -> float:
        """The largest norm of a row with a 1 for the bias: public, reached where numbers without cuts lie at bounds."""
        squares = [0.25 if self._is_number(column) else 1 - 1 / self._size(column) for column in self.columns]
        return sqrt(1 + sum(squares))

    def __call__(self, table: "pd.DataFrame") -> NDArray[np.float32]:
        _refuse_missing(self.columns, table)
        rows = np.empty((len(table), self.width), np.float32)
        ends = np.cumsum([self._size(column) for column in self.columns])[:-1]
        for column, block in zip(self.columns, np.split(rows, ends, axis=1), strict=True):
            middle = 0.5 if self._is_number(column) else 1 / self._size(column)
            if column.name in self.cuts:
                block[:] = -middle
                places = np.searchsorted(self.cuts[column.name], _numbers(column, table[column.name]), side="right")
                block[np.arange(len(rows)), places] = 1 - middle
            else:
                np.subtract(OneHot([column])(table), middle, out=block)
        return rows

    def _size(self, column: Column) -> int:
        """How many numbers the column becomes."""
        if column.name in self.cuts:
            return len(self.cuts[column.name]) + 1
        return column.width

    def _is_number(self, column: Column) -> bool:
        return column.bounds is not None and column.name not in self.cuts


def neutral_cuts(columns: Sequence[Column], bins: int = 10) -> dict[str, tuple[float, ...]]:
    """Cuts of every column of numbers into bins of equal width, from its public bounds alone.

    Where numbers from zero up span a factor of a thousand or more, as amounts do, the widths are equal in log(1 + x):
    most records of such a column would otherwise fall into the first bin.
    """
    if bins < 2:
        raise DataError(f"bins must be at least 2, not {bins}")
    found: dict[str, tuple[float, ...]] = {}
    for column in columns:
        if column.bounds is not None:
            low, high = column.bounds
            if low >= 0 and high >= _LONG * max(low, 1.0):
                edges = np.expm1(np.linspace(np.log1p(low), np.log1p(high), bins + 1))
            else:
                edges = np.linspace(low, high, bins + 1)
            # Far from zero, neighbouring edges may be the same float: fewer cuts then, or none.
            inside = np.unique(edges[(edges > low) & (edges < high)])
            if len(inside):
                found[column.name] = tuple(inside.tolist())
    return found


_LONG = 1000.0


def _refuse_missing(columns: Sequence[Column], table: "pd.DataFrame") -> None:
    missing = [column.name for column in columns if column.name not in table]
    if missing:
        raise DataError(f"the table lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")


def _values(column: Column, values: "pd.Series[Any]") -> NDArray[Any]:
    """Numbers, or the index of each word among the categories."""
    if column.categories is None:
        return _numbers(column, values)
    from pandas import Index

    places = Index(column.categories).get_indexer(Index(values))
    _refuse_first(places < 0, column, f"is none of the {len(column.categories)} documented ones")
    return places


def _numbers(column: Column, values: "pd.Series[Any]") -> NDArray[np.float64]:
    from pandas import to_numeric  # pandas takes half a second to load, which images do not need

    numbers = to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    _refuse_first(~np.isfinite(numbers), column, "is not a number")
    return np.asarray(numbers)


def _refuse_first(wrong: NDArray[np.bool_], column: Column, what: str) -> None:
    """Name the first wrong cell by row and column, never by its value."""
    if wrong.any():
        raise DataError(f"row {int(wrong.argmax()) + 1}, column {column.name}: the value {what}")
