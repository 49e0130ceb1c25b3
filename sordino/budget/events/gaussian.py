"""Gaussian noise on a sum over records: all of them, a Poisson sample, a sample of fixed size, shuffled batches."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.special import ndtr

from sordino.budget.events.base import (
    ADJACENCIES,
    LARGEST_CONNECTED_INTERVAL,
    NEIGHBOURS,
    Adjacency,
    Array,
    Event,
    UnsupportedEvent,
    check_fixed_order,
    library_rdp,
    moved_by,
)
from sordino.budget.losses import Losses, connected, library_losses


@dataclass(frozen=True)
class Gaussian(Event, name="gaussian"):
    """Gaussian noise on a sum over all records: a full batch, a statistic, one histogram."""

    noise_multiplier: float
    words = "Gaussian, σ={noise_multiplier:.5g}"
    adjacencies = ADJACENCIES
    sampling = "full batch"

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        return _gaussian_rdp(self.noise_multiplier, adjacency, orders)

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        return _library_losses(self.noise_multiplier, 1.0, adjacency, interval)

    def as_gaussian(self) -> float | None:
        return self.noise_multiplier

    def precision(self, adjacency: Adjacency, count: int) -> float:
        return float(count * (moved_by(adjacency) / self.noise_multiplier) ** 2)

    def loss_range(self) -> float:
        return _gaussian_range(self.noise_multiplier)


@dataclass(frozen=True)
class PoissonGaussian(Event, name="poisson-gaussian"):
    """Gaussian noise on a sum over a secret sample that each record joins with probability sample_rate."""

    sample_rate: float
    noise_multiplier: float
    words = "Poisson-sampled Gaussian, q={sample_rate:.5g}, σ={noise_multiplier:.5g}"
    adjacencies = ADJACENCIES
    sampling = "Poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_rate > 1:
            raise ValueError(f"sample_rate is a probability and cannot exceed 1, found {self.sample_rate!r}")

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        if self.sample_rate == 1:
            return _gaussian_rdp(self.noise_multiplier, adjacency, orders)
        if adjacency == "replace-one":
            raise UnsupportedEvent("RDP has no bound for Poisson sampling under replace-one; PLD has")
        noise = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        values = library_rdp(dp_accounting.PoissonSampledDpEvent(self.sample_rate, noise), adjacency, orders)
        # Where its series fails: a sample never costs more than everyone.
        return np.minimum(values, orders / (2 * self.noise_multiplier**2))

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        rate, sigma = self.sample_rate, self.noise_multiplier
        if adjacency == "replace-one" or rate == 1 or interval > LARGEST_CONNECTED_INTERVAL:
            return _library_losses(sigma, rate, adjacency, interval)
        # On grids that hold the loss where the record is not drawn.
        remove = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=AdjacencyType.REMOVE)
        add = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=AdjacencyType.ADD)
        undrawn = math.log1p(-rate)
        return _on_grid(remove, interval, undrawn), _on_grid(add, interval, -undrawn)

    def as_gaussian(self) -> float | None:
        return self.noise_multiplier if self.sample_rate == 1 else None

    def precision(self, adjacency: Adjacency, count: int) -> float:
        """Of little noise, the precision of the steps that a record joins."""
        rate, sigma = self.sample_rate, self.noise_multiplier / moved_by(adjacency)
        joined = count * rate
        few_joined = (joined + 4 * math.sqrt(joined) + 4) / sigma**2
        if sigma < 0.1:
            return few_joined
        variance = math.exp(sigma**-2) * ndtr(1.5 / sigma) + 3 * ndtr(-0.5 / sigma) - 2
        return float(min(few_joined, count * rate**2 * max(variance, 0.5 / sigma**2)))

    def loss_range(self) -> float:
        return _gaussian_range(self.noise_multiplier)

    def participation_variance(self, count: int) -> float:
        return float(count * self.sample_rate * (0.5 / self.noise_multiplier**2) ** 2)


@dataclass(frozen=True)
class FixedSizeGaussian(Event, name="fixed-size-gaussian"):
    """Gaussian noise on a sum over a secret sample of exactly sample_size records, drawn without replacement."""

    dataset_size: int
    sample_size: int
    noise_multiplier: float
    words = "Gaussian on {sample_size} of {dataset_size} records without replacement, σ={noise_multiplier:.5g}"
    sampling = "fixed size without replacement"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_size > self.dataset_size:
            raise ValueError(f"sample_size {self.sample_size} exceeds dataset_size {self.dataset_size}")

    def check_adjacency(self, adjacency: Adjacency) -> None:
        if adjacency != "replace-one":
            raise UnsupportedEvent(f"fixed-size sampling under {adjacency}: it needs a replace-one ledger")

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        # Beyond the cap its formula divides by zero; more noise never costs more, so the cap's price holds.
        noise = dp_accounting.GaussianDpEvent(min(self.noise_multiplier / moved_by(adjacency), 1e7))
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(self.dataset_size, self.sample_size, noise)
        return library_rdp(sampled, adjacency, orders)


@dataclass(frozen=True)
class ShuffledGaussian(Event, name="shuffled-gaussian"):
    """One step of an epoch that visits each record in exactly one of steps_per_epoch batches.

    No amplification is claimed for the shuffle: a record takes part once an epoch, begun epochs count in full.
    """

    steps_per_epoch: int
    noise_multiplier: float
    words = "Gaussian on shuffled batches ({steps_per_epoch} an epoch, no amplification), σ={noise_multiplier:.5g}"
    sampling = "shuffled epochs (no amplification counted)"

    def check_adjacency(self, adjacency: Adjacency) -> None:
        check_fixed_order(adjacency)

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        return _gaussian_rdp(self.noise_multiplier, adjacency, orders)

    def as_gaussian(self) -> float | None:
        return self.noise_multiplier

    def walk(self, count: int) -> Iterator[tuple[Event, int]]:
        """Steps of one run share its epochs; a separate run starts its own epochs."""
        yield self, math.ceil(count / self.steps_per_epoch)


def _gaussian_rdp(noise_multiplier: float, adjacency: Adjacency, orders: Array) -> Array:
    return library_rdp(dp_accounting.GaussianDpEvent(noise_multiplier / moved_by(adjacency)), adjacency, orders)


def _gaussian_range(noise_multiplier: float) -> float:
    return 20 / noise_multiplier + 1 / noise_multiplier**2


def _library_losses(
    noise_multiplier: float, sample_rate: float, adjacency: Adjacency, interval: float
) -> tuple[Losses, Losses]:
    return library_losses(
        distributions.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sample_rate,
            neighboring_relation=NEIGHBOURS[adjacency],
            value_discretization_interval=interval,
            use_connect_dots=interval <= LARGEST_CONNECTED_INTERVAL,
        )
    )


def _on_grid(loss: GaussianPrivacyLoss, interval: float, offset: float) -> Losses:
    """dp_accounting's mechanism on a grid, with whole arrays in place of a Python loop over its inverse."""
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
