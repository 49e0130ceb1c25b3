"""LSR (Dörmann et al. 2021): large sampling rates and much noise. Its nine settings, and what they recommend.

A recommendation is for data that nobody has looked at: sampling rate, noise, epochs, clip and learning rate, with the
reasons. At a fixed budget σ ≈ c·√q (T&B, LSR), so noise relative to the batch falls as the rate q grows, while steps
get fewer. What counts is the noise of the run's mean gradient, σ/(q·n·√steps): it falls with q, ever more slowly,
towards that of full batches. The rate proposed is the smallest that doubling would not improve by much; it is below
LSR's least only where the compute leaves too few steps for a larger one, since below it steps would only get more.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino import models
from sordino.budget import (
    Cost,
    Event,
    Gaussian,
    PoissonGaussian,
    Repeated,
    calibration,
    check_delta_against_n,
    cost,
    square_root_law,
    steps_for,
)
from sordino.data import load
from sordino.features import Pixels
from sordino.gradients import ClippedGradients, Loss
from sordino.training.heads import cross_entropy
from sordino.training.modules import built
from sordino.training.planning import check_whole


@dataclass(frozen=True)
class LargeRate:
    """A setting for one dataset, with the ε, noise and accuracy (in per cent) that the paper reports for it."""

    dataset: str
    n: int
    parameters: int
    sample_rate: float
    epochs: int
    learning_rate: float
    momentum: float
    l2_clip: float
    noise_multiplier: float
    epsilon: float
    accuracy: float

    @property
    def batch(self) -> int:
        return round(self.sample_rate * self.n)

    @property
    def steps(self) -> int:
        return steps_for(self.epochs, self.n, self.batch)

    @property
    def wander(self) -> float:
        """How far the noise of the whole run carries a weight (standard deviation): a random walk of all its steps."""
        step = self.learning_rate / (1 - self.momentum) * self.l2_clip * self.noise_multiplier / self.batch
        return step * math.sqrt(self.steps)


_MNIST, _FASHION, _CIFAR = ("mnist", 60_000, 25_386), ("fashion-mnist", 60_000, 25_386), ("cifar-10", 50_000, 550_570)
LARGE_RATES = {
    "lsr-m1": LargeRate(*_MNIST, 0.1427, 40, 6.939, 0.4253, 0.2901, 11.85, 0.98, 97.0),
    "lsr-m2": LargeRate(*_MNIST, 0.1427, 60, 1.798, 0.7161, 0.5757, 7.43, 1.95, 97.6),
    "lsr-m3": LargeRate(*_MNIST, 0.1665, 40, 10.244, 0.5784, 0.4196, 4.64, 2.93, 98.1),
    "lsr-f1": LargeRate(*_FASHION, 0.1427, 40, 4.069, 0.5764, 0.5716, 11.85, 0.97, 83.7),
    "lsr-f2": LargeRate(*_FASHION, 0.1665, 80, 5.706, 0.4277, 0.6457, 9.23, 1.79, 86.1),
    "lsr-f3": LargeRate(*_FASHION, 0.1665, 60, 9.493, 0.5946, 0.474, 6.06, 2.40, 86.8),
    "lsr-c1": LargeRate(*_CIFAR, 0.1666, 40, 1.601, 0.5992, 1.253, 6.61, 1.93, 58.6),
    "lsr-c2": LargeRate(*_CIFAR, 0.2, 100, 3.692, 0.6442, 0.6533, 4.83, 4.21, 66.2),
    "lsr-c3": LargeRate(*_CIFAR, 0.1666, 100, 7.101, 0.4433, 0.4434, 3.13, 7.42, 70.1),
}
"""Table 2, with what the paper leaves out from the authors' code."""

USUAL_SCALE = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3205,)),
    "cifar-10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
"""Mean and deviation of each dataset's pixels, as everybody has published them: constants, not read off the data."""

L2_CLIP = round(geometric_mean(made.l2_clip for made in LARGE_RATES.values()), 2)
MOMENTUM = round(fmean(made.momentum for made in LARGE_RATES.values()), 2)
_LEAST_STEPS = min(made.steps for made in LARGE_RATES.values())
_LEAST_RATE = min(made.sample_rate for made in LARGE_RATES.values())
_USUAL_EPOCHS, _MOST_EPOCHS = 40, max(made.epochs for made in LARGE_RATES.values())
_WANDER = geometric_mean(made.wander for made in LARGE_RATES.values())
_LONGEST_STEP = max(made.learning_rate * made.l2_clip / (1 - made.momentum) for made in LARGE_RATES.values())
_ALIKE = 1.1
_SMALL_RATE = 0.01
"""What was usual before LSR: shown for comparison."""
_BYTES_A_PARAMETER = 8
"""Of memory for an example: its gradient, and as much again for what the passes keep."""
_EXAMPLES, _BATCH = 1000, 25


@dataclass(frozen=True)
class GradientSize:
    """What sampling noise depends on: how long clipped gradients are, and how many coordinates get added noise."""

    parameters: int
    mean_square: float = 1.0
    """Mean of the squared norms of clipped gradients, in units of the clip: at most 1, whatever the data."""
    known_from: str = "assumed to be the clip, where sampling noise is largest"
    """How the norms are known, in words that follow them."""

    def __post_init__(self) -> None:
        check_whole("the number of parameters", self.parameters)
        if not 0 <= self.mean_square <= 1:
            raise ValueError(f"the mean square of clipped norms lies in [0, 1], not {self.mean_square!r}")


def gradient_size(model: nn.Module, loss: Loss, x: Any, y: Any, l2_clip: float, known_from: str) -> GradientSize:
    """Of a model at its present weights on public or synthetic examples; the loss gives one number an example.

    Guarantee: none. Norms of gradients reveal something of the examples, so x and y must not be private.
    """
    norms = ClippedGradients(model, loss)(x, y, l2_clip=l2_clip).norms
    mean_square = float((norms / l2_clip).clamp(max=1).square().mean())
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return GradientSize(trained, mean_square, known_from)


def gradient_size_on(dataset: str, l2_clip: float) -> GradientSize:
    """Of LSR's network for such images on a named dataset, which is public, after a short training on others of it.

    Guarantee: none: it trains and measures without noise.
    """
    data = load(dataset)
    networks = {(28, 28): models.lsr_cnn, (32, 32, 3): models.cifar_cnn}
    if data.facts.kind != "image" or data.facts.shape not in networks or len(data.train) < 2 * _EXAMPLES:
        raise ValueError(
            f"gradients are measured on {2 * _EXAMPLES:,} training images of 28×28 or 32×32×3, and {dataset} does not "
            "have so many here; use mnist-5k"
        )
    rows = np.random.default_rng(0).permutation(len(data.train))[: 2 * _EXAMPLES]
    x, y = Pixels((0.5,), (0.5,))(data.train.x[rows]), torch.from_numpy(data.train.y[rows])
    model = built(lambda: networks[data.facts.shape](len(data.facts.classes or ())), 0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for start in range(0, _EXAMPLES, _BATCH):
        optimiser.zero_grad()
        cross_entropy(model(x[start : start + _BATCH]), y[start : start + _BATCH]).mean().backward()
        optimiser.step()
    words = f"measured on {_EXAMPLES:,} images of {dataset} (taken as public, not charged) after a short training there"
    return gradient_size(model, cross_entropy, x[_EXAMPLES:], y[_EXAMPLES:], l2_clip, words)


def accounted_share(size: GradientSize, n: int, sample_rate: float, noise_multiplier: float) -> float:
    """The share of added noise in the variance of a step's noisy sum, over all coordinates.

    In units of the clip, added noise has the variance d·σ². A Poisson draw takes each record with probability q by
    itself, so its sum has the variance q(1−q)·Σ‖gᵢ‖² = q(1−q)·n·mean_square: nothing at q=1, and never above
    q(1−q)·n, since clipped gradients are no longer than 1.
    """
    added = size.parameters * noise_multiplier**2
    sampling = sample_rate * (1 - sample_rate) * n * size.mean_square
    return added / (added + sampling)


@dataclass(frozen=True)
class SamplingRate:
    """A sampling rate with the noise that the budget asks of it."""

    expected_batch_size: int
    sample_rate: float
    noise_multiplier: float
    steps: int
    excess_noise: float
    """Noise of the run's mean gradient, relative to that of full batches at the same budget."""
    accounted_share: float


@dataclass(frozen=True)
class Recommendation:
    """What to train with, and why. Computed from public facts alone, so it costs nothing."""

    n: int
    chosen: SamplingRate
    epochs: float
    l2_clip: float
    learning_rate: float
    momentum: float
    cost: Cost
    delta: float
    root_law: float
    """c of σ ≈ c·√q, fitted to the candidates."""
    candidates: tuple[SamplingRate, ...]
    physical_batch: int | None
    reasons: tuple[str, ...]


def recommend(
    n: int,
    target_epsilon: float,
    target_delta: float,
    size: GradientSize,
    *,
    compute: float | None = None,
    memory: float | None = None,
    least_gain: float = 0.005,
) -> Recommendation:
    """For n records; `compute` is in example gradients (default: 40 epochs), `memory` in bytes.

    Doubling the rate has to lower the noise of the run by `least_gain` to be worth while.
    """
    if type(n) is not int or not 1 <= n <= 2**53:
        raise ValueError(f"n must be a whole number between 1 and 2^53, not {n!r}")
    calibration.check_target(target_epsilon)
    check_delta_against_n(target_delta, n)
    if compute is not None and not 0 < compute < math.inf:
        raise ValueError(f"compute must be a positive number of example gradients, not {compute!r}")
    if compute is not None and compute < n:
        raise ValueError(f"compute of {compute:g} example gradients is less than one epoch: give at least n={n}")
    if not 0 < least_gain < 1:
        raise ValueError(f"least_gain must lie between 0 and 1, not {least_gain!r}")
    physical = None if memory is None else _physical_batch(memory, size)
    allowed = _USUAL_EPOCHS if compute is None else compute / n
    epochs = min(allowed, _MOST_EPOCHS)
    budget = (target_epsilon, target_delta)
    full = calibration.noise_multiplier(Gaussian, *budget)

    def at_batch(batch: int) -> SamplingRate:
        steps, rate = max(1, math.floor(epochs * n / batch)), batch / n  # never beyond what compute allows
        sigma = calibration.noise_multiplier(lambda s: Repeated(PoissonGaussian(rate, s), steps), *budget)
        excess = sigma / (rate * math.sqrt(steps) * full)
        return SamplingRate(batch, rate, sigma, steps, excess, accounted_share(size, n, rate, sigma))

    largest = min(n, max(1, math.floor(epochs * n / _LEAST_STEPS)))
    chosen = at_batch(largest)
    found = [chosen]
    while chosen.expected_batch_size > 1:  # downwards: large rates are quick to calibrate
        half = at_batch((chosen.expected_batch_size + 1) // 2)
        found.append(half)
        if half.sample_rate < _LEAST_RATE or chosen.excess_noise <= half.excess_noise * (1 - least_gain):
            break
        chosen = half
    small = round(_SMALL_RATE * n)
    if 1 <= small < found[-1].expected_batch_size:
        found.append(at_batch(small))
    learning_rate, why_learning_rate = _learning_rate(chosen)
    total: Event = Repeated(PoissonGaussian(chosen.sample_rate, chosen.noise_multiplier), chosen.steps)
    candidates = tuple(reversed(found))
    return Recommendation(
        n,
        chosen,
        chosen.steps * chosen.sample_rate,
        L2_CLIP,
        learning_rate,
        MOMENTUM,
        cost(total, target_delta),
        target_delta,
        square_root_law([each.sample_rate for each in found], [each.noise_multiplier for each in found]),
        candidates,
        physical,
        (
            _why_epochs(allowed, compute is not None),
            _why_sampling_rate(chosen, largest, least_gain),
            _why_noise(chosen, candidates),
            _why_share(chosen, candidates, size),
            f"clip {L2_CLIP:g} and momentum {MOMENTUM:g}: the means of LSR's nine settings, for small networks; for "
            "other models, try them on public data first",
            why_learning_rate,
            _why_memory(chosen, physical),
        ),
    )


def _learning_rate(chosen: SamplingRate) -> tuple[float, str]:
    """So that the run's noise carries a weight as far as in LSR's settings, whose learning rates were searched for."""
    noise = chosen.noise_multiplier * math.sqrt(chosen.steps) / chosen.expected_batch_size
    step = min(_WANDER / noise, _LONGEST_STEP)
    rate = float(f"{step * (1 - MOMENTUM) / L2_CLIP:.2g}")
    why = f"learning rate {rate:g}: noise then carries a weight by {noise * step:.2g} over the run; "
    if step < _LONGEST_STEP:
        return rate, f"{why}{_WANDER:.2g} is the mean of LSR's nine, which lie closer together than their rates"
    return rate, f"{why}there would be room, but rate·clip/(1 − momentum) is held to {step:.3g}, the largest of LSR's"


def _why_epochs(allowed: float, given: bool) -> str:
    if allowed > _MOST_EPOCHS:
        return (
            f"{_MOST_EPOCHS} epochs of the {allowed:.4g} that the allowance has: no more than LSR's longest, because "
            "the noise of the run is then near that of full batches, which no number of epochs lowers"
        )
    return (
        f"{allowed:.4g} epochs: {'all that the allowance has' if given else 'what LSR use most; --compute changes it'}"
    )


def _why_sampling_rate(chosen: SamplingRate, largest: int, least_gain: float) -> str:
    rate = f"sampling rate {chosen.sample_rate:.4g}, {chosen.steps:,} steps: "
    if chosen.sample_rate == 1:
        return f"{rate}every record in every step"
    if chosen.expected_batch_size == largest:
        return f"{rate}a larger one would leave fewer than {_LEAST_STEPS} steps, the fewest that LSR train with"
    return (
        f"{rate}twice the rate would lower the noise of the run by less than {100 * least_gain:g} %, and half of it "
        f"would be below {_LEAST_RATE:g}, the least of LSR's, or raise that noise by more"
    )


def _why_noise(chosen: SamplingRate, candidates: tuple[SamplingRate, ...]) -> str:
    words = f"the noise of the run is {_above(chosen)} that of full batches at the same budget"
    least = candidates[0]
    if least != chosen:
        words += f"; at a rate of {least.sample_rate:.2g} it would be {_above(least)} it"
    return words


def _why_share(chosen: SamplingRate, candidates: tuple[SamplingRate, ...], size: GradientSize) -> str:
    shares = [each.accounted_share for each in candidates]
    bound = "at least " if size.mean_square == 1 else ""
    alike = max(shares) < _ALIKE * min(shares)
    why = ", because at a fixed number of epochs both kinds of noise fall together" if alike else ""
    least, most = share_in_words(min(shares)), share_in_words(max(shares))
    return (
        f"{bound}{share_in_words(chosen.accounted_share)} of a step's variance is added noise, which the budget "
        f"accounts for, over all {size.parameters:,} coordinates; from {least} to {most} over the rates{why}; norms of "
        f"clipped gradients are {size.known_from}"
    )


def _why_memory(chosen: SamplingRate, physical: int | None) -> str:
    if physical is None:
        return "memory does not limit the rate: a batch is worked through in pieces and its sum noised once"
    pieces = math.ceil(chosen.expected_batch_size / physical)
    return (
        f"memory holds about {physical:,} examples at once ({_BYTES_A_PARAMETER} bytes a parameter each): "
        f"{pieces:,} piece{'s' * (pieces > 1)} a step, noised once, so that it does not limit the rate"
    )


def _physical_batch(memory: float, size: GradientSize) -> int:
    need = _BYTES_A_PARAMETER * size.parameters
    if not need <= memory < math.inf:
        raise ValueError(
            f"memory of {memory:.4g} bytes does not hold one example of {size.parameters:,} parameters, which takes "
            f"about {need:,}: give more memory or a smaller model"
        )
    return int(memory // need)


def _above(candidate: SamplingRate) -> str:
    return f"{100 * max(candidate.excess_noise - 1, 0):.4g} % above"


def share_in_words(share: float) -> str:
    """Rounded down: what is all but all is not all."""
    return f"{Context(prec=4, rounding=ROUND_FLOOR).create_decimal(100 * share):f} %"
