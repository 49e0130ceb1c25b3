"""Samplers: what they draw is what their event says."""

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
