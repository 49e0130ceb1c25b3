"""The contingency tables of all pairs of attributes in one Gaussian release: for a feature selection."""

from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger
from sordino.mechanisms import memory
from sordino.mechanisms.exact import check_count_noise, noisy_counts
from sordino.mechanisms.streams import Stream, Streams, charge

Table = NDArray[np.float64]
Tables = dict[tuple[int, int], Table]
"""For each pair of attributes a < b the counts (size of a, size of b)."""


@dataclass(frozen=True)
class PairTables:
    """How the tables of all pairs of attributes, of these public sizes, are released.

    Guarantee: a record adds 1 to at most one cell of each table. Let the tables that have the last attribute, the
    target, count target_weight times as much as the others: then all cells together, as one vector, move by at most
    √(pairs without it + target_weight²·pairs with it) in L2 when a record is zeroed out, and by exactly that if each of
    its values is one of its attribute's; √pairs where all count the same. Noise of noise_multiplier times that on every
    weighted cell is one Gaussian release with this noise multiplier, in finite precision
    too (`exact`); taking the weight off again, and anything else computed from the tables, costs no more.
    """

    sizes: tuple[int, ...]
    noise_multiplier: float
    target_weight: float = 1.0

    def __post_init__(self) -> None:
        check_sizes(self.sizes)
        if not 1e-3 <= self.target_weight <= 1e3:
            raise ValueError(f"target_weight must lie between 0.001 and 1000, not {self.target_weight!r}")
        _ = self.event
        for pair in ((0, 1), (0, len(self.sizes) - 1)):
            check_count_noise(self.noise_of(pair))

    @property
    def event(self) -> Event:
        return Gaussian(self.noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """The most that one record, zeroed out, moves all weighted cells together (L2)."""
        with_target = len(self.sizes) - 1
        without = with_target * (with_target - 1) // 2
        return sqrt(without + self.target_weight**2 * with_target)

    @property
    def needed_bytes(self) -> int:
        """The most that a release takes: counts, noise and their sum, and the square of the narrow attributes."""
        narrow = sum(size for size in self.sizes if size <= _WIDE)
        return 8 * (3 * cells(self.sizes) + 2 * narrow**2 + 2 * _MOST_INDICATORS)

    def noise_of(self, pair: tuple[int, int]) -> float:
        """The standard deviation of the noise on each count of a pair's table."""
        weight = self.target_weight if len(self.sizes) - 1 in pair else 1.0
        return self.noise_multiplier * self.sensitivity / weight

    def release(
        self,
        codes: NDArray[np.integer],
        ledger: Ledger,
        what: str = "contingency tables",
        part: str = "train",
        streams: Streams | None = None,
    ) -> Tables:
        """The noisy counts from codes (n, attributes); charged before they are read.

        Streams that are given must be used for nothing else.
        """
        if codes.ndim != 2 or codes.shape[1] != len(self.sizes):
            raise ValueError(f"expected codes (n, {len(self.sizes)}), not an array {codes.shape}")
        memory.require(
            self.needed_bytes, "a release of the tables of all pairs", "leave the attributes of most values out"
        )
        streams = charge(ledger, self.event, what, part, streams)
        counts = pair_tables(codes, self.sizes)
        return self.noised(counts, streams.generator(Stream.NOISE))

    def noised(self, counts: Tables, generator: np.random.Generator) -> Tables:
        """Exact counts with this noise, and not charged: `release` charges, or the records are a public benchmark."""
        return {pair: noisy_counts(generator, table, self.noise_of(pair)) for pair, table in counts.items()}


def pair_tables(codes: NDArray[np.integer], sizes: tuple[int, ...]) -> Tables:
    """The exact counts of all pairs of attributes.

    Guarantee: none; only of public records, or of records whose use is charged otherwise. A code outside its
    attribute's size is an empty value, which counts in no table of that attribute.
    """
    check_sizes(sizes)
    wide = [size > _WIDE for size in sizes]
    narrow = [attribute for attribute in range(len(sizes)) if not wide[attribute]]
    tables = _by_products(codes, sizes, narrow)
    for a, b in combinations(range(len(sizes)), 2):
        if wide[a] or wide[b]:
            tables[a, b] = _by_cells(codes[:, a], codes[:, b], sizes[a], sizes[b])
    return {pair: tables[pair] for pair in combinations(range(len(sizes)), 2)}


def _by_products(codes: NDArray[np.integer], sizes: tuple[int, ...], chosen: list[int]) -> Tables:
    """The tables of these attributes, all at once by products of indicators: fast, in memory of their width squared."""
    own = np.array([sizes[attribute] for attribute in chosen], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(own)))
    width = int(starts[-1])
    # A block of records after another: their indicators take little memory, and counts in single precision are exact
    # up to 2²⁴ records.
    together = np.zeros((width, width))
    length = max(1, min(_MOST_RECORDS, _MOST_INDICATORS // max(1, width)))
    for first in range(0, len(codes) if width else 0, length):
        block = codes[first : first + length, chosen]
        rows, attributes = np.nonzero((block >= 0) & (block < own))
        indicators = np.zeros((len(block), width), dtype=np.float32)
        indicators[rows, starts[attributes] + block[rows, attributes]] = 1
        together += indicators.T @ indicators
    ranges = dict(zip(chosen, (slice(*ends) for ends in pairwise(starts.tolist())), strict=True))
    return {(a, b): together[ranges[a], ranges[b]].copy() for a, b in combinations(chosen, 2)}


def _by_cells(first: NDArray[np.integer], second: NDArray[np.integer], rows: int, columns: int) -> Table:
    """One table, in no more memory than it takes: for an attribute with too many values for their square."""
    table = np.zeros((rows, columns))
    for start in range(0, len(first), _MOST_RECORDS):
        a, b = (codes[start : start + _MOST_RECORDS] for codes in (first, second))
        known = (a >= 0) & (a < rows) & (b >= 0) & (b < columns)
        np.add.at(table, (a[known], b[known]), 1)
    return table


_MOST_RECORDS, _MOST_INDICATORS = 2**16, 2**22
# The square of so many values, which products of indicators take beside the tables, is still nothing.
_WIDE = 1024
# One table of so many cells would take gigabytes, and its noise would drown anything.
MOST_CELLS = 2**26


def cells(sizes: tuple[int, ...]) -> int:
    """The number of cells in the tables of all pairs."""
    return (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


def check_sizes(sizes: tuple[int, ...]) -> None:
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"pair tables need at least two attributes with a value each, not the sizes {sizes}")
    if cells(sizes) > MOST_CELLS:
        raise ValueError("the attributes have too many values for tables of all pairs; leave the largest ones out")
