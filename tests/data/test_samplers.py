"""Samplers: what they draw is what their event says."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sordino.budget import FixedSizeGaussian, Gaussian, PoissonGaussian, ShuffledGaussian
from sordino.data.samplers import (
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    ShuffledSampler,
    sampler_from_json,
    sampler_to_json,
)
from sordino.mechanisms.streams import Streams

STREAMS = Streams(bytes(range(16)))
sizes = st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 1000))
def test_draws_are_sorted_distinct_records_and_repeat(size: tuple[int, int], step: int) -> None:
    n, batch = size
    for sampler in (PoissonSampler(n, batch), ShuffledSampler(n, batch), FixedSizeSampler(n, batch)):
        drawn = sampler.draw(STREAMS, step)
        assert (np.diff(drawn) > 0).all()
        assert drawn.size == 0 or (drawn[0] >= 0 and drawn[-1] < n)
        assert np.array_equal(drawn, sampler.draw(STREAMS, step))
        assert sampler_from_json(sampler_to_json(sampler)) == sampler


@given(sizes, st.integers(0, 5))
def test_an_epoch_of_shuffled_batches_visits_everyone_once(size: tuple[int, int], epoch: int) -> None:
    sampler = ShuffledSampler(*size)
    steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
    visited = np.concatenate([sampler.draw(STREAMS, step) for step in steps])
    assert np.array_equal(np.sort(visited), np.arange(size[0]))


def test_events_carry_the_sizes() -> None:
    assert PoissonSampler(50_000, 1024).event(1.5) == PoissonGaussian(0.02048, 1.5)
    assert FullBatchSampler(10, 10).event(1.5) == Gaussian(1.5)
    assert ShuffledSampler(10, 3).event(1.5) == ShuffledGaussian(4, 1.5)
    assert ShuffledSampler(10, 3).claimed(1.5) == PoissonGaussian(0.3, 1.5)
    assert FixedSizeSampler(10, 3).event(1.5) == FixedSizeGaussian(10, 3, 1.5)
    assert PoissonSampler(10, 3).claimed(1.5) is None


@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_poisson_inclusions_are_independent_with_the_stated_rate(rate: float) -> None:
    n, steps = 50, 8000
    sampler = PoissonSampler(n, round(rate * n))
    table = np.zeros((steps, n))
    for step in range(steps):
        table[step, sampler.draw(STREAMS, step)] = 1
    # Each record's count is binomial, and so is the batch size: together they tell pairwise dependence.
    counts = table.sum(axis=0)
    assert stats.chisquare(counts, np.full(n, counts.mean())).pvalue > 1e-4
    assert stats.binomtest(int(table.sum()), n * steps, sampler.sample_rate).pvalue > 1e-4
    expected_variance = n * sampler.sample_rate * (1 - sampler.sample_rate)
    assert table.sum(axis=1).var() == pytest.approx(expected_variance, rel=0.08)


def test_empty_batches_happen_and_full_batches_have_everyone() -> None:
    sampler = PoissonSampler(100, 1)
    assert any(sampler.draw(STREAMS, step).size == 0 for step in range(50))
    assert np.array_equal(FullBatchSampler(7, 7).draw(STREAMS, 3), np.arange(7))
    assert np.array_equal(PoissonSampler(7, 7).draw(STREAMS, 3), np.arange(7))


@pytest.mark.parametrize(("n", "batch"), [(0, 1), (-3, 1), (10, 0), (10, 11), (10, 2.5)])
def test_impossible_sizes_are_refused(n: int, batch: int) -> None:
    with pytest.raises(ValueError, match=r"record|batch size"):
        PoissonSampler(n, batch)
    with pytest.raises(ValueError, match="full batch"):
        FullBatchSampler(10, 5)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.101])
def test_distances_and_coins_draw_by_the_same_law(rate: float) -> None:
    """On either side of the rate where the way of drawing changes: sizes and ends, against the binomial law."""
    n, steps = 1000, 4000
    sampler = PoissonSampler(n, round(rate * n))
    drawn = [sampler.draw(STREAMS, step) for step in range(steps)]
    sizes = np.array([len(indices) for indices in drawn])
    law = stats.binom(n, sampler.sample_rate)
    assert stats.kstest(sizes + np.random.default_rng(0).random(steps), _jittered(law)).pvalue > 1e-3
    for record in (0, 1, n // 2, n - 2, n - 1):
        joined = sum(record in indices for indices in drawn)
        assert stats.binomtest(joined, steps, sampler.sample_rate).pvalue > 1e-4


def _jittered(law: Any) -> Callable[[Any], Any]:
    """The distribution function of a whole number of this law plus a uniform number below 1."""
    return lambda x: law.cdf(np.floor(x) - 1) + (x - np.floor(x)) * law.pmf(np.floor(x))


def test_more_may_join_than_were_prepared_for() -> None:
    class Short:
        """A generator whose distances are all 1: everyone joins."""

        def geometric(self, rate: float, size: int) -> np.ndarray:
            return np.ones(size, np.int64)

    class Keyed:
        def generator(self, stream: object, step: int) -> Short:
            return Short()

    assert np.array_equal(PoissonSampler(500, 1).draw(Keyed(), 0), np.arange(500))  # type: ignore[arg-type]


# Batches of a limited size


def test_a_draw_that_is_too_large_is_left_empty_and_no_other_changes() -> None:
    whole, limited = PoissonSampler(60, 30), PoissonSampler(60, 30, most=39)
    draws = [(whole.draw(STREAMS, step), limited.draw(STREAMS, step)) for step in range(3000)]
    for free, kept in draws:
        assert np.array_equal(kept, free if len(free) <= 39 else free[:0])
    left_empty = sum(len(free) > 39 for free, _ in draws)
    assert stats.binomtest(left_empty, 3000, stats.binom.sf(39, 60, 0.5)).pvalue > 1e-4
    assert sampler_from_json(sampler_to_json(limited)) == limited != whole
    assert "most" not in sampler_to_json(whole)  # keys of runs from before are bound to this


@given(st.integers(2, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), st.floats(1e-12, 0.01))
def test_the_limit_for_a_probability_is_the_least_that_keeps_it(size: tuple[int, int], probability: float) -> None:
    sampler = PoissonSampler(*size)
    most = sampler.most_for(probability)
    exceeded = stats.binom.sf([most, most - 1], sampler.n, sampler.sample_rate)
    assert exceeded[0] <= probability
    assert most == 1 or exceeded[1] > probability
    assert PoissonSampler(*size, most=most).event(2.0) == sampler.event(2.0)


@pytest.mark.parametrize("most", [0, -1, 2.5, True, 30, 35])
def test_limits_that_waste_draws_are_refused(most: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number|left empty: allow 39 or more"):
        PoissonSampler(60, 30, most=most)


@pytest.mark.parametrize("probability", [0, 1, 2, -0.1, float("nan")])
def test_a_limit_needs_a_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="lies between 0 and 1"):
        PoissonSampler(60, 30).most_for(probability)


def steps_told_apart(most: int, cut: bool, sigma: float, epsilons: Any) -> Any:
    """δ(ε), in both directions, of a step over all draws of five records, enumerated.

    The first record has gradient 1, in the neighbour 0. The others' gradients are far apart, so that the output tells
    who of them is there: the worst case of the proof. A draw of more than `most` is left empty, or cut at random.
    """
    n, rate = 5, 0.5
    weights: dict[frozenset[int], list[float]] = {}  # for who else is there: with the first record, and without it
    for draw in range(2**n):
        members = [place for place in range(n) if draw >> place & 1]
        kept: list[tuple[int, ...]] = [tuple(members)]
        if len(members) > most:
            kept = list(itertools.combinations(members, most)) if cut else [()]
        for chosen in kept:
            there = weights.setdefault(frozenset(chosen) - {0}, [0.0, 0.0])
            there[0 not in chosen] += rate**n / len(kept)
    grid, width = np.linspace(-12 * sigma, 1 + 12 * sigma, 20_001, retstep=True)
    null, moved = stats.norm.pdf(grid, 0, sigma), stats.norm.pdf(grid, 1, sigma)
    found = np.zeros((2, len(epsilons)))
    for joins, stays in weights.values():
        pair = joins * moved + stays * null, (joins + stays) * null
        for direction, (one, other) in enumerate((pair, pair[::-1])):
            excess = one - np.exp(epsilons)[:, None] * other
            found[direction] += np.maximum(excess, 0).sum(axis=1) * width
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_a_limit_costs_nothing_where_large_draws_are_left_empty(sigma: float, most: int) -> None:
    epsilons = np.linspace(0, 4, 9)
    without = steps_told_apart(5, False, sigma, epsilons)
    assert (steps_told_apart(most, False, sigma, epsilons) <= without + 1e-9).all()


def test_a_draw_that_is_cut_at_random_can_cost_more() -> None:
    epsilons = np.linspace(0, 4, 9)
    without = steps_told_apart(5, False, 0.4, epsilons)
    excess = [(steps_told_apart(most, True, 0.4, epsilons) - without).max() for most in (1, 2, 3, 4)]
    assert max(excess) > 1e-3
