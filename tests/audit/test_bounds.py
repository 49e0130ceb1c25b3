"""Lower bounds are below the truth as often as they say, near it with many trials, and blind to nothing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.audit import epsilon_lower_bound
from sordino.audit.bounds import bound_from_hits
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
    # With shares in place of bounds on them about half would exceed.
    assert np.mean(np.array(bounds) > truth) <= 0.05
    assert np.median(bounds) > 0.8 * truth


@pytest.mark.parametrize(
    ("shares", "n"), [((0.4, 0.05), 400), ((0.5, 0.4), 300), ((0.9, 0.1), 200), ((0.1, 0.02), 500)]
)
def test_hits_alone_are_bounded_with_their_confidence_and_better_than_by_two_intervals(
    shares: tuple[float, float], n: int
) -> None:
    """At the level of the one threshold that is measured, with the weights of the true shares and with wrong ones."""
    generator, truth, level = np.random.default_rng(5), math.log(shares[0] / shares[1]), 0.05
    errors = (math.sqrt((1 - shares[0]) / shares[0]), math.sqrt((1 - shares[1]) / shares[1]))
    exceeded, wrongly, better = [], [], []
    for _ in range(250):
        hits, false_hits = (int(generator.binomial(n, share)) for share in shares)
        bound = bound_from_hits((hits, n), (false_hits, n), 0.0, level, errors)
        exceeded.append(bound > truth)
        wrongly.append(bound_from_hits((hits, n), (false_hits, n), 0.0, level, errors[::-1]) > truth)
        better.append(bound - two_intervals(hits, false_hits, n, level))
    assert 0 < np.mean(exceeded) <= 0.06
    assert np.mean(wrongly) <= 0.06
    assert np.mean(better) > 0


def two_intervals(hits: int, false_hits: int, n: int, level: float) -> float:
    low = stats.binomtest(hits, n).proportion_ci(1 - level).low
    high = stats.binomtest(false_hits, n).proportion_ci(1 - level).high
    return math.log(max(low / high, 1.0))


def test_limits_of_one_share_alone_are_scipys() -> None:
    """Where the error is all in one share, the bound is that of its interval, the other's a hair wider."""
    level, inner, outer = 0.1, 1 - 2 * 0.1 * 0.96, 1 - 2 * 0.1 * 0.02
    for errors, confidences in (((1.0, 0.0), (inner, outer)), ((0.0, 1.0), (outer, inner))):
        low = stats.binomtest(30, 100).proportion_ci(confidences[0]).low
        high = stats.binomtest(3, 80).proportion_ci(confidences[1]).high
        found = bound_from_hits((30, 100), (3, 80), 0.01, level, errors)
        assert found == pytest.approx(math.log((low - 0.01) / high))
    assert bound_from_hits((0, 100), (80, 80), 0.01, level, (1.0, 1.0)) == 0


@pytest.mark.parametrize(("mu", "share"), [(0.3, 0.8), (1.0, 0.9), (1.5, 0.9)])
def test_at_a_large_delta_the_bound_comes_near_the_truth(mu: float, share: float) -> None:
    """The case of JAX-Privacy's own test, which asks for 80 %: two million trials an arm and δ=0.1."""
    generator = np.random.default_rng(1)
    truth = cost(Gaussian(1 / mu), 0.1).epsilon
    absent, present = (generator.normal(mean, 1, 2_000_000) for mean in (0, mu))
    assert share * truth < epsilon_lower_bound(present, absent, 0.1) < truth


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
