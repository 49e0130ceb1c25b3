"""Rows to use in place of a private table's, to compare models on for free: public, or synthetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.data import Column, DataError, Schema, Split
from sordino.features import OneHot

_LEAST_PUBLIC = 20
_TEST_SHARE = 0.2
_MOST_TRAINED, _MOST_TEST = 8000, 10_000
"""Enough to compare small models by; the noise is that of the private table's n whatever is trained on here."""
_LINEAR, _CURVED = 1.6, 1.2
"""Standard deviations of the two parts of the planted log-odds: labels can be predicted in about four of five cases."""
_CURVES = 16


class ProxyRows(Protocol):
    """Where free measurements come from."""

    @property
    def words(self) -> str:
        """What this is, and what it cannot show."""

    def draw(self, repeat: int) -> tuple[Split, Split]:
        """Training rows, at most as many as the private table has, and rows to score on; new ones for each repeat."""


@dataclass(frozen=True, eq=False)
class PublicRows:
    """Rows of a public file under the same schema, split again for each repeat."""

    rows: Split
    n: int
    """Rows that the private table trains on; no more are taken here."""

    def __post_init__(self) -> None:
        if len(self.rows) < _LEAST_PUBLIC:
            raise DataError(f"the public file has {len(self.rows)} rows; give at least {_LEAST_PUBLIC}")

    @property
    def words(self) -> str:
        return f"{self._trained:,} of {len(self.rows):,} public rows, scored on {self._tested:,} others"

    @property
    def _tested(self) -> int:
        return max(1, min(_MOST_TEST, int(_TEST_SHARE * len(self.rows))))

    @property
    def _trained(self) -> int:
        return min(self.n, _MOST_TRAINED, len(self.rows) - self._tested)

    def draw(self, repeat: int) -> tuple[Split, Split]:
        order = np.random.default_rng([1, repeat]).permutation(len(self.rows))
        return self.rows.take(order[: self._trained]), self.rows.take(order[len(order) - self._tested :])


@dataclass(frozen=True)
class SyntheticRows:
    """Rows drawn from the schema alone: uniform numbers, categories as frequent as 1/rank, labels of a planted model.

    Its log-odds have a linear part and a smaller curved one, so that a network gains on a linear model once the noise
    allows it. It knows nothing of what the private table's columns say about its target.
    """

    schema: Schema
    n: int

    @property
    def words(self) -> str:
        return (
            f"{self._trained:,} synthetic rows with the schema's columns and a planted model (log-odds: linear part "
            f"{_LINEAR:g}, curved part {_CURVED:g}); nothing of the private columns is in it"
        )

    def draw(self, repeat: int) -> tuple[Split, Split]:
        import pandas as pd

        rng, planting = np.random.default_rng([2, repeat]), np.random.default_rng(3)  # the model stays, rows change
        rows = self._trained + _MOST_TEST // 2
        table = pd.DataFrame({column.name: _values(column, rows, rng) for column in self.schema.columns})
        encoded = OneHot(self.schema.columns)(table).astype(np.float64)
        encoded -= encoded.mean(axis=0)
        outputs = len(self.schema.target.categories or ())
        linear = encoded @ planting.standard_normal((encoded.shape[1], outputs))
        bends = np.tanh(2 * _unit(encoded @ planting.standard_normal((encoded.shape[1], _CURVES))))
        curved = bends @ planting.standard_normal((_CURVES, outputs))
        # The greatest under Gumbel noise is a draw from the softmax. Log-odds are differences of two: hence the root.
        log_odds = (_LINEAR * _unit(linear) + _CURVED * _unit(curved)) / np.sqrt(2)
        y = (log_odds + rng.gumbel(size=log_odds.shape)).argmax(axis=1).astype(np.int64)
        both = Split(table, y)
        return both.take(np.arange(self._trained)), both.take(np.arange(self._trained, rows))

    @property
    def _trained(self) -> int:
        return min(self.n, _MOST_TRAINED)


def _values(column: Column, rows: int, rng: np.random.Generator) -> Any:
    import pandas as pd

    if column.bounds is not None:
        return rng.uniform(*column.bounds, rows)
    categories = column.categories or ()
    frequency = 1 / np.arange(1, len(categories) + 1)
    codes = rng.choice(len(categories), rows, p=frequency / frequency.sum())
    return pd.Categorical.from_codes(codes, categories=pd.Index(categories))


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column with a standard deviation of 1, or as it is where it has none."""
    spread = values.std(axis=0)
    return np.asarray(values / np.where(spread > 0, spread, 1))
