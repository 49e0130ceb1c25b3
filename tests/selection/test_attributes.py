"""Attributes, their symmetrical uncertainties, and merits: by hand, against brute force, and within bounds."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import BudgetExceeded, Ledger
from sordino.data import Column, DataError, Split, load
from sordino.data.schema import Schema
from sordino.features import OneHot
from sordino.mechanisms.contingency import pair_tables
from sordino.selection.attributes import (
    Attributes,
    Uncertainties,
    _coefficients,
    _write_exclusive,
    cfs_greedy,
    exact_uncertainties,
    merits,
    uncertainties,
)


def test_features_stand_in_the_order_of_the_encoding(schema, small):
    attributes = Attributes(schema, bins=4)
    assert attributes.sizes == (2, 3, 4, 3)
    assert attributes.names == ("copy = no", "copy = yes", "noise = a", "noise = b", "noise = c", "number")
    assert attributes.owners.tolist() == [0, 0, 1, 1, 1, 2]
    encoded, codes = OneHot(schema.columns)(small.x), attributes.codes(small)
    assert encoded.shape[1] == len(attributes.names)
    np.testing.assert_array_equal(encoded[:, :2].argmax(1), codes[:, 0])
    np.testing.assert_array_equal(encoded[:, 2:5].argmax(1), codes[:, 1])
    np.testing.assert_array_equal(np.minimum(encoded[:, 5] * 4, 3).astype(int), codes[:, 2])
    np.testing.assert_array_equal(small.y, codes[:, 3])


def test_numbers_fall_into_public_bins_whatever_they_are():
    schema = Schema((Column("a", bounds=(0, 10)),), Column("y", bounds=(0, 1)))
    split = Split(pd.DataFrame({"a": [-5.0, 0, 4.9, 5, 10, 1e9]}), np.array([-1, 0, 0.4, 0.6, 1, 2]))
    assert Attributes(schema, bins=2).codes(split).tolist() == [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1], [1, 1]]


def test_a_word_outside_the_categories_is_an_empty_value(schema):
    frame = pd.DataFrame({"copy": ["yes", "what"], "noise": ["a", "c"], "number": [1.0, 2.0]})
    assert Attributes(schema).codes(Split(frame, np.array([0, 2])))[:, 0].tolist() == [1, -1]


def test_one_bin_is_refused(schema):
    with pytest.raises(ValueError, match="2 bins"):
        Attributes(schema, bins=1)


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


def some(m, seed):
    generator = np.random.default_rng(seed)
    between = generator.random((m, m))
    between = (between + between.T) / 2
    np.fill_diagonal(between, 1.0)
    return Uncertainties(between, generator.random(m), tuple(map(str, range(m))))


def by_formula(found, chosen):
    k = len(chosen)
    pairs = [found.between[i, j] for i in chosen for j in chosen if i != j]
    mean = np.mean(pairs) if pairs else 0.0
    return k * np.mean(found.with_label[chosen]) / np.sqrt(k + k * (k - 1) * mean)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6), st.data())
def test_the_merit_is_equation_7(m, seed, data):
    found = some(m, seed)
    chosen = sorted(data.draw(st.sets(st.integers(0, m - 1), min_size=1)))
    mask = np.isin(np.arange(m), chosen)
    assert merits(found, np.stack([mask, np.zeros(m, bool)])) == pytest.approx([by_formula(found, chosen), 0.0])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_each_step_takes_the_best_next_feature(m, seed):
    found = some(m, seed)
    greedy = cfs_greedy(found)
    assert sorted(greedy.order) == list(range(m))
    for size in range(1, m + 1):
        before = greedy.order[: size - 1].tolist()
        values = [by_formula(found, [*before, i]) for i in range(m) if i not in before]
        assert greedy.merits[size - 1] == pytest.approx(max(values))
        assert by_formula(found, greedy.order[:size].tolist()) == pytest.approx(max(values))
        assert greedy.subset(size).sum() == size
    assert (np.diff(greedy.merits[: greedy.best_size]) > 0).all()
    assert greedy.best_size == m or greedy.merits[greedy.best_size] <= greedy.merits[greedy.best_size - 1]


def test_sizes_that_are_none():
    for size in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            cfs_greedy(some(3, 0)).subset(size)
