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
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as losses
from scipy.special import ndtr

from sordino.budget import rdp, sampled_gaussian
from sordino.budget.events import (
    Adjacency,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    ShuffledGaussian,
    UnsupportedEvent,
    leaves,
)

RDP_ONLY = (RepeatAndSelect, FixedSizeGaussian, Iteration)
# Connecting the dots needs exp(interval); above this the interval is coarse because ε is huge, and rounding up will do.
_LARGEST_CONNECTED_INTERVAL = 100.0
# Convolution by FFT errs by about this much probability a composed step; it is set aside from δ.
_FFT_ERROR = 64 * sys.float_info.epsilon
_MOST_POINTS = 2**21


def epsilon(
    event: Event, delta: float, adjacency: Adjacency, fineness: float = 1e-4, agreement: float = 5e-4
) -> float | None:
    """ε at δ, or None where δ is too small for the floating-point convolution of so many steps.

    The grid is refined to an interval of about fineness·ε and until two grids agree to the relative agreement.

    Raises UnsupportedEvent for events whose privacy loss distribution is not known (RDP_ONLY).
    """
    counts = _priceable(event, adjacency)
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
    return _refined(counts, delta, adjacency, fineness, agreement)


def rough_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """A valid ε, about 1 % loose at worst and several times as quick: for searches that end with `epsilon`."""
    return epsilon(event, delta, adjacency, fineness=1e-3, agreement=1e-2) or 0.0


def _priceable(event: Event, adjacency: Adjacency) -> dict[Event, int]:
    """Leaves and counts with all plain Gaussians merged into one, which is exact: 1/σ² adds up."""
    counts: dict[Event, int] = {}
    precision = 0.0
    for leaf, count in leaves(event).items():
        if isinstance(leaf, RDP_ONLY):
            raise UnsupportedEvent(f"no privacy loss distribution is known for {type(leaf).__name__}")
        if isinstance(leaf, ShuffledGaussian):
            rdp.check_fixed_order(adjacency)
        if isinstance(leaf, Gaussian | ShuffledGaussian):
            precision += count / leaf.noise_multiplier**2
        else:
            counts[leaf] = count
    if precision:
        counts[Gaussian(precision**-0.5)] = 1
    return counts


def _gaussian_epsilon(noise_multiplier: float, delta: float, adjacency: Adjacency) -> float:
    """The exact ε of one Gaussian release (Balle & Wang 2018)."""
    sigma = noise_multiplier / 2 if adjacency == "replace-one" else noise_multiplier
    # Its root finder stops within a tolerance on either side: stay on the side of privacy.
    with np.errstate(divide="ignore"):
        return float(gaussian_mechanism.get_epsilon_gaussian(sigma, delta)) * (1 + 1e-9)


def _refined(
    counts: Mapping[Event, int], delta: float, adjacency: Adjacency, fineness: float, agreement: float
) -> float:
    widest = max(_loss_range(leaf) for leaf in counts)
    smallest = _on_ladder(widest / _MOST_POINTS)
    interval = max(_on_ladder(10 * fineness * (_first_guess(counts, delta, adjacency) or widest)), smallest)
    answer = _on_grid(counts, delta, adjacency, interval)
    while answer > 0 and interval > smallest:
        interval = max(_on_ladder(min(fineness * answer, interval / 2)), smallest)
        refined = min(answer, _on_grid(counts, delta, adjacency, interval))
        agreed = interval <= 1.5 * fineness * answer and answer - refined <= agreement * refined
        answer = refined
        if agreed:
            break
    return answer


def _on_ladder(interval: float) -> float:
    """The nearest power of two, so that neighbouring questions share the distributions already built."""
    return float(2.0 ** round(math.log2(interval)))


def approximate_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """ε of about the right size in no time, by the central limit of Dong, Roth & Su 2019: never for a guarantee."""
    return _first_guess(_priceable(event, adjacency), delta, adjacency)


def _first_guess(counts: Mapping[Event, int], delta: float, adjacency: Adjacency) -> float:
    doubling = 2.0 if adjacency == "replace-one" else 1.0
    total = 0.0
    for leaf, count in counts.items():
        if isinstance(leaf, PoissonGaussian):
            total += _sampled_precision(leaf.sample_rate, leaf.noise_multiplier / doubling, count)
        elif isinstance(leaf, Pure):
            total += count * leaf.epsilon**2
        else:
            total += count * (doubling / leaf.noise_multiplier) ** 2  # type: ignore[union-attr]
    with np.errstate(divide="ignore"):
        return float(gaussian_mechanism.get_epsilon_gaussian(total**-0.5, delta))


def _sampled_precision(rate: float, sigma: float, count: int) -> float:
    """1/σ² of the Gaussian release that count sampled ones resemble; for little noise, of those a record joins."""
    joined = count * rate
    few_joined = (joined + 4 * math.sqrt(joined) + 4) / sigma**2
    if sigma < 0.1:
        return few_joined
    variance = math.exp(sigma**-2) * ndtr(1.5 / sigma) + 3 * ndtr(-0.5 / sigma) - 2
    return float(min(few_joined, count * rate**2 * variance))


def _loss_range(leaf: Event) -> float:
    """Roughly how wide the privacy loss of one event spreads, for a bound on the size of its grid."""
    if isinstance(leaf, Gaussian | PoissonGaussian):
        return 20 / leaf.noise_multiplier + 1 / leaf.noise_multiplier**2
    return 2 * (leaf.epsilon if isinstance(leaf, Pure) else 1 / leaf.noise_multiplier)  # type: ignore[union-attr]


def _on_grid(counts: Mapping[Event, int], delta: float, adjacency: Adjacency, interval: float) -> float:
    composed = None
    for leaf, count in counts.items():
        part = _self_composed(leaf, count, adjacency, interval)
        composed = part if composed is None else composed.compose(part)
    return float(composed.get_epsilon_for_delta(delta)) if composed else 0.0


@lru_cache(maxsize=32)
def _self_composed(leaf: Event, count: int, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
    single = _single(leaf, adjacency, interval)
    return single.self_compose(count) if count > 1 else single


@lru_cache(maxsize=32)
def _single(leaf: Event, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
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
        case Pure(value):
            return losses.from_privacy_parameters(common.DifferentialPrivacyParameters(value, 0.0), interval)
        case _:
            raise UnsupportedEvent(f"PLD does not know {type(leaf).__name__}")
