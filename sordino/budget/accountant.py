"""The price of an event: the smallest of the valid bounds, with the name of the accountant that gave it."""

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from sordino.budget import pld, rdp
from sordino.budget.events import Adjacency, Composed, Event, Repeated, UnsupportedEvent, leaves
from sordino.budget.events.base import check_adjacency, check_delta, delta_besides_exceptions, pure_sum

Accountant = Literal["pld", "rdp", "pld+rdp", "pure", "renyi-filter"]


@dataclass(frozen=True)
class Cost:
    """An ε that holds, the accountant that gave it, and each accountant's figure (None where it has none)."""

    epsilon: float
    accountant: Accountant
    pld: float | None
    rdp: float | None


def cost(event: Event, delta: float, adjacency: str = "zero-out") -> Cost:
    """Price an event whose parameters were all fixed before its first output.

    Guarantee: the event is (cost.epsilon, delta)-DP under the adjacency. PLD composes parameters fixed in advance
    only; `Ledger` prices what is chosen along the way.

    >>> from sordino import events
    >>> training = events.Repeated(events.PoissonGaussian(sample_rate=0.01, noise_multiplier=1.1), 1000)
    >>> priced = cost(training, delta=1e-5)
    >>> priced.accountant, round(priced.epsilon, 2)
    ('pld', 1.52)
    """
    return _cost(event, check_delta(delta), check_adjacency(adjacency))


@lru_cache(maxsize=1024)
def _cost(event: Event, delta: float, adjacency: Adjacency) -> Cost:
    delta_besides_exceptions(event, delta)  # says so where they leave nothing
    by_pld, by_rdp = _attempt(pld.epsilon, event, delta, adjacency), _attempt(rdp.epsilon, event, delta, adjacency)
    found: dict[Accountant, float | None] = {
        "pld": by_pld,
        "rdp": by_rdp,
        "pld+rdp": _split(event, delta, adjacency) if by_pld is None else None,
        "pure": pure_epsilon(event, adjacency),
    }
    bounds = [(epsilon, accountant) for accountant, epsilon in found.items() if epsilon is not None]
    if not bounds:
        refused = f"no accountant can price this event under {adjacency} at δ={delta:g}"
        try:
            rdp.epsilon(event, delta, adjacency)
        except UnsupportedEvent as reason:
            refused += f": {reason}"
        raise UnsupportedEvent(refused)
    epsilon, accountant = min(bounds)
    return Cost(epsilon, accountant, by_pld, by_rdp)


def pure_epsilon(event: Event, adjacency: Adjacency) -> float | None:
    """The ε of pure events by basic composition: their sum, whatever δ is; None unless all of them are pure.

    It holds for events chosen along the way too.
    """
    total = pure_sum(event, adjacency)
    return None if total is None else rounded_up(total)


def rounded_up(total: Fraction) -> float:
    rounded = float(min(total, Fraction(sys.float_info.max)))
    return rounded if rounded >= total else math.nextafter(rounded, math.inf)


def _attempt(price, event: Event, delta: float, adjacency: Adjacency) -> float | None:  # type: ignore[no-untyped-def]
    try:
        return price(event, delta, adjacency)  # type: ignore[no-any-return]
    except UnsupportedEvent:
        return None


def _split(event: Event, delta: float, adjacency: Adjacency) -> float | None:
    """The least of PLD(what PLD knows, δ−δ₁) + RDP(the rest, δ₁) over a few δ₁: basic composition of the two."""
    counts, delta = leaves(event), delta_besides_exceptions(event, delta)
    only_rdp = Composed(tuple(Repeated(leaf, n) for leaf, n in counts.items() if not leaf.known_to_pld()))
    others = Composed(tuple(Repeated(leaf, n) for leaf, n in counts.items() if leaf.known_to_pld()))
    if not only_rdp.events or not others.events:
        return None

    def together(share: float, price) -> float:  # type: ignore[no-untyped-def]
        known = _attempt(price, others, delta * (1 - share), adjacency)
        pure = pure_epsilon(others, adjacency)
        known = pure if known is None or (pure is not None and pure < known) else known
        rest = _attempt(rdp.epsilon, only_rdp, delta * share, adjacency)
        return math.inf if known is None or rest is None else known + rest

    share = min((0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99), key=lambda share: together(share, pld.rough_epsilon))
    best = together(share, pld.epsilon)
    return best if best < math.inf else None
