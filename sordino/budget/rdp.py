"""Rényi differential privacy of events, on dp_accounting, and its conversions to (ε, δ).

The cross-check of `pld`, the only accountant of a few events, and the yardstick of the papers' printed figures.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select
from numpy.typing import NDArray
from scipy.special import gammaln

from sordino.budget import iteration, logistic_perturbation
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

Conversion = Literal["old", "new"]
# An order whose series does not converge counts as infinite, which is all there is to do about it: no word to the user.
logging.getLogger("absl").addFilter(lambda record: "failed to converge" not in str(record.msg))
NEIGHBOURS = {
    "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "add-remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# Dense where training runs have their best order; the ends serve ε in the millions and in the thousandths.
ORDERS: tuple[float, ...] = (
    *(1.02, 1.05),
    *(round(1 + k / 10, 1) for k in range(1, 100)),
    *(float(k) for k in range(11, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0, 2048.0, 4096.0),
)
CLASSIC_ORDERS: tuple[float, ...] = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(float(k) for k in range(5, 64)),
    *(128.0, 256.0, 512.0),
)


def rdp(event: Event, adjacency: Adjacency, orders: Sequence[float] = ORDERS) -> NDArray[np.float64]:
    """RDP of the event at each order, its exceptions aside; raises UnsupportedEvent where no bound is known."""
    return _total(leaves(event), adjacency, tuple(orders))


def rdp_at(event: Event, adjacency: Adjacency, order: float) -> float:
    """RDP at one order, computed among the usual orders because private selection borrows from its neighbours."""
    return float(rdp(event, adjacency, (*ORDERS, order))[-1])


def epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """ε by RDP with the tighter conversion of Canonne, Kamath & Steinke 2020 (Proposition 12)."""
    return float(compute_epsilon(ORDERS, rdp(event, adjacency), delta_besides_exceptions(event, delta))[0])


def classic_epsilon(event: Event, delta: float, adjacency: Adjacency, conversion: Conversion = "new") -> float:
    """ε as TF-Privacy printed it, with its orders: for reproducing the papers' figures and nothing else."""
    orders, values = np.array(CLASSIC_ORDERS), rdp(event, adjacency, CLASSIC_ORDERS)
    delta = delta_besides_exceptions(event, delta)
    if conversion == "new":
        return float(compute_epsilon(orders, values, delta)[0])
    return float(np.min(values - math.log(delta) / (orders - 1)))


def conversion_cost(order: float, delta: float) -> float:
    """What (order, ρ)-RDP adds to ρ on its way to (ε, δ)."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _total(counts: Mapping[Event, int], adjacency: Adjacency, orders: tuple[float, ...]) -> NDArray[np.float64]:
    total = np.zeros(len(orders))
    for leaf, count in counts.items():
        total += count * _leaf(leaf, adjacency, orders)
    return total


@lru_cache(maxsize=4096)
def _leaf(leaf: Event, adjacency: Adjacency, orders: tuple[float, ...]) -> NDArray[np.float64]:
    alphas = np.array(orders)
    with np.errstate(all="ignore"):  # what overflows becomes inf or nan, and costs inf below
        values = _bound(leaf, adjacency, alphas)
    # The sums of binomials behind sampled events are rounded: never let a rounding error lower a price.
    values = np.where(np.isnan(values), np.inf, np.maximum(values, 0))
    rounding: NDArray[np.float64] = 1e-13 * np.maximum(1, gammaln(alphas + 1)) / (alphas - 1)
    return values + rounding


def _bound(leaf: Event, adjacency: Adjacency, alphas: NDArray[np.float64]) -> NDArray[np.float64]:
    orders = tuple(map(float, alphas))
    match leaf:
        case Pure(value):
            # Randomised response is the worst pure mechanism (Kairouz, Oh & Viswanath 2015), and this is its RDP.
            exponents = np.log1p(np.exp((1 - 2 * alphas) * value)) - np.log1p(np.exp(-value))
            return value + exponents / (alphas - 1)  # type: ignore[no-any-return]
        case LogisticPerturbation():
            return logistic_perturbation.rdp(leaf, adjacency, alphas)
        case RepeatAndSelect(inner, mean, shape):
            # Its formula turns a rounding error into a small δ̂, so the runs are priced with their rounding already.
            return np.asarray(_compute_rdp_repeat_and_select(alphas, rdp(inner, adjacency, orders), mean, shape))
        case _:
            accountant = RdpAccountant(orders, NEIGHBOURS[adjacency]).compose(_dp_event(leaf, adjacency))
            values = np.asarray(accountant.rdp, dtype=np.float64)
            if isinstance(leaf, PoissonGaussian) and leaf.sample_rate < 1:
                # Where its series fails: a sample never costs more than everyone.
                return np.minimum(values, alphas / (2 * leaf.noise_multiplier**2))
            return values


def _dp_event(event: Event, adjacency: Adjacency) -> dp_accounting.DpEvent:
    """The event in dp_accounting's words; a replaced record moves a sum by twice the clip, which it does not double."""
    scale = 0.5 if adjacency == "replace-one" else 1.0
    match event:
        case Gaussian(sigma):
            return dp_accounting.GaussianDpEvent(scale * sigma)
        case ShuffledGaussian(_, sigma):
            check_fixed_order(adjacency)
            return dp_accounting.GaussianDpEvent(scale * sigma)
        case Laplace(multiplier):
            return dp_accounting.LaplaceDpEvent(scale * multiplier)
        case PoissonGaussian(1, sigma):
            return dp_accounting.GaussianDpEvent(scale * sigma)
        case PoissonGaussian(rate, sigma):
            if adjacency == "replace-one":
                raise UnsupportedEvent("RDP has no bound for Poisson sampling under replace-one; PLD has")
            return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        case FixedSizeGaussian(n, size, sigma):
            check_fixed_size(adjacency)
            # Beyond the cap its formula divides by zero; more noise never costs more, so the cap's price holds.
            noise = dp_accounting.GaussianDpEvent(min(scale * sigma, 1e7))
            return dp_accounting.SampledWithoutReplacementDpEvent(n, size, noise)
        case Iteration():
            check_fixed_order(adjacency)
            return dp_event.ZCDpEvent(iteration.rho(event, adjacency))
        case NonPrivate():
            return dp_accounting.NonPrivateDpEvent()
        case _:
            raise UnsupportedEvent(f"RDP does not know {type(event).__name__}")


def check_fixed_order(adjacency: Adjacency) -> None:
    if adjacency == "add-remove":
        raise UnsupportedEvent(
            "batches of a fixed or shuffled order under add-remove: one record more moves every batch; "
            "use zero-out or replace-one"
        )


def check_fixed_size(adjacency: Adjacency) -> None:
    if adjacency != "replace-one":
        raise UnsupportedEvent(f"fixed-size sampling under {adjacency}: it needs a replace-one ledger")
