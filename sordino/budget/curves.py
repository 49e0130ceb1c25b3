"""Curves that people read off before they train: noise against sampling rate, ε against δ, ε against batch size."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.budget.accountant import cost
from sordino.budget.calibration import noise_multiplier
from sordino.budget.events import Event, Iteration, PoissonGaussian, Repeated

Array = NDArray[np.float64]


def noise_against_sample_rate(
    sample_rates: Sequence[float], epochs: float, target_epsilon: float, target_delta: float
) -> Array:
    """σ for a fixed budget after so many epochs, at each sampling rate (LSR Fig. 2, T&B Fig. 6)."""

    def sigma(rate: float) -> float:
        steps = math.ceil(epochs / rate)
        return noise_multiplier(lambda s: Repeated(PoissonGaussian(rate, s), steps), target_epsilon, target_delta)

    return np.array([sigma(rate) for rate in sample_rates])


def square_root_law(sample_rates: Sequence[float], noise: Sequence[float]) -> float:
    """The c of σ ≈ c·√q that fits best in relative terms (T&B, Claim D.1)."""
    return float(np.exp(np.mean(np.log(noise) - 0.5 * np.log(sample_rates))))


def epsilon_against_delta(event: Event, deltas: Sequence[float], adjacency: str = "zero-out") -> Array:
    """ε of one event at each δ (INS Fig. 7)."""
    return np.array([cost(event, delta, adjacency).epsilon for delta in deltas])


def epsilon_against_batch_size(
    batch_sizes: Sequence[int], n: int, steps: int, noise_per_example: float, delta: float
) -> Array:
    """ε as the batch grows with σ/B and the number of steps held fixed (INS Fig. 2)."""
    return np.array(
        [
            cost(Repeated(PoissonGaussian(size / n, noise_per_example * size), steps), delta).epsilon
            for size in batch_sizes
        ]
    )


def noise_by_sampling_and_by_iteration(
    epsilons: Sequence[float], sample_rate: float, epochs: int, delta: float, share: float = 1.0
) -> tuple[Array, Array]:
    """σ that DP-SGD and amplification by iteration need for each ε, under replace-one as in T&B Fig. 9.

    DP-SGD is priced under zero-out, the paper's choice for it. With share below 1 the second curve protects only that
    share of the records (the paper took 0.99): a claim, not a guarantee for everyone.
    """
    per_epoch = math.floor(1 / sample_rate)
    steps = epochs * per_epoch
    sampled = [noise_multiplier(lambda s: Repeated(PoissonGaussian(sample_rate, s), steps), e, delta) for e in epsilons]
    iterated = [noise_multiplier(lambda s: Iteration(epochs, per_epoch, s), e, delta, "replace-one") for e in epsilons]
    unit = Iteration(epochs, per_epoch, 1.0)  # RDP is proportional to 1/σ², so sharing out less protection scales σ
    saving = math.sqrt(unit.rho("replace-one", share) / unit.rho("replace-one"))
    return np.array(sampled), saving * np.array(iterated)
