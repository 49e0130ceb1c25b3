"""Noisy tables of counts made whole: the same marginals in all, no dependence that noise explains, nothing negative.

Averaging what several tables say of one attribute cuts noise; the least-squares correction spreads the difference over
a table's cells. What is left of a table beside independence is shrunk by James and Stein's factor, since noise looks
like dependence and would favour columns of many values.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from sordino.mechanisms import PairTables, Tables

Array = NDArray[np.float64]
# How often noise and chance alone may be taken for dependence.
_SELDOM = 1e-3


@dataclass(frozen=True, eq=False)
class WholeTables:
    """Tables of non-negative counts that sum to n, and the pairs that depend on each other beyond noise and chance."""

    tables: Tables
    standing_out: frozenset[tuple[int, int]]


def whole(noisy: Tables, plan: PairTables, n: int) -> WholeTables:
    """The tables behind the noise as well as they can be told; n, the number of records, is public.

    Guarantee: post-processing of what `plan.release` told.
    """
    marginals = [onto_simplex(_average(noisy, plan, attribute), n) for attribute in range(len(plan.sizes))]
    tables, standing_out = {}, set()
    for pair, counts in noisy.items():
        first, second = (marginals[attribute] for attribute in pair)
        independent = np.outer(first, second) / n
        rows, columns = counts.shape
        corrected = (
            counts
            + (first - counts.sum(axis=1))[:, None] / columns
            + (second - counts.sum(axis=0)) / rows
            - (n - counts.sum()) / counts.size
        )
        rest = corrected - independent
        # With its marginals fixed, noise has so many dimensions left to look like dependence in.
        dimensions = (rows - 1) * (columns - 1)
        by_noise, found = dimensions * plan.noise_of(pair) ** 2, float((rest**2).sum())
        kept = max(0.0, 1 - by_noise / found) if found > 0 else 0.0
        tables[pair] = onto_simplex(independent + kept * rest, n)
        # Independent columns of n records would differ from independence too, by this much in all.
        by_chance = n * (1 - ((first / n) ** 2).sum()) * (1 - ((second / n) ** 2).sum())
        if dimensions and found > (by_noise + by_chance) / dimensions * chi2.isf(_SELDOM, dimensions):
            standing_out.add(pair)
    return WholeTables(tables, frozenset(standing_out))


def onto_simplex(values: Array, total: float) -> Array:
    """The nearest values that are not negative and sum to the total: one number is taken off all, the rest cut at 0."""
    falling = np.sort(values.ravel())[::-1]
    taken = (np.cumsum(falling) - total) / np.arange(1, values.size + 1)
    last = int(np.flatnonzero(falling > taken)[-1])
    return np.asarray(np.maximum(values - taken[last], 0.0))


def _average(noisy: Tables, plan: PairTables, attribute: int) -> Array:
    """What all tables of an attribute say of it, each weighted by how exactly it says it."""
    sums, weights = [], []
    for pair, counts in noisy.items():
        if attribute in pair:
            axis = pair.index(attribute)
            sums.append(counts.sum(axis=1 - axis))
            weights.append(1 / (counts.shape[1 - axis] * plan.noise_of(pair) ** 2))
    return np.asarray(np.average(sums, axis=0, weights=weights))
