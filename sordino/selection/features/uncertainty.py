"""Symmetrical uncertainty between features and with the label, out of the tables of all pairs of attributes."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Ledger, NonPrivate
from sordino.data import Split
from sordino.mechanisms import Tables, pair_tables
from sordino.selection.features.attributes import Attributes

Array = NDArray[np.float64]


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
    """From the exact counts, as papers do whose selection is not private.

    Guarantee: none. With a ledger it is charged as not private (ε = ∞), which a ledger with a target refuses; without
    one, the records must be public or the result labelled "selection not private".
    """
    if ledger is not None:
        ledger.spend(NonPrivate(), "feature selection from exact counts")
    return uncertainties(attributes, pair_tables(attributes.codes(split), attributes.sizes))


def memory_of(attributes: Attributes) -> int:
    """The most bytes that `uncertainties` takes beside the tables."""
    *columns, target = (
        (1, size) if not indicator else (size, 2)
        for size, indicator in zip(attributes.sizes, attributes.is_indicator, strict=True)
    )
    features = sum(count for count, _ in columns)
    # A pair's features with the values of each, and as much again for shares, their logarithms and products.
    largest = sorted((count * values for count, values in columns), reverse=True)
    pair = largest[0] * max(target[1], *largest[1:2], 1)
    return 8 * (features**2 + 6 * pair + 24 * _MOST_PAIRS + 24 * max(count for count, _ in columns))


def uncertainties(attributes: Attributes, tables: Tables) -> Uncertainties:
    """From tables of counts, exact ones or noisy ones that are made whole (`consistency.whole`): post-processing.

    Every entropy of a pair comes from that pair's own table, so that no coefficient leaves [0, 1]; indicators of the
    same attribute, which exclude each other, from the average of what its tables say of it.
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
    """p·log₂ p, and 0 of nothing."""
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
