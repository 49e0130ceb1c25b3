"""Selections within a share of a ledger's budget."""

import numpy as np
import pytest

from sordino.budget import Gaussian, Ledger
from sordino.data import Column, DataError, set_aside
from sordino.data.schema import Schema
from sordino.selection.feature_selection import CfsSelection, PafsSelection, selection_target


def test_a_share_of_what_is_left():
    ledger = Ledger(2.0, 1e-5)
    assert selection_target(ledger, 0.25) == 0.5
    ledger.spend(Gaussian(5.0), "something")
    base = ledger.epsilon_if(Gaussian(1e6))  # from now on by the filter
    assert selection_target(ledger, 0.5) == pytest.approx((base + 2) / 2, rel=1e-3)
    for share in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share"):
            selection_target(ledger, share)
    with pytest.raises(ValueError, match="target"):
        selection_target(Ledger(), 0.5)


@pytest.mark.parametrize("bounds_epsilon", [None, 0.2])
def test_cfs_stays_within_its_goal_whatever_came_before(schema, large, bounds_epsilon):
    ledger = Ledger(3.0, 1e-5)
    for spent, within in ((0.99, 1.0), (0.0, 2.5)):
        found = CfsSelection(size=3, bounds_epsilon=bounds_epsilon).select(schema, *set_aside(large), ledger, within)
        assert found.mask.sum() == len(found.names) == 3
        assert found.names[0].startswith("copy")
        assert spent <= ledger.epsilon() <= within
    # Together they were announced at first, and chosen along the way the second time.
    half = len(ledger.entries) // 2
    assert [entry.planned for entry in ledger.entries] == [True] * half + [False] * half


def test_the_noise_is_filled_up_to_the_goal(schema, large):
    ledger = Ledger(3.0, 1e-5)
    CfsSelection(genetic=True).select(schema, *set_aside(large), ledger, 0.7)
    assert 0.69 < ledger.epsilon() <= 0.7
    assert not ledger.adaptive


def test_what_cannot_be_is_refused_before_it_is_charged(schema, large):
    ledger = Ledger(3.0, 1e-5)
    with pytest.raises(ValueError, match="1 to 6"):
        CfsSelection(size=9).select(schema, *set_aside(large), ledger, 1.0)
    with pytest.raises(DataError, match="two classes"):
        PafsSelection().select(schema, *set_aside(large), ledger, 1.0)
    words = Schema(schema.columns[:2], schema.target)
    with pytest.raises(DataError, match="no numeric column"):
        CfsSelection(bounds_epsilon=0.1).select(words, *set_aside(large), ledger, 1.0)
    two = Schema(schema.columns, Column("y", ("0", "1")))
    with pytest.raises(ValueError, match="2 trials"):
        PafsSelection(1).select(two, *set_aside(large), ledger, 1.0)
    with pytest.raises(ValueError, match="nothing is left for the tables"):
        CfsSelection(bounds_epsilon=1.5).select(schema, *set_aside(large), ledger, 1.0)
    assert not ledger.entries
    assert not ledger.plan


def test_the_parts_are_the_same_records_each_time(large):
    first, second = set_aside(large), set_aside(large)
    assert len(first[1]) == 4000
    np.testing.assert_array_equal(first[1].y, second[1].y)
    both = np.concatenate([part.x["number"] for part in first])
    np.testing.assert_array_equal(np.sort(both), np.sort(large.x["number"]))
    with pytest.raises(DataError, match="too few"):
        set_aside(large.take(np.arange(4)))
