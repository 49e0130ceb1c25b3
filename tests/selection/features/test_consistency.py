"""Noisy tables made whole: same marginals, nothing negative, less error, and no dependence out of noise alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sordino.mechanisms.contingency import PairTables, pair_tables
from sordino.selection.features.consistency import onto_simplex, whole

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
        made = whole(told, plan, 2000)
        assert (0, 3) in made.standing_out
        assert len(made.standing_out) <= 2  # of the six, one is real
        for pair, table in made.tables.items():
            assert table.min() >= 0
            assert table.sum() == pytest.approx(2000)
            before += ((told[pair] - exact[pair]) ** 2).sum()
            after += ((table - exact[pair]) ** 2).sum()
    assert after < 0.3 * before


def test_without_noise_they_stay_what_they_are():
    codes = np.random.default_rng(1).integers(0, SIZES, (500, 4))
    exact = pair_tables(codes, SIZES)
    plan = PairTables(SIZES, noise_multiplier=1e-9)
    for pair, table in whole(exact, plan, 500).tables.items():
        np.testing.assert_allclose(table, exact[pair], atol=1e-5)


@pytest.mark.parametrize("noise_multiplier", [0.1, 50.0])
def test_noise_and_chance_alone_seldom_stand_out(noise_multiplier):
    plan = PairTables(SIZES, noise_multiplier)
    standing = 0
    for seed in range(40):
        codes = np.random.default_rng(seed).integers(0, SIZES, (500, 4))
        standing += len(whole(noisy(pair_tables(codes, SIZES), plan, seed), plan, 500).standing_out)
    assert standing <= 0.02 * 6 * 40
