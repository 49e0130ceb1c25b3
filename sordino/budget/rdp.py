"""Rényi differential privacy of events, and its conversions to (ε, δ).

The cross-check of `pld`, the only accountant of a few events, and the yardstick of the papers' printed figures.
"""

import logging
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from dp_accounting.rdp import compute_epsilon
from numpy.typing import NDArray

from sordino.budget.events.base import Adjacency, Event, delta_besides_exceptions, event_rdp

Conversion = Literal["old", "new"]
# An order whose series does not converge counts as infinite, which is all there is to do about it: no message for that.
logging.getLogger("absl").addFilter(lambda record: "failed to converge" not in str(record.msg))
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
    return event_rdp(event, adjacency, tuple(orders))


def rdp_at(event: Event, adjacency: Adjacency, order: float) -> float:
    """RDP at one order, computed among the usual orders because private selection borrows from its neighbours."""
    return float(rdp(event, adjacency, (*ORDERS, order))[-1])


def epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """ε by RDP with the tighter conversion of Canonne, Kamath & Steinke 2020 (Proposition 12)."""
    delta, values = delta_besides_exceptions(event, delta), rdp(event, adjacency)
    return float(compute_epsilon(ORDERS, values, delta)[0])


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
