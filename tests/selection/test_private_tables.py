"""Noisy tables made consistent, and private uncertainties: what they cost and how much of them is noise."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.data import Column, DataError, Split
from sordino.data.schema import Schema
from sordino.mechanisms.contingency import PairTables, pair_tables
from sordino.mechanisms.memory import NotEnoughMemory
from sordino.mechanisms.streams import Streams
from sordino.selection.attributes import Attributes, cfs_greedy, exact_uncertainties, memory_of
from sordino.selection.private_tables import (
    TARGET_WEIGHT,
    consistent_tables,
    onto_simplex,
    private_uncertainties,
    tables_plan,
)

SIZES = (3, 4, 5, 2)


def noisy(exact, plan, seed):
    generator = np.random.default_rng(seed)
    return {pair: table + generator.normal(0, plan.noise_of(pair), table.shape) for pair, table in exact.items()}


@given(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(-1e6, 1e6)), st.floats(1, 1e5))
def test_the_nearest_point_of_the_simplex(values, total):
    found = onto_simplex(values, total)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(total, rel=1e-6)
    # Nearest: the direction from it to the values is at no obtuse angle with any corner's (up to rounding).
    corners = np.eye(len(values)) * total
    assert ((corners - found) @ (values - found)).max() <= 1e-6 * (1 + total) * (1 + np.abs(values).max())


def test_they_are_nearer_to_the_truth_than_the_noisy_ones():
    generator = np.random.default_rng(0)
    first = generator.integers(0, 3, 2000)
    codes = np.stack([first, generator.integers(0, 4, 2000), generator.integers(0, 5, 2000), first % 2], axis=1)
    exact = pair_tables(codes, SIZES)
    plan = PairTables(SIZES, noise_multiplier=10.0, target_weight=3.0)
    before, after = 0.0, 0.0
    for seed in range(5):
        told = noisy(exact, plan, seed)
        made, dependent = consistent_tables(told, plan, 2000)
        assert (0, 3) in dependent
        assert len(dependent) <= 2  # of the six, one is real
        for pair, table in made.items():
            assert table.min() >= 0
            assert table.sum() == pytest.approx(2000)
            before += ((told[pair] - exact[pair]) ** 2).sum()
            after += ((table - exact[pair]) ** 2).sum()
    assert after < 0.3 * before


def test_without_noise_they_stay_what_they_are():
    codes = np.random.default_rng(1).integers(0, SIZES, (500, 4))
    exact = pair_tables(codes, SIZES)
    plan = PairTables(SIZES, noise_multiplier=1e-9)
    for pair, table in consistent_tables(exact, plan, 500)[0].items():
        np.testing.assert_allclose(table, exact[pair], atol=1e-5)


@pytest.mark.parametrize("noise_multiplier", [0.1, 50.0])
def test_noise_and_chance_alone_seldom_stand_out(noise_multiplier):
    plan = PairTables(SIZES, noise_multiplier)
    standing = 0
    for seed in range(40):
        codes = np.random.default_rng(seed).integers(0, SIZES, (500, 4))
        standing += len(consistent_tables(noisy(pair_tables(codes, SIZES), plan, seed), plan, 500)[1])
    assert standing <= 0.02 * 6 * 40


def test_one_gaussian_event_whatever_is_selected(schema, large):
    attributes = Attributes(schema)
    plan = tables_plan(attributes, 5.0)
    assert plan.target_weight == TARGET_WEIGHT
    ledger = Ledger(1.0, 1e-5)
    found = private_uncertainties(attributes, large, plan, ledger)
    assert [entry.spent.event for entry in ledger.entries] == [Gaussian(5.0)]
    assert ledger.epsilon() == cost(Gaussian(5.0), 1e-5).epsilon
    exact = cfs_greedy(exact_uncertainties(attributes, large))
    assert set(cfs_greedy(found.uncertainties).order[:2]) <= set(exact.order[:3].tolist())
    np.testing.assert_allclose(
        found.uncertainties.with_label, exact_uncertainties(attributes, large).with_label, atol=0.02
    )
    assert not found.noise_dominates
    assert "2 of 3 columns depend on the target" in found.in_words()


def test_it_says_so_where_noise_dominates(schema, small):
    attributes = Attributes(schema)
    found = private_uncertainties(
        attributes, small, tables_plan(attributes, 200.0), Ledger(), streams=Streams(bytes(16))
    )
    assert found.noise_dominates
    assert "Noise dominates" in found.in_words()
    assert f"±{200 * np.sqrt(3 + 9 * 3) / 3:,.3g} on each count of a table with the target" in found.in_words()


def test_what_cannot_be_is_refused_before_it_is_charged(schema, small):
    attributes = Attributes(schema)
    plan = tables_plan(attributes, 5.0)
    ledger = Ledger()
    with pytest.raises(ValueError, match="other attributes"):
        private_uncertainties(Attributes(schema, bins=3), small, plan, ledger)
    with pytest.raises(ValueError, match="at least one record"):
        private_uncertainties(attributes, small.take(np.arange(0)), plan, ledger)
    with pytest.raises(ValueError, match="add-remove"):
        private_uncertainties(attributes, small, plan, Ledger(adjacency="add-remove"))
    with pytest.raises(BudgetExceeded):
        private_uncertainties(attributes, small, plan, Ledger(0.1, 1e-5))
    assert not ledger.entries


@pytest.mark.parametrize(
    ("categories", "numbers", "classes"), [((1500,), 3, 2), ((1200, 600), 2, 2), ((700, 700), 0, 2), ((1500,), 1, 40)]
)
def test_memory_is_estimated_from_above_and_not_by_far(categories, numbers, classes):
    columns = [Column(f"words {i}", tuple(map(str, range(size)))) for i, size in enumerate(categories)]
    columns += [Column(f"number {i}", bounds=(0, 1)) for i in range(numbers)]
    attributes = Attributes(Schema(tuple(columns), Column("y", tuple(map(str, range(classes))))))
    generator, n = np.random.default_rng(0), 500
    table = {c.name: generator.choice(c.categories, n) if c.categories else generator.random(n) for c in columns}
    split = Split(pd.DataFrame(table), generator.integers(0, classes, n))
    tracemalloc.start()
    plan = tables_plan(attributes, 1.0)
    private_uncertainties(attributes, split, plan, Ledger())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 2 * plan.needed_bytes + memory_of(attributes) <= 3 * peak + 2**28


def test_columns_of_too_many_categories_are_refused_by_name_before_the_charge(large):
    many = Column("zip", tuple(map(str, range(200_000))))
    wide = Schema((many, Column("x", bounds=(0, 1))), Column("y", ("no", "yes")))
    with pytest.raises(NotEnoughMemory, match="column 'zip' has 200,000 categories; merge"):
        tables_plan(Attributes(wide), 5.0)


def test_pairs_of_too_many_cells_are_refused_with_the_names_of_the_largest_columns():
    words = tuple(map(str, range(20_000)))
    columns = (Column("x", bounds=(0, 1)), Column("zip", words), Column("street", words[:-1]))
    attributes = Attributes(Schema(columns, Column("y", ("no", "yes"))))
    with pytest.raises(DataError, match="'zip' with 20,000 values and 'street' with 19,999: merge categories"):
        tables_plan(attributes, 5.0)
