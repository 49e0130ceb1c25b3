"""Beyond PAW: how strong the ridge of a private logistic regression should be, found on made-up tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.papers.privacy_aware.intervals import Interval
from sordino.papers.privacy_aware.network_rows import PAPER
from sordino.papers.privacy_aware.network_trials import some
from sordino.papers.privacy_aware.subsets import PURE, UNCOUNTED, Regime, budgeted, generator_of, measured
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment
from sordino.training import RIDGE_PER_NOISE, LogisticPlan, data_norm, fit_many, noise_ridge, scores

_MULTIPLES = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
"""Of E‖b‖/√n, the size of the objective's noise on an average record."""
_RECORDS, _BUDGETS = (200, 1000, 5000, 20_000), (0.1, 1.0, 10.0)
_TABLES, _REPEATS, _TESTED = 3, 10, 4000
_LABELS = {PURE: "pure ε", UNCOUNTED: "(ε, 1e-5)"}


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
    told = [rng.random() < 0.6 for _ in blocks]
    told[0] = True
    strength = rng.uniform(0.5, 2.0)
    weights = [
        strength * rng.normal(size=block.shape[1]) * (2 if block.shape[1] == 1 else 1) * tells
        for block, tells in zip(blocks, told, strict=True)
    ]
    x = np.concatenate(blocks, axis=1)
    signal = x @ np.concatenate(weights)
    threshold = np.quantile(signal, rng.uniform(0.5, 0.8))  # the rarer class has a fifth to a half of the records
    return Planted(x, (rng.logistic(size=records) < signal - threshold).astype(np.int64), attributes)


def ridges(experiment: Experiment) -> Record:
    """The multiple of the noise that loses least beside the best of the grid, over many tables and budgets."""
    records, tables = some(experiment, _RECORDS), range(2 if experiment.quick else _TABLES)
    repeats = 2 if experiment.quick else _REPEATS
    multiples = _MULTIPLES[2:4] if experiment.quick else _MULTIPLES
    lost: dict[Regime, dict[float, list[float]]] = {regime: {m: [] for m in multiples} for regime in _LABELS}
    for regime, label in _LABELS.items():
        for n in records:
            for number in tables:
                for epsilon in some(experiment, _BUDGETS):
                    few = ", quick" * experiment.quick
                    words = f"planted table {number} of {n}, {label}, ε={epsilon:g}, ridges {multiples}{few}"
                    found = measured(
                        experiment,
                        words,
                        lambda n=n, number=number, regime=regime, epsilon=epsilon, words=words: {  # type: ignore[misc]
                            "accuracy": _accuracies(n, number, regime, epsilon, multiples, repeats, words)
                        },
                    )["accuracy"]
                    for multiple, accuracy in zip(multiples, found, strict=True):
                        lost[regime][multiple].append(max(found) - accuracy)
    both = {multiple: [value for found in lost.values() for value in found[multiple]] for multiple in multiples}
    best = min(both, key=lambda multiple: mean(both[multiple]))
    rows: list[list[Cell]] = [
        [
            multiple,
            *(Interval.of(found[multiple]).percent() for found in lost.values()),
            Interval.of(both[multiple]).percent(),
            100 * max(both[multiple]),
        ]
        for multiple in multiples
    ]
    cases = len(both[best])
    kept = Interval.of(
        [one - other for one, other in zip(both.get(RIDGE_PER_NOISE, both[best]), both[best], strict=True)]
    )
    return Record(
        PAPER,
        "ridges",
        "The ridge of a private logistic regression on made-up tables",
        [
            "multiple of E‖b‖/√n",
            *(f"points lost, {label}" for label in _LABELS.values()),
            "lost, both",
            "lost at worst",
        ],
        rows,
        [
            f"The least is lost with {best:g}; the library's rule has {RIDGE_PER_NOISE:g}, which loses "
            f"{kept.percent()} points more",
            "Accuracy lost beside the best multiple of the same table and budget, mean ± half of the 95 % interval "
            f"over {cases} cases: {len(tables)} tables of each of {', '.join(f'{n:,}' for n in records)} records, ε of "
            f"{', '.join(f'{epsilon:g}' for epsilon in some(experiment, _BUDGETS))}; each the mean of {repeats} fits "
            f"on {_TESTED:,} further records",
            "Columns, categories, frequencies and weights are drawn at random: no record of PAW's tables is in it",
        ],
        None,
        "Made-up data costs no privacy",
    )


def planned(n: int, width: int, norm: float, epsilon: float, regime: Regime, multiple: float) -> LogisticPlan:
    """A fit of rows of this norm whose ridge is this multiple of E‖b‖/√n, and at least 1/ε."""
    asked: dict[str, Any] = {"n": n, "width": width, "target_epsilon": epsilon, "target_delta": regime.delta}
    asked |= {"data_norm": norm, "adjacency": regime.adjacency}
    usual: Any = budgeted(regime, n, width, epsilon).plan.perturbation
    return LogisticPlan.calibrated(**asked, ridge=max(1 / epsilon, noise_ridge(usual, n, width, multiple)))


def _accuracies(
    n: int, number: int, regime: Regime, epsilon: float, multiples: Sequence[float], repeats: int, words: str
) -> list[float]:
    table, generator = planted(n + _TESTED, number), generator_of(words)
    width, norm = table.x.shape[1], data_norm(table.attributes)
    every, found = np.ones((1, width), dtype=bool), []
    for multiple in multiples:
        plan = planned(n, width, norm, epsilon, regime, multiple)
        weights = fit_many(table.x[:n], table.y[:n], every, plan, repeats, generator)[0]
        found.append(float(((scores(weights, table.x[n:]).T > 0) == table.y[n:]).mean()))
    return found
