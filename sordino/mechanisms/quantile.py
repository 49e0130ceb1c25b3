"""Private quantiles by the exponential mechanism: of one number per record, and as the bounds of columns."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf, isfinite, ldexp

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Adjacency, Event, Ledger, Pure, Repeated
from sordino.mechanisms.streams import Stream, Streams, charge

Bounds = tuple[float, float]
# The answers: the middles of so many equal cells between the bounds, the same ones whatever the data.
CELLS = 2**24
# No weight is below exp(−64): floating point holds them all, and all cells together then weigh next to nothing.
_FARTHEST = 64.0
# Taken off the rate: rounding moves a log-ratio by less than half of it × ε, up to 10⁸ records and down to this ε.
_ROUNDING, _SMALLEST_EPSILON = 1e-6, 1e-6
# A double of at least exp(−64) times two to this is a whole number.
_BITS = 160


def private_quantile(
    values: NDArray[np.floating],
    quantile: float,
    bounds: Bounds,
    epsilon: float,
    ledger: Ledger,
    what: str,
    part: str = "train",
    streams: Streams | None = None,
) -> float:
    """A number between the public bounds that about this share of the values lie below.

    Guarantee: pure epsilon-DP under the ledger's adjacency, in floating point too; charged before the values are read.
    Values beyond the bounds are cut, infinite ones too. NaN is an empty record: it counts in no rank, which a value of
    0 does. For a scale of ratios pass logarithms. Streams that are given must be used for nothing else.
    Reference: Smith 2011, "Privacy-preserving statistical estimation with optimal convergence rates".

    >>> from sordino import Ledger
    >>> ages = np.random.default_rng(0).normal(40, 10, 10_000)
    >>> ledger = Ledger(target_epsilon=1.0, target_delta=1e-6)
    >>> median = private_quantile(ages, 0.5, (0.0, 120.0), 0.1, ledger, "median age")
    >>> abs(median - 40) < 2
    True
    """
    if values.ndim != 1:
        raise ValueError(f"a quantile takes one number per record, not an array {values.shape}")
    check_quantile(quantile, bounds, epsilon)
    if len(values) == 0 and ledger.terms.adjacency != "add-remove":  # there, an empty dataset is private too
        raise ValueError("a quantile needs at least one record")
    generator = charge(ledger, Pure(epsilon), what, part, streams).generator(Stream.NOISE)
    return draw_quantile(values, quantile, bounds, epsilon, ledger.terms.adjacency, generator)


def bounds_event(columns: int, epsilon: float) -> Event:
    """Two quantiles of each column, which share epsilon evenly."""
    if columns < 1:
        raise ValueError("private bounds are for at least one column of numbers")
    return Repeated(Pure(epsilon / (2 * columns)), 2 * columns)


def private_bounds(
    values: NDArray[np.floating],
    ledger: Ledger,
    epsilon: float,
    wide_bounds: Sequence[Bounds],
    what: str = "bounds of columns",
    part: str = "train",
    tail: float = 0.01,
    streams: Streams | None = None,
) -> list[Bounds]:
    """For each column of values (n, k) two numbers between its wide public bounds with about the share 1−2·tail inside.

    Guarantee: 2k quantiles by the exponential mechanism, each pure epsilon/2k-DP under the ledger's adjacency, charged
    as one entry before the values are read; together pure epsilon-DP. If noise reverses the two or makes them equal,
    the wide bounds are returned: that reads the two released numbers and nothing else.
    """
    if values.ndim != 2 or values.shape[1] != len(wide_bounds):
        raise ValueError(f"expected {len(wide_bounds)} columns of values, not an array {values.shape}")
    if not 0 < tail < 0.5:
        raise ValueError(f"tail is a share below a half, not {tail!r}")
    event = bounds_event(len(wide_bounds), epsilon)
    each = epsilon / (2 * len(wide_bounds))
    for wide in wide_bounds:
        check_quantile(tail, wide, each)
    if len(values) == 0 and ledger.terms.adjacency != "add-remove":  # there, an empty dataset is private too
        raise ValueError("bounds need at least one record")
    generator = charge(ledger, event, what, part, streams).generator(Stream.NOISE)
    found = []
    for column, wide in zip(values.T, wide_bounds, strict=True):
        low, high = (
            draw_quantile(column, quantile, wide, each, ledger.terms.adjacency, generator)
            for quantile in (tail, 1 - tail)
        )
        found.append((low, high) if low < high else wide)
    return found


def check_quantile(quantile: float, bounds: Bounds, epsilon: float) -> None:
    """Refuse what defines no quantile, before anything is charged."""
    if not 0 <= quantile <= 1:
        raise ValueError(f"a quantile lies in [0, 1], not {quantile!r}")
    low, high = bounds
    if not (isfinite(low) and low < high and isfinite(high - low)):
        raise ValueError(f"bounds of a quantile are two finite numbers, the lower one first, not {bounds!r}")
    if not _SMALLEST_EPSILON <= epsilon < inf:
        raise ValueError(f"epsilon of a quantile must be a finite number from {_SMALLEST_EPSILON:g}, not {epsilon!r}")


def draw_quantile(
    values: NDArray[np.floating],
    quantile: float,
    bounds: Bounds,
    epsilon: float,
    adjacency: Adjacency,
    generator: np.random.Generator,
) -> float:
    """The mechanism without its charge, for those that charge several at once.

    A cell is drawn by whole numbers, with exactly the probability of its weight: neither which answers are possible nor
    a rounded sum depends on the values.
    """
    edges, weights = cell_weights(values, quantile, bounds, epsilon, adjacency)
    lengths: list[int] = np.diff(edges).tolist()
    before = list(accumulate((length * weight for length, weight in zip(lengths, weights, strict=True)), initial=0))
    place = _uniform_below(before[-1], generator)
    piece = bisect_right(before, place) - 1
    cell = int(edges[piece]) + (place - before[piece]) // weights[piece]
    low, high = bounds
    return min(high, low + (high - low) * ((cell + 0.5) / CELLS))


def cell_weights(
    values: NDArray[np.floating],
    quantile: float,
    bounds: Bounds,
    epsilon: float,
    adjacency: Adjacency,
) -> tuple[NDArray[np.int64], list[int]]:
    """The law of the answer: cells edges[i] to edges[i+1] have weights[i] each, a whole number.

    Of m records, b lie in cells below x and e in x's own; q·m should lie within [b, b+e], and d = max(0, b − q·m,
    q·m − (b+e)) is how far it does not. The weight of x is exp(−εd/2Δ). Where many records share a cell, it is a good
    answer too.

    Proof of Δ, the most that d moves: a record that comes moves b − q·m by 1−q or −q, and b + e − q·m as well; one that
    takes another value leaves q·m and moves b and b + e by at most 1; a maximum moves no further than its arguments. So
    Δ = max(q, 1−q) under zero-out and add-remove and 1 under replace-one. The 2 stays: a record that comes brings some
    cells nearer and others farther. Sorting values into cells, each by itself, and cutting d at a constant change none
    of this; the number of records is not used.
    """
    edges, below, up_to = _pieces(_cells(values, bounds))
    wanted = quantile * float(below[-1])
    distance = np.maximum(0.0, np.maximum(below - wanted, wanted - up_to))
    sensitivity = 1.0 if adjacency == "replace-one" else max(quantile, 1 - quantile)
    rate = (1 - _ROUNDING) * epsilon / (2 * sensitivity)
    weights = np.exp(-np.minimum(rate * distance, _FARTHEST))
    return edges, [int(ldexp(weight, _BITS)) for weight in weights.tolist()]


def _cells(values: NDArray[np.floating], bounds: Bounds) -> NDArray[np.int64]:
    """The cell of each value that is one; how a value rounds concerns its own record alone."""
    low, high = bounds
    present = np.asarray(values, dtype=np.float64)
    present = np.clip(present[~np.isnan(present)], low, high)
    return np.minimum(((present - low) / (high - low) * CELLS).astype(np.int64), CELLS - 1)


def _pieces(cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cells of equal rank together: their edges, the records below each piece, and those below or in it.

    Pieces alternate: a gap, which may be of no length, a cell with records in it, a gap, …, and a gap at the end.
    """
    taken, counts = np.unique(cells, return_counts=True)
    ranks = np.concatenate(([0], np.cumsum(counts)))
    edges = np.empty(2 * len(taken) + 2, dtype=np.int64)
    edges[0], edges[1:-1:2], edges[2:-1:2], edges[-1] = 0, taken, taken + 1, CELLS
    twice = np.repeat(ranks, 2)
    return edges, twice[:-1], twice[1:]


def _uniform_below(total: int, generator: np.random.Generator) -> int:
    """A whole number from 0 to total−1, each exactly as likely: what lies beyond is drawn again."""
    bits = total.bit_length()
    while True:
        drawn = int.from_bytes(generator.bytes((bits + 7) // 8), "little") >> (-bits % 8)
        if drawn < total:
            return drawn
