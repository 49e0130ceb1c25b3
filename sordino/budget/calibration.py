"""Solve for the one of noise multiplier, steps and ε that is not given; never above the target, at most 0.1 % below.

Where the price of the noise jumps across the target, as it does on the coarse grids of next to no noise, the answer is
the noise just above the jump.

All answers are judged by the price the ledger will charge, including what it has already spent.
"""

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.budget import pld
from sordino.budget.accountant import cost
from sordino.budget.events import Composed, Event, PoissonGaussian, Repeated, UnsupportedEvent
from sordino.budget.events.base import check_adjacency, check_delta

_SLACK = 1e-3
_NOISE_RANGE = (1e-8, 1e8)
_MOST_STEPS = 2**40
# Closer than this no price is that steep: what lies between is a jump, and more attempts would only locate it.
_NARROW = 1e-5
# Steps are counted one by one up to 2^17; beyond that, to this part of them.
_STEP_BITS = 16

Price = Callable[[Event], float]


class OutOfReach(ValueError):  # noqa: N818
    """No setting meets the target."""


def price(delta: float, adjacency: str = "zero-out", before: Event = Composed(())) -> Price:  # noqa: B008
    """ε of an event together with what came before it, both fixed in advance."""
    return lambda event: cost(Composed((before, event)), delta, adjacency).epsilon


def noise_multiplier(
    event: Callable[[float], Event],
    target_epsilon: float,
    target_delta: float,
    adjacency: str = "zero-out",
    price_of: Price | None = None,
) -> float:
    """The smallest noise multiplier whose event(σ) costs at most target_epsilon by price_of (default: alone).

    >>> from sordino import events
    >>> steps = 1000
    >>> sigma = noise_multiplier(lambda s: events.Repeated(events.PoissonGaussian(0.01, s), steps), 3.0, 1e-5)
    >>> round(sigma, 2)
    0.81
    """
    check_target(target_epsilon)
    relation, delta = check_adjacency(adjacency), check_delta(target_delta)
    exact = price_of or price(delta, relation)
    spent = exact(Composed(()))
    if spent >= target_epsilon:
        raise OutOfReach(
            f"nothing is left of the target ε={target_epsilon:g}: what is spent already counts {spent:.4g} in every "
            "later choice"
        )

    def approximate(sigma: float) -> float:
        return pld.approximate_epsilon(event(sigma), delta, relation)

    start, slope = 1.0, -1.5
    try:
        # Alone, the new event costs about what is left in squares: near enough to start from, and as steep.
        left = math.sqrt(target_epsilon - spent) * math.sqrt(target_epsilon + spent)
        start = _solve(approximate, left, start, slope, slack=0.1)
        slope = math.log(approximate(1.01 * start) / approximate(start)) / math.log(1.01)
    except (UnsupportedEvent, ValueError, ZeroDivisionError):
        pass
    # What σ adds to what is spent is near a power of σ; the whole price, once that is most of it, hardly moves.
    most = target_epsilon - spent
    slack = min(_SLACK * target_epsilon / most, 0.5)

    def added(sigma: float) -> float:
        whole = exact(event(sigma))
        # A difference may round down to what is left: above the target is above it, by however little.
        return whole - spent if whole <= target_epsilon else max(whole - spent, math.nextafter(most, math.inf))

    try:
        return _solve(added, most, start, slope, slack)
    except OutOfReach as refusal:
        raise OutOfReach(f"{refusal}: ε={spent:.4g} is spent already" if spent else str(refusal)) from None


def steps(event: Callable[[int], Event], target_epsilon: float, price_of: Price, start: int = 64) -> int:
    """The largest step count whose event(T) costs at most target_epsilon; above 2^17, to within a 2^16th of it."""
    check_target(target_epsilon)
    fits, overshoots = 0, _MOST_STEPS
    count, exponent, last = start, 0.5, None
    for attempt in range(200):
        value = price_of(event(count))
        if value <= target_epsilon:
            fits = max(fits, count)
        else:
            overshoots = min(overshoots, count)
        if overshoots - fits <= max(1, fits >> _STEP_BITS):
            break
        if last and 0 < value < math.inf and 0 < last[1] < math.inf and count != last[0]:
            # ε grows like a power of T: between 0 (flat) and 1 (linear) but for very small or large ε.
            exponent = min(max(math.log(value / last[1]) / math.log(count / last[0]), 0.05), 2.0)
        last = (count, value)
        stride = (target_epsilon / value) ** (1 / exponent) if 0 < value < math.inf else (0.25 if value else 4.0)
        # One step beyond the estimate on the side that is still open; every third time halve the bracket to be sure.
        count = math.floor(count * min(max(stride, 1 / 64), 64.0)) + (1 if value <= target_epsilon else 0)
        if (attempt % 3 == 2 and overshoots < _MOST_STEPS) or not fits < count < overshoots:
            count = (fits + overshoots) // 2
    if fits == 0:
        raise OutOfReach(f"even one step costs more than ε={target_epsilon:g}: raise the noise multiplier or ε")
    if overshoots == _MOST_STEPS:
        raise OutOfReach("the budget allows more than 2^40 steps: give the number of steps and solve for the noise")
    return fits


def noise_against_sample_rate(
    sample_rates: Sequence[float], epochs: float, target_epsilon: float, target_delta: float
) -> NDArray[np.float64]:
    """σ for a fixed budget after so many epochs, at each sampling rate (LSR Fig. 2, T&B Fig. 6)."""

    def sigma(rate: float) -> float:
        steps = math.ceil(epochs / rate)
        return noise_multiplier(lambda s: Repeated(PoissonGaussian(rate, s), steps), target_epsilon, target_delta)

    return np.array([sigma(rate) for rate in sample_rates])


def square_root_law(sample_rates: Sequence[float], noise: Sequence[float]) -> float:
    """The c of σ ≈ c·√q that fits best in relative terms (T&B, Claim D.1)."""
    return float(np.exp(np.mean(np.log(noise) - 0.5 * np.log(sample_rates))))


def steps_for(epochs: float, n: int, expected_batch_size: int) -> int:
    """Steps that make so many passes over the data in expectation."""
    if not (isinstance(epochs, int | float) and 0 < epochs < math.inf):
        raise ValueError(f"epochs must be a positive finite number, not {epochs!r}")
    if n < 1 or expected_batch_size < 1:
        raise ValueError(f"n and the batch size must be at least 1, not {n} and {expected_batch_size}")
    # A quotient that is whole but for rounding is whole: 40 epochs of 10 steps are 400, never 401.
    exact = epochs * n / expected_batch_size
    if exact > 2.0**53:  # beyond that a float no longer counts one by one
        raise ValueError(f"{epochs:g} epochs are more than 2^53 steps: give fewer")
    return max(1, round(exact) if math.isclose(exact, round(exact), rel_tol=1e-12) else math.ceil(exact))


def check_delta_against_draws(delta: float, sample_rate: float, steps: int) -> None:
    """Refuse a δ that any noise meets: a record that is never drawn changes nothing, so ε=0 at the chance of a draw."""
    drawn = 1.0 if sample_rate >= 1 else -math.expm1(steps * math.log1p(-sample_rate))
    if delta >= drawn:
        raise ValueError(
            f"δ={delta:g} alone permits this, without any noise: a record is drawn at all with probability "
            f"{drawn:.4g} only. Give a δ below that"
        )


def check_delta_against_n(delta: float, n: int) -> None:
    """Warn of a δ of 1/n or more, which would permit publishing a record outright, at random."""
    check_delta(delta)
    if n > 0 and delta >= 1 / n:
        warnings.warn(
            f"δ={delta:g} is not below 1/n={1 / n:.3g}: it would permit revealing a record outright", stacklevel=3
        )


def check_target(target_epsilon: float) -> None:
    if isinstance(target_epsilon, bool | str) or not 0 < target_epsilon < math.inf:
        raise ValueError(f"the target ε must be a positive finite number, not {target_epsilon!r}")


def _solve(price_at: Callable[[float], float], target: float, start: float, slope: float, slack: float) -> float:
    """A σ with price in [(1 − slack)·target, target], by secants in log ε against log σ kept inside a bracket."""
    least, most = _NOISE_RANGE
    overshoots, fits = 0.0, math.inf  # the largest σ known to cost too much, the smallest known to fit
    sigma, slope, last = start, _steepness(slope), None
    for _ in range(200):
        value = price_at(sigma)
        if value > target:
            overshoots = sigma
        else:
            fits = sigma
            if value >= target * (1 - slack / 2):
                return fits
        if fits <= overshoots * (1 + _NARROW):
            return fits
        if last and 0 < value < math.inf and 0 < last[1] < math.inf and sigma != last[0]:
            slope = _steepness(math.log(value / last[1]) / math.log(sigma / last[0]))
        last = (sigma, value)
        aim = target * (1 - slack / 4)
        stride = math.log(aim / value) / slope if 0 < value < math.inf else (3.0 if value > 0 else -3.0)
        sigma *= math.exp(min(max(stride, -3.0), 3.0))
        if not overshoots < sigma < fits:
            sigma = math.sqrt(overshoots * fits) if overshoots > 0 and fits < math.inf else last[0] * 0.9
        if sigma > most:
            raise OutOfReach(f"no noise multiplier up to {most:g} brings the cost down to ε={target:g}")
        if sigma < least:
            raise OutOfReach(f"ε={target:g} is met with next to no noise (a multiplier below {least:g})")
    if fits == math.inf:
        raise OutOfReach(f"no noise multiplier was found that brings the cost down to ε={target:g}")
    return fits


def _steepness(slope: float) -> float:
    """d log ε / d log σ within reason: −2 where there is little noise, about −1 where there is much."""
    return min(max(slope, -10.0), -0.2)
