"""Columns as attributes of few values, their symmetrical uncertainties, and CFS: Hall's merit and its greedy search.

Everything here is a function of public constants and of counts (exact, or released with noise by `private_tables`).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Ledger, NonPrivate
from sordino.data import Column, Schema, Split
from sordino.features import OneHot
from sordino.mechanisms import Tables, pair_tables

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Attributes:
    """The schema's columns and, last, its target, each with a fixed number of values.

    Numbers fall into `bins` equal bins between their public bounds, values outside into the first or last one. The
    one-hot encoding makes features of a column: an indicator for each category, or the number itself, which has as many
    values here as bins.

    Guarantee: codes are functions of one record and of public constants; they cost nothing until they are counted.
    """

    schema: Schema
    bins: int = 10

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"numbers need at least 2 bins, not {self.bins}")

    @property
    def all(self) -> tuple[Column, ...]:
        return (*self.schema.columns, self.schema.target)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each attribute has, the target last."""
        return tuple(self.bins if column.categories is None else len(column.categories) for column in self.all)

    @property
    def owners(self) -> NDArray[np.intp]:
        """For each feature, in the order of the one-hot encoding, the attribute it belongs to."""
        return OneHot(self.schema.columns).owners

    @property
    def is_indicator(self) -> tuple[bool, ...]:
        """For each attribute whether its features are indicators; the target is never split."""
        return (*(column.categories is not None for column in self.schema.columns), False)

    @property
    def names(self) -> tuple[str, ...]:
        """The features' names: the column, and for an indicator its category."""
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

    def _codes(self, column: Column, values: "pd.Series[Any]") -> NDArray[np.int64]:
        if column.categories is None:
            return self._binned(column, values.to_numpy(dtype=np.float64))
        places = {word: place for place, word in enumerate(column.categories)}
        # A word outside the categories becomes −1, an empty value.
        found = values.map(places).to_numpy(np.float64, na_value=np.nan)
        return np.where(np.isnan(found), -1, found).astype(np.int64)

    def _binned(self, column: Column, values: NDArray[np.floating]) -> NDArray[np.int64]:
        assert column.bounds is not None
        cuts = np.linspace(*column.bounds, self.bins + 1)[1:-1]
        return np.searchsorted(cuts, values, side="right").astype(np.int64)


@dataclass(frozen=True, eq=False)
class Uncertainties:
    """suc(x, y) = 2·(1 − H(x, y)/(H(x) + H(y))), from 0 (independent) to 1 (one determines the other)."""

    between: Array
    """(features, features), symmetrical, 1 on the diagonal."""
    with_label: Array
    """(features,)"""
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        m = len(self.names)
        if self.between.shape != (m, m) or self.with_label.shape != (m,):
            raise ValueError(f"expected uncertainties of {m} features, not {self.between.shape}")


def exact_uncertainties(attributes: Attributes, split: Split, ledger: Ledger | None = None) -> Uncertainties:
    """From the exact counts.

    Guarantee: none. With a ledger it is charged as not private (ε = ∞), which a ledger with a target refuses; without
    one, the records must be public or the result labelled "selection not private".
    """
    if ledger is not None:
        ledger.spend(NonPrivate(), "feature selection from exact counts")
    return uncertainties(attributes, pair_tables(attributes.codes(split), attributes.sizes))


def memory_of(attributes: Attributes) -> int:
    """The most bytes that `uncertainties` takes besides the tables."""
    *columns, target = (
        (1, size) if not indicator else (size, 2)
        for size, indicator in zip(attributes.sizes, attributes.is_indicator, strict=True)
    )
    features = sum(count for count, _ in columns)
    # A pair's features with their values, and as much again for shares, logarithms and products.
    largest = sorted((count * values for count, values in columns), reverse=True)
    pair = largest[0] * max(target[1], *largest[1:2], 1)
    return 8 * (features**2 + 6 * pair + 24 * _MOST_PAIRS + 24 * max(count for count, _ in columns))


def uncertainties(attributes: Attributes, tables: Tables) -> Uncertainties:
    """From tables of counts, exact or made consistent (`consistent_tables`): post-processing.

    Every entropy of a pair comes from that pair's own table, so that no coefficient leaves [0, 1]; those of indicators
    of one attribute, which exclude each other, from the average of its marginals over all tables.
    """
    label = len(attributes.sizes) - 1
    m = len(attributes.owners)
    between, with_label = np.eye(m), np.zeros(m)
    # An attribute's features lie side by side.
    ends = np.searchsorted(attributes.owners, np.arange(label + 1))
    places = [slice(*each) for each in pairwise(ends.tolist())]
    for (a, b), counts in tables.items():
        shares = counts / max(counts.sum(), np.finfo(float).tiny)
        found = _coefficients(_by_features(shares, attributes.is_indicator[a], attributes.is_indicator[b]))
        if b == label:
            with_label[places[a]] = found[:, 0]
        else:
            between[places[a], places[b]] = found
            between[places[b], places[a]] = found.T
    for a in range(label):
        if attributes.is_indicator[a]:
            _write_exclusive(_marginal(tables, a), between[places[a], places[a]])
    return Uncertainties(between, with_label, attributes.names)


def _by_features(shares: Array, first_is_indicator: bool, second_is_indicator: bool) -> Array:
    """(values, values) of two attributes → (features, features, values, values) of their features."""
    first = np.moveaxis(_split(shares.T, first_is_indicator), 0, -1)
    return _split(first, second_is_indicator).swapaxes(1, 2)


def _split(shares: Array, is_indicator: bool) -> Array:
    """(…, values) → (…, features, values of the feature): of an indicator its category and all the rest."""
    if not is_indicator:
        return shares[..., None, :]
    return np.stack([shares, shares.sum(axis=-1, keepdims=True) - shares], axis=-1)


def _coefficients(joint: Array) -> Array:
    """suc of the last two axes."""
    joint = np.maximum(joint, 0.0)  # a difference of equal sums may fall below 0 by rounding
    together = _entropy(joint.reshape(*joint.shape[:-2], -1))
    return _coefficient(together, _entropy(joint.sum(axis=-1)) + _entropy(joint.sum(axis=-2)))


def _coefficient(together: Array, apart: Array) -> Array:
    """suc from the entropy of a pair and the sum of its features' own."""
    found = 2 * (1 - together / np.where(apart > _NOTHING, apart, 1.0))
    return np.asarray(np.where(apart > _NOTHING, np.clip(found, 0.0, 1.0), 0.0))


# A sum of entropies below this is that of constants, up to rounding.
_NOTHING = 1e-9


def _entropy(shares: Array) -> Array:
    return np.asarray(-_surprise(shares).sum(axis=-1))


def _surprise(shares: Array) -> Array:
    """p·log₂ p, and 0 where p is 0."""
    return np.asarray(shares * np.log2(np.where(shares > 0, shares, 1.0)))


def _write_exclusive(shares: Array, out: Array) -> None:
    """Between the indicators of one attribute, never both: `_coefficients` of [[0, first], [second, neither]].

    Some of them at a time. What depends on one indicator alone is computed once: with many categories the logarithms
    take all the time.
    """
    shares = np.maximum(shares, 0.0)
    own = _surprise(shares)
    for part in np.array_split(np.arange(len(shares)), max(1, shares.size**2 // _MOST_PAIRS)):
        first, of_first = shares[part, None], own[part, None]
        neither = np.maximum(1 - first - shares, 0.0)
        together = -(of_first + own + _surprise(neither))
        apart = -(of_first + _surprise(shares + neither)) - (own + _surprise(first + neither))
        out[part] = _coefficient(together, apart)
    np.fill_diagonal(out, 1.0)


_MOST_PAIRS = 2**18


def _marginal(tables: Tables, attribute: int) -> Array:
    """The shares of an attribute's values, averaged over its tables."""
    sums = [counts.sum(axis=1 - pair.index(attribute)) for pair, counts in tables.items() if attribute in pair]
    shares = np.mean([total / max(total.sum(), np.finfo(float).tiny) for total in sums], axis=0)
    return np.asarray(shares)


def check_size(size: int, features: int) -> None:
    if not 1 <= size <= features:
        raise ValueError(f"a subset has 1 to {features} features, not {size}")


def merits(found: Uncertainties, masks: Mask) -> NDArray[np.float64]:
    """Of each subset (subsets, features): k·(mean with the label) / √(k + k(k−1)·(mean between)), 0 of the empty one.

    Guarantee: post-processing of the uncertainties, so it costs nothing however many subsets are tried.
    """
    chosen = np.asarray(masks, dtype=np.float64)
    size = chosen.sum(axis=1)
    # k(k−1) times the mean over pairs is the sum over ordered pairs; the diagonal of 1 makes it size + that sum.
    together = ((chosen @ found.between) * chosen).sum(axis=1)
    return np.asarray(chosen @ found.with_label / np.sqrt(np.where(size > 0, together, 1.0)))


@dataclass(frozen=True, eq=False)
class GreedyOrder:
    """All features in the order in which CFS-Greedy takes them; the first k are its subset of size k."""

    order: NDArray[np.intp]
    merits: NDArray[np.float64]
    """The merits of the first 1, 2, …, m features."""

    def subset(self, size: int) -> Mask:
        """CFS-Greedy's subset of this size as a mask."""
        check_size(size, len(self.order))
        mask = np.zeros(len(self.order), dtype=bool)
        mask[self.order[:size]] = True
        return mask

    @property
    def best_size(self) -> int:
        """Where the paper's other rule stops: adding any one feature more does not raise the merit."""
        falls = np.flatnonzero(np.diff(self.merits) <= 0)
        return int(falls[0]) + 1 if len(falls) else len(self.merits)


def cfs_greedy(found: Uncertainties) -> GreedyOrder:
    """Algorithm 3 for every size in one pass: each time the feature that makes the merit greatest, the first of equals.

    Guarantee: post-processing of the uncertainties.
    """
    m = len(found.names)
    free = np.ones(m, dtype=bool)
    with_label, together = 0.0, 0.0
    with_chosen = np.zeros(m)
    order, values = [], []
    for _ in range(m):
        # A feature more adds its 1 of the diagonal and, twice, what it shares with those chosen.
        candidates = (with_label + found.with_label) / np.sqrt(together + 1 + 2 * with_chosen)
        best = int(np.where(free, candidates, -np.inf).argmax())
        with_label += float(found.with_label[best])
        together += 1 + 2 * float(with_chosen[best])
        with_chosen += found.between[best]
        free[best] = False
        order.append(best)
        values.append(float(candidates[best]))
    return GreedyOrder(np.array(order), np.array(values))
