"""The noise test passes the real noise and sees what is wrong with other noise."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sordino.audit import noise_test
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Stream, Streams
from sordino.training import dpsgd
from sordino.training.plan import Plan, QuantileClip

PLAN = Plan(PoissonSampler(400, 40), l2_clip=0.5, noise_multiplier=3.0, steps=80)
Noise = Callable[[np.random.Generator, tuple[int, ...], float], np.ndarray]


def keyed(seed: int) -> Streams:
    return Streams(seed.to_bytes(16, "little"))


def test_the_real_noise_passes() -> None:
    values = [noise_test(PLAN, keyed(seed)).p_value for seed in range(12)]
    assert min(values) > 1e-3
    assert noise_test(replace(PLAN, steps=1), keyed(1)).p_value > 1e-3


@pytest.mark.parametrize("period", [300, 1000])
def test_noise_that_comes_back_much_later_is_seen(monkeypatch: pytest.MonkeyPatch, period: int) -> None:
    plan, real = replace(PLAN, steps=1200), Streams.generator

    def periodic(self: Streams, stream: Stream, step: int = 0) -> np.random.Generator:
        return real(self, stream, step % period if stream is Stream.NOISE else step)

    assert noise_test(plan, keyed(0)).p_value > 1e-3
    monkeypatch.setattr(Streams, "generator", periodic)
    found = noise_test(plan, keyed(0))
    assert found.p_value < 1e-12
    assert "any two of 1,200 steps" in found.seen


@pytest.mark.parametrize("count_noise", [0.01, 4.0, 3000.0])
@pytest.mark.parametrize("way", [{}, {"quantile": 0.95, "learning_rate": 5.0}])
def test_the_real_noise_on_the_count_of_a_quantile_clip_passes(count_noise: float, way: dict[str, float]) -> None:
    found = noise_test(replace(PLAN, quantile_clip=QuantileClip(count_noise, **way)), keyed(1))
    assert found.p_value > 1e-3, found.seen
    assert "1,025 parameters" in found.seen


def test_the_noise_of_an_exact_plan_passes() -> None:
    exact = replace(PLAN, exact=True)
    assert noise_test(exact, keyed(1)).p_value > 1e-3
    assert noise_test(replace(exact, quantile_clip=QuantileClip(4.0)), keyed(2)).p_value > 1e-3


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_less_noise_on_the_count_of_a_quantile_clip_does_not(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    real = dpsgd.noisy_sum

    def less_on_counts(generator: np.random.Generator, total: np.ndarray, unit: float, deviation: float) -> np.ndarray:
        return total * unit + share * (real(generator, total, unit, deviation) - total * unit)

    monkeypatch.setattr(dpsgd, "noisy_sum", less_on_counts)
    assert noise_test(PLAN, keyed(0)).p_value > 1e-3
    assert noise_test(replace(PLAN, quantile_clip=QuantileClip(4.0)), keyed(0)).p_value < 1e-5


def laplace(generator: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return generator.laplace(0, deviation / np.sqrt(2), shape)


def three_per_cent_less(generator: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return generator.normal(0, 0.97 * deviation, shape)


def one_number_for_two(generator: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    size = int(np.prod(shape))
    return np.repeat(generator.normal(0, deviation, (size + 1) // 2), 2)[:size].reshape(shape)


def two_numbers_of_a_thousand_agree(generator: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    noise = generator.normal(0, sigma, shape)
    noise[-1] = noise[0]
    return noise


def biased(generator: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return generator.normal(0.03 * deviation, deviation, shape)


def one_without(generator: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    noise = generator.normal(0, deviation, shape)
    noise[len(noise) // 2] = 0
    return noise


@pytest.mark.parametrize(
    "wrong", [laplace, three_per_cent_less, one_number_for_two, two_numbers_of_a_thousand_agree, biased, one_without]
)
def test_other_noise_does_not(monkeypatch: pytest.MonkeyPatch, wrong: Noise) -> None:
    monkeypatch.setattr(dpsgd, "gaussian_noise", wrong)
    found = noise_test(PLAN, keyed(0))
    assert found.p_value < 1e-6, found.seen
