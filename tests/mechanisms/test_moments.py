"""Private means and variances: what they cost, how far one record moves them, and how noisy they are."""

import math

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Gaussian, Ledger, PoissonGaussian, cost
from sordino.mechanisms.moments import ChannelMoments
from sordino.mechanisms.streams import Streams

KEY = bytes(16)


def told(moments: ChannelMoments, means: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return moments.release(means, squares, Ledger(), streams=Streams(KEY))


def test_the_cost_is_that_of_two_releases_of_one_draw() -> None:
    event = ChannelMoments(1.0, 1.5, noise_multiplier=8).event
    assert event == Gaussian(8 / math.sqrt(2))
    # NOTES.md §1: RDP α/σ², ε=0.634 by PLD at δ=1e-5
    assert cost(event, 1e-5).epsilon == pytest.approx(0.634, abs=2e-3)
    assert ChannelMoments(1, 1, 8, sample_rate=0.1).event == PoissonGaussian(0.1, 8 / math.sqrt(2))


def test_one_record_moves_each_sum_by_its_clip_at_most() -> None:
    generator = np.random.default_rng(0)
    means, squares = generator.normal(size=(50, 4)), generator.exponential(size=(50, 4))
    moments = ChannelMoments(0.3, 0.7)
    mean, variance = told(moments, means, squares)
    for row in (0, 17):
        for huge in (0.0, 1e9, np.inf, np.nan):
            changed = means.copy(), squares.copy()
            for array in changed:
                array[row] = huge if huge != 0 else 0
            other_mean, other_variance = told(moments, *changed)
            # Zeroed out or not finite: gone. Huge: at most twice the clip from where it was.
            most = (2 if huge == 1e9 else 1) * (1 + 1e-9) / 50
            assert np.linalg.norm(other_mean - mean) <= most * 0.3
            square, other_square = variance + mean**2, other_variance + other_mean**2
            assert np.linalg.norm(other_square - square) <= most * 0.7


def test_the_noise_has_the_stated_deviation() -> None:
    nothing = np.zeros((100, 20_000))
    mean, variance = ChannelMoments(0.2, 0.5, noise_multiplier=6).release(nothing, nothing, Ledger())
    assert mean.std() == pytest.approx(6 * 0.2 / 100, rel=0.03)
    assert (variance + mean**2).std() == pytest.approx(6 * 0.5 / 100, rel=0.03)
    assert abs(np.corrcoef(mean, variance + mean**2)[0, 1]) < 0.03
    assert ChannelMoments(0.2, 0.5, 6).noise_of_mean_square(100) == pytest.approx(0.03)


def test_fresh_noise_each_time_and_true_figures_under_it() -> None:
    generator = np.random.default_rng(1)
    means = generator.normal(0.1, 0.01, size=(40_000, 3))
    squares = means**2 + 0.04
    moments = ChannelMoments(1, 1, noise_multiplier=4)
    first, second = (moments.release(means, squares, Ledger()) for _ in range(2))
    assert not np.array_equal(first[0], second[0])
    assert np.allclose(first[0], means.mean(0), atol=1e-3)
    assert np.allclose(first[1], squares.mean(0) - means.mean(0) ** 2, atol=2e-3)


def test_a_secret_sample_is_divided_by_its_expected_size() -> None:
    ones = np.full((10_000, 1), 0.5)
    found = [float(ChannelMoments(1, 1, 1e-3, sample_rate=0.1).release(ones, ones, Ledger())[0][0]) for _ in range(30)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.02)
    assert np.std(found) == pytest.approx(0.5 * math.sqrt(0.9 / 1000), rel=0.5)  # not divided by the realised size


def test_it_is_charged_before_anything_is_read() -> None:
    ledger = Ledger(target_epsilon=0.1, target_delta=1e-5)
    rows = np.zeros((10, 2))
    with pytest.raises(BudgetExceeded):
        ChannelMoments(1, 1).release(rows, rows, ledger)
    assert ledger.entries == ()
    with pytest.raises(ValueError, match="add-remove"):
        ChannelMoments(1, 1).release(rows, rows, Ledger(adjacency="add-remove"))
    with pytest.raises(ValueError, match="two arrays"):
        ChannelMoments(1, 1).release(rows, rows[:5], Ledger())
    with pytest.raises(ValueError, match="square_clip"):
        ChannelMoments(1, 0)
