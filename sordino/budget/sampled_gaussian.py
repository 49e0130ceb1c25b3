"""The privacy loss distribution of one Poisson-sampled Gaussian step, built with whole arrays at once.

The mechanism is dp_accounting's; its inverse of the privacy loss, a Python loop over the grid that would dominate every
calibration, is replaced by its closed form.
"""

import math

import numpy as np
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

from sordino.budget.losses import Losses, connected

Array = NDArray[np.float64]


def distribution(sample_rate: float, noise_multiplier: float, interval: float) -> tuple[Losses, Losses]:
    """Pessimistic distributions for a record removed and added, on grids that hold the loss where it is not drawn."""
    remove = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sample_rate, adjacency_type=AdjacencyType.REMOVE)
    add = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sample_rate, adjacency_type=AdjacencyType.ADD)
    undrawn = math.log1p(-sample_rate)
    return _discretised(remove, interval, undrawn), _discretised(add, interval, -undrawn)


def _discretised(loss: GaussianPrivacyLoss, interval: float, offset: float) -> Losses:
    bounds = loss.connect_dots_bounds()
    lowest = math.floor((bounds.epsilon_lower - offset) / interval)
    highest = max(math.ceil((bounds.epsilon_upper - offset) / interval), lowest + 1)
    return connected(interval, lowest, hockey_stick(loss, offset + interval * np.arange(lowest, highest + 1)), offset)


def hockey_stick(loss: GaussianPrivacyLoss, epsilons: Array) -> Array:
    """δ(ε) of one step at every ε: the upper measure less e^ε times the lower one, where the loss exceeds ε."""
    variance, rate = loss.standard_deviation**2, loss.sampling_prob
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if loss.adjacency_type == AdjacencyType.REMOVE:
            cutoffs = -0.5 - variance * _unsampled_loss(epsilons, rate)
            bounded = epsilons <= math.log1p(-rate)
            beyond = -np.expm1(epsilons)  # every outcome has a larger loss than this
        else:
            cutoffs = 0.5 + variance * _unsampled_loss(-epsilons, rate)
            bounded = epsilons >= -math.log1p(-rate)
            beyond = np.zeros_like(epsilons)  # no outcome has so large a loss
        deltas = loss.mu_upper_cdf(cutoffs) - np.exp(epsilons + loss.mu_lower_log_cdf(cutoffs))
    return np.clip(np.where(bounded, beyond, deltas), 0, 1)


def _unsampled_loss(epsilons: Array, rate: float) -> Array:
    """log(1 + (e^ε − 1)/q), the loss that the sample turns into ε, without overflow."""
    large = epsilons - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(epsilons, 1)))
    return np.where(epsilons > 1, large, np.log1p(np.expm1(np.minimum(epsilons, 1)) / rate))
