"""Lower bounds are below the truth as often as they say, near it with many trials, and blind to nothing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.audit import epsilon_lower_bound
from sordino.audit.lower_bound import _bounds
from sordino.budget import Gaussian, cost


@pytest.mark.parametrize("sign", [1, -1])
def test_randomised_response_is_found_and_never_exceeded(sign: int) -> None:
    """Its ε is known exactly, and its bound is tight: the hardest case for the confidence."""
    generator, truth = np.random.default_rng(3), 1.5
    keep = math.exp(truth) / (1 + math.exp(truth))
    bounds = []
    for _ in range(200):
        present, absent = generator.random(2000) < keep, generator.random(2000) >= keep
        arms = (present, absent) if sign > 0 else (~absent, ~present)
        bounds.append(epsilon_lower_bound(*(arm + generator.random(2000) * 1e-3 for arm in arms), 0.0))
    # 16 thresholds share the confidence, so fewer than 5 % exceed; with shares in place of intervals 198 of 200 do.
    assert np.mean(np.array(bounds) > truth) <= 0.05
    assert np.median(bounds) > 0.8 * truth


def test_one_interval_alone_has_its_confidence() -> None:
    """Clopper–Pearson at the level of one threshold, without the union bound that covers for it."""
    generator, shares, n = np.random.default_rng(5), (0.4, 0.05), 400
    hits, false_hits = (generator.binomial(n, share, 4000) for share in shares)
    exceeded = _bounds(hits, n, false_hits, n, 0.0, 0.05) > math.log(shares[0] / shares[1])
    assert 0.0005 < np.mean(exceeded) < 0.05
    assert np.mean(_bounds(hits, n, false_hits, n, 0.0, 0.9) > math.log(shares[0] / shares[1])) > 0.05


def test_intervals_are_scipys() -> None:
    low = stats.binomtest(30, 100).proportion_ci(0.9).low
    high = stats.binomtest(3, 80).proportion_ci(0.9).high
    found = _bounds(np.array([30]), 100, np.array([3]), 80, 0.01, 0.1)
    assert found[0] == pytest.approx(math.log((low - 0.01) / high))
    assert _bounds(np.array([0]), 100, np.array([80]), 80, 0.01, 0.1)[0] == 0


def test_a_gaussian_is_bounded_at_its_delta() -> None:
    generator = np.random.default_rng(0)
    truth = cost(Gaussian(1.0), 0.01).epsilon
    absent, present = generator.normal(0, 1, 100_000), generator.normal(1, 1, 100_000)
    assert 0.75 * truth < epsilon_lower_bound(present, absent, 0.01) < truth
    assert epsilon_lower_bound(absent, absent[::-1], 0.01) == 0


def test_a_direction_alone_suffices() -> None:
    """All that tells may be at one end: a record that is sometimes seen, or one whose absence is sometimes seen."""
    generator = np.random.default_rng(1)
    usual, seen = generator.random(4000), generator.random(4000) < 0.2
    assert epsilon_lower_bound(np.where(seen, 5, usual), usual[::-1], 1e-5) > 4
    assert epsilon_lower_bound(usual[::-1], np.where(seen, -5, usual), 1e-5) > 4


def test_scores_without_overlap_give_what_the_trials_allow() -> None:
    bound = epsilon_lower_bound(np.ones(1000), np.zeros(1000), 1e-5)
    assert 4 < bound < math.log(1000)


@settings(max_examples=50, deadline=None)
@given(st.integers(20, 60), st.integers(20, 60), st.floats(0.01, 0.99), st.floats(0, 0.9), st.integers(0, 99))
def test_any_sizes_give_a_finite_bound(one: int, other: int, confidence: float, delta: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = [np.round(generator.normal(size=size), generator.integers(3)) for size in (one, other)]
    assert 0 <= epsilon_lower_bound(*scores, delta, confidence) < math.inf


@pytest.mark.parametrize(
    ("size", "delta", "confidence", "words"),
    [(19, 1e-5, 0.95, "trials"), (50, 1.0, 0.95, "delta"), (50, 1e-5, 1.0, "confidence")],
)
def test_bad_input_is_said(size: int, delta: float, confidence: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        epsilon_lower_bound(np.zeros(size), np.zeros(size), delta, confidence)
