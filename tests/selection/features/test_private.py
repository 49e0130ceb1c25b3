"""The private selection: its one event, what it finds with many records, and what it says with few."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.data import Column, DataError, Split
from sordino.data.schema import Schema
from sordino.mechanisms.memory import NotEnoughMemory
from sordino.mechanisms.streams import Streams
from sordino.selection.features.attributes import Attributes
from sordino.selection.features.merit import cfs_greedy
from sordino.selection.features.private import TARGET_WEIGHT, private_uncertainties, tables_plan
from sordino.selection.features.selecting import planned_tables
from sordino.selection.features.uncertainty import exact_uncertainties, memory_of


def test_one_gaussian_event_whatever_is_selected(schema, large):
    attributes = Attributes(schema)
    plan = tables_plan(attributes, 5.0)
    assert plan.target_weight == TARGET_WEIGHT
    ledger = Ledger(1.0, 1e-5)
    found = private_uncertainties(attributes, large, plan, ledger, "train")
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
    ledger = Ledger(1.0, 1e-5)
    with pytest.raises(NotEnoughMemory, match="column 'zip' has 200,000 categories; merge"):
        planned_tables(Attributes(wide), ledger, 0.5)
    assert not ledger.entries


def test_pairs_of_too_many_cells_are_refused_with_the_names_of_the_largest_columns():
    words = tuple(map(str, range(20_000)))
    columns = (Column("x", bounds=(0, 1)), Column("zip", words), Column("street", words[:-1]))
    attributes = Attributes(Schema(columns, Column("y", ("no", "yes"))))
    with pytest.raises(DataError, match="'zip' with 20,000 values and 'street' with 19,999: merge categories"):
        planned_tables(attributes, Ledger(1.0, 1e-5), 0.5)
