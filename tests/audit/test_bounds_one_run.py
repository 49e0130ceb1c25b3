"""The one-run bound: its limiting cases, mechanisms that attain it, and real trainings."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from sordino.audit import bounds
from sordino.audit.bounds import impossible, one_run_lower_bound, p_value


@pytest.mark.parametrize(("guesses", "correct"), [(100, 70), (40, 40), (100, 0), (1, 1)])
def test_without_delta_it_is_the_binomial_tail(guesses: int, correct: int) -> None:
    for epsilon in (0.0, 0.5, 3.0):
        right = math.exp(epsilon) / (1 + math.exp(epsilon))
        exact = stats.binomtest(correct, guesses, right, alternative="greater").pvalue
        assert p_value(200, guesses, correct, epsilon, 0.0) == pytest.approx(exact, rel=1e-9)


def test_delta_adds_the_steepest_chord_of_the_tail() -> None:
    """The formula, summed by hand for a small case."""
    m, r, v, delta, law = 10, 6, 5, 1e-3, stats.binom(6, math.exp(1) / (1 + math.exp(1)))
    tail = [sum(law.pmf(k) for k in range(max(0, c), r + 1)) for c in range(v - m, v + 1)][::-1]  # f(v), f(v−1), …
    chords = [(tail[i] - tail[0]) / i for i in range(1, m + 1)]
    assert p_value(m, r, v, 1.0, delta) == pytest.approx(tail[0] + 2 * m * delta * max(chords))


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-2])
def test_no_mechanism_we_know_beats_it(epsilon: float, delta: float) -> None:
    """ε-DP randomised response of every coin, which with probability δ tells all: (ε, δ)-DP, with known tails.

    So is one that tells each coin on its own with probability δ. Where δ is forgotten, both are above the bound.
    """
    m, right = 40, math.exp(epsilon) / (1 + math.exp(epsilon))
    for v in range(m + 1):
        all_at_once = (1 - delta) * stats.binom.sf(v - 1, m, right) + delta
        one_by_one = stats.binom.sf(v - 1, m, (1 - delta) * right + delta)
        bound = p_value(m, m, v, epsilon, delta)
        assert max(all_at_once, one_by_one) <= bound + 1e-12
    assert all_at_once > p_value(m, m, m, epsilon, 0.0)


def test_the_bound_is_below_the_truth_as_often_as_it_says_and_near_it() -> None:
    generator, truth = np.random.default_rng(2), 1.0
    keep = math.exp(truth) / (1 + math.exp(truth))
    bounds = []
    for _ in range(80):
        coins = generator.random(300) < 0.5
        told = np.where(generator.random(300) < keep, coins, ~coins)
        bounds.append(one_run_lower_bound(told + 1e-3 * generator.random(300), coins, 1e-5))
    assert np.mean(np.array(bounds) > truth) <= 0.05
    assert np.median(bounds) > 0.5


def test_scores_that_know_nothing_or_everything() -> None:
    coins = np.random.default_rng(0).random(500) < 0.5
    assert one_run_lower_bound(np.random.default_rng(1).random(500), coins, 1e-5) < 0.2
    assert one_run_lower_bound(coins.astype(float), coins, 1e-5) > 3
    assert one_run_lower_bound(-coins.astype(float), coins, 1e-5) == 0


def test_a_larger_delta_explains_more() -> None:
    coins = np.random.default_rng(0).random(500) < 0.5
    scores = coins + np.random.default_rng(1).normal(size=500)
    bounds = [one_run_lower_bound(scores, coins, delta) for delta in (0.0, 1e-5, 1e-3)]
    assert bounds[0] >= bounds[1] > bounds[2] > 0


def test_small_p_values_grow_with_epsilon() -> None:
    """What lets the bound be found as a root."""
    for m, r, v, delta in ((1000, 1000, 620, 1e-5), (1000, 200, 150, 1e-3), (50, 50, 50, 1e-2), (300, 100, 60, 0.0)):
        values = np.array([p_value(m, r, v, epsilon, delta) for epsilon in np.linspace(0, 8, 80)])
        small = values < 0.2
        assert small.any()
        assert (np.diff(values[: np.argmin(small)]) >= -1e-12).all() if not small.all() else True


def test_bad_input_is_said() -> None:
    with pytest.raises(ValueError, match="one score and one coin"):
        one_run_lower_bound(np.zeros(3), np.zeros(4, bool), 1e-5)
    with pytest.raises(ValueError, match="cannot be"):
        p_value(10, 5, 6, 1.0, 0.0)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
def test_the_second_theorem_allows_all_that_its_constraints_allow(epsilon: float, delta: float) -> None:
    """The most probable such guessing by linear programming over all laws of the number of right guesses."""
    m, r, growth = 16, 12, math.exp(epsilon)
    for correct in (7, 9, 11, 12):
        rows, limits = [], []
        for i in range(1, r + 1):
            right = np.array([j / m if j >= i else 0.0 for j in range(r + 1)])
            wrong = np.array([(r - j) / m if j >= i - 1 else 0.0 for j in range(r + 1)])
            rows += [right - growth * wrong, right - wrong / growth, right]
            limits += [delta, 1 - (1 - delta) / growth, 1.0]
        aim = -np.array([float(j >= correct) for j in range(r + 1)])
        best = optimize.linprog(aim, rows, limits, np.ones((1, r + 1)), [1.0], bounds=(0, 1))
        most = -best.fun
        assert not impossible(m, r, correct, epsilon, delta, most * 0.999)
        assert impossible(m, r, correct, epsilon, delta, most * 1.05) or most * 1.05 > 1


def test_the_second_theorem_is_the_tighter_one_where_canaries_times_delta_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    coins = generator.random(2000) < 0.5
    scores = coins * 2.0 + generator.normal(size=2000)
    both = {delta: one_run_lower_bound(scores, coins, delta) for delta in (0.0, 1e-5, 1e-3)}
    monkeypatch.setattr(bounds, "impossible", lambda *given: False)
    first = {delta: one_run_lower_bound(scores, coins, delta) for delta in both}
    assert all(both[delta] >= first[delta] for delta in both)
    assert both[1e-3] > 1.2 * first[1e-3] > 0


@pytest.mark.parametrize(("truth", "delta"), [(1.0, 1e-3), (2.0, 2e-3)])
def test_the_bound_covers_a_mechanism_that_tells_each_coin_with_probability_delta(truth: float, delta: float) -> None:
    """(ε, δ)-DP for every coin at once, and as leaky as can be."""
    generator, keep = np.random.default_rng(4), math.exp(truth) / (1 + math.exp(truth))
    bounds = []
    for _ in range(80):
        coins = generator.random(300) < 0.5
        told = np.where(generator.random(300) < keep, coins, ~coins).astype(float)
        sure = generator.random(300) < delta
        scores = np.where(sure, np.where(coins, 2.0, -1.0), told) + 1e-3 * generator.random(300)
        bounds.append(one_run_lower_bound(scores, coins, delta))
    assert np.mean(np.array(bounds) > truth) <= 0.05
    assert np.median(bounds) > 0.3 * truth
