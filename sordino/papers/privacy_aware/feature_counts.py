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
    frequent,
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
from sordino.training import SGD, Adam, Plan, cached_plan

Curve = dict[int, list[float]]
"""For each number of features the accuracy on each split."""
_UNSAID = ("–", "–")


def figure(experiment: Experiment, item: Declaration) -> Record:
    """Figures 3 and 4, by logistic regression: published are an ε, the best subset and all features there.

    Given are the table, the numbers of features and the budgets to try, how often on each split, and perhaps a claim: a
    budget and the accuracy that the best subset should have there, and more than all features.
    """
    name = item.given["table"]
    splits = range(2) if experiment.quick else range(experiment.seeds or item.given["splits"])
    repeats = 2 if experiment.quick else experiment.pick(item.given["repeats"], 1000 // len(splits))
    published = {epsilon: tuple(theirs) for epsilon, *theirs in item.published}
    rows: list[list[Cell]] = []
    series: list[Series] = []
    said: list[str] = []
    for regime in REGIMES:
        tables = [regime.benchmark(name, split, experiment.quick) for split in splits]
        sizes = (*((1, 4) if experiment.quick else item.given["sizes"]), tables[0].features)

        def curve(results: Sequence[Result], sizes: tuple[int, ...] = sizes) -> Curve:
            return {size: [result["accuracy"][str(size)] for result in results] for size in sizes}

        found = []
        for split, table in enumerate(tables):
            words = f"{name} split {split} without privacy, sizes {sizes}"
            found.append(measured(experiment, words, partial(_plain, table, sizes)))
        plain = curve(found)
        curves: dict[float, Curve] = {}
        for epsilon in experiment.some(item.given["budgets"]):
            found = []
            for split, table in enumerate(tables):
                words = f"{name} split {split}, {regime.label}, ε={epsilon:g}, sizes {sizes}, {RIDGE_WORDS}, "
                compute = partial(_private, table, regime, epsilon, sizes, repeats)
                found.append(measured(experiment, f"{words}{repeats} repeats", compute))
            curves[epsilon] = curve(found)
            theirs = published.get(epsilon, _UNSAID) if regime == PURE else _UNSAID
            rows.append(_row(regime.label, f"{epsilon:g}", curves[epsilon], theirs, found[0]["epsilon"]))
            series.append(_line(f"ε={epsilon:g}", curves[epsilon], regime.label))
        series.append(_line("without privacy", plain, regime.label))
        said.append(f"{regime.label}, ε={min(curves):g}: {phenomenon(curves[min(curves)], plain)}")
        if "claim" in item.given:
            epsilon, least = item.given["claim"]
            said.append(f"{regime.label}, ε={epsilon:g}: {claimed(curves[epsilon], least)}")
    rows.append(_row("without privacy", "∞", plain, ("–", "all features best"), None))
    few = experiment.pick(f" and {len(splits) * repeats} fits for each, not 1,000", ", not all")
    return item.record(
        experiment,
        rows,
        series,
        follows=[
            *said,
            beside_their_crossover(rows, item.given["crossover"]),
            over_splits(len(splits), repeats),
            frequent(name, splits, experiment.quick),
        ],
        words={"sizes": f"{len(sizes)} sizes{few}"},
    )


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


def _plain(table: Benchmark, sizes: tuple[int, ...], words: str) -> Result:
    (order,) = table.greedy_orders(None, 1, generator_of(words))
    found = table.plain_accuracies(np.stack([order.subset(size) for size in sizes]))
    return {"accuracy": dict(zip(sizes, found.tolist(), strict=True))}


def _row(regime: str, epsilon: str, curve: Curve, theirs: tuple[str, str], spent: float | None) -> list[Cell]:
    best, every = best_size(curve), max(curve)
    gap = difference(curve[best], curve[every])
    ours = [Interval.of(curve[size]).percent() for size in (best, every)]
    which = "the same" if best == every else gap.sign()
    return [regime, epsilon, spent, best, theirs[0], ours[0], theirs[1], ours[1], gap.percent(), which]


def beside_their_crossover(rows: Sequence[list[Cell]], theirs: str) -> str:
    """Up to which ε of those tried the best subset is ahead of all features, by regime, beside PAW's crossover."""
    every: dict[str, list[str]] = {}
    ahead: dict[str, list[str]] = {}
    for regime, epsilon, *_, which in rows[:-1]:
        every.setdefault(str(regime), []).append(str(epsilon))
        if which == "above 0":
            ahead.setdefault(str(regime), []).append(str(epsilon))
    said = [
        f"{regime}: {f'up to ε={ahead[regime][-1]} of {budgets[-1]}' if regime in ahead else 'at none'}"
        for regime, budgets in every.items()
    ]
    return (
        f"Section VI-C of PAW reads {theirs} as the crossover off this figure. Here the best subset (of each ε, which "
        f"flatters it; PAW holds one) is ahead of all features beyond the interval, of the ε tried, {'; '.join(said)}"
    )


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
class LinearLayer:
    """How Tables II and XVIII train: a linear layer on so many features, in batches of so many records."""

    table: str
    batch: int
    quick: bool

    def __str__(self) -> str:
        return f"{_EPOCHS} epochs of batches of {self.batch}"

    def plain(self, regime: Regime, size: int, split: int, words: str) -> Result:
        """By SGD, on features selected by exact counts."""
        table = regime.benchmark(self.table, split, self.quick)
        plan = _plan(len(table.train), self.batch, None, None, self.quick)
        (order,) = table.greedy_orders(None, 1, generator_of(words))
        parts = _arrays(table, order.subset(size))
        return {"accuracy": linear_accuracy(plan, Adam(_PLAIN_RATE), parts, streams_of(words))}

    def private(self, regime: Regime, epsilon: float, size: int, rate: float, split: int, words: str) -> Result:
        """By DP-SGD, on features selected as the regime says."""
        table = regime.benchmark(self.table, split, self.quick)
        tables = selection_event(epsilon) if regime.counts_selection else None
        plan = _plan(len(table.train), self.batch, epsilon, tables, self.quick)
        noise = None if tables is None else tables.noise_multiplier
        (order,) = table.greedy_orders(noise, 1, generator_of(words))
        accuracy = linear_accuracy(plan, SGD(rate), _arrays(table, order.subset(size)), streams_of(words))
        return {"accuracy": accuracy, "epsilon": _spent(plan, tables), "noise_multiplier": plan.noise_multiplier}

    def rehearsed(self, parts: Arrays, epsilon: float, rate: float, words: str) -> Result:
        """On other records than all: its noise, batch and steps, whatever number of rows there is to try them on."""
        plan = _plan(len(benchmark(self.table).train), self.batch, epsilon, None, False)
        plan = replace(plan, sampler=PoissonSampler(len(parts[1]), self.batch))
        return {"accuracy": linear_accuracy(plan, SGD(rate), parts, streams_of(words))}


def table(experiment: Experiment, item: Declaration) -> Record:
    """Tables II and XVIII, by DP-SGD and SGD: published are ε and, for each size and all features, both accuracies."""
    given, name = item.given, item.given["table"]
    layer = LinearLayer(name, given["batch"], experiment.quick)
    splits = range(2) if experiment.quick else experiment.seeds_of(given["repeats"], given["repeats"])
    rows: list[list[Cell]] = []
    said: list[str] = []
    for epsilon, sgd, dp_sgd in experiment.some(item.published):
        for regime in (UNCOUNTED, WHOLE):
            every = regime.benchmark(name, 0, experiment.quick).features
            sizes = [*((2,) if experiment.quick else given["sizes"]), every]
            rate = _tuned_rate(experiment, layer, given["sizes"][2], given["rates"], epsilon, regime)
            plain, found, spent = {}, {}, 0.0
            for size in sizes:
                # All features need no selection, and leave the whole ε to the training.
                own = regime.without_selection if size == every else regime
                what, documented = f"{name} {size} features", ", documented columns" * own.documented
                how = f"DP-SGD, {layer}, {own.label}, ε={epsilon:g}, rate {rate:g}"
                exact = [
                    measured(
                        experiment, f"{what}, SGD, {layer}, split {split}", partial(layer.plain, regime, size, split)
                    )
                    for split in splits
                ]
                results = [
                    measured(
                        experiment,
                        f"{what}, {how}, split {split}{documented}",
                        partial(layer.private, own, epsilon, size, rate, split),
                    )
                    for split in splits
                ]
                plain[size], found[size] = ([each["accuracy"] for each in both] for both in (exact, results))
                spent = max(spent, *(result["epsilon"] for result in results))
            for size in sizes:
                theirs: list[Cell] = [None, None]
                if not regime.counts_selection:
                    place = -1 if size == every else given["sizes"].index(size)
                    theirs = [dp_sgd[place], sgd[place]]
                gap = None if size == every else difference(found[size], found[every]).percent()
                row: list[Cell] = [regime.label, epsilon, spent, "all" if size == every else size]
                row += [theirs[0], Interval.of(found[size]).percent(), theirs[1], Interval.of(plain[size]).percent()]
                rows.append([*row, gap, rate])
            said.append(f"{regime.label}, ε={epsilon:g}: {phenomenon(found, plain)}")
    return item.record(
        experiment,
        rows,
        follows=[*said, frequent(name, splits, experiment.quick)],
        words={
            "length": str(layer),
            "splits": f"{len(splits)}",
            "rates": ", ".join(f"{rate:g}" for rate in given["rates"]),
            "size": f"{given['sizes'][2]}",
        },
    )


def _tuned_rate(
    experiment: Experiment, layer: LinearLayer, size: int, rates: Sequence[float], epsilon: float, regime: Regime
) -> float:
    """The rate that does best with a middling number of features: on made-up rows if every look is counted."""
    if experiment.quick:
        return rates[0]
    where, parts_of, repeats = "held out at random", held_out, _TUNED_BY
    if regime.counts_selection:
        where, parts_of, repeats = "rehearsed", made_up, _REHEARSALS

    def once(rate: float, number: int) -> float:
        words = f"{layer.table} {size} features, ε={epsilon:g}, rate {rate:g}, {layer}, {where} {number}"

        def compute(words: str) -> Result:
            return layer.rehearsed(parts_of(layer.table, size, number), epsilon, rate, words)

        return float(measured(experiment, words, compute)["accuracy"])

    def tried(rates: Sequence[float]) -> list[float]:
        return [mean(once(rate, number) for number in range(repeats)) for rate in rates]

    return best_rate(rates, tried)[0]


def held_out(name: str, size: int, number: int) -> Arrays:
    """Training records of the first split to train on and others to examine, by an exact selection."""
    table = benchmark(name)
    (selected,) = table.greedy_orders(None, 1, generator_of(""))
    x, y, _, _ = _arrays(table, selected.subset(size))
    held, rest = np.split(np.random.default_rng(number).permutation(len(y)), [int(_HELD_OUT * len(y))])
    return x[rest], y[rest], x[held], y[held]


def made_up(name: str, size: int, number: int) -> Arrays:
    """Rows made up from the documented columns, with a random subset of their features."""
    schema = Schema.of(loaded(name).facts)
    parts = SyntheticRows(schema, len(benchmark(name).train)).draw(number)
    encode = OneHot(schema.columns)
    (x, y), (shown, labels) = ((encode(part.x).astype(np.float32), part.y) for part in parts)
    mask = random_subset(x.shape[1], size, np.random.default_rng(number))
    return x[:, mask], y, shown[:, mask], labels


def _arrays(table: Benchmark, mask: NDArray[np.bool_]) -> Arrays:
    x, test_x = (part[:, mask].astype(np.float32) for part in (table.x, table.test_x))
    return x, table.y, test_x, table.test_y


def _plan(n: int, batch: int, epsilon: float | None, before: Gaussian | None, quick: bool) -> Plan:
    epochs, batch = (2, min(batch, n // 2)) if quick else (_EPOCHS, batch)
    if epsilon is None:
        return Plan.without_noise(PoissonSampler(n, batch), UNCLIPPED, epochs)
    return cached_plan(
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
