"""The sampler test passes every sampler of ours against its own event, and sees small departures."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sordino.audit import sampler as audited_sampler
from sordino.audit import sampler_test
from sordino.audit.sampler import _pairs
from sordino.audit.synthetic import resized
from sordino.budget import Laplace, PoissonGaussian
from sordino.data.samplers import FixedSizeSampler, FullBatchSampler, Indices, PoissonSampler, Sampler, ShuffledSampler
from sordino.mechanisms.streams import Stream, Streams


def keyed(seed: int) -> Streams:
    return Streams(seed.to_bytes(16, "little"))


@pytest.mark.parametrize(
    "sampler",
    [
        *(PoissonSampler(1000, 50), PoissonSampler(100, 99), FullBatchSampler(50, 50), ShuffledSampler(1000, 64)),
        *(FixedSizeSampler(1000, 50), FixedSizeSampler(12, 6)),
    ],
)
def test_ours_do_what_their_events_say(sampler: Sampler) -> None:
    values = [sampler_test(sampler, sampler.event(1.0), keyed(seed)).p_value for seed in range(16)]
    assert min(values) > 1e-3
    assert np.mean(np.array(values) < 0.2) <= 0.4


@pytest.mark.parametrize("sampler", [PoissonSampler(1000, 1), PoissonSampler(1000, 999), PoissonSampler(5000, 1)])
def test_where_hardly_anything_coincides_correct_draws_pass_all_the_same(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audited_sampler, "_MOST_DRAWS", 2**18)
    values = [sampler_test(sampler, sampler.event(1.0), keyed(seed)).p_value for seed in range(40)]
    assert np.sum(np.array(values) < 0.05) <= 6
    assert min(values) > 1e-4


def test_few_participations_leave_the_spread_open() -> None:
    nobody = np.zeros(10**5, dtype=np.uint8)
    assert audited_sampler._dispersion(nobody, 10, 1e-7) == 1
    assert audited_sampler._dispersion(nobody, 10, 1e-2) < 1e-12


@dataclass(frozen=True)
class Faulty(PoissonSampler):
    """A Poisson sampler with one thing wrong."""

    fault: str = ""

    def draw(self, streams: Streams, step: int) -> Indices:
        drawn = super().draw(streams, step)
        match self.fault:
            case "a tenth more often":
                more = super().draw(streams, step + 10**6)
                return np.union1d(drawn, more[: len(more) // 10])
            case "the same draw twice":
                return super().draw(streams, step // 2)
            case "one record always":
                return np.union1d(drawn, [7])
            case "one record never":
                return drawn[drawn != 7]
            case "neighbours together":
                return np.union1d(drawn[drawn % 2 == 0], drawn[drawn % 2 == 0] + 1)
            case "twice in a batch":
                return np.concatenate([drawn, drawn[:1]])
        raise AssertionError(self.fault)


@pytest.mark.parametrize(
    "fault",
    [
        *("a tenth more often", "the same draw twice", "one record always", "one record never"),
        *("neighbours together", "twice in a batch"),
    ],
)
def test_a_small_departure_is_seen(fault: str) -> None:
    sampler = Faulty(1000, 50, fault=fault)
    assert max(sampler_test(sampler, sampler.event(1.0), keyed(seed)).p_value for seed in range(3)) < 1e-4


@dataclass(frozen=True)
class Twins(PoissonSampler):
    """Half of the records decide for the others, half a dataset away: which do the same, or the opposite."""

    opposed: bool = False

    def draw(self, streams: Streams, step: int) -> Indices:
        drawn = streams.generator(Stream.SAMPLING, step).random(self.n // 2) < self.sample_rate
        return np.flatnonzero(np.concatenate([drawn, drawn ^ (self.opposed & (np.arange(self.n // 2) % 2 == 1))]))


@pytest.mark.parametrize("sampler", [Twins(2000, 1000, opposed=True), Twins(2000, 137), Twins(3750, 8)])
def test_records_that_follow_others_far_away_are_seen(sampler: Sampler) -> None:
    for seed in range(2):
        found = sampler_test(sampler, sampler.event(1.0), keyed(seed))
        assert found.p_value < 1e-4, found.seen


def test_two_records_of_many_that_go_together_or_never_are_seen() -> None:
    present = np.random.default_rng(0).random((400, 200)) < 0.5
    assert min(_pairs(present, 0.25).values()) > 1e-2
    for other, words in ((present[:, 3], "most"), (~present[:, 3], "least")):
        present[:, 150] = other
        small = {name for name, value in _pairs(present, 0.25).items() if value < 1e-6}
        assert small == {f"the two records {words} often together"}


@pytest.mark.parametrize("sampler", [PoissonSampler(100, 100), FixedSizeSampler(100, 100), PoissonSampler(1, 1)])
def test_a_rate_of_one_is_a_full_batch(sampler: Sampler) -> None:
    assert sampler_test(sampler, sampler.event(1.0), keyed(0)).p_value == 1
    assert sampler_test(PoissonSampler(100, 99), sampler.event(1.0), keyed(0)).p_value == 0


def test_many_records_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate of 7 in a million each of 142,858 records would be drawn, or not, 10,000 times."""
    sizes, zeros = [], np.zeros
    monkeypatch.setattr(np, "zeros", lambda shape, **ways: sizes.append(np.prod(shape)) or zeros(shape, **ways))
    sampler = resized(PoissonSampler(1_000_003, 7), 2000)
    assert sampler_test(sampler, sampler.event(1.0), keyed(0)).p_value > 1e-3
    assert max(sizes) <= 2**24


@pytest.mark.parametrize("sampler", [ShuffledSampler(1000, 100), FixedSizeSampler(1000, 100)])
def test_others_are_not_poisson(sampler: Sampler) -> None:
    assert sampler_test(sampler, PoissonGaussian(0.1, 1.0), keyed(0)).p_value < 1e-12


def test_the_others_contracts_can_be_broken() -> None:
    assert sampler_test(PoissonSampler(100, 50), FullBatchSampler(100, 100).event(1.0), keyed(0)).p_value == 0
    assert sampler_test(PoissonSampler(100, 50), ShuffledSampler(100, 50).event(1.0), keyed(0)).p_value == 0
    assert sampler_test(PoissonSampler(100, 50), FixedSizeSampler(100, 50).event(1.0), keyed(0)).p_value == 0
    with pytest.raises(ValueError, match="no sampler test is known for a step of Laplace"):
        sampler_test(PoissonSampler(100, 50), Laplace(1.0), keyed(0))


@given(st.integers(1, 2_000_000), st.integers(1, 2_000_000), st.integers(100, 20_000))
@example(999_983, 900, 2000)
@example(60_000, 4096, 20_000)
def test_fewer_or_more_records_at_the_same_rate_or_a_hair_below(n: int, batch: int, records: int) -> None:
    batch = min(batch, n)
    sampler = resized(ShuffledSampler(n, batch), records)
    assert 0.99 * batch / n < sampler.sample_rate <= batch / n * (1 + 1e-12)
    assert records <= sampler.n <= records + 1 + n / batch
    assert sampler.steps_per_epoch == ShuffledSampler(n, batch).steps_per_epoch
