"""A table's columns as attributes of few values: categories as they are, numbers in bins between public cuts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data import Column, DataError, Schema, Split
from sordino.features import OneHot

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Attributes:
    """The schema's columns and, last, its target, each with a fixed number of values.

    Numbers fall into `bins` equal bins between their public bounds, or between the public `cuts` given for a column;
    what lies outside falls into the first or last bin. A feature is what the one-hot encoding makes a column of: an
    indicator for each category, or the number itself, which has as many values here as bins.

    Guarantee: codes are functions of one record each and of public constants; they cost nothing until they are counted.
    """

    schema: Schema
    bins: int = 10
    cuts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"numbers need at least 2 bins, not {self.bins}")
        numeric = {column.name for column in self.all if column.categories is None}
        for name, cuts in self.cuts.items():
            if name not in numeric:
                raise DataError(f"there are cuts for {name!r}, which is no column of numbers in the schema")
            if not cuts or any(not low < high for low, high in pairwise(cuts)) or not np.isfinite(cuts).all():
                raise DataError(f"the cuts of {name!r} must be finite numbers, each above the one before")

    @property
    def all(self) -> tuple[Column, ...]:
        return (*self.schema.columns, self.schema.target)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each attribute has, the target last."""
        return tuple(
            len(self._cuts(column)) + 1 if column.categories is None else len(column.categories) for column in self.all
        )

    @property
    def owners(self) -> NDArray[np.intp]:
        """For each feature, in the order of the one-hot encoding, the attribute it belongs to."""
        return OneHot(self.schema.columns).owners

    @property
    def is_indicator(self) -> tuple[bool, ...]:
        """For each attribute whether its features are indicators of its values; the target stays whole."""
        return (*(column.categories is not None for column in self.schema.columns), False)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features: the column, and for an indicator its category."""
        return tuple(
            name
            for column in self.schema.columns
            for name in (
                [column.name]
                if column.categories is None
                else [f"{column.name} = {word}" for word in column.categories]
            )
        )

    def codes(self, split: Split) -> NDArray[np.int64]:
        """(n, attributes), the target last."""
        columns = [self._codes(column, split.x[column.name]) for column in self.schema.columns]
        target = self.schema.target
        labels = split.y if target.categories is not None else self._binned(target, split.y)
        return np.stack([*columns, labels.astype(np.int64)], axis=1)

    def _cuts(self, column: Column) -> NDArray[np.float64]:
        if column.name in self.cuts:
            return np.array(self.cuts[column.name], dtype=np.float64)
        assert column.bounds is not None
        return np.linspace(*column.bounds, self.bins + 1)[1:-1]

    def _codes(self, column: Column, values: "pd.Series[Any]") -> NDArray[np.int64]:
        if column.categories is None:
            return self._binned(column, values.to_numpy(dtype=np.float64))
        places = {word: place for place, word in enumerate(column.categories)}
        # A word outside the categories becomes −1, an empty value.
        found = values.map(places).to_numpy(np.float64, na_value=np.nan)
        return np.where(np.isnan(found), -1, found).astype(np.int64)

    def _binned(self, column: Column, values: NDArray[np.floating]) -> NDArray[np.int64]:
        return np.searchsorted(self._cuts(column), values, side="right").astype(np.int64)
