"""Symmetrical uncertainties against a direct computation, and charged as what they are."""

import math

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Ledger
from sordino.data import DataError, load
from sordino.data.schema import Schema
from sordino.mechanisms.contingency import pair_tables
from sordino.selection.features.attributes import Attributes
from sordino.selection.features.uncertainty import _coefficients, _write_exclusive, exact_uncertainties, uncertainties


def entropy(*columns):
    _, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    shares = counts / counts.sum()
    return -(shares * np.log2(shares)).sum()


def direct(x, y):
    apart = entropy(x) + entropy(y)
    return 2 * (1 - entropy(x, y) / apart) if apart > 0 else 0.0


def test_every_coefficient_is_that_of_the_definition(schema, small):
    attributes = Attributes(schema, bins=5)
    codes = attributes.codes(small)
    features = [
        codes[:, owner] == np.flatnonzero(attributes.owners == owner).tolist().index(i)
        if attributes.is_indicator[owner]
        else codes[:, owner]
        for i, owner in enumerate(attributes.owners)
    ]
    found = exact_uncertainties(attributes, small)
    for i, first in enumerate(features):
        assert found.with_label[i] == pytest.approx(direct(first, small.y), abs=1e-12)
        for j, second in enumerate(features):
            assert found.between[i, j] == pytest.approx(direct(first, second) if i != j else 1.0, abs=1e-12)
    # The indicator of class 0: H(x) = H(1/3), and nothing else is as telling.
    assert found.names[int(found.with_label.argmax())].startswith("copy")


@pytest.mark.parametrize("categories", [1, 2, 41, 700])
def test_indicators_of_one_attribute_are_compared_bit_for_bit_as_any_pair_is(categories):
    shares = np.random.default_rng(categories).dirichlet(np.full(categories, 0.1))
    shares[: categories // 3] = 0.0
    first, second = np.broadcast_arrays(shares[:, None], shares)
    joint = np.stack([np.zeros_like(first), first, second, 1 - first - second], axis=-1)
    expected = _coefficients(joint.reshape(categories, categories, 2, 2))
    np.fill_diagonal(expected, 1.0)
    found = np.empty_like(expected)
    _write_exclusive(shares, found)
    np.testing.assert_array_equal(found, expected)


def test_constants_tell_nothing_and_empty_tables_do_not_break(schema, small):
    attributes = Attributes(schema)
    codes = attributes.codes(small)
    codes[:, 1] = 0
    found = uncertainties(attributes, pair_tables(codes, attributes.sizes))
    assert not found.with_label[2:5].any()
    nothing = uncertainties(attributes, pair_tables(codes[:0], attributes.sizes))
    assert not nothing.with_label.any()
    assert np.isfinite(nothing.between).all()


def test_exact_counts_are_charged_as_not_private(schema, small):
    ledger = Ledger(target_delta=1e-5)
    exact_uncertainties(Attributes(schema), small, ledger)
    assert ledger.epsilon() == math.inf
    with pytest.raises(BudgetExceeded):
        exact_uncertainties(Attributes(schema), small, Ledger(10.0, 1e-5))


@pytest.mark.parametrize(("name", "width"), [("breast-cancer", 43), ("adult", 108)])
def test_the_papers_widths(name, width):
    try:
        dataset = load(name)
    except DataError as absent:
        pytest.skip(str(absent))
    attributes = Attributes(Schema.of(dataset.facts).without_absent())
    assert len(attributes.names) == width
    found = exact_uncertainties(attributes, dataset.workflow_split().train)
    best = found.names[int(found.with_label.argmax())]
    assert best in ("inv-nodes = 0-2", "deg-malig = 3", "marital-status = Married-civ-spouse")
