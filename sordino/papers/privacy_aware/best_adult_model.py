"""Beyond PAW: the best private model for Adult at ε=0.1 and ε=1: whole workflow counted, and choice uncounted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger, RepeatAndSelect, calibration, composed, cost
from sordino.data import Column, Schema, Split, set_aside
from sordino.features import CentredOneHot, OneHot, neutral_cuts
from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.feature_tables import (
    DELTA,
    RIDGE_WORDS,
    WHOLE,
    Benchmark,
    budgeted,
    generator_of,
    linear_accuracy,
    measured,
    selection_event,
    streams_of,
)
from sordino.papers.privacy_aware.intervals import Interval
from sordino.papers.privacy_aware.networks import loaded
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment, Result
from sordino.selection import Attributes, best_of_trials
from sordino.training import (
    SGD,
    GaussianObjective,
    LogisticPlan,
    cached_plan,
    data_norm,
    fit_many,
    noise_ridge,
    scores,
)

_BUDGETS = (0.1, 1.0)
_FOLDS, _FOLD_REPEATS, _REPEATS = 5, 4, 40
_QUICK_RECORDS = 300
_SELECTED, _STEPS, _MOMENTUM = 12, 30, 0.9
_BINS, _MEAN_TRIALS = 10, 5.0
IN_ADVANCE = f"fixed in advance: logistic, all columns, centred, numbers in {_BINS} bins by their bounds"
_WHOLE, _CHOICE = "whole workflow counted", "choice uncounted"
CUTS: dict[str, tuple[float, ...]] = {
    "age": (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70),
    "education-num": (5, 8, 9, 10, 11, 12, 13, 14, 15),
    "capital-gain": (1, 3000, 5000, 7000, 10_000, 15_000),
    "capital-loss": (1, 1500, 1800, 2000, 2300),
    "hours-per-week": (20, 30, 35, 39, 41, 45, 50, 60),
}
_FEW = ("age", "education-num", "marital-status", "occupation", "capital-gain", "capital-loss", "hours-per-week")
_FEW_BINNED = ("age", "capital-gain", "capital-loss")


Learn = Callable[[Split, Split, float, int, str], Result]
"""Records to train on and to examine, ε, repeats, and words for the noise: accuracies of the repeats, and their ε."""


def _priced(accuracies: list[float], *events: Event) -> Result:
    found = cost(composed(events), DELTA)
    return {"accuracies": accuracies, "epsilon": found.epsilon, "accountant": found.accountant}


@dataclass(frozen=True)
class Logistic:
    """Objective perturbation with Gaussian noise on encoded columns."""

    columns: tuple[Column, ...]
    centred: bool = False
    cuts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __call__(self, train: Split, examined: Split, epsilon: float, repeats: int, words: str) -> Result:
        x, held, norm = self.encoded(train, examined)
        plan = _plan(len(train), x.shape[1], norm, epsilon)
        weights = fit_many(x, train.y, _every(x), plan, repeats, generator_of(words))[0]
        correct = (scores(weights, held) > 0) == examined.y[:, None]
        return _priced(correct.mean(axis=0).tolist(), plan.event)

    def encoded(self, train: Split, examined: Split) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Both parts, and the public norm of a row with its 1 for the bias."""
        if self.centred:
            centred = CentredOneHot(self.columns, self.cuts)
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

    def __call__(self, train: Split, examined: Split, epsilon: float, repeats: int, words: str) -> Result:
        encode, generator = OneHot(self.columns), generator_of(words)
        x, held = (encode(part.x).astype(np.float64) for part in (train, examined))
        table = Benchmark(Attributes(Schema(self.columns, self.target)), train, x, held, examined.y)
        plan = budgeted(WHOLE, len(train), _SELECTED, epsilon)
        orders = table.greedy_orders(plan.tables_noise, repeats, generator)
        masks = np.stack([order.subset(_SELECTED) for order in orders])
        found = table.accuracies(masks, plan.plan, 1, generator)[:, 0].tolist()
        return _priced(found, selection_event(epsilon), plan.plan.event)


@dataclass(frozen=True)
class ChosenLogistic:
    """The best of a random number of fits, each of an encoding drawn at random, by a noisy score: all of it charged.

    Guarantee: `tune`'s. The scores read a fifth of the records, the fits the others; each part pays no more than ε.
    Encodings share the noise but not the ridge; the smallest ridge reveals most, and its event is charged.
    """

    encodings: tuple[Logistic, ...]

    def __call__(self, train: Split, examined: Split, epsilon: float, repeats: int, words: str) -> Result:
        inner, validation = set_aside(train)
        encoded = []
        for encoding in self.encodings:
            x, scored, norm = encoding.encoded(inner, validation)
            encoded.append((x, scored, encoding.encoded(inner, examined)[1], norm))
        plans, training, score = chosen_plans(
            len(inner), tuple((x.shape[1], norm) for x, _, _, norm in encoded), epsilon
        )
        generator, found = generator_of(words), []

        def fit_and_score(place: int) -> tuple[float, float]:
            x, scored, shown, _ = encoded[place]
            weights = fit_many(x, inner.y, _every(x), plans[place], 1, generator)[0, 0]
            right = int(((scores(weights, scored) > 0) == validation.y).sum())
            noisy = right + float(generator.normal(0, score.noise_multiplier))
            return float(((scores(weights, shown) > 0) == examined.y).mean()), noisy

        for _ in range(repeats):
            ledger = Ledger(epsilon, DELTA)
            best = best_of_trials(
                range(len(encoded)),
                fit_and_score,
                ledger,
                training=training,
                score=score,
                mean_trials=_MEAN_TRIALS,
                seed=int(generator.integers(2**62)),
            )
            found.append(best.model)
        spent = ledger.cost()
        return {"accuracies": found, "epsilon": spent.epsilon, "accountant": spent.accountant}


@lru_cache(maxsize=16)
def chosen_plans(
    n: int, shapes: tuple[tuple[int, float], ...], epsilon: float
) -> tuple[tuple[LogisticPlan, ...], Event, Gaussian]:
    """A plan for each encoding of so many features and such a norm, what a fit costs at most, and what a score does."""

    def plans(sigma: float) -> tuple[LogisticPlan, ...]:
        noise = GaussianObjective(sigma)
        return tuple(LogisticPlan(norm, noise_ridge(noise, n, width), noise) for width, norm in shapes)

    def most(sigma: float) -> Event:
        return min(plans(sigma), key=lambda plan: plan.ridge).event

    def least_noise(event: Callable[[float], Event]) -> float:
        return calibration.noise_multiplier(lambda sigma: RepeatAndSelect(event(sigma), _MEAN_TRIALS), epsilon, DELTA)

    sigma = least_noise(most)
    return plans(sigma), most(sigma), Gaussian(least_noise(Gaussian))


@dataclass(frozen=True)
class LinearSgd:
    """DP-SGD of a linear layer with all records in every step, and momentum."""

    encoding: Logistic
    rate: float

    def __call__(self, train: Split, examined: Split, epsilon: float, repeats: int, words: str) -> Result:
        x, held, _ = self.encoding.encoded(train, examined)
        parts = x.astype(np.float32), train.y, held.astype(np.float32), examined.y
        n, optimiser = len(train), SGD(self.rate, _MOMENTUM)
        plan = cached_plan(
            n=n, expected_batch_size=n, epochs=_STEPS, target_epsilon=epsilon, target_delta=DELTA, l2_clip=1.0
        )
        found = [linear_accuracy(plan, optimiser, parts, streams_of(words, number)) for number in range(repeats)]
        return _priced(found, plan.event)


def _every(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.ones((1, x.shape[1]), dtype=bool)


def counted() -> dict[str, Learn]:
    """What needs nothing of Adult but what its ε counts: columns, categories and bounds are documented."""
    columns = Schema.of(loaded("adult").facts).columns  # with categories that no record has: that none has is a look
    cuts = neutral_cuts(columns, _BINS)
    binned, centred = Logistic(columns, True, cuts), Logistic(columns, True)
    numbers = tuple(column for column in columns if column.bounds is not None)
    return {
        IN_ADVANCE: binned,
        "fixed in advance: logistic, all columns": Logistic(columns),
        "charged choice: the numbers in bins, the numbers as they are, or the numbers in bins alone": ChosenLogistic(
            (binned, centred, Logistic(numbers, True, cuts))
        ),
    }


def candidates() -> dict[str, Learn]:
    """What was chosen among on the training records; columns, cuts and rates came from these records, too."""
    schema = Schema.of(loaded("adult").facts).without_absent()
    columns = schema.columns
    few = tuple(column for column in columns if column.name in _FEW)
    with_relationship = tuple(
        column for column in columns if column.name in {*_FEW, "relationship"} - {"marital-status"}
    )
    few_cuts = {name: CUTS[name] for name in _FEW_BINNED}
    few_binned = Logistic(few, True, few_cuts)
    every: dict[str, Learn] = {
        "logistic, all columns": Logistic(columns),
        "logistic, numbers only": Logistic(tuple(column for column in columns if column.bounds is not None)),
        f"private CFS-Greedy to {_SELECTED} features, then logistic": SelectedLogistic(columns, schema.target),
        "logistic, all columns, centred": Logistic(columns, True),
        "logistic, all columns, centred, numbers in bins": Logistic(columns, True, CUTS),
        "logistic, seven columns": Logistic(few),
        "logistic, seven columns, centred": Logistic(few, True),
        "logistic, seven columns, centred, age and capital in bins": few_binned,
        "logistic, seven columns, centred, numbers in bins": Logistic(
            few, True, {name: cuts for name, cuts in CUTS.items() if name in _FEW}
        ),
        "logistic, relationship for marital status, centred, age and capital in bins": Logistic(
            with_relationship, True, few_cuts
        ),
    }
    sgd = "linear DP-SGD (rate {:g}), seven columns, centred, age and capital in bins"
    return every | {sgd.format(rate): LinearSgd(few_binned, rate) for rate in (0.4, 1.6, 6.4)}


def adult_best(experiment: Experiment, item: Declaration) -> Record:
    """What is fixed in advance or chosen within ε; and beside it the best of candidates by cross-validation."""
    rows: list[list[Cell]] = []
    said: list[str] = []
    fold_repeats, repeats = (1, 2) if experiment.quick else (_FOLD_REPEATS, _REPEATS)
    tried = dict(list(candidates().items())[-6:-2]) if experiment.quick else candidates()
    for epsilon in experiment.some(_BUDGETS):
        for name, learn in counted().items():
            result = _measure(experiment, name, learn, epsilon, repeats, False)
            which = "the answer" if name == IN_ADVANCE else "for comparison"
            row: list[Cell] = [epsilon, _WHOLE, name, None, _mean_and_deviation(result)]
            rows.append([*row, result["epsilon"], result["accountant"], which])
            if name == IN_ADVANCE:
                said.append(f"ε={epsilon:g}, {_WHOLE}: {_right(name, result)}")
        validated = {
            name: _measure(experiment, name, learn, epsilon, fold_repeats, True) for name, learn in tried.items()
        }
        best = max(validated, key=lambda name: mean(validated[name]["accuracies"]))
        examined = _measure(experiment, best, tried[best], epsilon, repeats, False)
        for name, result in validated.items():
            row = [epsilon, _CHOICE, name, Interval.of(result["accuracies"]).percent()]
            tested, which = (_mean_and_deviation(examined), "chosen") if name == best else (None, "")
            rows.append([*row, tested, result["epsilon"], result["accountant"], which])
        said.append(f"ε={epsilon:g}, {_CHOICE}: {_right(best, examined)}")
    return item.record(
        experiment,
        rows,
        follows=said,
        words={"fold_repeats": f"{fold_repeats}", "repeats": f"{repeats}"},
    )


def _mean_and_deviation(result: Result) -> str:
    values = result["accuracies"]
    return f"{100 * mean(values):.2f} ± {100 * stdev(values):.2f}"


def _right(name: str, result: Result) -> str:
    values = result["accuracies"]
    return (
        f"{name}, with {_mean_and_deviation(result)} % of test records right (mean ± sd over {len(values)} trainings; "
        f"95 % interval of the mean ± {100 * float(Interval.of(values).half or 0):.2f})"
    )


def _measure(experiment: Experiment, name: str, learn: Learn, epsilon: float, repeats: int, validate: bool) -> Result:
    where = f"{_FOLDS} folds" if validate else "test"
    words = f"adult: {name}, {RIDGE_WORDS}, ε={epsilon:g}, {where}, {repeats} repeats"

    def compute(words: str) -> Result:
        train, test = _parts(experiment.quick)
        if not validate:
            return learn(train, test, epsilon, repeats, words)
        order = np.random.default_rng(0).permutation(len(train))
        found = []
        for number, held in enumerate(np.array_split(order, _FOLDS)):
            others = np.setdiff1d(order, held)
            found.append(learn(train.take(others), train.take(held), epsilon, repeats, f"{words}, fold {number}"))
        dearest = max(found, key=lambda fold: float(fold["epsilon"]))
        return dearest | {"accuracies": [value for fold in found for value in fold["accuracies"]]}

    return measured(experiment, words, compute)


@lru_cache(maxsize=2)
def _parts(quick: bool) -> tuple[Split, Split]:
    parts = loaded("adult").workflow_split(0)
    few = np.arange(_QUICK_RECORDS)
    return (parts.train.take(few), parts.test.take(few)) if quick else (parts.train, parts.test)


@lru_cache(maxsize=64)
def _plan(n: int, width: int, norm: float, epsilon: float) -> LogisticPlan:
    return LogisticPlan.calibrated(n=n, width=width, target_epsilon=epsilon, target_delta=DELTA, data_norm=norm)
