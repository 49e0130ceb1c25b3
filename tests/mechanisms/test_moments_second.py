"""Second moments: how far one record moves them in units of their noise, the noise itself, and the charge."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.mechanisms.moments import SecondMoments
from sordino.mechanisms.streams import Streams, secret_from_seed

KEY = bytes(16)


def told(moments, rows):
    return moments.release(rows, Ledger(), streams=Streams(KEY))


def moved_in_noise(moments, rows, changed):
    """The distance of two releases in units of the noise on each entry told: what the Gaussian event prices."""
    n, d = rows.shape
    (mean, squares), (other_mean, other_squares) = told(moments, rows), told(moments, changed)
    diagonal = moments.noise_multiplier * (math.sqrt(2) if moments.with_mean else 1) * moments.l2_clip**2 / n
    deviation = np.where(np.eye(d, dtype=bool), diagonal, diagonal / math.sqrt(2))
    upper = np.triu((other_squares - squares) / deviation)
    parts = [np.linalg.norm(upper)]
    if moments.with_mean:
        parts.append(np.linalg.norm(other_mean - mean) / (diagonal / moments.l2_clip))
    return math.hypot(*parts)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10**6), st.floats(0.01, 100), st.booleans())
def test_one_record_zeroed_out_moves_them_by_the_sensitivity_at_most(d, seed, scale, with_mean):
    rows = np.random.default_rng(seed).normal(0, scale, (5, d))
    zeroed = rows.copy()
    zeroed[2] = 0
    moments = SecondMoments(l2_clip=1.5, noise_multiplier=4.0, with_mean=with_mean)
    assert moved_in_noise(moments, rows, zeroed) <= (1 + 1e-6) / 4.0


@pytest.mark.parametrize("with_mean", [False, True])
def test_a_record_at_the_clip_moves_them_by_exactly_that(with_mean):
    rows = np.random.default_rng(1).normal(0, 100, (3, 4))
    for row in (np.zeros(4), np.full(4, np.nan), np.array([1.0, np.inf, 0, 0])):  # not finite counts as zero
        changed = rows.copy()
        changed[0] = row
        moments = SecondMoments(1.5, 4.0, with_mean)
        assert moved_in_noise(moments, rows, changed) == pytest.approx(1 / 4.0, rel=1e-5)


@pytest.mark.parametrize(("with_mean", "factor"), [(False, 1.0), (True, math.sqrt(2))])
def test_the_noise_has_the_stated_deviations(with_mean, factor):
    streams = Streams(secret_from_seed(0))
    mean, squares = SecondMoments(2.0, 3.0, with_mean).release(np.zeros((10, 400)), Ledger(), streams=streams)
    np.testing.assert_array_equal(squares, squares.T)
    assert np.diag(squares).std() == pytest.approx(factor * 3 * 4 / 10, rel=0.1)
    assert squares[np.triu_indices(400, 1)].std() == pytest.approx(factor * 3 * 4 / 10 / math.sqrt(2), rel=0.02)
    if with_mean:
        assert mean.std() == pytest.approx(factor * 3 * 2 / 10, rel=0.1)
    else:
        assert not mean.any()


def test_what_is_told_and_what_it_costs():
    rows = np.random.default_rng(0).normal(0.2, 0.1, (10_000, 3))
    ledger = Ledger(1.0, 1e-5)
    mean, squares = SecondMoments(2.0, 5.0, with_mean=True).release(rows, ledger)
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(squares, rows.T @ rows / len(rows), atol=0.02)
    assert ledger.epsilon() == cost(Gaussian(5.0), 1e-5).epsilon
    again, _ = SecondMoments(2.0, 5.0, with_mean=True).release(rows, Ledger())
    assert not np.array_equal(mean, again)


def test_refused_before_it_is_charged_or_read():
    ledger = Ledger(0.1, 1e-5)
    for rows, said in ((np.zeros(3), "vectors"), (np.zeros((0, 3)), "vectors")):
        with pytest.raises(ValueError, match=said):
            SecondMoments(1.0, 1.0).release(rows, ledger)
    with pytest.raises(BudgetExceeded):
        SecondMoments(1.0, 1.0).release(np.zeros((5, 3)), ledger)
    assert not ledger.entries
    with pytest.raises(ValueError, match="add-remove"):
        SecondMoments(1.0, 1.0).release(np.zeros((5, 3)), Ledger(adjacency="add-remove"))
    with pytest.raises(ValueError, match="l2_clip"):
        SecondMoments(0.0, 1.0)
