"""A selection of features within a share of a ledger's budget, from a private table to names of columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sordino.budget import Composed, Event, Gaussian, Ledger, calibration, printed
from sordino.data import Column, DataError, Schema, Split
from sordino.features import OneHot
from sordino.mechanisms import PairTables, bounds_event
from sordino.selection.features.attributes import Attributes
from sordino.selection.features.genetic import Breeding, cfs_genetic
from sordino.selection.features.logistic_fitness import LogisticTrials, logistic_fitness
from sordino.selection.features.merit import Mask, cfs_greedy, merits
from sordino.selection.features.pafs import pafs
from sordino.selection.features.private import private_uncertainties, tables_plan
from sordino.training import require_memory_for_logistic


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen features of the one-hot encoding, and what is known of them."""

    mask: Mask
    names: tuple[str, ...]
    """Of the chosen ones, the most telling first where there is an order."""
    merit: float | None
    """By the noisy tables."""
    score: float | None
    """Noisy validation accuracy."""
    trials: int
    words: str
    columns: tuple[Column, ...]
    """That the features are of, with the bounds that were paid for."""

    @classmethod
    def of(
        cls,
        attributes: Attributes,
        mask: Mask,
        words: str,
        order: Sequence[int] | None = None,
        *,
        merit: float | None = None,
        score: float | None = None,
        trials: int = 0,
    ) -> "Selection":
        """These features, the most telling first if an order is given."""
        places = np.flatnonzero(mask).tolist() if order is None else order
        columns = tuple(attributes.schema.columns[owner] for owner in np.unique(attributes.owners[mask]))
        names = tuple(attributes.names[place] for place in places)
        return cls(mask, names, merit, score, trials, words, columns)


def goal(ledger: Ledger, share: float) -> float:
    """The ε that a selection may bring the ledger to: what is spent, and this share of what is left."""
    target = ledger.terms.target_epsilon
    if target is None or ledger.terms.target_delta is None:
        raise ValueError("a selection is planned for a ledger with a target ε and δ")
    if not 0 < share <= 1:
        raise ValueError(f"the share of the budget lies in (0, 1], not {share!r}")
    spent = ledger.epsilon_if(Composed(()))
    return spent + share * max(0.0, target - spent)


def check_size(schema: Schema, size: int | None) -> None:
    """Refuse a size that no subset has, before anything is opened or charged."""
    m = len(Attributes(schema).names)
    if size is not None and not 1 <= size <= m:
        raise ValueError(f"a subset has 1 to {m} features, not {size}")


def check_trials(schema: Schema, trials: int) -> None:
    """Refuse what PAFS' trainings cannot be, before anything is opened or charged."""
    if trials < 2:
        raise ValueError(f"a search needs at least 2 trials, not {trials}")
    if schema.target.categories is None or len(schema.target.categories) != 2:
        raise DataError("PAFS tries logistic regressions of two classes: for other targets use cfs-greedy or cfs-ga")


def planned_tables(
    attributes: Attributes,
    ledger: Ledger,
    goal: float,
    before: Event = Composed(()),  # noqa: B008 (frozen)
) -> PairTables:
    """Tables with the least noise that, with what comes before them, brings the train part to this ε at most."""
    delta = ledger.terms.target_delta
    if delta is None:
        raise ValueError("a selection is planned for a ledger with a target δ")

    def price(event: Event) -> float:
        return ledger.epsilon_if(Composed((before, event)))

    if price(Composed(())) >= goal:
        raise ValueError(
            f"nothing is left for the tables below ε={goal:.4g}: give the selection a larger share of the budget, or "
            "private bounds less of it"
        )
    return tables_plan(attributes, calibration.noise_multiplier(Gaussian, goal, delta, ledger.terms.adjacency, price))


def select_by_cfs(
    schema: Schema,
    train: Split,
    ledger: Ledger,
    goal: float,
    *,
    genetic: bool = False,
    size: int | None = None,
    bounds_epsilon: float | None = None,
) -> Selection:
    """CFS on the private records of the part "train"; greedy up to a size (or as long as the merit rises), or genetic.

    Guarantee: one Gaussian event and, if bounds_epsilon is given, private bounds for the bins of numbers before it.
    Both are announced before the first, where the ledger still takes announcements.
    """
    ledger.refuse_add_remove()  # the tables would refuse it once bounds are paid for
    check_size(schema, size)
    numbers = sum(column.bounds is not None for column in schema.columns)
    if bounds_epsilon is None:
        plan = planned_tables(Attributes(schema), ledger, goal)
    elif numbers == 0:
        raise DataError("the schema has no column of numbers whose bounds could be narrowed; leave private bounds out")
    else:
        # Narrower bounds change where bins begin, not how many there are: the tables can be planned before them.
        before = bounds_event(numbers, bounds_epsilon)
        plan = planned_tables(Attributes(schema), ledger, goal, before)
        if not any(entry.part == "train" for entry in ledger.entries):
            ledger.announce(before, "bounds of columns")
            ledger.announce(plan.event, "feature selection")
        schema = schema.narrowed(train.x, ledger, bounds_epsilon)
    attributes = Attributes(schema)
    told = private_uncertainties(attributes, train, plan, ledger)
    found = told.uncertainties
    if genetic:
        mask = cfs_genetic(found, np.random.default_rng()).mask
        order = [i for i in np.argsort(-found.with_label, kind="stable") if mask[i]]
    else:
        greedy = cfs_greedy(found)
        order = greedy.order[: greedy.best_size if size is None else size].tolist()
        mask = np.isin(np.arange(len(found.names)), order)
    merit = float(merits(found, mask[None])[0])
    return Selection.of(attributes, mask, told.in_words(), order, merit=merit)


def select_by_pafs(
    schema: Schema, parts: tuple[Split, Split], ledger: Ledger, goal: float, trials: int = 100
) -> Selection:
    """PAFS with private logistic regressions on the parts "train" and "validation", at most so many of them.

    Guarantee: an objective perturbation and a noisy score for each trial, reserved before the first (`pafs`).
    """
    check_trials(schema, trials)
    attributes = Attributes(schema)
    encoded = OneHot(schema.columns)
    plan = LogisticTrials.calibrated(trials, len(parts[0]), len(schema.columns), len(attributes.names), ledger, goal)
    train, validation = ((encoded(part.x), part.y) for part in parts)
    require_memory_for_logistic(len(parts[0]), 1 + len(attributes.names))
    fitness = logistic_fitness(plan, train, validation, attributes.owners)
    breeding = Breeding(max(2, trials // 5), generations=10)
    found = pafs(
        *(fitness, len(attributes.names), np.random.default_rng()),
        trial=plan.trial,
        ledger=ledger,
        most_trials=trials,
        breeding=breeding,
    )
    deviation = plan.score_noise / len(parts[1])
    words = (
        f"{found.unique} subsets were tried, each trained at ε={printed(plan.epsilon_of_one, 3)} and scored with noise "
        f"of ±{100 * deviation:.3g} points of accuracy."
    )
    if deviation > _TELLING:
        words += " Noise dominates: scores this far apart are chance."
    return Selection.of(attributes, found.mask, words, score=found.score, trials=found.unique)


# Subsets seldom differ by more than a few points of accuracy.
_TELLING = 0.05
