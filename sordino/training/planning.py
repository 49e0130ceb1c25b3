"""What plans share: the target that they are calibrated for, their price, and checks of their numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.budget import (
    Adjacency,
    Event,
    Ledger,
    calibration,
    check_adjacency,
    check_delta_against_n,
    cost,
    refuse_add_remove,
)

if TYPE_CHECKING:
    from sordino.training.dpsgd import Steps
    from sordino.training.fitting import Fitted, Job


class BasePlan:
    """A plan with an `event`, and its ε."""

    @property
    def event(self) -> Event:
        raise NotImplementedError

    def epsilon(self, delta: float, adjacency: str = "zero-out") -> float:
        """ε of this plan alone; a ledger's ε covers the whole workflow."""
        return cost(self.event, delta, adjacency).epsilon


class OneReleasePlan(BasePlan):
    """A plan that is charged once and releases once: no other training shares its gradient sums."""

    def train(self, job: "Job") -> "Steps[Fitted]":
        yield from ()
        return self.fitted(job)

    def fitted(self, job: "Job") -> "Fitted":
        raise NotImplementedError


@dataclass(frozen=True)
class Target:
    """The ε and δ that a plan must meet, under which adjacency, and how events are priced with what is spent before."""

    epsilon: float
    delta: float | None
    """None for pure ε."""
    adjacency: Adjacency
    price: calibration.Price | None = None

    @classmethod
    def of(
        cls,
        n: int,
        epsilon: float | None,
        delta: float | None,
        adjacency: str,
        ledger: Ledger | None = None,
        before: Event | None = None,
    ) -> "Target":
        """For n records. A ledger's adjacency and δ go before those given, its ε after; its charges count as spent."""
        if ledger is not None:
            terms = ledger.terms
            epsilon = terms.target_epsilon if epsilon is None else epsilon
            delta = delta if terms.target_delta is None else terms.target_delta
            adjacency = terms.adjacency
        refuse_add_remove(adjacency)
        if epsilon is None:
            raise ValueError("give target_epsilon, or a ledger that has one")
        calibration.check_target(epsilon)
        price: calibration.Price | None = None
        if delta is not None:
            check_delta_against_n(delta, n)
            if before is not None:
                price = calibration.price(delta, adjacency, before)
            if ledger is not None:
                price = lambda event: ledger.epsilon_if(event, delta=delta)  # noqa: E731
        return cls(float(epsilon), delta, check_adjacency(adjacency), price)

    def noise_multiplier(self, event: Callable[[float], Event]) -> float:
        """The least noise multiplier whose event meets the target."""
        if self.delta is None:
            raise ValueError("the noise is Gaussian and no pure ε covers it: give target_delta, or a ledger with one")
        return calibration.noise_multiplier(event, self.epsilon, self.delta, self.adjacency, self.price)


def check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")


def check_whole(name: str, value: Any, least: int = 1) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
