"""What a dataset is: examples, labels, the public facts about it, and how it is divided without looking at the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.data.raw_files import DataError

_VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class Column:
    """The public domain of one attribute: its documented categories, or bounds chosen without looking at the rows."""

    name: str
    categories: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    absent: tuple[str, ...] = ()
    """Documented categories that no published row has; one-hot over the others gives the papers' widths."""

    @property
    def width(self) -> int:
        """How many numbers the column becomes one-hot."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class Facts:
    """What may be known of a dataset without any privacy cost."""

    task: str
    """"classification", "regression" or "text" (classification of texts)."""
    kind: str
    """"image", "vector", "table" or "text": what one example is."""
    classes: tuple[str, ...] | None
    shape: tuple[int, ...]
    """Shape of one example."""
    value_range: tuple[float, float] | None
    """Lowest and highest possible entry of an example; tables have it per column."""
    n_train: int
    n_test: int
    source: str
    licence: str
    complete: bool
    note: str
    """What is missing, and what to know before use; may be empty."""
    protected: str
    """What one record is: the unit that the guarantee protects."""
    columns: tuple[Column, ...] | None = None
    target_range: tuple[float, float] | None = None
    """Public bounds of a regression target, chosen without looking at the rows."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, for a run folder that must do without the dataset."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Facts:
        columns = document["columns"]
        read = [Column(**{name: _as_tuple(value) for name, value in column.items()}) for column in columns or ()]
        values = {name: _as_tuple(value) for name, value in document.items()}
        return cls(**values | {"columns": None if columns is None else tuple(read)})


def _as_tuple(value: Any) -> Any:
    """JSON knows lists only."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class Split:
    """Examples x and labels y of one part of a dataset; its repr shows sizes only, since rows are private."""

    x: Any = field(repr=False)
    """Images and vectors: uint8 array (n, …); tables: DataFrame; texts: object array of str."""
    y: NDArray[Any] = field(repr=False)
    """int64 class indices, or float64 targets."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(
                f"there are {len(self.x):,} examples but {len(self.y):,} labels; they must match row by row"
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Split(n={len(self):,})"

    def take(self, rows: NDArray[np.integer[Any]]) -> Split:
        """The given rows, copied."""
        if isinstance(self.x, np.ndarray):
            return Split(self.x[rows], self.y[rows])
        return Split(self.x.iloc[rows].reset_index(drop=True), self.y[rows])

    def followed_by(self, other: Split) -> Split:
        """The rows of both."""
        if isinstance(self.x, np.ndarray):
            return Split(np.concatenate([self.x, other.x]), np.concatenate([self.y, other.y]))
        import pandas as pd

        return Split(pd.concat([self.x, other.x], ignore_index=True), np.concatenate([self.y, other.y]))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset with its official (or documented) train and test split."""

    name: str
    facts: Facts
    train: Split
    test: Split
    workflow: Mapping[str, Any] = field(default_factory=dict)
    """The parts that the privacy-aware-workflow paper draws, and the rows that it draws them "from"."""

    def workflow_split(self, seed: int = 0) -> Splits:
        """The parts that the privacy-aware-workflow paper uses, with the rows drawn by `seed`."""
        if not self.workflow:
            raise DataError(f"the privacy-aware-workflow paper does not use {self.name}; use `draw` instead")
        source = self.workflow["from"]
        pool = self.train.followed_by(self.test) if source == "all" else getattr(self, source)
        sizes = [self.workflow.get(part, 0) for part in ("train", "validation", "test")]
        train, validation, test = draw(pool, sizes, seed)
        return Splits(self.train if source == "test" else train, validation, test)


class Splits(NamedTuple):
    """Three disjoint parts of one dataset; validation may be empty."""

    train: Split
    validation: Split
    test: Split


def check_labels(y: NDArray[Any], classes: tuple[str, ...], where: object) -> NDArray[np.int64]:
    """Labels as int64, refused when one lies outside the classes (naming the row, not the value)."""
    wrong = np.flatnonzero((y < 0) | (y >= len(classes)))
    if len(wrong):
        raise DataError(
            f"{where}: the label of row {wrong[0] + 1} is outside the {len(classes)} classes; labels must be 0 to "
            f"{len(classes) - 1}"
        )
    return y.astype(np.int64)


def shuffled(n: int, seed: int) -> NDArray[np.intp]:
    """A permutation that stays the same in every NumPy version: raw Philox words are the only ones NumPy keeps stable.

    >>> shuffled(10, seed=0).tolist()
    [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    """
    if seed < 0:
        raise DataError(f"a split's seed must be 0 or more, not {seed}")
    return np.argsort(np.random.Philox(key=seed).random_raw(n), kind="stable")


def cut(pool: Split, n_test: int) -> tuple[Split, Split]:
    """The fixed train and test parts of a dataset that was published without them."""
    test, train = draw(pool, (n_test, len(pool) - n_test), seed=0)
    return train, test


def draw(pool: Split, sizes: Sequence[int], seed: int) -> list[Split]:
    """Disjoint random parts of these sizes; rows keep their order."""
    if min(sizes) < 0 or sum(sizes) > len(pool):
        asked = " + ".join(f"{size:,}" for size in sizes)
        raise DataError(f"cannot draw {asked} rows from {len(pool):,}; ask for fewer")
    order = shuffled(len(pool), seed)
    return [pool.take(np.sort(order[start:end])) for start, end in pairwise(np.cumsum((0, *sizes)))]


def number_set_aside(n: int) -> int:
    """How many of a private table's n records are held out for scores."""
    return int(_VALIDATION_SHARE * n)


def set_aside(pool: Split) -> tuple[Split, Split]:
    """The parts "train" and "validation" of a private table: the same records whichever command asks.

    Guarantee: assigned by a record's number alone, so it costs nothing. Commands that share one ledger must all split
    like this: its ε is the largest over parts, and that holds only if no record is in two of them.
    """
    held = number_set_aside(len(pool))
    if held < 1:
        raise DataError(f"{len(pool)} records are too few to set some aside for scores; a table needs at least 5")
    return cut(pool, held)
