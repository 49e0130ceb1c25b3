"""The clipped Gaussian sum: its sensitivity directly, its noise by statistics, its charge by the ledger."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.mechanisms.gaussian import clip_rows, clipped_gaussian_sum

wild_rows = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(allow_nan=True, allow_infinity=True, width=64),
)


@given(wild_rows, st.floats(1e-3, 1e3))
def test_one_row_moves_the_sum_by_at_most_the_clip(rows: np.ndarray, clip: float) -> None:
    clipped = clip_rows(rows, clip)
    assert np.isfinite(clipped).all()
    assert (np.linalg.norm(clipped, axis=1) <= clip * (1 + 1e-12)).all()
    zeroed = rows.copy()
    zeroed[0] = 0
    move = clipped.sum(axis=0) - clip_rows(zeroed, clip).sum(axis=0)
    assert np.linalg.norm(move) <= clip * (1 + 1e-9)


def test_rows_within_the_clip_are_left_alone_and_bad_ones_are_zero() -> None:
    rows = np.array([[0.3, 0.4], [3.0, 4.0], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]])
    expected = np.array([[0.3, 0.4], [0.6, 0.8], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_allclose(clip_rows(rows, 1.0), expected)


def test_the_noise_is_normal_with_the_stated_deviation() -> None:
    ledger = Ledger()
    released = clipped_gaussian_sum(np.zeros((1, 40_000)), 0.5, 3.0, ledger, "noise alone")
    assert stats.kstest(released / 1.5, "norm").pvalue > 1e-6
    assert released.std() == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("clip", [0.0, -1.0, np.inf, np.nan])
def test_a_clip_that_bounds_nothing_is_refused_and_charges_nothing(clip: float) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="l2_clip"):
        clipped_gaussian_sum(np.ones((2, 2)), clip, 1.0, ledger, "x")
    assert not ledger.entries


def test_it_charges_before_it_looks_and_never_shares_noise() -> None:
    ledger = Ledger(1.0, 1e-5)
    first = clipped_gaussian_sum(np.ones((10, 3)), 1.0, 8.0, ledger, "statistic")
    assert ledger.epsilon() == pytest.approx(cost(Gaussian(8.0), 1e-5).epsilon)
    assert not ledger.entries[0].seeded
    second = clipped_gaussian_sum(np.ones((10, 3)), 1.0, 8.0, Ledger(), "again")
    assert not np.intersect1d(first, second).size
    with pytest.raises(BudgetExceeded):
        clipped_gaussian_sum(np.ones((10, 3)), 1.0, 0.5, ledger, "too dear")
    assert len(ledger.entries) == 1
