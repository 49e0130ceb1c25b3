"""The sampler test passes every sampler of ours against its own event, and sees small departures."""

from dataclasses import dataclass

import numpy as np
import pytest

from sordino.audit import sampler_test
from sordino.audit.canaries import resized
from sordino.budget import Laplace, PoissonGaussian
from sordino.data.samplers import FixedSizeSampler, FullBatchSampler, Indices, PoissonSampler, Sampler, ShuffledSampler
from sordino.mechanisms.streams import Streams


def keyed(seed: int) -> Streams:
    return Streams(seed.to_bytes(16, "little"))


@pytest.mark.parametrize(
    "sampler",
    [PoissonSampler(1000, 50), FullBatchSampler(50, 50), ShuffledSampler(1000, 64), FixedSizeSampler(1000, 50)],
)
def test_ours_do_what_their_events_say(sampler: Sampler) -> None:
    values = [sampler_test(sampler, sampler.event(1.0), keyed(seed)).p_value for seed in range(20)]
    assert min(values) > 1e-3
    assert np.mean(np.array(values) < 0.2) <= 0.4


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
    sampler = Faulty(1000, 50, fault)
    assert max(sampler_test(sampler, sampler.event(1.0), keyed(seed)).p_value for seed in range(3)) < 1e-4


@pytest.mark.parametrize("sampler", [ShuffledSampler(1000, 100), FixedSizeSampler(1000, 100)])
def test_others_are_not_poisson(sampler: Sampler) -> None:
    assert sampler_test(sampler, PoissonGaussian(0.1, 1.0), keyed(0)).p_value < 1e-12


def test_the_others_contracts_can_be_broken() -> None:
    assert sampler_test(PoissonSampler(100, 50), FullBatchSampler(100, 100).event(1.0), keyed(0)).p_value == 0
    assert sampler_test(PoissonSampler(100, 50), ShuffledSampler(100, 50).event(1.0), keyed(0)).p_value == 0
    assert sampler_test(PoissonSampler(100, 50), FixedSizeSampler(100, 50).event(1.0), keyed(0)).p_value == 0
    with pytest.raises(ValueError, match="no sampler test is known for a step of Laplace"):
        sampler_test(PoissonSampler(100, 50), Laplace(1.0), keyed(0))


@pytest.mark.parametrize(("n", "batch"), [(60_000, 32), (60_000, 4096), (1437, 256), (1_000_003, 7), (10, 3), (5, 5)])
def test_fewer_or_more_records_at_the_same_rate_or_a_hair_below(n: int, batch: int) -> None:
    sampler = resized(PoissonSampler(n, batch), 2000)
    assert sampler.sample_rate <= batch / n * (1 + 1e-12)
    assert sampler.sample_rate > 0.99 * batch / n
    if n < 10**6:
        assert sampler.sample_rate == pytest.approx(batch / n, rel=1e-12)
        assert 2000 <= sampler.n <= 8000
