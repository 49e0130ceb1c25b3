"""ε from privacy loss distributions (dp_accounting), on a grid that suits the answer.

Every grid gives a valid upper bound: losses are rounded up or connected by chords that lie above the curve. The grid
only decides how tight it is, so the search below may start coarse and stop as soon as two grids agree.
"""

import math
import sys
from collections.abc import Mapping
from functools import lru_cache, reduce

import numpy as np
from dp_accounting import gaussian_mechanism
from scipy.special import erf

from sordino.budget.events import Adjacency, Event, Gaussian, NonPrivate, UnsupportedEvent, leaves
from sordino.budget.events.base import LARGEST_CONNECTED_INTERVAL, delta_besides_exceptions
from sordino.budget.losses import Losses, TooLong

# Convolution by FFT errs by about this much probability a composed step; it is set aside from δ.
_FFT_ERROR = 64 * sys.float_info.epsilon
# Differences of probabilities divided by a smaller interval would be nothing but rounding.
_FINEST = 2.0**-36
# Bounds on time and memory. Where dp_accounting loops over the grid in Python, it has to be a smaller one.
_MOST_POINTS, _FEW_POINTS = 2**21, 2**17
_LONGEST = 8 * _MOST_POINTS


def epsilon(
    event: Event, delta: float, adjacency: Adjacency, fineness: float = 1e-3, agreement: float = 5e-4
) -> float | None:
    """ε at δ, or None where floating point or memory do not suffice to convolve so many steps.

    The grid is refined to an interval of about fineness·ε and until two grids agree to the relative agreement.

    Raises UnsupportedEvent for events whose privacy loss distribution is not known.
    """
    counts, delta = _priceable(event, adjacency), delta_besides_exceptions(event, delta)
    if NonPrivate() in counts:
        return math.inf
    match [*counts]:
        case []:
            return 0.0
        case [Gaussian(noise_multiplier)]:
            return _gaussian_epsilon(noise_multiplier, delta, adjacency)
    delta -= _FFT_ERROR * sum(counts.values())
    if delta <= 0:
        return None
    found = _refined(counts, delta, adjacency, fineness, agreement)
    return found if found < math.inf else None


def rough_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float | None:
    """A valid ε, about 1 % loose at worst and several times as quick: for searches that end with `epsilon`."""
    return epsilon(event, delta, adjacency, fineness=5e-3, agreement=1e-2)


def approximate_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """ε of about the right size in no time, to start searches from: never for a guarantee."""
    return _central_limit_epsilon(_priceable(event, adjacency), delta_besides_exceptions(event, delta), adjacency)


def _priceable(event: Event, adjacency: Adjacency) -> dict[Event, int]:
    """Leaves and counts with all plain Gaussians merged into one, which is exact: 1/σ² adds up."""
    counts: dict[Event, int] = {}
    precision = 0.0
    for leaf, count in leaves(event).items():
        if not leaf.known_to_pld():
            raise UnsupportedEvent(f"no privacy loss distribution is known for {type(leaf).__name__}")
        leaf.check_adjacency(adjacency)
        noise_multiplier = leaf.as_gaussian()
        if noise_multiplier is None:
            counts[leaf] = count
        else:
            precision += count / noise_multiplier**2
    if precision > 1e60:
        raise UnsupportedEvent("next to no noise in so many Gaussian releases; RDP prices them")
    if precision:
        counts[Gaussian(min(precision**-0.5, 1e30))] = 1
    return counts


def _gaussian_epsilon(noise_multiplier: float, delta: float, adjacency: Adjacency) -> float:
    """The exact ε of one Gaussian release (Balle & Wang 2018)."""
    sigma = noise_multiplier / 2 if adjacency == "replace-one" else noise_multiplier
    if erf(1 / (math.sqrt(8) * sigma)) <= delta * (1 - 1e-12):
        return 0.0  # δ(0), without the cancellation that much noise brings to the formula below
    # Root finder and formula err by up to 1e-12 on either side: stay on the side of privacy.
    with np.errstate(divide="ignore"):
        return float(gaussian_mechanism.get_epsilon_gaussian(sigma, delta)) * (1 + 1e-9) + 2e-12


def _refined(
    counts: Mapping[Event, int], delta: float, adjacency: Adjacency, fineness: float, agreement: float
) -> float:
    widest = max(leaf.loss_range() for leaf in counts)
    slow = adjacency == "replace-one" or widest > _FEW_POINTS * LARGEST_CONNECTED_INTERVAL
    smallest = max(widest / (_FEW_POINTS if slow else _MOST_POINTS), _FINEST)
    # A grid coarser than the losses of a single event would round each of them up to a multiple of itself.
    start = min(fineness * (_central_limit_epsilon(counts, delta, adjacency) or widest), widest / 4)
    interval = _on_ladder(max(start, smallest, _composed_range(counts, adjacency) / _MOST_POINTS))
    answer, points = _on_grid(counts, delta, adjacency, interval)
    ratio = 4.0
    while answer > 0:
        finest = max(smallest, interval * points / _MOST_POINTS)
        finer = _on_ladder(max(min(fineness * answer, interval / ratio), finest))
        if finer >= interval:
            break
        refined, points = _on_grid(counts, delta, adjacency, finer)
        refined, ratio = min(answer, refined), interval / finer
        # The error shrinks at least like the interval, so that what is left of it is a part of what the last step won.
        agreed = finer <= 1.5 * fineness * answer and answer - refined <= agreement * refined * (ratio - 1)
        # Mostly it shrinks like its square; that says how fine the next grid has to be.
        left = (answer - refined) / (ratio**2 - 1) if answer < math.inf else math.inf
        ratio = min(max(math.sqrt(left / (agreement * refined / 4)), 2.0), 16.0) if refined > 0 else 2.0
        answer, interval = refined, finer
        if agreed:
            break
    return answer


def _on_ladder(interval: float) -> float:
    """The nearest power of two, so that neighbouring questions share the distributions already built."""
    return float(2.0 ** round(math.log2(interval)))


def _composed_range(counts: Mapping[Event, int], adjacency: Adjacency) -> float:
    """Roughly how wide the loss of all of these spreads: 16 standard deviations, with the chance of joining."""
    variance = _precision(counts, adjacency)
    for leaf, count in counts.items():
        variance += leaf.participation_variance(count)
    return 16 * math.sqrt(variance)


def _central_limit_epsilon(counts: Mapping[Event, int], delta: float, adjacency: Adjacency) -> float:
    """Many small releases resemble one Gaussian release, whose 1/σ² is the sum of theirs (Dong, Roth & Su 2019)."""
    if not counts or NonPrivate() in counts:
        return math.inf if counts else 0.0
    with np.errstate(divide="ignore"):
        return float(gaussian_mechanism.get_epsilon_gaussian(_precision(counts, adjacency) ** -0.5, delta))


def _precision(counts: Mapping[Event, int], adjacency: Adjacency) -> float:
    total = 0.0
    for leaf, count in counts.items():
        total += leaf.precision(adjacency, count)
    return total


def _on_grid(counts: Mapping[Event, int], delta: float, adjacency: Adjacency, interval: float) -> tuple[float, int]:
    """ε on this grid, inf where floating point or memory fail, and the number of points of the composition."""
    try:
        remove, add = zip(*(_repeated(leaf, n, adjacency, interval) for leaf, n in counts.items()), strict=True)
        directions = [remove] if all(a is r for a, r in zip(add, remove, strict=True)) else [remove, add]
        composed = [reduce(Losses.then, direction) for direction in directions]
        found = max(direction.epsilon(delta) for direction in composed)
    except TooLong:
        return math.inf, _LONGEST
    except (ValueError, IndexError):  # rounding made a probability negative, or left nothing of a distribution
        return math.inf, 1
    return (math.inf if math.isnan(found) else found), composed[0].size


@lru_cache(maxsize=32)
def _repeated(leaf: Event, count: int, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
    """The losses of a record removed and of one added, the same object where they are alike."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        remove, add = _discretised(leaf, adjacency, interval)
        composed = remove.repeated(count, _LONGEST)
        return composed, composed if add is remove else add.repeated(count, _LONGEST)


@lru_cache(maxsize=32)
def _discretised(leaf: Event, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
    return leaf.losses(adjacency, interval)
