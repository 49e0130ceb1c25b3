"""The private selection: its one event, what it finds with many records, and what it says with few."""

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.mechanisms.streams import Streams
from sordino.selection.features.attributes import Attributes
from sordino.selection.features.merit import cfs_greedy
from sordino.selection.features.private import TARGET_WEIGHT, private_uncertainties, tables_plan
from sordino.selection.features.uncertainty import exact_uncertainties


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
