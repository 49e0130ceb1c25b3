"""ε from privacy loss distributions (dp_accounting), on a grid that suits the answer.

Every grid gives a valid upper bound: losses are rounded up or connected by chords that lie above the curve. The grid
only decides how tight it is, so the search below may start coarse and stop as soon as two grids agree.
"""

import math
import sys
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as losses
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
# From so many steps on, dp_accounting's bound on the length of a convolution is too loose to go without a look.
_MANY_STEPS, _TRUNCATED_TAIL = 2_000_000, 1e-15


def epsilon(
    event: Event, delta: float, adjacency: Adjacency, fineness: float = 1e-4, agreement: float = 5e-4
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
    return epsilon(event, delta, adjacency, fineness=1e-3, agreement=1e-2)


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
    start = min(10 * fineness * (central_limit.epsilon(counts, delta, adjacency) or widest), widest / 4)
    interval = _on_ladder(max(start, smallest, _composed_range(counts, adjacency) / _MOST_POINTS))
    answer, points = _on_grid(counts, delta, adjacency, interval)
    while answer > 0:
        finer = _on_ladder(max(min(fineness * answer, interval / 2), smallest, interval * points / _MOST_POINTS))
        if finer >= interval:
            break
        refined, points = _on_grid(counts, delta, adjacency, finer)
        refined = min(answer, refined)
        agreed = finer <= 1.5 * fineness * answer and answer - refined <= agreement * refined
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
    composed = None
    try:
        for leaf, count in counts.items():
            if _points(leaf, count, adjacency, interval) > _LONGEST:
                return math.inf, _LONGEST
            part = _self_composed(leaf, count, adjacency, interval)
            composed = part if composed is None else composed.compose(part)
        assert composed is not None
        found, points = float(composed.get_epsilon_for_delta(delta)), composed._pmf_remove.size
    except (ValueError, IndexError):  # rounding made a probability negative, or left nothing of a distribution
        return math.inf, 1
    return (math.inf if math.isnan(found) else found), points


def _points(leaf: Event, count: int, adjacency: Adjacency, interval: float) -> int:
    """How long the convolution will be; dp_accounting's own bound grows with the count when that is large."""
    single = _single(leaf, adjacency, interval)._pmf_remove
    if count * single.size <= _MOST_POINTS or count < _MANY_STEPS:
        return int(single.size)
    lower, upper = common.compute_self_convolve_bounds(single._probs, count, _TRUNCATED_TAIL)
    return int(upper - lower)


@lru_cache(maxsize=32)
def _self_composed(leaf: Event, count: int, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
    single = _single(leaf, adjacency, interval)
    with np.errstate(over="ignore", invalid="ignore"):
        return single.self_compose(count) if count > 1 else single


@lru_cache(maxsize=32)
def _single(leaf: Event, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
    found = _discretised(leaf, adjacency, interval)
    # Its sparse form raises the number of points to the power of the steps, in digits.
    remove, add = found._pmf_remove.to_dense_pmf(), None if found._symmetric else found._pmf_add.to_dense_pmf()
    return losses.PrivacyLossDistribution(remove, add)


def _discretised(leaf: Event, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
    grid = {
        "value_discretization_interval": interval,
        "use_connect_dots": interval <= _LARGEST_CONNECTED_INTERVAL,
    }
    match leaf:
        case Gaussian(sigma):
            return losses.from_gaussian_mechanism(sigma, neighboring_relation=rdp.NEIGHBOURS[adjacency], **grid)
        case PoissonGaussian(rate, sigma):
            if adjacency != "replace-one" and rate < 1 and grid["use_connect_dots"]:
                return sampled_gaussian.distribution(rate, sigma, interval)
            return losses.from_gaussian_mechanism(
                sigma, sampling_prob=rate, neighboring_relation=rdp.NEIGHBOURS[adjacency], **grid
            )
        case Laplace(multiplier):
            return losses.from_laplace_mechanism(multiplier * (0.5 if adjacency == "replace-one" else 1.0), **grid)
        case LogisticPerturbation():
            return logistic_perturbation.distribution(leaf, adjacency, interval)
        case Pure(value):
            return losses.PrivacyLossDistribution(_pure(value, interval))
        case _:
            raise UnsupportedEvent(f"PLD does not know {type(leaf).__name__}")


def _pure(epsilon: float, interval: float) -> pld_pmf.PLDPmf:
    """Randomised response, the worst of the pure mechanisms (Kairouz, Oh & Viswanath 2015), dots connected."""
    top = math.ceil(epsilon / interval)
    if interval > _LARGEST_CONNECTED_INTERVAL:
        return pld_pmf.create_pmf({top: 1.0}, interval, 0.0, pessimistic_estimate=True)
    grid = np.arange(-top, top + 1) * interval
    between = -np.expm1(np.minimum(grid - epsilon, 0)) / (1 + math.exp(-epsilon))
    deltas = np.where(grid < -epsilon, -np.expm1(np.minimum(grid, 0)), between)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -top, top, deltas)
