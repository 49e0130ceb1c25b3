"""ε of about the right size in no time, by the central limit of Dong, Roth & Su 2019: never for a guarantee.

Many small releases resemble one Gaussian release; its 1/σ² is the sum of theirs. Grids and searches start from it.
"""

import math
from collections.abc import Mapping

import numpy as np
from dp_accounting import gaussian_mechanism
from scipy.special import ndtr

from sordino.budget.events import Adjacency, Event, NonPrivate, PoissonGaussian, Pure


def epsilon(counts: Mapping[Event, int], delta: float, adjacency: Adjacency) -> float:
    """Roughly the ε of elementary events with their counts."""
    if not counts or any(isinstance(leaf, NonPrivate) for leaf in counts):
        return math.inf if counts else 0.0
    with np.errstate(divide="ignore"):
        return float(gaussian_mechanism.get_epsilon_gaussian(precision(counts, adjacency) ** -0.5, delta))


def precision(counts: Mapping[Event, int], adjacency: Adjacency) -> float:
    """1/σ² of the one Gaussian release that all of these resemble."""
    doubling = 2.0 if adjacency == "replace-one" else 1.0
    total = 0.0
    for leaf, count in counts.items():
        if isinstance(leaf, PoissonGaussian):
            total += _sampled_precision(leaf.sample_rate, leaf.noise_multiplier / doubling, count)
        elif isinstance(leaf, Pure):
            total += count * leaf.epsilon**2
        else:
            total += count * (doubling / leaf.noise_multiplier) ** 2  # type: ignore[union-attr]
    return total


def _sampled_precision(rate: float, sigma: float, count: int) -> float:
    """1/σ² of the Gaussian release that count sampled ones resemble; for little noise, of those a record joins."""
    joined = count * rate
    few_joined = (joined + 4 * math.sqrt(joined) + 4) / sigma**2
    if sigma < 0.1:
        return few_joined
    variance = math.exp(sigma**-2) * ndtr(1.5 / sigma) + 3 * ndtr(-0.5 / sigma) - 2
    return float(min(few_joined, count * rate**2 * max(variance, 0.5 / sigma**2)))
