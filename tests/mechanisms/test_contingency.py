"""Tables of all pairs: counts, how far one record moves them together, noise, and charge."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.mechanisms import contingency
from sordino.mechanisms.contingency import PairTables, pair_tables
from sordino.mechanisms.streams import Streams

KEY = bytes(16)


def as_vector(tables):
    return np.concatenate([table.ravel() for table in tables.values()])


def test_counts_are_those_of_numpy():
    sizes = (3, 2, 4)
    codes = np.random.default_rng(0).integers(0, sizes, (200, 3))
    tables = pair_tables(codes, sizes)
    assert list(tables) == [(0, 1), (0, 2), (1, 2)]
    for (a, b), table in tables.items():
        expected = np.zeros((sizes[a], sizes[b]))
        np.add.at(expected, (codes[:, a], codes[:, b]), 1)
        np.testing.assert_array_equal(table, expected)


def test_records_are_counted_a_block_at_a_time(monkeypatch):
    sizes = (30, 20, 50)
    codes = np.random.default_rng(0).integers(-1, 60, (5000, 3))
    whole = pair_tables(codes, sizes)
    monkeypatch.setattr(contingency, "_MOST_INDICATORS", 7000)
    made = []
    zeros = np.zeros
    monkeypatch.setattr(np, "zeros", lambda shape, **more: made.append(shape) or zeros(shape, **more))
    in_blocks = pair_tables(codes, sizes)
    assert made == [(100, 100), *[(70, 100)] * 71, (30, 100)]
    for pair, table in whole.items():
        np.testing.assert_array_equal(in_blocks[pair], table)


def test_a_column_of_many_values_takes_the_memory_of_its_own_tables():
    sizes = (3, 20_000, 4)
    codes = np.random.default_rng(0).integers(-1, np.array(sizes) + 1, (3000, 3))
    tracemalloc.start()
    tables = pair_tables(codes, sizes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < PairTables(sizes, 1.0).needed_bytes < 2**27  # the square of the width would be 3 GiB
    assert list(tables) == [(0, 1), (0, 2), (1, 2)]
    for (a, b), table in tables.items():
        expected = np.zeros((sizes[a], sizes[b]))
        known = ((codes >= 0) & (codes < sizes))[:, [a, b]].all(axis=1)
        np.add.at(expected, (codes[known, a], codes[known, b]), 1)
        np.testing.assert_array_equal(table, expected)


# Breast Cancer and Adult, label included: NOTES' √45 and √105, and with the label's tables three times as exact.
@pytest.mark.parametrize(("attributes", "weight", "squared"), [(10, 1, 45), (15, 1, 105), (15, 3, 91 + 9 * 14)])
def test_one_record_moves_all_weighted_tables_by_the_sensitivity(attributes, weight, squared):
    sizes = tuple(2 + i % 4 for i in range(attributes))
    codes = np.random.default_rng(1).integers(0, sizes, (50, attributes))
    plan = PairTables(sizes, noise_multiplier=3.0, target_weight=weight)
    told = plan.release(codes, Ledger(), streams=Streams(KEY))
    for row in range(0, 50, 7):
        zeroed = codes.copy()
        zeroed[row] = -1
        other = plan.release(zeroed, Ledger(), streams=Streams(KEY))
        # In units of the noise on each cell, which is what the event prices.
        moved = np.linalg.norm(as_vector({pair: (other[pair] - told[pair]) / plan.noise_of(pair) for pair in told}))
        assert moved == pytest.approx(1 / plan.noise_multiplier)
    assert plan.sensitivity == pytest.approx(math.sqrt(squared))
    assert plan.noise_of((0, 1)) == pytest.approx(3 * math.sqrt(squared))
    assert plan.noise_of((0, attributes - 1)) == pytest.approx(3 * math.sqrt(squared) / weight)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.data())
def test_no_record_whatsoever_moves_them_further(sizes, data):
    codes = data.draw(hnp.arrays(np.int64, (4, len(sizes)), elements=st.integers(-(2**40), 2**40) | st.integers(-1, 4)))
    most = PairTables(tuple(sizes), 1.0).sensitivity
    told = as_vector(pair_tables(codes, tuple(sizes)))
    moved = told - as_vector(pair_tables(codes[1:], tuple(sizes)))
    assert np.linalg.norm(moved) <= most * (1 + 1e-12)


def test_the_noise_and_its_price():
    plan = PairTables((40, 50, 60), noise_multiplier=2.0, target_weight=2.0)
    assert plan.event == Gaussian(2.0)
    tables = plan.release(np.full((10, 3), -1), Ledger())
    for pair, table in tables.items():
        assert table.std() == pytest.approx(2.0 * 3 / (2 if 2 in pair else 1), rel=0.1)
    blocks = [table[:40, :40].ravel() for table in tables.values()]
    assert np.abs(np.corrcoef(blocks) - np.eye(3)).max() < 0.1
    ledger = Ledger(target_epsilon=5.0, target_delta=1e-5)
    plan.release(np.zeros((10, 3), int), ledger)
    assert ledger.epsilon() == cost(Gaussian(2.0), 1e-5).epsilon
    assert [entry.part for entry in ledger.entries] == ["train"]


def test_fresh_noise_each_time():
    plan = PairTables((2, 2), 1.0)
    codes = np.zeros((5, 2), int)
    first, second = (as_vector(plan.release(codes, Ledger())) for _ in range(2))
    assert not np.array_equal(first, second)


def test_it_is_charged_before_anything_is_read():
    class Untouchable(np.ndarray):
        def __ge__(self, other):
            raise AssertionError("read")

    codes = np.zeros((5, 2), int).view(Untouchable)
    ledger = Ledger(target_epsilon=0.1, target_delta=1e-5)
    with pytest.raises(BudgetExceeded):
        PairTables((2, 2), 1.0).release(codes, ledger)
    with pytest.raises(AssertionError, match="read"):
        PairTables((2, 2), 100.0).release(codes, ledger)
    assert len(ledger.entries) == 1


@pytest.mark.parametrize("sizes", [(2,), (), (2, 0), (9000, 9000)])
def test_sizes_that_make_no_tables(sizes):
    with pytest.raises(ValueError, match="attributes"):
        PairTables(sizes, 1.0)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf])
def test_weights_that_are_none(weight):
    with pytest.raises(ValueError, match="target_weight"):
        PairTables((2, 2), 1.0, weight)


def test_codes_of_another_width():
    ledger = Ledger()
    with pytest.raises(ValueError, match=r"expected codes \(n, 2\)"):
        PairTables((2, 2), 1.0).release(np.zeros((5, 3), int), ledger)
    assert not ledger.entries
