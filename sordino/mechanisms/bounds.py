"""Bounds of columns where nobody can name tight ones in public: private quantiles between wide public bounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Ledger, Pure, Repeated
from sordino.mechanisms.quantile import check_quantile, draw_quantile
from sordino.mechanisms.streams import Stream, Streams

Bounds = tuple[float, float]


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
    as one entry before the values are read; together pure epsilon-DP. Where noise turns the two around or makes them
    equal, the wide bounds stand: that reads the two told numbers and nothing else.
    """
    if values.ndim != 2 or values.shape[1] != len(wide_bounds):
        raise ValueError(f"expected {len(wide_bounds)} columns of values, not an array {values.shape}")
    if not 0 < tail < 0.5:
        raise ValueError(f"tail is a share below a half, not {tail!r}")
    event = bounds_event(len(wide_bounds), epsilon)
    each = epsilon / (2 * len(wide_bounds))
    for wide in wide_bounds:
        check_quantile(tail, wide, each)
    if len(values) == 0 and ledger.terms.adjacency != "add-remove":  # there, that nobody came is private too
        raise ValueError("bounds need at least one record")
    streams = Streams.fresh() if streams is None else streams
    ledger.spend(event, what, part, seeded=streams.predictable)
    generator = streams.generator(Stream.NOISE)
    found = []
    for column, wide in zip(values.T, wide_bounds, strict=True):
        low, high = (
            draw_quantile(column, quantile, wide, each, ledger.terms.adjacency, generator)
            for quantile in (tail, 1 - tail)
        )
        found.append((low, high) if low < high else wide)
    return found
