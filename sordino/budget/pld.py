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
from dp_accounting.pld import privacy_loss_distribution as distributions
from scipy.special import erf

from sordino.budget import central_limit, logistic_perturbation, rdp, sampled_gaussian
from sordino.budget.events import (
    Adjacency,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    LogisticPerturbation,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    ShuffledGaussian,
    UnsupportedEvent,
    delta_besides_exceptions,
    leaves,
)
from sordino.budget.losses import Losses, TooLong, connected, of_library

RDP_ONLY = (RepeatAndSelect, FixedSizeGaussian, Iteration)
# Connecting the dots needs exp(interval); above this the interval is coarse because ε is huge, and rounding up will do.
_LARGEST_CONNECTED_INTERVAL = 100.0
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

    Raises UnsupportedEvent for events whose privacy loss distribution is not known (RDP_ONLY).
    """
    counts, delta = _priceable(event, adjacency), delta_besides_exceptions(event, delta)
    if any(isinstance(leaf, NonPrivate) for leaf in counts):
        return math.inf
    if not counts:
        return 0.0
    if all(isinstance(leaf, Gaussian) for leaf in counts):
        (gaussian,) = counts
        return _gaussian_epsilon(gaussian.noise_multiplier, delta, adjacency)  # type: ignore[union-attr]
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
    return central_limit.epsilon(_priceable(event, adjacency), delta_besides_exceptions(event, delta), adjacency)


def _priceable(event: Event, adjacency: Adjacency) -> dict[Event, int]:
    """Leaves and counts with all plain Gaussians merged into one, which is exact: 1/σ² adds up."""
    counts: dict[Event, int] = {}
    precision = 0.0
    for leaf, count in leaves(event).items():
        if isinstance(leaf, RDP_ONLY):
            raise UnsupportedEvent(f"no privacy loss distribution is known for {type(leaf).__name__}")
        if isinstance(leaf, ShuffledGaussian):
            rdp.check_fixed_order(adjacency)
        if isinstance(leaf, LogisticPerturbation):
            logistic_perturbation.check_adjacency(adjacency)
        if isinstance(leaf, Gaussian | ShuffledGaussian) or (
            isinstance(leaf, PoissonGaussian) and leaf.sample_rate == 1
        ):
            precision += count / leaf.noise_multiplier**2
        else:
            counts[leaf] = count
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
    widest = max(_loss_range(leaf) for leaf in counts)
    slow = adjacency == "replace-one" or widest > _FEW_POINTS * _LARGEST_CONNECTED_INTERVAL
    smallest = max(widest / (_FEW_POINTS if slow else _MOST_POINTS), _FINEST)
    # A grid coarser than the losses of a single event would round each of them up to a multiple of itself.
    start = min(fineness * (central_limit.epsilon(counts, delta, adjacency) or widest), widest / 4)
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
    variance = central_limit.precision(counts, adjacency)
    for leaf, count in counts.items():
        if isinstance(leaf, PoissonGaussian):
            variance += count * leaf.sample_rate * (0.5 / leaf.noise_multiplier**2) ** 2
    return 16 * math.sqrt(variance)


def _loss_range(leaf: Event) -> float:
    """Roughly how wide the privacy loss of one event spreads, for a bound on the size of its grid."""
    if isinstance(leaf, Gaussian | PoissonGaussian):
        return 20 / leaf.noise_multiplier + 1 / leaf.noise_multiplier**2
    if isinstance(leaf, LogisticPerturbation):
        return 20 / leaf.noise_multiplier + 1 / leaf.noise_multiplier**2 + math.log1p(leaf.curvature / 4)
    return 2 * (leaf.epsilon if isinstance(leaf, Pure) else 1 / leaf.noise_multiplier)  # type: ignore[union-attr]


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
    grid = {
        "value_discretization_interval": interval,
        "use_connect_dots": interval <= _LARGEST_CONNECTED_INTERVAL,
    }
    match leaf:
        case Gaussian(sigma):
            found = distributions.from_gaussian_mechanism(sigma, neighboring_relation=rdp.NEIGHBOURS[adjacency], **grid)
        case PoissonGaussian(rate, sigma):
            if adjacency != "replace-one" and rate < 1 and grid["use_connect_dots"]:
                return sampled_gaussian.distribution(rate, sigma, interval)
            found = distributions.from_gaussian_mechanism(
                sigma, sampling_prob=rate, neighboring_relation=rdp.NEIGHBOURS[adjacency], **grid
            )
        case Laplace(multiplier):
            scale = multiplier * (0.5 if adjacency == "replace-one" else 1.0)
            found = distributions.from_laplace_mechanism(scale, **grid)
        case LogisticPerturbation():
            return (alike := logistic_perturbation.distribution(leaf, adjacency, interval)), alike
        case Pure(value):
            return (alike := _pure(value, interval)), alike
        case _:
            raise UnsupportedEvent(f"PLD does not know {type(leaf).__name__}")
    remove = of_library(found._pmf_remove)
    return remove, remove if found._symmetric else of_library(found._pmf_add)


def _pure(epsilon: float, interval: float) -> Losses:
    """Randomised response, the worst of the pure mechanisms (Kairouz, Oh & Viswanath 2015), dots connected."""
    top = math.ceil(epsilon / interval)
    if interval > _LARGEST_CONNECTED_INTERVAL:
        return Losses(interval, top, np.ones(1), 0.0)
    grid = np.arange(-top, top + 1) * interval
    between = -np.expm1(np.minimum(grid - epsilon, 0)) / (1 + math.exp(-epsilon))
    deltas = np.where(grid < -epsilon, -np.expm1(np.minimum(grid, 0)), between)
    return connected(interval, -top, deltas)
