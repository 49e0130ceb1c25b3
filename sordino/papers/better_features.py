"""Tramèr & Boneh 2021, "Differentially Private Learning Needs Better Features (or Much More Data)".

Their runs shuffle and account as Poisson, with RDP and the old conversion; ours sample Poisson and pay for the
normalisation out of the same budget, by PLD. Where a figure's values are not in the text of the paper, only ours are
drawn. This file has the items that are rows of trainings; `better_features_programs` has the others.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from sordino import models
from sordino.data import load
from sordino.papers import better_features_programs as programs
from sordino.papers.better_features_programs import CNN, DATASETS, LINEAR, RATES, SCATTER_CNN, size
from sordino.papers.declarations import declared
from sordino.papers.recipe_trials import LastIterateTrial, RecipeTrial, further_examples, settings
from sordino.papers.records import Series, percent
from sordino.papers.tables import TrainingRow, TrainingTable, accuracy
from sordino.papers.trials import Experiment, Item, Result
from sordino.training import TABLE_12

PAPER = "better-features"
_SMALL_CNN = "cnn-small"
_MARKS = 10
"""Measurements along a run to ε=3: tables and figures share these runs."""
_EPOCHS = {"mnist": 40, "fashion-mnist": 40, "cifar-10": 60}
_T_AND_B_START: dict[tuple[str, str], dict[str, Any]] = {
    ("mnist", SCATTER_CNN): {"input_scale": 1.0, "orthogonal": False},
}
"""Where our recipe starts otherwise than theirs, what theirs is."""
_DECLARED = declared(PAPER)


def _row(cells: tuple[Any, ...], trial: RecipeTrial, **more: Any) -> TrainingRow:
    """Linear models are quick, and the network on MNIST differs from seed to seed by more than from the paper."""
    several = trial.recipe == LINEAR or trial == _at("mnist", SCATTER_CNN)
    return TrainingRow(cells, trial, 3 if several else 1, **more)


def _at(dataset: str, recipe: str, epsilon: float = 3.0) -> RecipeTrial:
    """The recipe at this ε; at ε=3 it is measured on its way."""
    return RecipeTrial(dataset, recipe, epsilon=epsilon, marks=_MARKS if epsilon == 3 else 1)


_TABLE_1 = TrainingTable(
    _DECLARED["table-1"],
    [
        _row((dataset, recipe, epsilon, *(theirs or [None])), _at(dataset, recipe, epsilon))
        for dataset, recipe, epsilon, *theirs in _DECLARED["table-1"].published
    ],
)


_WITHOUT_PRIVACY = {"mnist": (99.3, 99.2, 99.2), "fashion-mnist": (91.5, 91.5, 90.1), "cifar-10": (71.1, 73.8, 80.0)}


def _without_privacy(experiment: Experiment) -> list[TrainingRow]:
    epochs = experiment.pick({LINEAR: 20, SCATTER_CNN: 10, CNN: 10}, {LINEAR: 60, SCATTER_CNN: 60, CNN: 60})
    rows = []
    for dataset, published in _WITHOUT_PRIVACY.items():
        for recipe, theirs in zip((LINEAR, SCATTER_CNN, CNN), published, strict=True):
            if (dataset, recipe) != ("cifar-10", CNN) or experiment.full:
                changes = {"batch": 512, "learning_rate": RATES[dataset][1], "epochs": epochs[recipe], "averaged": 0.0}
                changes |= _T_AND_B_START.get((dataset, recipe), {})
                trial = RecipeTrial(dataset, recipe, epsilon=None, settings=settings(**changes), marks=5)
                rows.append(TrainingRow((dataset, recipe, theirs), trial))
    return rows


def _highest(results: list[Result]) -> list[Any]:
    return [percent(max(point["accuracy"] for point in result["curve"]) for result in results), len(results)]


_TABLE_11 = TrainingTable(
    _DECLARED["table-11"],
    _without_privacy,
    measure=_highest,
)


def _claimed(results: list[Result]) -> float:
    return float(results[0]["claimed"]["epsilon"])


_TABLE_19 = TrainingTable(
    _DECLARED["table-19"],
    [
        row
        for dataset, recipe, poisson, shuffled in _DECLARED["table-19"].published
        for row in (
            _row((dataset, recipe, "Poisson", None, poisson), _at(dataset, recipe)),
            _row((dataset, recipe, "shuffled", _claimed, shuffled), RecipeTrial(dataset, recipe, shuffled=True)),
        )
    ],
)
_TABLE_20 = TrainingTable(
    _DECLARED["table-20"],
    lambda experiment: [
        TrainingRow((_SMALL_CNN, size(models.cifar_small_cnn()), 60.7), _at("cifar-10", _SMALL_CNN)),
        TrainingRow((CNN, size(models.cifar_cnn()), 59.2), _at("cifar-10", CNN)),
    ],
)


_THEIRS = {"batch": 1024, "learning_rate": 1.0, "epochs": 25, "input_scale": 1.0, "orthogonal": False}
_LARGER = _THEIRS | {"batch": 2048, "learning_rate": 4.0, "epochs": 40}
_SMALLER = _LARGER | {"input_scale": 0.3}
_CANDIDATES: list[tuple[str, str, float, dict[str, Any]]] = [
    *(("fashion-mnist", LINEAR, 3.0, {"averaged": share}) for share in (0.0, 0.02, 0.1, 0.3)),
    *(("fashion-mnist", SCATTER_CNN, 3.0, {"averaged": share}) for share in (0.0, 0.1)),
    *(("mnist", SCATTER_CNN, 3.0, each) for each in (_THEIRS, _LARGER, _SMALLER, _SMALLER | {"orthogonal": True})),
    *(
        ("cifar-10", "transfer-linear", 2.0, {"learning_rate": rate, "epochs": epochs})
        for epochs, rate in product((10, 20, 40), (1.5, 3.0, 6.0))
    ),
]
_CHOICES = TrainingTable(
    _DECLARED["choices"],
    [
        TrainingRow(
            (dataset, recipe, epsilon, ", ".join(f"{name} {value}" for name, value in changes.items())),
            RecipeTrial(dataset, recipe, epsilon=epsilon, settings=settings(**changes), validation=5000),
            2 if dataset == "mnist" else 1,
        )
        for dataset, recipe, epsilon, changes in _CANDIDATES
    ],
    measure=accuracy,
)


def _as_the_budget_is_spent(item: str, recipes: Sequence[str]) -> TrainingTable:
    """Figures 1 and 2."""
    rows = [
        _row((dataset, recipe), _at(dataset, recipe), line=recipe, panel=dataset)
        for dataset, recipe in product(DATASETS, recipes)
    ]
    return TrainingTable(_DECLARED[item], rows, along="epsilon")


def _convergence(item: str, datasets: tuple[str, ...], epochs: int) -> TrainingTable:
    """Figures 3 and 11: with and without noise, at a low and a high learning rate."""

    def rows(experiment: Experiment) -> list[TrainingRow]:
        recipes = experiment.pick((LINEAR, SCATTER_CNN), (LINEAR, SCATTER_CNN, CNN))
        found = []
        for dataset, recipe, high, epsilon in product(datasets, recipes, (False, True), (None, 3.0)):
            rate, passes = RATES[dataset][high], experiment.pick(epochs, _EPOCHS[dataset])
            changes = {"batch": 512, "learning_rate": rate, "epochs": passes, "averaged": 0.0}
            changes |= _T_AND_B_START.get((dataset, recipe), {})
            changes |= {"groups": 81} if dataset == "fashion-mnist" and recipe != CNN else {}
            noise = "without noise" if epsilon is None else "with noise"
            trial = RecipeTrial(dataset, recipe, epsilon=epsilon, settings=settings(**changes), marks=5)
            panel = f"{dataset}, {'high' if high else 'low'} learning rate ({rate:g})"
            found.append(TrainingRow((dataset, recipe, rate, noise), trial, line=f"{recipe}, {noise}", panel=panel))
        return found

    return TrainingTable(_DECLARED[item], rows, accuracy, along="epoch")


_BY_RECORDS = {
    10_000: (30, 1 / 8),
    25_000: (30, 1 / 4),
    50_000: (60, 1 / 4),
    100_000: (60, 1 / 2),
    250_000: (120, 1 / 2),
}
"""Table 16: epochs (of 50,000 records) and base learning rate of linear models, by the number of records."""


def _more_records(experiment: Experiment) -> list[TrainingRow]:
    sizes: dict[int, str | None] = dict.fromkeys((10_000, 25_000, 50_000))
    if experiment.more is not None:
        sizes[50_000 + len(further_examples(str(experiment.more), load("cifar-10")))] = str(experiment.more)
    rows = []
    for n, more in sizes.items():
        epochs, rate = _BY_RECORDS[max(size for size in _BY_RECORDS if size <= n)]
        # Beyond CIFAR-10's own size, the statistics of a secret Poisson sample of about as many records.
        moments = replace(TABLE_12["cifar-10"], sample_rate=min(1.0, 50_000 / n))
        batch, passes = min(8192, n), epochs * 50_000 / n
        changes = settings(n=n, batch=batch, learning_rate=rate * 8192 / 512, epochs=passes, moments=moments)
        records = n if n < 50_000 else None
        trial = RecipeTrial("cifar-10", LINEAR, delta=1 / (2 * n), settings=changes, records=records, more=more)
        rows.append(TrainingRow((n,), trial, line=LINEAR, x=n))
    return rows


_FIGURE_4 = TrainingTable(
    _DECLARED["figure-4"],
    _more_records,
)
_FIGURE_5 = TrainingTable(
    _DECLARED["figure-5"],
    [
        TrainingRow(
            (epsilon, *published),
            RecipeTrial("cifar-10", "transfer-linear", epsilon=epsilon),
            3,
            line="EfficientNet-Lite2 (ImageNet)",
            x=epsilon,
        )
        for epsilon, published in {0.5: (None, None), 1.0: (None, None), 2.0: (92.7, 80.0)}.items()
    ],
    beside=(
        Series("paper: SimCLRv2 (ImageNet)", [2.0], [92.7], points=True),
        Series("paper: ResNeXt (CIFAR-100)", [2.0], [80.0], points=True),
    ),
)


def _batch_sizes(experiment: Experiment) -> list[TrainingRow]:
    rows = []
    bases = {"mnist": 0.5, "fashion-mnist": 1.0, "cifar-10": 0.25}
    for dataset, batch in product(experiment.pick(DATASETS[:2], DATASETS), (512, 1024, 2048, 4096)):
        epochs = experiment.pick(10, _EPOCHS[dataset])
        changes = settings(batch=batch, learning_rate=bases[dataset] * batch / 512, epochs=epochs)
        trial = RecipeTrial(dataset, CNN, settings=changes, marks=5)
        rows.append(TrainingRow((dataset, batch), trial, line=f"batch {batch}", panel=dataset))
    return rows


_FIGURE_7 = TrainingTable(
    _DECLARED["figure-7"],
    _batch_sizes,
    along="epoch",
)


def _linear_dataset(experiment: Experiment) -> str:
    return experiment.pick("mnist", "cifar-10")


def _iteration(experiment: Experiment) -> list[TrainingRow]:
    dataset = _linear_dataset(experiment)
    trials = (
        (epsilon, name, trial)
        for epsilon in (1.0, 2.0, 3.0)
        for name, trial in (
            ("DP-SGD", _at(dataset, LINEAR, epsilon)),
            ("iteration", LastIterateTrial(dataset, LINEAR, epsilon=epsilon)),
        )
    )
    return [TrainingRow((epsilon, name), trial, line=name, x=epsilon) for epsilon, name, trial in trials]


ITEMS: dict[str, Item] = {
    "table-1": _TABLE_1,
    "table-2": programs.table_2,
    "table-3": programs.table_3,
    "table-4": programs.table_4,
    "table-11": _TABLE_11,
    "table-19": _TABLE_19,
    "table-20": _TABLE_20,
    "choices": _CHOICES,
    "figure-1": _as_the_budget_is_spent("figure-1", (LINEAR, CNN)),
    "figure-2": _as_the_budget_is_spent("figure-2", (LINEAR, SCATTER_CNN, CNN)),
    "figure-3": _convergence("figure-3", ("cifar-10",), 6),
    "figure-4": _FIGURE_4,
    "figure-5": _FIGURE_5,
    "figure-6": programs.figure_6,
    "figure-7": _FIGURE_7,
    "figure-8": programs.figure_8,
    "figure-9": programs.figure_9,
    "figure-10": TrainingTable(
        _DECLARED["figure-10"], _iteration, words=lambda experiment: {"dataset": _linear_dataset(experiment)}
    ),
    "figure-11": _convergence("figure-11", ("mnist", "fashion-mnist"), 10),
}
