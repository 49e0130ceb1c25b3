"""Pure ε-DP: Laplace noise, and mechanisms of which nothing is known but their ε."""

import math
from dataclasses import dataclass
from fractions import Fraction

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as distributions

from sordino.budget.events.base import (
    ADJACENCIES,
    LARGEST_CONNECTED_INTERVAL,
    Adjacency,
    Array,
    Event,
    library_rdp,
    moved_by,
)
from sordino.budget.losses import Losses, connected, library_losses


@dataclass(frozen=True)
class Laplace(Event, name="laplace"):
    """Laplace noise of scale noise_multiplier × (L1 sensitivity under zero-out)."""

    noise_multiplier: float
    words = "Laplace, scale {noise_multiplier:.5g}"
    adjacencies = ADJACENCIES

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        return library_rdp(dp_accounting.LaplaceDpEvent(self._scale(adjacency)), adjacency, orders)

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        return library_losses(
            distributions.from_laplace_mechanism(
                self._scale(adjacency),
                value_discretization_interval=interval,
                use_connect_dots=interval <= LARGEST_CONNECTED_INTERVAL,
            )
        )

    def _scale(self, adjacency: Adjacency) -> float:
        return self.noise_multiplier / moved_by(adjacency)

    def pure_epsilon(self, adjacency: Adjacency) -> Fraction | None:
        return Fraction(moved_by(adjacency)) / Fraction(self.noise_multiplier)

    def precision(self, adjacency: Adjacency, count: int) -> float:
        return float(count * (moved_by(adjacency) / self.noise_multiplier) ** 2)

    def loss_range(self) -> float:
        return 2 * (1 / self.noise_multiplier)


@dataclass(frozen=True)
class Pure(Event, name="pure"):
    """Any mechanism with pure epsilon-DP under the ledger's adjacency, about which no more is known.

    It is priced as randomised response, the worst of them (Kairouz, Oh & Viswanath 2015).
    """

    epsilon: float
    words = "pure {epsilon:.5g}-DP"
    adjacencies = ADJACENCIES

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        exponents = np.log1p(np.exp((1 - 2 * orders) * self.epsilon)) - np.log1p(np.exp(-self.epsilon))
        return np.asarray(self.epsilon + exponents / (orders - 1))

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        top = math.ceil(self.epsilon / interval)
        if interval > LARGEST_CONNECTED_INTERVAL:
            alike = Losses(interval, top, np.ones(1), 0.0)
            return alike, alike
        grid = np.arange(-top, top + 1) * interval
        between = -np.expm1(np.minimum(grid - self.epsilon, 0)) / (1 + math.exp(-self.epsilon))
        alike = connected(interval, -top, np.where(grid < -self.epsilon, -np.expm1(np.minimum(grid, 0)), between))
        return alike, alike

    def pure_epsilon(self, adjacency: Adjacency) -> Fraction | None:
        return Fraction(self.epsilon)

    def precision(self, adjacency: Adjacency, count: int) -> float:
        return float(count * self.epsilon**2)

    def loss_range(self) -> float:
        return 2 * self.epsilon
