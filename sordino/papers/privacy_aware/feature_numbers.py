"""Figures 3 and 4 of PAW: accuracy along the number of features at several budgets."""

from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from sordino.papers.privacy_aware.intervals import Interval, line
from sordino.papers.privacy_aware.network_rows import PAPER
from sordino.papers.privacy_aware.network_trials import some
from sordino.papers.privacy_aware.subsets import (
    PURE,
    REGIMES,
    RIDGE_TUNED,
    RIDGE_WORDS,
    SELECTION_TUNED,
    WHAT_REGIMES_ARE,
    Benchmark,
    Regime,
    benchmark,
    budgeted,
    difference,
    generator_of,
    greedy_orders,
    measured,
    most_frequent,
    over_splits,
    sign,
)
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment


@dataclass(frozen=True)
class Figure:
    """A table of PAW, the numbers of features and budgets to try, and how often."""

    item: str
    table: str
    sizes: tuple[int, ...]
    budgets: tuple[float, ...]
    splits: int
    repeats: int
    """On each split."""
    theirs: dict[float, tuple[str, str]]
    """What the paper's text says of a budget: of the best subset, and of all features."""
    claim: tuple[float, float] | None = None
    """A budget and the accuracy that the best subset should have there, and more than all features."""


ADULT = Figure(
    "figure-3",
    "adult",
    (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60, 80),
    (0.1, 0.5, 1.0, 5.0, 10.0, 20.0),
    *(4, 20),
    {0.1: ("78.58 (5 features)", "70.86")},
    (0.1, 0.786),
)
BREAST_CANCER = Figure(
    "figure-4",
    "breast-cancer",
    (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 15, 20, 25, 30, 35, 40),
    (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0),
    *(20, 20),
    {0.5: ("best with 1 feature", "–"), 1.0: ("best with 1 feature", "–"), 5.0: ("best with 11 features", "–")},
)
Curve = dict[int, list[float]]
"""For each number of features the mean accuracy on each split."""


def figure_3(experiment: Experiment) -> Record:
    return _figure(experiment, ADULT)


def figure_4(experiment: Experiment) -> Record:
    return _figure(experiment, BREAST_CANCER)


def _figure(experiment: Experiment, figure: Figure) -> Record:
    subsets = (1, 4) if experiment.quick else figure.sizes
    splits = range(2) if experiment.quick else range(experiment.seeds or figure.splits)
    repeats = 2 if experiment.quick else experiment.pick(figure.repeats, 1000 // len(splits))
    few = f", {RIDGE_WORDS}, {repeats} repeats{', quick' * experiment.quick}"
    rows: list[list[Cell]] = []
    series: list[Series] = []
    said: list[str] = []
    for regime in REGIMES:
        tables = [regime.benchmark(figure.table, split, experiment.quick) for split in splits]
        sizes = (*subsets, tables[0].features)
        plain = _curve(
            [
                measured(
                    experiment,
                    f"{figure.table} split {split} without privacy, sizes {sizes}{', quick' * experiment.quick}",
                    lambda table=table, sizes=sizes: _plain(table, sizes),  # type: ignore[misc]
                )
                for split, table in zip(splits, tables, strict=True)
            ]
        )
        curves: dict[float, Curve] = {}
        for epsilon in some(experiment, figure.budgets):
            found = []
            for split, table in zip(splits, tables, strict=True):
                words = f"{figure.table} split {split}, {regime.label}, ε={epsilon:g}, sizes {sizes}{few}"
                found.append(
                    measured(
                        experiment,
                        words,
                        lambda table=table, epsilon=epsilon, words=words, regime=regime, sizes=sizes: _private(  # type: ignore[misc]
                            table, regime, epsilon, sizes, repeats, words
                        ),
                    )
                )
            curves[epsilon] = _curve(found)
            theirs = figure.theirs.get(epsilon, ("–", "–")) if regime == PURE else ("–", "–")
            rows.append(_row(f"{regime.label}", f"{epsilon:g}", curves[epsilon], theirs, found[0]["epsilon"]))
            series.append(_line(f"ε={epsilon:g}", curves[epsilon], regime.label))
        series.append(_line("without privacy", plain, regime.label))
        said.append(f"{regime.label}: {phenomenon(curves, plain)}")
        if figure.claim is not None:
            epsilon, least = figure.claim
            said.append(f"{regime.label}, ε={epsilon:g}: {claimed(curves[epsilon], least)}")
    frequent = [most_frequent(benchmark(figure.table, split, experiment.quick)) for split in splits]
    rows.append(_row("without privacy", "∞", plain, ("–", "all features best"), None))
    return Record(
        PAPER,
        figure.item,
        f"Logistic regression on {figure.table} by the number of features, the best of each size by CFS-Greedy",
        [
            *("regime", "ε", "ε spent", "best size", "paper, best subset", "ours, best subset"),
            *("paper, all features", "ours, all features", "best less all", "which is"),
        ],
        rows,
        [
            *said,
            WHAT_REGIMES_ARE,
            over_splits(len(splits), repeats),
            "The best size is read off the test records, as in PAW, which flatters it",
            "A subset's rows have the public norm √(columns that it touches + 1). PAW gives the curves as a drawing "
            "and names a few points. Without privacy the ridge is 1",
            f"{100 * mean(frequent):.1f} % of the test records are of the most frequent class",
        ],
        f"{len(sizes)} sizes" + experiment.pick(f" and {len(splits) * repeats} fits for each, not 1,000", ", not all"),
        f"{RIDGE_TUNED}; {SELECTION_TUNED}",
        *("features", "test accuracy, %", "x"),
        series,
    )


def _private(
    table: Benchmark, regime: Regime, epsilon: float, sizes: tuple[int, ...], repeats: int, words: str
) -> dict[str, Any]:
    generator = generator_of(words)
    # All features need no selection, and leave the whole ε to the training.
    plans = {
        size: budgeted(regime.without_selection if size == table.features else regime, len(table.train), size, epsilon)
        for size in sizes
    }
    # The tables are the same for every size: one release tells all of them.
    orders = greedy_orders(table, plans[sizes[0]].tables_noise, repeats, generator)
    accuracy = {}
    for size, plan in plans.items():
        masks = np.stack([order.subset(size) for order in orders])
        accuracy[size] = float(table.accuracies(masks, plan.plan, repeats // len(orders), generator).mean())
    return {"accuracy": accuracy, "epsilon": max(plan.epsilon for plan in plans.values())}


def _plain(table: Benchmark, sizes: tuple[int, ...]) -> dict[str, Any]:
    (order,) = greedy_orders(table, None, 1, generator_of(""))
    found = table.plain_accuracies(np.stack([order.subset(size) for size in sizes]))
    return {"accuracy": dict(zip(sizes, found.tolist(), strict=True))}


def _curve(found: list[dict[str, Any]]) -> Curve:
    sizes = [int(size) for size in found[0]["accuracy"]]
    return {size: [one["accuracy"][str(size)] for one in found] for size in sizes}


def best_size(curve: Curve) -> int:
    """The number of features with the highest mean; of equals the fewest."""
    return max(curve, key=lambda size: (float(np.mean(curve[size])), -size))


def _row(regime: str, epsilon: str, curve: Curve, theirs: tuple[str, str], spent: float | None) -> list[Cell]:
    best, every = best_size(curve), max(curve)
    gap = difference(curve[best], curve[every])
    ours = [Interval.of(curve[size]).percent() for size in (best, every)]
    which = "the same" if best == every else sign(gap)
    return [regime, epsilon, spent, best, theirs[0], ours[0], theirs[1], ours[1], gap.percent(), which]


def _line(label: str, curve: Curve, panel: str) -> Series:
    return line(label, [(float(size), Interval.of(values)) for size, values in curve.items()], panel)


def claimed(curve: Curve, least: float) -> str:
    """Whether the best subset, if not of all features, has this accuracy, and more than all have."""
    every = max(curve)
    best = best_size({size: values for size, values in curve.items() if size != every})
    found = Interval.of(curve[best])
    reached = "at least" if found.mean >= least else "less than"
    above = sign(difference(curve[best], curve[every])) == "above 0"
    return (
        f"the best subset ({best} features) has {found.percent()} %, {reached} {100 * least:g} %, and is "
        f"{'above' if above else 'not above'} all features beyond the interval"
    )


def phenomenon(curves: dict[float, Curve], plain: Curve) -> str:
    """Whether fewer features win at the least ε and more without privacy, both beyond their intervals."""
    least = min(curves)
    best, every = best_size(curves[least]), max(plain)
    if best == every:
        return f"at ε={least:g} all features are best: the phenomenon does not show"
    fewer = difference(curves[least][best], curves[least][every])
    more = difference(plain[every], plain[best])
    shows = sign(fewer) == sign(more) == "above 0"
    return (
        f"at ε={least:g} the best subset ({best} features) is ahead of all {every} by {fewer.percent()} points "
        f"({sign(fewer)}), without privacy all are ahead of it by {more.percent()} ({sign(more)}): the phenomenon "
        f"{'shows' if shows else 'does not show in full'}"
    )
