"""Feature selection within a share of a ledger's budget, from a private table to names of columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sordino.budget import Composed, Event, Gaussian, Ledger, calibration, printed
from sordino.data import Column, DataError, Schema, Split
from sordino.features import OneHot
from sordino.mechanisms import PairTables, bounds_event
from sordino.selection.attributes import Attributes, Mask, cfs_greedy, check_size, merits
from sordino.selection.private_tables import private_uncertainties, tables_plan
from sordino.selection.subset_search import Breeding, LogisticTrials, cfs_genetic, logistic_fitness, pafs, random_subset
from sordino.selection.table_models import touched
from sordino.training import require_memory_for_logistic

# Subsets seldom differ by more than a few points of accuracy.
_MUCH_NOISE = 0.05


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen features of the one-hot encoding."""

    attributes: Attributes
    """All of the table, with the bounds that were paid for."""
    mask: Mask
    words: str
    order: Sequence[int] | None = None
    """The chosen features, the most informative first, where there is an order."""
    merit: float | None = None
    """By the noisy tables."""
    score: float | None = None
    """Noisy validation accuracy."""
    trials: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the chosen features, in their order if there is one."""
        places = np.flatnonzero(self.mask).tolist() if self.order is None else self.order
        return tuple(self.attributes.names[place] for place in places)

    @property
    def columns(self) -> tuple[Column, ...]:
        """That the chosen features belong to."""
        return touched(self.attributes.schema.columns, self.mask)


class SelectionMethod(Protocol):
    """A way to choose features that brings a ledger to `target` at most (see `selection_target`)."""

    def plan(self, schema: Schema, n: int, ledger: Ledger, target: float) -> Any:
        """What it will draw of n training records; refuses what cannot be done, before anything is written."""

    def select(self, schema: Schema, train: Split, validation: Split, ledger: Ledger, target: float) -> Selection:
        """Choose features on private records, charged to the ledger's parts "train" and "validation"."""


def selection_target(ledger: Ledger, share: float) -> float:
    """The ε that a selection may bring the ledger to: what is spent, and this share of the remaining budget."""
    target = ledger.terms.target_epsilon
    if target is None or ledger.terms.target_delta is None:
        raise ValueError("a selection is planned for a ledger with a target ε and δ")
    if not 0 < share <= 1:
        raise ValueError(f"the share of the budget must be above 0 and at most 1, not {share!r}")
    spent = ledger.epsilon_if(Composed(()))
    return spent + share * max(0.0, target - spent)


@dataclass(frozen=True)
class CfsSelection:
    """CFS by noisy tables of all pairs of columns: greedy, up to a size or as long as the merit rises, or genetic.

    Guarantee: one Gaussian event on "train" and, if bounds_epsilon is given, private bounds for the bins of numbers
    before it. Both are announced before the first, where the ledger still takes announcements.
    """

    genetic: bool = False
    size: int | None = None
    bounds_epsilon: float | None = None

    def select(self, schema: Schema, train: Split, validation: Split, ledger: Ledger, target: float) -> Selection:
        ledger.refuse_add_remove()  # the tables would refuse it once bounds are paid for
        before, plan = self.plan(schema, len(train), ledger, target)
        if self.bounds_epsilon is not None:
            if not any(entry.part == "train" for entry in ledger.entries):
                ledger.announce(before, "bounds of columns")
                ledger.announce(plan.event, "feature selection")
            schema = schema.narrowed(train.x, ledger, self.bounds_epsilon)
        attributes = Attributes(schema)
        released = private_uncertainties(attributes, train, plan, ledger)
        found = released.uncertainties
        if self.genetic:
            mask = cfs_genetic(found, np.random.default_rng()).mask
            order = [i for i in np.argsort(-found.with_label, kind="stable") if mask[i]]
        else:
            greedy = cfs_greedy(found)
            order = greedy.order[: greedy.best_size if self.size is None else self.size].tolist()
            mask = np.isin(np.arange(len(found.names)), order)
        return Selection(attributes, mask, released.in_words(), order, merit=float(merits(found, mask[None])[0]))

    def plan(self, schema: Schema, n: int, ledger: Ledger, target: float) -> tuple[Event, PairTables]:
        """The event of private bounds, and tables with the least noise that together bring "train" to the target."""
        if self.size is not None:
            check_size(self.size, len(Attributes(schema).names))
        delta = ledger.terms.target_delta
        before: Event = Composed(())
        if delta is None:
            raise ValueError("a selection is planned for a ledger with a target δ")
        if self.bounds_epsilon is not None:
            numbers = sum(column.bounds is not None for column in schema.columns)
            if numbers == 0:
                raise DataError("the schema has no numeric column whose bounds could be narrowed: omit private bounds")
            # Narrower bounds move the bins, not their number: the tables can be planned before them.
            before = bounds_event(numbers, self.bounds_epsilon)

        def price(event: Event) -> float:
            return ledger.epsilon_if(Composed((before, event)))

        if price(Composed(())) >= target:
            raise ValueError(
                f"nothing is left for the tables below ε={target:.4g}: give the selection a larger share of the "
                "budget, or private bounds less of it"
            )
        noise = calibration.noise_multiplier(Gaussian, target, delta, ledger.terms.adjacency, price)
        return before, tables_plan(Attributes(schema), noise)


@dataclass(frozen=True)
class PafsSelection:
    """PAFS: a genetic search by private logistic regressions on at most `trials` subsets.

    Guarantee: an objective perturbation on "train" and a noisy score on "validation" for each trial, reserved before
    the first (`pafs`).
    """

    trials: int = 100

    def select(self, schema: Schema, train: Split, validation: Split, ledger: Ledger, target: float) -> Selection:
        plan = self.plan(schema, len(train), ledger, target)
        attributes, encoded = Attributes(schema), OneHot(schema.columns)
        require_memory_for_logistic(len(train), 1 + len(attributes.names))
        found = pafs(
            logistic_fitness(
                plan, (encoded(train.x), train.y), (encoded(validation.x), validation.y), attributes.owners
            ),
            len(attributes.names),
            np.random.default_rng(),
            cost=plan.cost,
            ledger=ledger,
            most_trials=self.trials,
            breeding=Breeding(max(2, self.trials // 5), generations=10),
        )
        deviation = plan.score_noise / len(validation)
        words = (
            f"{found.unique} subsets were tried, each trained at ε={printed(plan.epsilon_of_one, 3)} and scored with "
            f"noise of ±{100 * deviation:.3g} points of accuracy."
        )
        if deviation > _MUCH_NOISE:
            words += " Noise dominates: differences of this size between scores are random."
        return Selection(attributes, found.mask, words, score=found.score, trials=found.unique)

    def plan(self, schema: Schema, n: int, ledger: Ledger, target: float) -> LogisticTrials:
        if self.trials < 2:
            raise ValueError(f"a search needs at least 2 trials, not {self.trials}")
        if schema.target.categories is None or len(schema.target.categories) != 2:
            raise DataError(
                "PAFS tries logistic regressions of two classes: for other targets use cfs-greedy or cfs-ga"
            )
        width = len(Attributes(schema).names)
        return LogisticTrials.calibrated(self.trials, n, len(schema.columns), width, ledger, target)


@dataclass(frozen=True)
class RandomSelection:
    """A subset of this size drawn at random, as a baseline: no record is read, so it costs nothing."""

    size: int

    def plan(self, schema: Schema, n: int, ledger: Ledger, target: float) -> None:
        check_size(self.size, len(Attributes(schema).names))

    def select(self, schema: Schema, train: Split, validation: Split, ledger: Ledger, target: float) -> Selection:
        attributes = Attributes(schema)
        mask = random_subset(len(attributes.names), self.size, np.random.default_rng())
        return Selection(attributes, mask, "Drawn at random: no record was read.")
