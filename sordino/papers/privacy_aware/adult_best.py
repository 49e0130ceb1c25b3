"""Beyond PAW: the best private model found for Adult at ε=0.1 and ε=1, with the whole workflow counted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.data import Column, Split
from sordino.data.schema import Schema
from sordino.features.encoding import CentredOneHot, OneHot
from sordino.mechanisms.streams import bound_streams, secret_from_seed
from sordino.papers.experiment import Experiment
from sordino.papers.privacy_aware.comparing import PAPER, Interval, some
from sordino.papers.privacy_aware.inputs import loaded
from sordino.papers.privacy_aware.subsets import (
    DELTA,
    UNCOUNTED,
    WHOLE,
    Benchmark,
    budgeted,
    generator_of,
    greedy_orders,
    measured,
)
from sordino.papers.records import Cell, Record
from sordino.selection.features.attributes import Attributes
from sordino.training import SGD, LinearClassifier, Plan
from sordino.training.convex import LogisticPlan, data_norm, fit_many, scores
from sordino.training.dpsgd import Training, train_steps
from sordino.training.linear import predict

_BUDGETS = (0.1, 1.0)
_FOLDS, _FOLD_REPEATS, _REPEATS = 5, 4, 40
_QUICK_RECORDS = 300
_SELECTED, _STEPS, _MOMENTUM = 12, 30, 0.9
CUTS: dict[str, tuple[float, ...]] = {
    "age": (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70),
    "education-num": (5, 8, 9, 10, 11, 12, 13, 14, 15),
    "capital-gain": (1, 3000, 5000, 7000, 10_000, 15_000),
    "capital-loss": (1, 1500, 1800, 2000, 2300),
    "hours-per-week": (20, 30, 35, 39, 41, 45, 50, 60),
}
_FEW = ("age", "education-num", "marital-status", "occupation", "capital-gain", "capital-loss", "hours-per-week")
_FEW_BINNED = ("age", "capital-gain", "capital-loss")

Learn = Callable[[Split, Split, float, int, str], tuple[list[float], float]]
"""Records to train on and to examine, ε, repeats and words for the noise → accuracies, and the ε of the workflow."""


@dataclass(frozen=True)
class Logistic:
    """Objective perturbation with Gaussian noise on encoded columns."""

    columns: tuple[Column, ...]
    centred: bool = False
    binned: tuple[str, ...] = ()

    def __call__(
        self, train: Split, examined: Split, epsilon: float, repeats: int, words: str
    ) -> tuple[list[float], float]:
        x, held, norm = self.encoded(train, examined)
        plan = _plan(len(train), x.shape[1], norm, epsilon)
        every = np.ones((1, x.shape[1]), dtype=bool)
        weights = fit_many(x, train.y, every, plan, repeats, generator_of(words))[0]
        correct = (scores(weights, held) > 0) == examined.y[:, None]
        return correct.mean(axis=0).tolist(), plan.epsilon(DELTA)

    def encoded(self, train: Split, examined: Split) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Both parts, and the public norm of a row with its 1 for the bias."""
        if self.centred:
            centred = CentredOneHot(self.columns, {name: CUTS[name] for name in self.binned})
            encode: Any = centred
            norm = centred.row_norm
        else:
            encode, norm = OneHot(self.columns), data_norm(len(self.columns))
        x, held = (encode(part.x).astype(np.float64) for part in (train, examined))
        return x, held, norm


@dataclass(frozen=True)
class SelectedLogistic:
    """The same on features that CFS-Greedy selects by private tables, within the same ε."""

    columns: tuple[Column, ...]
    target: Column

    def __call__(
        self, train: Split, examined: Split, epsilon: float, repeats: int, words: str
    ) -> tuple[list[float], float]:
        encode, generator = OneHot(self.columns), generator_of(words)
        x, held = (encode(part.x).astype(np.float64) for part in (train, examined))
        table = Benchmark(Attributes(Schema(self.columns, self.target)), train, x, held, examined.y)
        plan = budgeted(WHOLE, len(train), _SELECTED, epsilon)
        orders = greedy_orders(table, plan.tables_noise, repeats, generator)
        masks = np.stack([order.subset(_SELECTED) for order in orders])
        return table.accuracies(masks, plan.plan, 1, generator)[:, 0].tolist(), plan.epsilon


@dataclass(frozen=True)
class LinearSgd:
    """DP-SGD of a linear layer with all records in every step, and momentum."""

    encoding: Logistic
    rate: float

    def __call__(
        self, train: Split, examined: Split, epsilon: float, repeats: int, words: str
    ) -> tuple[list[float], float]:
        x, held, _ = self.encoding.encoded(train, examined)
        trainee = LinearClassifier(x.astype(np.float32), train.y, 2)
        plan, found = _sgd_plan(len(train), epsilon), []
        shown = torch.from_numpy(held.astype(np.float32))
        for number in range(repeats):
            streams = bound_streams(secret_from_seed(number), {"for": words})
            trainee.initialise(streams)
            training = Training(plan, trainee, SGD(self.rate, _MOMENTUM))
            train_steps(training, training.start(), streams, plan.steps)
            guesses = predict(trainee.parameters, shown).argmax(dim=1).numpy()
            found.append(float((guesses == examined.y).mean()))
        return found, plan.epsilon(DELTA)


def candidates() -> dict[str, Learn]:
    """All that is tried; columns, cuts and rates are public constants."""
    schema = Schema.of(loaded("adult").facts).without_absent()
    columns = schema.columns
    few = tuple(column for column in columns if column.name in _FEW)
    with_relationship = tuple(
        column for column in columns if column.name in {*_FEW, "relationship"} - {"marital-status"}
    )
    few_binned = Logistic(few, True, _FEW_BINNED)
    found: dict[str, Learn] = {
        "logistic, all columns": Logistic(columns),
        "logistic, numbers only": Logistic(tuple(column for column in columns if column.bounds is not None)),
        f"private CFS-Greedy to {_SELECTED} features, then logistic": SelectedLogistic(columns, schema.target),
        "logistic, all columns, centred": Logistic(columns, True),
        "logistic, all columns, centred, numbers in bins": Logistic(columns, True, tuple(CUTS)),
        "logistic, seven columns": Logistic(few),
        "logistic, seven columns, centred": Logistic(few, True),
        "logistic, seven columns, centred, age and capital in bins": few_binned,
        "logistic, seven columns, centred, numbers in bins": Logistic(few, True, tuple(CUTS)),
        "logistic, relationship for marital status, centred, age and capital in bins": Logistic(
            with_relationship, True, _FEW_BINNED
        ),
    }
    for rate in (0.4, 1.6, 6.4):
        found[f"linear DP-SGD (rate {rate:g}), seven columns, centred, age and capital in bins"] = LinearSgd(
            few_binned, rate
        )
    return found


def adult_best(experiment: Experiment) -> Record:
    """Candidates by cross-validation on training records, and the best of them on test records."""
    rows: list[list[Cell]] = []
    said: list[str] = []
    fold_repeats, repeats = (1, 2) if experiment.quick else (_FOLD_REPEATS, _REPEATS)
    tried = dict(list(candidates().items())[-6:-2]) if experiment.quick else candidates()
    for epsilon in some(experiment, _BUDGETS):
        validated = {
            name: _measure(experiment, name, learn, epsilon, fold_repeats, True) for name, learn in tried.items()
        }
        best = max(validated, key=lambda name: mean(validated[name]["accuracies"]))
        tested = {name: tried[name] for name in dict.fromkeys([next(iter(tried)), best])}
        examined = {name: _measure(experiment, name, learn, epsilon, repeats, False) for name, learn in tested.items()}
        for name, result in validated.items():
            row: list[Cell] = [epsilon, name, Interval.of(result["accuracies"]).percent(), result["epsilon"]]
            on_test = examined.get(name)
            if on_test is None:
                rows.append([*row, None, None, ""])
            else:
                values = on_test["accuracies"]
                told = f"{100 * mean(values):.2f} ± {100 * stdev(values):.2f}"
                rows.append([*row, told, on_test["epsilon"], "chosen" if name == best else "for comparison"])
        values = examined[best]["accuracies"]
        said.append(
            f"ε={epsilon:g}: {best}, with {100 * mean(values):.2f} ± {100 * stdev(values):.2f} % of test records right "
            f"(mean ± sd over {len(values)} trainings; 95 % interval of the mean ± "
            f"{100 * float(Interval.of(values).half or 0):.2f})"
        )
    return Record(
        PAPER,
        "adult-best",
        "The best private model found for Adult",
        ["ε", "model", "held out", "ε spent", "on test (± sd)", "ε spent on test", "which is"],
        rows,
        [
            *said,
            "ε is that of the whole workflow at δ=1e-5, planned, by PLD: all that is read off the records beside the "
            "training is the tables of private CFS, and they are in it",
            f"Held out: {_FOLDS} folds of the training records, {fold_repeats} trainings each, mean ± half of the 95 % "
            "interval over trainings. Test: PAW's 9,750 records, which nothing was chosen by",
            "Centred: an indicator less 1/m, a number less ½; the public norm of a row is then less, and the noise "
            f"with it. Seven columns: {', '.join(_FEW)}. Bins lie between public numbers: scaled to its bounds, a "
            "capital gain of some thousand dollars would hardly count",
            "PAW: 78.58 % at ε=0.1 with a selection that its ε does not cover",
        ],
        None,
        "Which columns, cuts and model to try, and the choice among them, came from the training records of a public "
        "benchmark, uncounted; on private records that choice would have to be made by public knowledge or paid for",
    )


def _measure(
    experiment: Experiment, name: str, learn: Learn, epsilon: float, repeats: int, validate: bool
) -> dict[str, Any]:
    where = f"{_FOLDS} folds" if validate else "test"
    words = f"adult best: {name}, ε={epsilon:g}, {where}, {repeats} repeats{', quick' * experiment.quick}"

    def compute() -> dict[str, Any]:
        train, test = _parts(experiment.quick)
        if not validate:
            accuracies, spent = learn(train, test, epsilon, repeats, words)
            return {"accuracies": accuracies, "epsilon": spent}
        order = np.random.default_rng(0).permutation(len(train))
        accuracies, spent = [], 0.0
        for number, held in enumerate(np.array_split(order, _FOLDS)):
            others = np.setdiff1d(order, held)
            found, cost = learn(train.take(others), train.take(held), epsilon, repeats, f"{words}, fold {number}")
            accuracies, spent = accuracies + found, max(spent, cost)
        return {"accuracies": accuracies, "epsilon": spent}

    return measured(experiment, words, compute)


@lru_cache(maxsize=2)
def _parts(quick: bool) -> tuple[Split, Split]:
    parts = loaded("adult").workflow_split(0)
    few = np.arange(_QUICK_RECORDS)
    return (parts.train.take(few), parts.test.take(few)) if quick else (parts.train, parts.test)


@lru_cache(maxsize=64)
def _plan(n: int, width: int, norm: float, epsilon: float) -> LogisticPlan:
    plan = budgeted(UNCOUNTED, n, width, epsilon).plan
    return LogisticPlan(norm, plan.ridge, plan.perturbation, plan.tolerance, adjacency=plan.adjacency)


@lru_cache(maxsize=16)
def _sgd_plan(n: int, epsilon: float) -> Plan:
    return Plan.calibrated(
        n=n, expected_batch_size=n, epochs=_STEPS, target_epsilon=epsilon, target_delta=DELTA, l2_clip=1.0
    )
