"""Symmetrical uncertainties under differential privacy: noisy tables of all pairs of columns, made consistent."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from sordino.budget import Ledger
from sordino.data import DataError, Split
from sordino.mechanisms import MOST_CELLS, PairTables, Streams, Tables, cells, memory
from sordino.selection.attributes import Array, Attributes, Uncertainties, memory_of, uncertainties

# The merit is linear in what ties features to the label and only bends with what ties them together, so the label's
# tables get less noise. On Adult at ε=0.1, 3 gave clearly better subsets than 1, and 4.5 none clearly better.
TARGET_WEIGHT = 3.0
# Noise of this share of an even cell hides dependences of the usual strength: on Breast Cancer (n=191) it is
# a fifth at ε=2.31, and there about half of the first ten features are still others than without noise.
_MUCH = 0.15
# How often noise and chance alone may be taken for dependence.
_SELDOM = 1e-3


def tables_plan(attributes: Attributes, noise_multiplier: float) -> PairTables:
    """How the tables for a selection are released: one Gaussian event of this noise multiplier, whatever is selected.

    Refuses tables that do not fit into memory, before anything is charged.
    """
    if cells(attributes.sizes) > MOST_CELLS:
        columns = zip(attributes.sizes, attributes.all, strict=True)
        first, second = sorted(columns, key=lambda each: each[0], reverse=True)[:2]
        raise DataError(
            f"tables of all pairs of columns would have more than {MOST_CELLS:,} cells; the largest columns are "
            f"{first[1].name!r} with {first[0]:,} values and {second[1].name!r} with {second[0]:,}: merge categories, "
            "or leave columns out of the schema"
        )
    plan = PairTables(attributes.sizes, noise_multiplier, TARGET_WEIGHT)
    most = max(attributes.schema.columns, key=lambda column: len(column.categories or ()))
    remedy = "merge its categories, or leave it out of the schema"
    if most.categories is None:
        remedy = "leave columns out of the schema"
    else:
        remedy = f"column {most.name!r} has {len(most.categories):,} categories; {remedy}"
    memory.require(2 * plan.needed_bytes + memory_of(attributes), "a selection by tables of all pairs", remedy)
    return plan


@dataclass(frozen=True, eq=False)
class PrivateUncertainties:
    """What was released, and how much of it is noise."""

    uncertainties: Uncertainties
    plan: PairTables
    n: int
    dependent_on_target: int
    dependent_on_each_other: int

    @property
    def even_cell(self) -> float:
        """The count in a cell of the median table with the target if the records are spread evenly."""
        cells = [size * self.plan.sizes[-1] for size in self.plan.sizes[:-1]]
        return self.n / float(np.median(cells))

    @property
    def noise_dominates(self) -> bool:
        """Whether fewer than half of the columns are seen to depend on the target, and noise is the likely reason."""
        columns = len(self.plan.sizes) - 1
        few = self.dependent_on_target < columns / 2
        return few and self.plan.noise_of((0, columns)) > _MUCH * self.even_cell

    def in_words(self) -> str:
        """How much of the selection is noise, computed."""
        columns = len(self.plan.sizes) - 1
        target, other = (0, columns), (0, 1)
        others = columns - self.dependent_on_target
        if self.noise_dominates:
            verdict = f"Noise dominates: the order of the other {others} is random."
        elif self.dependent_on_target < columns / 2:
            verdict = f"The other {others} say little about the target, and not because of noise."
        else:
            verdict = "Most dependences of columns and target stand above the noise."
        return (
            f"Noise of ±{self.plan.noise_of(target):,.3g} on each count of a table with the target, where an even cell "
            f"holds {self.even_cell:,.3g} of the {self.n:,} records, and of "
            f"±{self.plan.noise_of(other):,.3g} between columns. Beyond what noise and chance explain, "
            f"{self.dependent_on_target} of {columns} columns depend on the target, "
            f"{self.dependent_on_each_other} of {columns * (columns - 1) // 2} pairs of columns on each other. "
            f"{verdict}"
        )


def private_uncertainties(
    attributes: Attributes, split: Split, plan: PairTables, ledger: Ledger, streams: Streams | None = None
) -> PrivateUncertainties:
    """All symmetrical uncertainties from noisy tables of all pairs of columns.

    Guarantee: the one Gaussian event of the plan, charged before a record is counted; all else is post-processing. The
    number of records is taken as public, which it is not under add-remove.
    """
    ledger.refuse_add_remove()
    if plan.sizes != attributes.sizes:
        raise ValueError("the plan's tables are of other attributes; make it by tables_plan")
    if len(split) == 0:
        raise ValueError("a selection needs at least one record")
    codes = attributes.codes(split)
    released = plan.release(codes, ledger, "feature selection", "train", streams)
    tables, dependent = consistent_tables(released, plan, len(split))
    with_target = sum(len(plan.sizes) - 1 in pair for pair in dependent)
    found = uncertainties(attributes, tables)
    return PrivateUncertainties(found, plan, len(split), with_target, len(dependent) - with_target)


def consistent_tables(noisy: Tables, plan: PairTables, n: int) -> tuple[Tables, set[tuple[int, int]]]:
    """The best estimate of the tables behind the noise: equal marginals in all, shrunk dependence, nothing negative.

    And the pairs that depend on each other beyond noise and chance.

    Averaging what several tables say of one attribute cuts noise; the least-squares correction spreads the difference
    over a table's cells. What is left beside independence is shrunk by James and Stein's factor: noise looks like
    dependence, and would favour columns of many values. n, the number of records, is public.

    Guarantee: post-processing of what `plan.release` released.
    """
    marginals = [onto_simplex(_average(noisy, plan, attribute), n) for attribute in range(len(plan.sizes))]
    tables: Tables = {}
    dependent = set()
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
            dependent.add(pair)
    return tables, dependent


def onto_simplex(values: Array, total: float) -> Array:
    """The nearest values that are not negative and sum to the total: one number is taken off all, the rest cut at 0."""
    falling = np.sort(values.ravel())[::-1]
    taken = (np.cumsum(falling) - total) / np.arange(1, values.size + 1)
    last = int(np.flatnonzero(falling > taken)[-1])
    return np.asarray(np.maximum(values - taken[last], 0.0))


def _average(noisy: Tables, plan: PairTables, attribute: int) -> Array:
    """An attribute's counts averaged over all of its tables, weighted by their precision."""
    sums, weights = [], []
    for pair, counts in noisy.items():
        if attribute in pair:
            axis = pair.index(attribute)
            sums.append(counts.sum(axis=1 - axis))
            weights.append(1 / (counts.shape[1 - axis] * plan.noise_of(pair) ** 2))
    return np.asarray(np.average(sums, axis=0, weights=weights))
