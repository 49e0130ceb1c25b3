"""Accuracy by the number of features: logistic regression (Figures 3, 4 of PAW) and DP-SGD (Tables II, XVIII)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Composed, Gaussian, cost
from sordino.data import PoissonSampler, Schema
from sordino.features import OneHot
from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.feature_tables import (
    DELTA,
    PURE,
    REGIMES,
    RIDGE_WORDS,
    UNCOUNTED,
    WHOLE,
    Arrays,
    Benchmark,
    Regime,
    benchmark,
    budgeted,
    generator_of,
    linear_accuracy,
    measured,
    over_splits,
    selection_event,
    streams_of,
)
from sordino.papers.privacy_aware.intervals import Interval, best_size, difference, line, phenomenon
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, best_rate
from sordino.papers.privacy_aware.networks import loaded
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment, Result
from sordino.selection import SyntheticRows, random_subset
from sordino.training import SGD, Adam, Plan

Curve = dict[int, list[float]]
"""For each number of features the accuracy on each split."""


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


_ADULT = Figure(
    "figure-3",
    "adult",
    (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60, 80),
    (0.1, 0.5, 1.0, 5.0, 10.0, 20.0),
    4,
    20,
    {0.1: ("78.58 (5 features)", "70.86")},
    (0.1, 0.786),
)
_BREAST_CANCER = Figure(
    "figure-4",
    "breast-cancer",
    (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 15, 20, 25, 30, 35, 40),
    (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0),
    20,
    20,
    {0.5: ("best with 1 feature", "–"), 1.0: ("best with 1 feature", "–"), 5.0: ("best with 11 features", "–")},
)


def figure_3(experiment: Experiment, item: Declaration) -> Record:
    return _figure(experiment, item, _ADULT)


def figure_4(experiment: Experiment, item: Declaration) -> Record:
    return _figure(experiment, item, _BREAST_CANCER)


def _figure(experiment: Experiment, item: Declaration, figure: Figure) -> Record:
    splits = range(2) if experiment.quick else range(experiment.seeds or figure.splits)
    repeats = 2 if experiment.quick else experiment.pick(figure.repeats, 1000 // len(splits))
    quick = ", quick" * experiment.quick
    rows: list[list[Cell]] = []
    series: list[Series] = []
    said: list[str] = []
    for regime in REGIMES:
        tables = [regime.benchmark(figure.table, split, experiment.quick) for split in splits]
        sizes = (*((1, 4) if experiment.quick else figure.sizes), tables[0].features)

        def curve(results: Sequence[Result], sizes: tuple[int, ...] = sizes) -> Curve:
            return {size: [result["accuracy"][str(size)] for result in results] for size in sizes}

        found = []
        for split, table in enumerate(tables):
            words = f"{figure.table} split {split} without privacy, sizes {sizes}{quick}"
            found.append(measured(experiment, words, partial(_plain, table, sizes)))
        plain = curve(found)
        curves: dict[float, Curve] = {}
        for epsilon in experiment.some(figure.budgets):
            found = []
            for split, table in enumerate(tables):
                words = f"{figure.table} split {split}, {regime.label}, ε={epsilon:g}, sizes {sizes}, {RIDGE_WORDS}, "
                words += f"{repeats} repeats{quick}"
                found.append(
                    measured(experiment, words, partial(_private, table, regime, epsilon, sizes, repeats, words))
                )
            curves[epsilon] = curve(found)
            theirs = figure.theirs.get(epsilon, ("–", "–")) if regime == PURE else ("–", "–")
            rows.append(_row(regime.label, f"{epsilon:g}", curves[epsilon], theirs, found[0]["epsilon"]))
            series.append(_line(f"ε={epsilon:g}", curves[epsilon], regime.label))
        series.append(_line("without privacy", plain, regime.label))
        said.append(f"{regime.label}, ε={min(curves):g}: {phenomenon(curves[min(curves)], plain)}")
        if figure.claim is not None:
            epsilon, least = figure.claim
            said.append(f"{regime.label}, ε={epsilon:g}: {claimed(curves[epsilon], least)}")
    rows.append(_row("without privacy", "∞", plain, ("–", "all features best"), None))
    return item.record(
        experiment,
        rows,
        series=series,
        follows=[*said, over_splits(len(splits), repeats), _frequent(figure.table, splits, experiment.quick)],
        words={
            "sizes": f"{len(sizes)} sizes"
            + experiment.pick(f" and {len(splits) * repeats} fits for each, not 1,000", ", not all")
        },
    )


def _frequent(table: str, splits: Sequence[int], quick: bool) -> str:
    share = mean(benchmark(table, split, quick).most_frequent for split in splits)
    return f"{100 * share:.1f} % of the test records are of the most frequent class"


def _private(
    table: Benchmark, regime: Regime, epsilon: float, sizes: tuple[int, ...], repeats: int, words: str
) -> Result:
    generator = generator_of(words)
    # All features need no selection, and leave the whole ε to the training.
    plans = {
        size: budgeted(regime.without_selection if size == table.features else regime, len(table.train), size, epsilon)
        for size in sizes
    }
    # The tables are the same for every size: one release serves all of them.
    orders = table.greedy_orders(plans[sizes[0]].tables_noise, repeats, generator)
    accuracy = {}
    for size, plan in plans.items():
        masks = np.stack([order.subset(size) for order in orders])
        accuracy[size] = float(table.accuracies(masks, plan.plan, repeats // len(orders), generator).mean())
    return {"accuracy": accuracy, "epsilon": max(plan.epsilon for plan in plans.values())}


def _plain(table: Benchmark, sizes: tuple[int, ...]) -> Result:
    (order,) = table.greedy_orders(None, 1, generator_of(""))
    found = table.plain_accuracies(np.stack([order.subset(size) for size in sizes]))
    return {"accuracy": dict(zip(sizes, found.tolist(), strict=True))}


def _row(regime: str, epsilon: str, curve: Curve, theirs: tuple[str, str], spent: float | None) -> list[Cell]:
    best, every = best_size(curve), max(curve)
    gap = difference(curve[best], curve[every])
    ours = [Interval.of(curve[size]).percent() for size in (best, every)]
    which = "the same" if best == every else gap.sign()
    return [regime, epsilon, spent, best, theirs[0], ours[0], theirs[1], ours[1], gap.percent(), which]


def _line(label: str, curve: Curve, panel: str) -> Series:
    return line(label, [(float(size), Interval.of(values)) for size, values in curve.items()], panel)


def claimed(curve: Curve, least: float) -> str:
    """Whether the best subset, if not of all features, has this accuracy, and more than all have."""
    every = max(curve)
    best = best_size({size: values for size, values in curve.items() if size != every})
    found = Interval.of(curve[best])
    reached = "at least" if found.mean >= least else "less than"
    above = difference(curve[best], curve[every]).sign() == "above 0"
    return (
        f"the best subset ({best} features) has {found.percent()} %, {reached} {100 * least:g} %, and is "
        f"{'above' if above else 'not above'} all features beyond the interval"
    )


_EPOCHS, _CLIP = 40, 1.0
_PLAIN_RATE = 0.01
_TUNED_BY, _HELD_OUT = 3, 0.2
_REHEARSALS = 10
"""Where noise dominates, small rates hardly differ on made-up rows, and few trainings would choose by chance."""


@dataclass(frozen=True)
class Printed:
    """A table as PAW prints it, under the name of the data that its figures are of."""

    item: str
    table: str
    budgets: tuple[float, float]
    sizes: tuple[int, ...]
    batch: int
    rates: tuple[float, ...]
    sgd: tuple[tuple[float, ...], tuple[float, ...]]
    dp_sgd: tuple[tuple[float, ...], tuple[float, ...]]
    """For each budget: of each size, and last of all features."""
    repeats: int

    @property
    def length(self) -> str:
        return f"{_EPOCHS} epochs of batches of {self.batch}"


TABLE_2 = Printed(
    "table-2",
    "breast-cancer",
    (0.236, 0.014),
    (2, 10, 20, 30, 40),
    50,
    (0.01, 0.05, 0.2),
    ((65.26, 69.47, 72.63, 71.58, 73.68, 73.68),) * 2,
    ((67.37, 65.26, 68.42, 66.31, 66.26, 66.32), (65.26, 64.21, 60.00, 62.11, 59.35, 59.48)),
    30,
)
_TABLE_18 = Printed(
    "table-18",
    "adult",
    (0.0196, 0.00817),
    (2, 28, 48, 68, 88),
    250,
    (0.002, 0.01, 0.05),
    ((75.91, 81.81, 83.33, 85.30, 84.91, 85.21), (76.25, 81.52, 84.03, 84.39, 85.19, 85.21)),
    ((75.90, 80.75, 80.81, 79.24, 78.83, 77.76), (76.25, 77.10, 77.02, 78.59, 74.44, 71.10)),
    10,
)


def table_2(experiment: Experiment, item: Declaration) -> Record:
    return _table(experiment, item, TABLE_2)


def table_18(experiment: Experiment, item: Declaration) -> Record:
    return _table(experiment, item, _TABLE_18)


def _table(experiment: Experiment, item: Declaration, printed: Printed) -> Record:
    splits = range(2) if experiment.quick else experiment.seeds_of(printed.repeats, printed.repeats)
    rows: list[list[Cell]] = []
    said: list[str] = []
    for place, epsilon in enumerate(experiment.some(printed.budgets)):
        for regime in (UNCOUNTED, WHOLE):
            every = regime.benchmark(printed.table, 0, experiment.quick).features
            sizes = [*((2,) if experiment.quick else printed.sizes), every]
            rate = _tuned_rate(experiment, printed, epsilon, regime)
            plain, found, spent = {}, {}, 0.0
            for size in sizes:
                plain[size] = [_by_sgd(experiment, printed, regime, size, split)["accuracy"] for split in splits]
                # All features need no selection, and leave the whole ε to the training.
                own = regime.without_selection if size == every else regime
                results = [_by_dp_sgd(experiment, printed, own, epsilon, size, rate, split) for split in splits]
                found[size] = [result["accuracy"] for result in results]
                spent = max(spent, *(result["epsilon"] for result in results))
            for size in sizes:
                theirs: list[Cell] = [None, None]
                if not regime.counts_selection:
                    column = -1 if size == every else printed.sizes.index(size)
                    theirs = [printed.dp_sgd[place][column], printed.sgd[place][column]]
                gap = None if size == every else difference(found[size], found[every]).percent()
                row: list[Cell] = [regime.label, epsilon, spent, "all" if size == every else size]
                row += [theirs[0], Interval.of(found[size]).percent(), theirs[1], Interval.of(plain[size]).percent()]
                rows.append([*row, gap, rate])
            said.append(f"{regime.label}, ε={epsilon:g}: {phenomenon(found, plain)}")
    return item.record(
        experiment,
        rows,
        follows=[*said, _frequent(printed.table, splits, experiment.quick)],
        words={
            "length": printed.length,
            "splits": f"{len(splits)}",
            "rates": ", ".join(f"{rate:g}" for rate in printed.rates),
            "size": f"{printed.sizes[2]}",
        },
    )


def _by_sgd(experiment: Experiment, printed: Printed, regime: Regime, size: int, split: int) -> Result:
    words = f"{printed.table} {size} features, SGD, {printed.length}, split {split}{', quick' * experiment.quick}"

    def compute() -> Result:
        table = regime.benchmark(printed.table, split, experiment.quick)
        plan = _plan(len(table.train), printed.batch, None, None, experiment.quick)
        (order,) = table.greedy_orders(None, 1, generator_of(words))
        return {
            "accuracy": linear_accuracy(plan, Adam(_PLAIN_RATE), _arrays(table, order.subset(size)), streams_of(words))
        }

    return measured(experiment, words, compute)


def _by_dp_sgd(
    experiment: Experiment, printed: Printed, regime: Regime, epsilon: float, size: int, rate: float, split: int
) -> Result:
    words = (
        f"{printed.table} {size} features, DP-SGD, {printed.length}, {regime.label}, ε={epsilon:g}, rate {rate:g}, "
        f"split {split}{', documented columns' * regime.documented}{', quick' * experiment.quick}"
    )

    def compute() -> Result:
        table = regime.benchmark(printed.table, split, experiment.quick)
        tables = selection_event(epsilon) if regime.counts_selection else None
        plan = _plan(len(table.train), printed.batch, epsilon, tables, experiment.quick)
        noise = None if tables is None else tables.noise_multiplier
        (order,) = table.greedy_orders(noise, 1, generator_of(words))
        accuracy = linear_accuracy(plan, SGD(rate), _arrays(table, order.subset(size)), streams_of(words))
        return {"accuracy": accuracy, "epsilon": _spent(plan, tables), "noise_multiplier": plan.noise_multiplier}

    return measured(experiment, words, compute)


def _tuned_rate(experiment: Experiment, printed: Printed, epsilon: float, regime: Regime) -> float:
    """The rate that does best with a middling number of features: on made-up rows if every look is counted."""
    if experiment.quick:
        return printed.rates[0]
    where, parts_of, repeats = "held out at random", held_out, _TUNED_BY
    if regime.counts_selection:
        where, parts_of, repeats = "rehearsed", made_up, _REHEARSALS

    def once(rate: float, number: int) -> float:
        words = f"{printed.table} {printed.sizes[2]} features, ε={epsilon:g}, rate {rate:g}, {printed.length}, "
        words += f"{where} {number}"

        def compute() -> Result:
            plan = _plan(len(benchmark(printed.table).train), printed.batch, epsilon, None, False)
            parts = parts_of(printed, number)
            # Its noise, batch and steps, whatever number of rows there is to try them on.
            plan = replace(plan, sampler=PoissonSampler(len(parts[1]), printed.batch))
            return {"accuracy": linear_accuracy(plan, SGD(rate), parts, streams_of(words))}

        return float(measured(experiment, words, compute)["accuracy"])

    def tried(rates: Sequence[float]) -> list[float]:
        return [mean(once(rate, number) for number in range(repeats)) for rate in rates]

    return best_rate(printed.rates, tried)[0]


def held_out(printed: Printed, number: int) -> Arrays:
    """Training records of the first split to train on and others to examine, by an exact selection."""
    table = benchmark(printed.table)
    (selected,) = table.greedy_orders(None, 1, generator_of(""))
    x, y, _, _ = _arrays(table, selected.subset(printed.sizes[2]))
    held, rest = np.split(np.random.default_rng(number).permutation(len(y)), [int(_HELD_OUT * len(y))])
    return x[rest], y[rest], x[held], y[held]


def made_up(printed: Printed, number: int) -> Arrays:
    """Rows made up from the documented columns, with a random subset of their features."""
    schema = Schema.of(loaded(printed.table).facts)
    parts = SyntheticRows(schema, len(benchmark(printed.table).train)).draw(number)
    encode = OneHot(schema.columns)
    (x, y), (shown, labels) = ((encode(part.x).astype(np.float32), part.y) for part in parts)
    mask = random_subset(x.shape[1], printed.sizes[2], np.random.default_rng(number))
    return x[:, mask], y, shown[:, mask], labels


def _arrays(table: Benchmark, mask: NDArray[np.bool_]) -> Arrays:
    x, test_x = (part[:, mask].astype(np.float32) for part in (table.x, table.test_x))
    return x, table.y, test_x, table.test_y


@lru_cache(maxsize=64)
def _plan(n: int, batch: int, epsilon: float | None, before: Gaussian | None, quick: bool) -> Plan:
    epochs, batch = (2, min(batch, n // 2)) if quick else (_EPOCHS, batch)
    if epsilon is None:
        return Plan.without_noise(PoissonSampler(n, batch), UNCLIPPED, epochs)
    return Plan.calibrated(
        n=n,
        expected_batch_size=batch,
        epochs=epochs,
        target_epsilon=epsilon,
        target_delta=DELTA,
        l2_clip=_CLIP,
        before=before,
    )


@lru_cache(maxsize=64)
def _spent(plan: Plan, tables: Gaussian | None) -> float:
    return cost(Composed((plan.event,) if tables is None else (tables, plan.event)), DELTA).epsilon
