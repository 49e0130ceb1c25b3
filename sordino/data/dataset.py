"""What a loaded dataset is: examples, labels, and the facts about it that are public."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.errors import DataError

if TYPE_CHECKING:
    from sordino.data.splits import Splits


@dataclass(frozen=True)
class Column:
    """The public domain of one attribute: its documented categories, or bounds chosen without looking at the rows."""

    name: str
    categories: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    absent: tuple[str, ...] = ()
    """Documented categories that no published row has; one-hot over the others gives the papers' widths."""


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
    """What one record is, that is, what a guarantee for one record protects."""
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


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset with its official (or documented) train and test split."""

    name: str
    facts: Facts
    train: Split
    test: Split

    def split(self, validation: int = 0, *, train: int | None = None, test: int | None = None, seed: int = 0) -> Splits:
        """Validation rows drawn from the training rows; `train` and `test` also cut those parts to a size."""
        from sordino.data.splits import hold_out

        return hold_out(self, validation, train=train, test=test, seed=seed)

    def workflow_split(self, seed: int = 0) -> Splits:
        """The sizes that the privacy-aware-workflow paper used for this dataset."""
        from sordino.data.splits import workflow

        return workflow(self, seed=seed)


def check_labels(y: NDArray[Any], classes: tuple[str, ...], where: object) -> NDArray[np.int64]:
    """Labels as int64, refused when one lies outside the classes (naming the row, not the value)."""
    wrong = np.flatnonzero((y < 0) | (y >= len(classes)))
    if len(wrong):
        raise DataError(
            f"{where}: the label of row {wrong[0] + 1} is outside the {len(classes)} classes; labels must be 0 to "
            f"{len(classes) - 1}"
        )
    return y.astype(np.int64)
