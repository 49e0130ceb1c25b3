"""Logistic regression without selection: Adult's categories encoded or dropped (Table XVI of PAW), and the ridge."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.feature_tables import (
    PLAIN_RIDGE,
    PURE,
    RIDGE_WORDS,
    UNCOUNTED,
    Benchmark,
    Regime,
    benchmark,
    budgeted,
    generator_of,
    measured,
)
from sordino.papers.privacy_aware.intervals import Interval, difference
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment, Result
from sordino.selection import Mask
from sordino.training import RIDGE_PER_NOISE, LogisticPlan, data_norm, fit_many, noise_ridge, scores

_PROMISES = {PURE: "pure ε", UNCOUNTED: "(ε, 1e-5)"}
_FITS = {"without": 1000, "with": 400}
_HARDLY_ANY = 0.01
"""A ridge with which even a capital gain, next to nothing when scaled to its bounds, gets its weight."""


def table_16(experiment: Experiment, item: Declaration) -> Record:
    """Adult with its categories dropped, and one-hot encoded."""
    rows: list[list[Cell]] = []
    said: list[str] = []
    repeats = {way: 3 if experiment.quick else experiment.pick(count, 1000) for way, count in _FITS.items()}
    for regime, promise in _PROMISES.items():
        verdicts = []
        for epsilon, *theirs in experiment.some(item.published):
            row: list[Cell] = [promise, epsilon]
            found = []
            for way, paper in zip(_FITS, theirs, strict=True):
                values = _accuracies(experiment, way, regime, epsilon, repeats[way])
                found.append(Interval.of(values))
                row += [paper if regime == PURE else None, found[-1].percent(), 100 * stdev(values)]
            without, encoded = found
            verdicts.append((epsilon, without, encoded))
            rows.append([*row, 100 * (encoded.mean - without.mean)])
        said.append(f"{promise}: {crossing(verdicts)}")
    table = benchmark("adult", 0, experiment.quick)
    plainly = {}
    for ridge, papers in ((PLAIN_RIDGE, ("84.44", "84.85")), (_HARDLY_ANY, (None, None))):
        masks = np.stack([few_columns(table), table.every[0]])
        few, every = (float(share) for share in 100 * table.plain_accuracies(masks, ridge))
        plainly[ridge] = few
        promise = f"without privacy, ridge {ridge:g}"
        rows.append([promise, None, papers[0], f"{few:.2f}", None, papers[1], f"{every:.2f}", None, every - few])
    return item.record(
        experiment,
        rows,
        follows=said,
        words={
            "here": f"{_FITS['with']} fits with one-hot, not 1,000",
            "usual_ridge": f"{plainly[PLAIN_RIDGE]:.2f}",
            "small_ridge": f"{plainly[_HARDLY_ANY]:.2f}",
            "frequent": f"{100 * table.most_frequent:.1f}",
            **{f"{way}_repeats": f"{count}" for way, count in repeats.items()},
        },
    )


def few_columns(table: Benchmark) -> Mask:
    """PAW's seven features: numbers but fnlwgt, and sex."""
    columns = table.attributes.schema.columns
    kept = [c.name == "sex" or (c.categories is None and c.name != "fnlwgt") for c in columns]
    return np.array(kept)[table.attributes.owners]


def crossing(verdicts: list[tuple[float, Interval, Interval]]) -> str:
    """At which budgets one-hot is ahead beyond the intervals, and at which the few features are."""
    ahead = [f"{epsilon:g}" for epsilon, without, encoded in verdicts if encoded.above(without)]
    behind = [f"{epsilon:g}" for epsilon, without, encoded in verdicts if without.above(encoded)]
    both = [f"at ε={', '.join(budgets)}" if budgets else "nowhere" for budgets in (ahead, behind)]
    shows = "shows" if ahead and behind else "does not show"
    return (
        f"one-hot is better with intervals apart {both[0]}, worse {both[1]}: the crossover, which PAW has between 0.01 "
        f"and 0.05, {shows} in this range"
    )


def _accuracies(experiment: Experiment, way: str, regime: Regime, epsilon: float, repeats: int) -> list[float]:
    def compute(words: str) -> Result:
        table = benchmark("adult", 0, experiment.quick)
        mask = few_columns(table) if way == "without" else table.every[0]
        plan = budgeted(regime, len(table.train), int(mask.sum()), epsilon)
        found = table.accuracies(mask[None], plan.plan, repeats, generator_of(words))[0]
        return {"accuracies": found.round(6).tolist(), "epsilon": plan.epsilon}

    words = f"adult {way} one-hot, {_PROMISES[regime]}, {RIDGE_WORDS}, ε={epsilon:g}, {repeats} repeats"
    return list(measured(experiment, words, compute)["accuracies"])


_MULTIPLES = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
"""Of E‖b‖/√n, the size of the objective's noise on an average record."""
_RECORDS, _BUDGETS = (200, 1000, 5000, 20_000), (0.1, 1.0, 10.0)
_TABLES, _REPEATS, _TESTED = 3, 10, 4000


@dataclass(frozen=True, eq=False)
class Planted:
    """Records whose labels follow a logistic model, encoded as a schema's columns are."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    attributes: int


def planted(records: int, seed: int) -> Planted:
    """A made-up table of 4 to 14 columns, numbers and categories, some of which the label depends on."""
    rng = np.random.default_rng(seed)
    attributes = int(rng.integers(4, 15))
    blocks = []
    for _ in range(attributes):
        if rng.random() < 0.4:
            blocks.append(rng.beta(rng.uniform(0.5, 4.0), rng.uniform(0.5, 4.0), (records, 1)))
        else:
            size = int(rng.integers(2, 13))
            blocks.append(np.eye(size)[rng.choice(size, records, p=rng.dirichlet(np.ones(size)))])
    informative = [rng.random() < 0.6 for _ in blocks]
    informative[0] = True
    strength = rng.uniform(0.5, 2.0)
    weights = [
        strength * rng.normal(size=block.shape[1]) * (2 if block.shape[1] == 1 else 1) * counts
        for block, counts in zip(blocks, informative, strict=True)
    ]
    x = np.concatenate(blocks, axis=1)
    signal = x @ np.concatenate(weights)
    threshold = np.quantile(signal, rng.uniform(0.5, 0.8))  # the rarer class has a fifth to a half of the records
    return Planted(x, (rng.logistic(size=records) < signal - threshold).astype(np.int64), attributes)


def ridges(experiment: Experiment, item: Declaration) -> Record:
    """The multiple of the noise that loses least beside the best of the grid, over many made-up tables and budgets."""
    sizes, budgets = experiment.some(_RECORDS), experiment.some(_BUDGETS)
    tables, repeats, multiples = (2, 2, _MULTIPLES[2:4]) if experiment.quick else (_TABLES, _REPEATS, _MULTIPLES)
    lost: dict[Regime, dict[float, list[float]]] = {regime: {m: [] for m in multiples} for regime in _PROMISES}
    for regime, n, number, epsilon in product(_PROMISES, sizes, range(tables), budgets):
        words = f"planted table {number} of {n}, {_PROMISES[regime]}, ε={epsilon:g}, ridges {multiples}"
        compute = partial(_ridge_accuracies, n, number, regime, epsilon, multiples, repeats)
        found = measured(experiment, words, compute)["accuracy"]
        for multiple, accuracy in zip(multiples, found, strict=True):
            lost[regime][multiple].append(max(found) - accuracy)
    both = {multiple: [value for found in lost.values() for value in found[multiple]] for multiple in multiples}
    best = min(both, key=lambda multiple: mean(both[multiple]))
    more = difference(both.get(RIDGE_PER_NOISE, both[best]), both[best])
    rows: list[list[Cell]] = []
    for multiple, values in both.items():
        each = [Interval.of(found[multiple]).percent() for found in lost.values()]
        rows.append([multiple, *each, Interval.of(values).percent(), 100 * max(values)])
    return item.record(
        experiment,
        rows,
        columns=[
            "multiple of E‖b‖/√n",
            *(f"points lost, {promise}" for promise in _PROMISES.values()),
            "lost, both",
            "lost at worst",
        ],
        follows=[
            f"The least is lost with {best:g}; the library's rule has {RIDGE_PER_NOISE:g}, which loses "
            f"{more.percent()} points more",
            "Accuracy lost beside the best multiple of the same table and budget, mean ± half of the 95 % interval "
            f"over {len(both[best])} cases: {tables} tables of each of {', '.join(f'{n:,}' for n in sizes)} records, "
            f"ε of {', '.join(f'{epsilon:g}' for epsilon in budgets)}; each the mean of {repeats} fits on {_TESTED:,} "
            "further records",
        ],
    )


def planned(n: int, width: int, norm: float, epsilon: float, regime: Regime, multiple: float) -> LogisticPlan:
    """A fit of rows of this norm whose ridge is this multiple of E‖b‖/√n, and at least 1/ε."""
    usual: Any = budgeted(regime, n, width, epsilon).plan.perturbation
    return LogisticPlan.calibrated(
        n=n,
        width=width,
        target_epsilon=epsilon,
        target_delta=regime.delta,
        data_norm=norm,
        adjacency=regime.adjacency,
        ridge=max(1 / epsilon, noise_ridge(usual, n, width, multiple)),
    )


def _ridge_accuracies(
    n: int, number: int, regime: Regime, epsilon: float, multiples: Sequence[float], repeats: int, words: str
) -> Result:
    table, generator = planted(n + _TESTED, number), generator_of(words)
    width, norm = table.x.shape[1], data_norm(table.attributes)
    every, found = np.ones((1, width), dtype=bool), []
    for multiple in multiples:
        plan = planned(n, width, norm, epsilon, regime, multiple)
        weights = fit_many(table.x[:n], table.y[:n], every, plan, repeats, generator)[0]
        found.append(float(((scores(weights, table.x[n:]).T > 0) == table.y[n:]).mean()))
    return {"accuracy": found}
