"""Table X of PAW: PAFS, CFS-Greedy, CFS-GA, random and all features on Breast Cancer at thirteen budgets."""

import time
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean
from typing import Any

import numpy as np

from sordino.budget import Composed, Event, Ledger, Repeated, cost
from sordino.data import set_aside
from sordino.features import OneHot
from sordino.mechanisms import Streams, bound_streams, secret_from_seed
from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.feature_tables import (
    DELTA,
    PURE,
    RIDGE_WORDS,
    WHOLE,
    Benchmark,
    Regime,
    benchmark,
    budgeted,
    frequent,
    generator_of,
    measured,
    over_splits,
)
from sordino.papers.privacy_aware.intervals import Interval, difference
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment, Result
from sordino.selection import (
    CFS_BREEDING,
    PAFS_BREEDING,
    PARENTS_SHARE,
    Breeding,
    BudgetSplit,
    Fitness,
    LogisticTrials,
    Mask,
    Scores,
    cfs_genetic,
    cfs_greedy,
    exact_uncertainties,
    logistic_fitness,
    pafs,
    random_subset,
)
from sordino.training import GaussianObjective, LogisticPlan, fit_many, scores

METHODS = ("PAFS", "CFS-Greedy", "CFS-GA", "Random", "All")
_TABLE = "breast-cancer"
_BUDGETS = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 20.0, 25.0, 30.0, 35.0, 40.0)
_SPLITS, _FITS = 10, 20
_SELECTIONS = 5
"""Private selections on each split, each followed by its share of the fits."""
_CHARGED_TRIALS, _CHARGED_SHARE = 100, 0.5
_WIDTH = 10
"""Features that a training after a private search is planned for: how many it finds is known only afterwards."""


@dataclass(frozen=True)
class Effort:
    """How often things are done."""

    splits: int = _SPLITS
    fits: int = _FITS
    selections: int = _SELECTIONS
    breeding: Breeding = CFS_BREEDING
    pafs_breeding: Breeding = PAFS_BREEDING
    finalists: int = 50
    """The best subsets of an un-noised PAFS, which are scored again, each so many times:"""
    rescores: int = 10

    def words(self, regime: Regime) -> str:
        again = "" if regime.counts_selection else f", {self.finalists} scored again {self.rescores} times"
        return f"{self.fits} fits, {self.selections} selections{again}, {RIDGE_WORDS}"


_QUICK = Effort(2, 2, 1, Breeding(20, 2), Breeding(6, 2), 3, 2)


def table_10(experiment: Experiment, item: Declaration) -> Record:
    effort = _QUICK if experiment.quick else Effort(experiment.seeds or _SPLITS, experiment.pick(_FITS, 5 * _FITS))
    published = {method: figures for method, *figures in item.published}
    rows: list[list[Cell]] = []
    said: list[str] = []
    seconds: dict[str, list[float]] = {}
    tried: list[int] = []
    found_sizes: dict[str, list[float]] = {}
    for regime in (PURE, WHOLE):
        over_all: dict[str, dict[float, str]] = {method: {} for method in METHODS[:-1]}
        over_random: dict[float, str] = {}
        for place, epsilon in enumerate(experiment.some(_BUDGETS)):
            found = [_one(experiment, regime, epsilon, split, effort) for split in range(effort.splits)]
            for result in found:
                for what, taken in result["took"].items():
                    seconds.setdefault(what, []).append(taken)
                for method, size in result["sizes"].items():
                    found_sizes.setdefault(f"{method} ({regime.label})", []).append(size)
            tried += [result["tried"] for result in found if "tried" in result]
            values = {method: [result["accuracy"][method] for result in found] for method in METHODS}
            for method, signs in over_all.items():
                signs[epsilon] = difference(values[method], values["All"]).sign()
            as_large = [
                _random_as_large(experiment, regime, epsilon, split, effort, result["sizes"]["PAFS"])
                for split, result in enumerate(found)
            ]
            over_random[epsilon] = difference(values["PAFS"], as_large).sign()
            row: list[Cell] = [regime.label, epsilon, max(result["epsilon"] for result in found)]
            for method in METHODS:
                theirs = published[method][place] if regime == PURE else None
                row += [theirs, Interval.of(values[method]).percent()]
            rows.append([*row, Interval.of(as_large).percent()])
        said.append(f"{regime.label}: {_found_anything(over_random)}")
        said += [
            f"{regime.label}: {method} is above All beyond the interval {_budgets(signs, 'above 0')}, below it "
            f"{_budgets(signs, 'below 0')}"
            for method, signs in over_all.items()
        ]
    first = benchmark(_TABLE, 0, experiment.quick)
    times = ", ".join(f"{what} {mean(each):.2g} s" for what, each in seconds.items())
    return item.record(
        experiment,
        rows,
        columns=[
            "regime",
            "ε",
            "ε spent",
            *(f"{who}, {method}" for method in METHODS for who in ("paper", "ours")),
            "ours, Random as large as PAFS's",
        ],
        follows=[
            *said,
            f"Processor time of one selection: {times} (PAW: CFS-Greedy 3.8 s, CFS-GA 57.6 s, PAFS 9 hours for about "
            f"2,300 subsets; ours tries {mean(tried):,.0f})",
            f"Features on average: {', '.join(f'{method} {mean(each):.3g}' for method, each in found_sizes.items())}",
            frequent(_TABLE, range(effort.splits), experiment.quick),
            over_splits(effort.splits, effort.fits),
        ],
        words={
            "here": f"{effort.fits * effort.splits} fits of each in place of 1,000",
            "share": f"{PARENTS_SHARE:g}",
            "held_out": f"{len(set_aside(first.train)[1])}",
            "population": f"{PAFS_BREEDING.population}",
            "generations": f"{PAFS_BREEDING.generations}",
            "finalists": f"{effort.finalists}",
            "rescores": f"{effort.rescores}",
            "selections": f"{effort.selections}",
        },
    )


def _one(experiment: Experiment, regime: Regime, epsilon: float, split: int, effort: Effort) -> Result:
    def compute(words: str) -> Result:
        table = regime.benchmark(_TABLE, split, experiment.quick)
        how = _whole if regime.counts_selection else _uncounted
        return how(table, epsilon, effort, generator_of(words))

    words = f"{_TABLE} split {split}, {regime.label}, ε={epsilon:g}, every method, {effort.words(regime)}"
    return measured(experiment, words, compute)


def _random_as_large(
    experiment: Experiment, regime: Regime, epsilon: float, split: int, effort: Effort, size: float
) -> float:
    """Random subsets of the size that PAFS's have on average, trained with the noise that PAFS's are."""

    def compute(words: str) -> Result:
        table, generator = regime.benchmark(_TABLE, split, experiment.quick), generator_of(words)
        width = round(size)
        masks = np.stack([random_subset(table.features, width, generator) for _ in range(effort.fits)])
        if regime.counts_selection:
            plan = _charged_search(table, epsilon)[1]
        else:
            plan = budgeted(PURE, len(table.train), width, epsilon).plan
        return {"accuracy": float(table.accuracies(masks, plan, 1, generator).mean())}

    words = f"{_TABLE} split {split}, {regime.label}, ε={epsilon:g}, {size:g} random features, {effort.words(regime)}"
    return float(measured(experiment, words, compute)["accuracy"])


def _budgets(signs: dict[float, str], sign: str) -> str:
    """Where a difference has this sign."""
    where = [f"{epsilon:g}" for epsilon, found in signs.items() if found == sign]
    return f"at ε={', '.join(where)}" if where else "nowhere"


def _found_anything(over_random: dict[float, str]) -> str:
    """Where PAFS's subsets beat random ones of the same size, split by split."""
    count = list(over_random.values()).count("above 0")
    if 2 * count > len(over_random):
        said = "it found more than chance does"
    else:
        said = "it found little" if count > 1 else "it found next to nothing"
    return (
        f"PAFS's subsets are above random ones of the same size, beyond the interval, "
        f"{_budgets(over_random, 'above 0')} ({count} of {len(over_random)} budgets), and below them "
        f"{_budgets(over_random, 'below 0')}: {said}"
    )


def _uncounted(table: Benchmark, epsilon: float, effort: Effort, generator: np.random.Generator) -> Result:
    """As PAW does it: selections read exact counts and exact scores, and only the final training has an ε."""
    began = time.process_time()
    exact = exact_uncertainties(table.attributes, table.train)
    order = cfs_greedy(exact)
    ordered = time.process_time()
    genetic = cfs_genetic(exact, generator, effort.breeding).mask
    bred = time.process_time()
    fitness = _exact_fitness(table, epsilon, generator)
    ranked: list[tuple[float, Mask]] = []
    searched = pafs(_noted(fitness, ranked), table.features, generator, breeding=effort.pafs_breeding)
    best = _scored_again(fitness, ranked, effort)
    took = {"CFS-Greedy": ordered - began, "CFS-GA": bred - ordered, "PAFS": time.process_time() - bred}
    n, size = len(table.train), int(genetic.sum())
    chosen = {"PAFS": best, "CFS-Greedy": order.subset(size), "CFS-GA": genetic, "All": table.every[0]}
    accuracy, spent = {}, []
    for method, mask in chosen.items():
        plan = budgeted(PURE, n, int(mask.sum()), epsilon)
        accuracy[method] = float(table.accuracies(mask[None], plan.plan, effort.fits, generator).mean())
        spent.append(plan.epsilon)
    plan = budgeted(PURE, n, size, epsilon)
    at_random = np.stack([random_subset(table.features, size, generator) for _ in range(effort.fits)])
    accuracy["Random"] = float(table.accuracies(at_random, plan.plan, 1, generator).mean())
    sizes = {method: int(mask.sum()) for method, mask in chosen.items()}
    return {"accuracy": accuracy, "epsilon": max(spent), "took": took, "sizes": sizes, "tried": searched.unique}


def _exact_fitness(table: Benchmark, epsilon: float, generator: np.random.Generator) -> Fitness:
    """Exact accuracy on held-out training records of a private training on the others: selection not private."""
    (x, y), (held, labels) = _parts(table)

    def fitness(masks: Mask) -> Scores:
        # Each subset with the ridge of its own width, as the final training has it.
        found, widths = np.empty(len(masks)), masks.sum(axis=1)
        for width in np.unique(widths).tolist():
            own = masks[widths == width]
            plan = budgeted(PURE, len(x), width, epsilon).plan
            weights = fit_many(x, y, own, plan, 1, generator, table.norms(own))[:, 0]
            found[widths == width] = ((scores(weights, held) > 0) == labels[:, None]).mean(axis=0)
        return found

    return fitness


def _noted(fitness: Fitness, ranked: list[tuple[float, Mask]]) -> Fitness:
    """The same, and every subset is kept with its score."""

    def noted(masks: Mask) -> Scores:
        found = fitness(masks)
        ranked.extend(zip(found.tolist(), masks, strict=True))
        return found

    return noted


def _scored_again(fitness: Fitness, ranked: list[tuple[float, Mask]], effort: Effort) -> Mask:
    """Of the best few by one score on 38 records, the best by the mean of many trainings: no ε counts these scores."""
    best = np.stack([mask for _, mask in sorted(ranked, key=lambda pair: -pair[0])[: effort.finalists]])
    again = fitness(np.repeat(best, effort.rescores, axis=0)).reshape(len(best), effort.rescores)
    return np.asarray(best[again.mean(axis=1).argmax()])


def _parts(table: Benchmark) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Training records to train a trial on, and others to score it on; test records are in neither."""
    encode = OneHot(table.attributes.schema.columns)
    train, validation = ((encode(part.x).astype(np.float64), part.y) for part in set_aside(table.train))
    return train, validation


def _whole(table: Benchmark, epsilon: float, effort: Effort, generator: np.random.Generator) -> Result:
    """Every look within one ε; each selection is made anew several times."""
    n, fits = len(table.train), effort.fits // effort.selections
    after_tables = budgeted(WHOLE, n, _WIDTH, epsilon)
    search, after_search, search_epsilon = _charged_search(table, epsilon)
    chosen: dict[str, list[Mask]] = {"PAFS": [], "CFS-Greedy": [], "CFS-GA": [], "Random": []}
    for number in range(effort.selections):
        noisy = table.private(float(after_tables.tables_noise or 0), generator)
        genetic = cfs_genetic(noisy, generator, effort.breeding).mask
        chosen["CFS-GA"].append(genetic)
        chosen["CFS-Greedy"].append(cfs_greedy(noisy).subset(int(genetic.sum())))
        chosen["Random"].append(random_subset(table.features, _WIDTH, generator))
        streams = bound_streams(secret_from_seed(number), {"noise": int(generator.integers(2**62))}, predictable=True)
        chosen["PAFS"].append(_search(table, search, streams, generator))
    random, every = (budgeted(WHOLE.without_selection, n, width, epsilon) for width in (_WIDTH, table.features))
    plans = {
        "PAFS": after_search,
        "CFS-Greedy": after_tables.plan,
        "CFS-GA": after_tables.plan,
        "Random": random.plan,
    }
    accuracy = {
        method: float(table.accuracies(np.stack(masks), plans[method], fits, generator).mean())
        for method, masks in chosen.items()
    }
    accuracy["All"] = float(table.accuracies(table.every, every.plan, effort.fits, generator).mean())
    spent = max(after_tables.epsilon, search_epsilon, random.epsilon, every.epsilon)
    sizes = {method: mean(int(mask.sum()) for mask in masks) for method, masks in chosen.items()}
    return {"accuracy": accuracy, "epsilon": spent, "took": {}, "sizes": sizes}


def _search(table: Benchmark, trials: LogisticTrials, streams: Streams, generator: np.random.Generator) -> Mask:
    """PAFS with every trial noised as if charged; the benchmark is public, so no ledger pays."""
    train, validation = _parts(table)
    fitness = logistic_fitness(trials, train, validation, table.attributes.owners, streams)
    breeding = Breeding(_CHARGED_TRIALS // 5)
    return pafs(fitness, table.features, generator, most_trials=_CHARGED_TRIALS, breeding=breeding).mask


def _charged_search(table: Benchmark, epsilon: float) -> tuple[LogisticTrials, LogisticPlan, float]:
    held = len(set_aside(table.train)[1])
    return charged_search((len(table.train), held), (len(table.attributes.schema.columns), table.features), epsilon)


@lru_cache(maxsize=64)
def charged_search(
    records: tuple[int, int], widths: tuple[int, int], epsilon: float
) -> tuple[LogisticTrials, LogisticPlan, float]:
    """Trials, the training on all records after them, and the ε of both.

    Of `records`, all and held out; `widths` are attributes and features. The last training reads held-out records too:
    so neither the trainings (of the others) nor the scores (of these) may, with it, cost more than ε.
    """
    n, held = records
    split = BudgetSplit(epsilon, DELTA, _CHARGED_SHARE)
    goal = split.epsilon(_CHARGED_SHARE)
    trials = LogisticTrials.calibrated(_CHARGED_TRIALS, n - held, *widths, Ledger(epsilon, DELTA), goal)
    training, score = trials.cost.training, trials.cost.score
    assert score is not None
    before = [Repeated(training, _CHARGED_TRIALS), Repeated(score, _CHARGED_TRIALS)]

    def after(event: Event, ridge: float | None = None) -> LogisticPlan:
        ledger = Ledger(epsilon, DELTA, planned=[(event, "PAFS")])
        return LogisticPlan.calibrated(n=n, width=_WIDTH, data_norm=1.0, ledger=ledger, ridge=ridge)

    first = after(before[0])
    final = max(first, after(before[1], first.ridge), key=_noise)
    return trials, final, max(cost(Composed((event, final.event)), DELTA).epsilon for event in before)


def _noise(plan: LogisticPlan) -> float:
    assert isinstance(plan.perturbation, GaussianObjective)
    return plan.perturbation.noise_multiplier
