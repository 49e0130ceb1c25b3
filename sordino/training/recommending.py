"""A plan for data that nobody has looked at: sampling rate, noise, epochs, clip and learning rate, with the reasons.

At a fixed budget σ ≈ c·√q (T&B, LSR), so noise relative to the batch falls as the rate q grows, while steps get fewer.
What counts is the noise of the run's mean gradient, σ/(q·n·√steps): it falls with q, ever more slowly, towards that of
full batches. The rate proposed is the smallest that doubling would not improve by much; it goes below LSR's least only
where the allowance leaves too few steps for a larger one, since below it steps would only get more.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from statistics import fmean, geometric_mean

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
)
from sordino.training.large_rates import LARGE_RATES
from sordino.training.noise_shares import GradientSize, accounted_share

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


@dataclass(frozen=True)
class Candidate:
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
    chosen: Candidate
    epochs: float
    l2_clip: float
    learning_rate: float
    momentum: float
    cost: Cost
    delta: float
    root_law: float
    """c of σ ≈ c·√q, fitted to the candidates."""
    candidates: tuple[Candidate, ...]
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

    def candidate(batch: int) -> Candidate:
        steps, rate = max(1, math.floor(epochs * n / batch)), batch / n  # never beyond the allowance
        sigma = calibration.noise_multiplier(lambda s: Repeated(PoissonGaussian(rate, s), steps), *budget)
        excess = sigma / (rate * math.sqrt(steps) * full)
        return Candidate(batch, rate, sigma, steps, excess, accounted_share(size, n, rate, sigma))

    largest = min(n, max(1, math.floor(epochs * n / _LEAST_STEPS)))
    chosen = candidate(largest)
    found = [chosen]
    while chosen.expected_batch_size > 1:  # downwards: what large rates need is computed quickly
        half = candidate((chosen.expected_batch_size + 1) // 2)
        found.append(half)
        if half.sample_rate < _LEAST_RATE or chosen.excess_noise <= half.excess_noise * (1 - least_gain):
            break
        chosen = half
    small = round(_SMALL_RATE * n)
    if 1 <= small < found[-1].expected_batch_size:
        found.append(candidate(small))
    learning_rate, why_rate = _learning_rate(chosen)
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
            _why_rate_is_so(chosen, largest, least_gain),
            _why_noise(chosen, candidates),
            _why_share(chosen, candidates, size),
            f"clip {L2_CLIP:g} and momentum {MOMENTUM:g}: the means of LSR's nine settings, for small networks; for "
            "other models, try them on public data first",
            why_rate,
            _why_memory(chosen, physical),
        ),
    )


def _learning_rate(chosen: Candidate) -> tuple[float, str]:
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


def _why_rate_is_so(chosen: Candidate, largest: int, least_gain: float) -> str:
    rate = f"sampling rate {chosen.sample_rate:.4g}, {chosen.steps:,} steps: "
    if chosen.sample_rate == 1:
        return f"{rate}every record in every step"
    if chosen.expected_batch_size == largest:
        return f"{rate}a larger one would leave fewer than {_LEAST_STEPS} steps, the fewest that LSR train with"
    return (
        f"{rate}twice the rate would lower the noise of the run by less than {100 * least_gain:g} %, and half of it "
        f"would be below {_LEAST_RATE:g}, the least of LSR's, or raise that noise by more"
    )


def _why_noise(chosen: Candidate, candidates: tuple[Candidate, ...]) -> str:
    words = f"the noise of the run is {_above(chosen)} that of full batches at the same budget"
    least = candidates[0]
    if least != chosen:
        words += f"; at a rate of {least.sample_rate:.2g} it would be {_above(least)} it"
    return words


def _why_share(chosen: Candidate, candidates: tuple[Candidate, ...], size: GradientSize) -> str:
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


def _why_memory(chosen: Candidate, physical: int | None) -> str:
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


def _above(candidate: Candidate) -> str:
    return f"{_percent(max(candidate.excess_noise - 1, 0))} above"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def share_in_words(share: float) -> str:
    """Rounded down: what is all but all is not all."""
    return f"{Context(prec=4, rounding=ROUND_FLOOR).create_decimal(100 * share):f} %"
