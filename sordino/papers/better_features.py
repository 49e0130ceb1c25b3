"""Tramèr & Boneh 2021, "Differentially Private Learning Needs Better Features (or Much More Data)".

Their runs shuffle and account as Poisson, with RDP and the old conversion; ours sample Poisson and pay for the
normalisation out of the same budget, by PLD. Where a figure's values are not in the text of the paper, only ours are
drawn.
"""

import random
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import product
from math import log, sqrt
from statistics import median
from typing import Any

from torch import nn

from sordino import models
from sordino.budget import Composed, Iteration, PoissonGaussian, Repeated, calibration, cost, rdp
from sordino.data import load
from sordino.papers.declarations import Declaration, Item
from sordino.papers.recipe_trials import LastIterateTrial, RecipeTrial, further_examples, settings
from sordino.papers.records import Cell, Record, Series, percent
from sordino.papers.tables import TrainingRow, accuracy, classic_noise, training_record
from sordino.papers.trials import Experiment, Result
from sordino.training import TABLE_12

DATASETS = ("mnist", "fashion-mnist", "cifar-10")
LINEAR, SCATTER_CNN, CNN = "scatter-linear", "scatter-cnn", "cnn"
_DELTA = 1e-5
_MARKS = 10
"""Measurements along a run to ε=3: tables and figures share these runs."""
_EPOCHS = {"mnist": 40, "fashion-mnist": 40, "cifar-10": 60}
_RATES = {"mnist": (0.5, 8.0), "fashion-mnist": (1.0, 16.0), "cifar-10": (0.25, 4.0)}
"""Low and high learning rates of Table 14."""


def _at(dataset: str, recipe: str, epsilon: float = 3.0) -> RecipeTrial:
    """The recipe at this ε; at ε=3 it is measured on its way."""
    return RecipeTrial(dataset, recipe, epsilon=epsilon, marks=_MARKS if epsilon == 3 else 1)


def _row(cells: tuple[Any, ...], trial: RecipeTrial, **more: Any) -> TrainingRow:
    """Linear models under three seeds, and small networks at the headline budget of ε=3."""
    several = trial.recipe == LINEAR or (trial.dataset != "cifar-10" and trial == _at(trial.dataset, trial.recipe))
    return TrainingRow(cells, trial, 3 if several else 1, **more)


def _their_noise(trial: RecipeTrial) -> float:
    """σ of the trial by T&B's accountant, at ε=3 or the trial's own."""
    rate, steps, before = trial.steps
    sigma = classic_noise(rate, steps, trial.epsilon or 3.0, _DELTA, before=before)
    assert sigma is not None
    return sigma


def _as_theirs(dataset: str) -> RecipeTrial:
    """The linear model at ε=3 by T&B's accountant, with the noise that it asks for and without averaging."""
    theirs = RecipeTrial(dataset, LINEAR)
    rate, steps, before = theirs.steps
    training = Repeated(PoissonGaussian(rate, _their_noise(theirs)), steps)
    spent = cost(training if before is None else Composed((before, training)), _DELTA).epsilon
    # Below ε=3 the recipe's learning rate shrinks, and theirs does not.
    changes = settings(averaged=0.0, learning_rate=theirs.made.settings.learning_rate * 3.0 / spent)
    return replace(theirs, epsilon=spent, settings=changes)


def _table_1(experiment: Experiment, item: Declaration) -> Record:
    rows = []
    for dataset, recipe, epsilon, *theirs in item.published:
        trial = _at(dataset, recipe, epsilon)
        sigma = partial(_cell_of_their_noise, trial)
        rows.append(_row((dataset, recipe, epsilon, *(theirs or [None]), sigma), trial))
        if (recipe, epsilon) == (LINEAR, 3.0):
            cells = (dataset, f"{recipe}, T&B's σ, no averaging", epsilon, *theirs, sigma)
            rows.append(_row(cells, _as_theirs(dataset)))
    return training_record(experiment, item, rows)


def _cell_of_their_noise(trial: RecipeTrial, results: list[Result]) -> Cell:
    return _their_noise(trial)


def _table_2(experiment: Experiment, item: Declaration) -> Record:
    """Normalisation of features, without noise: published are none, by groups, by the data's moments, the highest."""
    rows: list[list[Cell]] = []
    for dataset, rate, *published in item.published:
        kinds: dict[str, list[dict[str, Any]]] = {
            "none": [{}],
            "group": [{"groups": groups} for groups in (9, 27, 81)],
            "data": [{"moments": TABLE_12[dataset]}],
        }
        usual = {"groups": None, "moments": None, "batch": 512, "learning_rate": rate, "epochs": 20}
        highest: list[float] = []
        for (kind, variants), theirs in zip(kinds.items(), published, strict=False):
            candidates = []
            for variant in variants:
                changes = settings(averaged=0.0, **usual | variant)
                found = experiment.repeated(RecipeTrial(dataset, LINEAR, epsilon=None, settings=changes, marks=10))
                candidates.append((variant.get("groups"), found))
            groups, best = max(candidates, key=lambda candidate: candidate[1][0]["accuracy"])
            name = kind if groups is None else f"{kind}, {groups} groups"
            rows.append([dataset, name, theirs, *accuracy(best)])
            highest += [point["accuracy"] for _, results in candidates for run in results for point in run["curve"]]
        rows.append([dataset, "highest seen", published[-1], percent([max(highest)]), 1])
    return item.record(experiment, rows)


def _grid(experiment: Experiment, dataset: str) -> list[tuple[dict[str, float], Result]]:
    """Settings of Table 12 for linear models and what they gave: some, drawn by a fixed seed, or in full all."""
    colour = dataset == "cifar-10"
    rates = (1 / 8, 1 / 4, 1 / 2, 1.0) if colour else (1 / 4, 1 / 2, 1.0, 2.0)
    epochs = (30, 60, 120) if colour else (15, 25, 40)
    norms: list[dict[str, Any]] = [{"groups": groups, "moments": None} for groups in (9, 27, 81)]
    norms += [{"groups": None, "moments": replace(TABLE_12[dataset], noise_multiplier=sigma)} for sigma in (6.0, 8.0)]
    every = list(product((512, 1024, 2048, 4096, 8192, 16_384), rates, epochs, norms))
    some = 2 if experiment.quick else 4 if colour else 12
    found = []
    for batch, rate, passes, norm in experiment.pick(random.Random(12).sample(every, some), every):
        changes = settings(batch=batch, learning_rate=rate * batch / 512, epochs=passes, **norm)
        result = experiment.run(RecipeTrial(dataset, LINEAR, settings=changes))
        found.append(({"batch": batch, "base learning rate": rate, "epochs": passes}, result))
    return found


def _table_3(experiment: Experiment, item: Declaration) -> Record:
    """How much the hyper-parameters matter."""
    rows: list[list[Cell]] = []
    for dataset, *theirs in item.published:
        found = [100 * result["accuracy"] for _, result in _grid(experiment, dataset)]
        middle = median(found)
        values = min(found), max(found), middle, median(abs(value - middle) for value in found)
        for name, figure, value in zip(("min", "max", "median", "MAD"), theirs, values, strict=True):
            rows.append([dataset, LINEAR, name, figure, f"{value:.2f}", len(found)])
    return item.record(experiment, rows)


def _figure_8(experiment: Experiment, item: Declaration) -> Record:
    """One hyper-parameter at a time, over the settings of Table 3."""
    series: list[Series] = []
    rows: list[list[Cell]] = []
    for dataset, name in product(DATASETS, ("batch", "base learning rate", "epochs")):
        groups = defaultdict(list)
        for values, result in _grid(experiment, dataset):
            groups[values[name]].append(100 * result["accuracy"])
        places = sorted(groups)
        for word, chosen in (("median", median), ("maximum", max)):
            series.append(Series(f"{dataset}, {word}", places, [chosen(groups[place]) for place in places], name))
        for place in places:
            middle, most = median(groups[place]), max(groups[place])
            rows.append([dataset, name, place, f"{middle:.2f}", f"{most:.2f}", len(groups[place])])
    return item.record(experiment, rows, series)


def _size(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def _table_4(experiment: Experiment, item: Declaration) -> Record:
    """Sizes of the models."""
    networks: list[tuple[str, int, nn.Module]] = [
        ("scatter-linear, 28×28", 40_000, models.linear(81 * 7 * 7, 10)),
        ("scatter-CNN, 28×28", 33_000, models.mnist_scatter_cnn()),
        ("CNN, 28×28", 26_000, models.mnist_cnn()),
        ("scatter-linear, CIFAR-10", 155_000, models.linear(243 * 8 * 8, 10)),
        ("scatter-CNN, CIFAR-10", 187_000, models.cifar_scatter_cnn()),
        ("CNN, CIFAR-10", 551_000, models.cifar_cnn()),
        ("small CNN, CIFAR-10", 168_000, models.cifar_small_cnn()),
    ]
    return item.record(experiment, [[name, theirs, _size(network)] for name, theirs, network in networks])


def _small_batches(dataset: str, recipe: str, epsilon: float | None, rate: float, epochs: float) -> RecipeTrial:
    """Batches of 512 without averaging, from T&B's own start, as their Tables 11 and 14 have it."""
    changes = {"batch": 512, "learning_rate": rate, "epochs": epochs, "averaged": 0.0}
    if (dataset, recipe) == ("mnist", SCATTER_CNN):  # ours starts otherwise
        changes |= {"input_scale": 1.0, "orthogonal": False}
    return RecipeTrial(dataset, recipe, epsilon=epsilon, settings=settings(**changes), marks=5)


def _table_11(experiment: Experiment, item: Declaration) -> Record:
    """Without privacy."""
    epochs = experiment.pick({LINEAR: 20, SCATTER_CNN: 10, CNN: 10}, dict.fromkeys((LINEAR, SCATTER_CNN, CNN), 60))
    rows = [
        TrainingRow(
            (dataset, recipe, theirs), _small_batches(dataset, recipe, None, _RATES[dataset][1], epochs[recipe])
        )
        for dataset, recipe, theirs in item.published
        if (dataset, recipe) != ("cifar-10", CNN) or experiment.full
    ]

    def highest(results: list[Result]) -> list[Cell]:
        return [percent(max(point["accuracy"] for point in result["curve"]) for result in results), len(results)]

    return training_record(experiment, item, rows, highest)


def _table_19(experiment: Experiment, item: Declaration) -> Record:
    rows = []
    for dataset, recipe, poisson, shuffled in item.published:
        claimed = RecipeTrial(dataset, recipe, shuffled=True)
        rows += [
            _row((dataset, recipe, "Poisson", None, poisson), _at(dataset, recipe)),
            _row((dataset, recipe, "shuffled", lambda found: found[0]["claimed"]["epsilon"], shuffled), claimed),
        ]
    return training_record(experiment, item, rows)


def _table_20(experiment: Experiment, item: Declaration) -> Record:
    rows = [
        TrainingRow((recipe, _size(network), theirs), _at("cifar-10", recipe))
        for recipe, network, theirs in (
            ("cnn-small", models.cifar_small_cnn(), 60.7),
            (CNN, models.cifar_cnn(), 59.2),
        )
    ]
    return training_record(experiment, item, rows)


_THEIRS = {"batch": 1024, "learning_rate": 1.0, "epochs": 25, "input_scale": 1.0, "orthogonal": False}
_LARGER = _THEIRS | {"batch": 2048, "learning_rate": 4.0, "epochs": 40}
_SMALLER = _LARGER | {"input_scale": 0.3}


def _choices(experiment: Experiment, item: Declaration) -> Record:
    candidates: list[tuple[str, str, float, dict[str, Any]]] = [
        *(("fashion-mnist", LINEAR, 3.0, {"averaged": share}) for share in (0.0, 0.02, 0.1, 0.3)),
        *(("fashion-mnist", SCATTER_CNN, 3.0, {"averaged": share}) for share in (0.0, 0.1)),
        *(("mnist", SCATTER_CNN, 3.0, each) for each in (_THEIRS, _LARGER, _SMALLER, _SMALLER | {"orthogonal": True})),
        *(
            ("cifar-10", "transfer-linear", 2.0, {"learning_rate": rate, "epochs": epochs})
            for epochs, rate in product((10, 20, 40), (1.5, 3.0, 6.0))
        ),
    ]
    rows = [
        TrainingRow(
            (dataset, recipe, epsilon, ", ".join(f"{name} {value}" for name, value in changes.items())),
            RecipeTrial(dataset, recipe, epsilon=epsilon, settings=settings(**changes), validation=5000),
            2 if dataset == "mnist" else 1,
        )
        for dataset, recipe, epsilon, changes in candidates
    ]
    return training_record(experiment, item, rows, accuracy)


def _as_the_budget_is_spent(experiment: Experiment, item: Declaration) -> Record:
    """Figures 1 and 2."""
    rows = [
        _row((dataset, recipe), _at(dataset, recipe), line=recipe, panel=dataset)
        for dataset, recipe in product(DATASETS, item.given["models"])
    ]
    return training_record(experiment, item, rows, along="epsilon")


def _convergence(experiment: Experiment, item: Declaration) -> Record:
    """Figures 3 and 11: with and without noise, at a low and a high learning rate."""
    recipes = experiment.pick((LINEAR, SCATTER_CNN), (LINEAR, SCATTER_CNN, CNN))
    rows = []
    for dataset, recipe, high, epsilon in product(item.given["data"], recipes, (False, True), (None, 3.0)):
        rate, epochs = _RATES[dataset][high], experiment.pick(item.given["epochs"], _EPOCHS[dataset])
        trial = _small_batches(dataset, recipe, epsilon, rate, epochs)
        if dataset == "fashion-mnist" and recipe != CNN:
            trial = replace(trial, settings=settings(**dict(trial.settings), groups=81))
        noise = "without noise" if epsilon is None else "with noise"
        panel = f"{dataset}, {'high' if high else 'low'} learning rate ({rate:g})"
        rows.append(TrainingRow((dataset, recipe, rate, noise), trial, line=f"{recipe}, {noise}", panel=panel))
    return training_record(experiment, item, rows, accuracy, along="epoch")


_BY_RECORDS = {
    10_000: (30, 1 / 8),
    25_000: (30, 1 / 4),
    50_000: (60, 1 / 4),
    100_000: (60, 1 / 2),
    250_000: (120, 1 / 2),
}
"""Table 16: epochs (of 50,000 records) and base learning rate of linear models, by the number of records."""


def _figure_4(experiment: Experiment, item: Declaration) -> Record:
    """Fewer records, or more."""
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
        rows.append(TrainingRow(("cifar-10", LINEAR, n), trial, line=LINEAR, panel="cifar-10", x=n))
    # Networks on CIFAR-10 take hours: the three models are compared on Fashion-MNIST, at its recipes' own settings.
    for recipe, n in product((LINEAR, SCATTER_CNN, CNN), item.given["fashion"]):
        trial = RecipeTrial("fashion-mnist", recipe, delta=1 / (2 * n), records=n if n < 60_000 else None)
        rows.append(TrainingRow(("fashion-mnist", recipe, n), trial, line=recipe, panel="fashion-mnist", x=n))
    return training_record(experiment, item, rows)


def _figure_5(experiment: Experiment, item: Declaration) -> Record:
    """Transfer from public images."""
    published = {0.5: (None, None), 1.0: (None, None), 2.0: (92.7, 80.0)}
    ours = "EfficientNet-Lite2 (ImageNet)"
    rows = [
        TrainingRow((epsilon, *theirs), RecipeTrial("cifar-10", "transfer-linear", epsilon=epsilon), 3, ours, x=epsilon)
        for epsilon, theirs in published.items()
    ]
    # Without noise: what these features can give at all.
    rows.append(TrainingRow(("∞", None, None), RecipeTrial("cifar-10", "transfer-linear", epsilon=None), 3))
    return training_record(experiment, item, rows)


def _figure_7(experiment: Experiment, item: Declaration) -> Record:
    """Batch sizes."""
    rows = []
    for dataset, batch in product(experiment.pick(DATASETS[:2], DATASETS), (512, 1024, 2048, 4096)):
        epochs = experiment.pick(10, _EPOCHS[dataset])
        changes = settings(batch=batch, learning_rate=_RATES[dataset][0] * batch / 512, epochs=epochs)
        trial = RecipeTrial(dataset, CNN, settings=changes, marks=5)
        rows.append(TrainingRow((dataset, batch), trial, line=f"batch {batch}", panel=dataset))
    return training_record(experiment, item, rows, along="epoch")


def _figure_10(experiment: Experiment, item: Declaration) -> Record:
    """DP-SGD beside amplification by iteration."""
    dataset = experiment.pick("mnist", "cifar-10")
    rows = []
    for epsilon in (1.0, 2.0, 3.0):
        iteration = LastIterateTrial(dataset, LINEAR, epsilon=epsilon)
        for name, trial in (("DP-SGD", _at(dataset, LINEAR, epsilon)), ("iteration", iteration)):
            rows.append(TrainingRow((epsilon, name), trial, line=name, x=epsilon))
    return training_record(experiment, item, rows, words={"dataset": dataset})


def _figure_6(experiment: Experiment, item: Declaration) -> Record:
    """Noise against the sampling rate."""
    n, epochs = 50_000, 60
    batches = (512, 4096) if experiment.quick else (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
    rates = [batch / n for batch in batches]
    sigmas = [_sigma(rate, round(epochs / rate), 3.0) for rate in rates]
    middle = len(batches) // 2
    theirs = [classic_noise(rate, round(epochs / rate), 3.0, _DELTA) for rate in rates]
    roots = [sigmas[middle] * (rate / rates[middle]) ** 0.5 for rate in rates]
    rows: list[list[Cell]] = [list(row) for row in zip(batches, rates, theirs, sigmas, roots, strict=True)]
    return item.record(experiment, rows, [Series("PLD", rates, sigmas), Series("c·√rate", rates, roots, points=True)])


def _figure_9(experiment: Experiment, item: Declaration) -> Record:
    """Noise of amplification by iteration."""
    n, batch, epochs = 50_000, 512, 10
    steps = n // batch
    every = (0.05, 0.1, 0.15, 0.19, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 50.0, 80.0)
    budgets = (0.15, 3.0) if experiment.quick else every
    to_63 = tuple(order for order in rdp.CLASSIC_ORDERS if order <= 63)
    old = "DP-SGD as T&B (RDP to order 63, old)"
    lines: dict[str, list[float | None]] = defaultdict(list)
    for epsilon in budgets:
        iteration = calibration.noise_multiplier(
            lambda sigma: Iteration(epochs, steps, sigma), epsilon, _DELTA, "zero-out"
        )
        lines["DP-SGD (PLD)"].append(_sigma(batch / n, epochs * steps, epsilon))
        lines["iteration (RDP)"].append(iteration)
        lines[old].append(classic_noise(batch / n, epochs * steps, epsilon, _DELTA, to_63))
        lines["iteration as T&B (replace-one, old)"].append(_iteration_sigma_old(epochs, steps, epsilon))
    series = []
    for name, sigmas in lines.items():
        found = [(epsilon, sigma) for epsilon, sigma in zip(budgets, sigmas, strict=True) if sigma is not None]
        series.append(Series(name, [x for x, _ in found], [y for _, y in found], points="T&B" in name))
    rows: list[list[Cell]] = [list(row) for row in zip(budgets, *lines.values(), strict=True)]
    return item.record(experiment, rows, series)


def _iteration_sigma_old(epochs: int, steps: int, epsilon: float) -> float:
    """The noise that the old conversion asks of iteration: α·rho + ln(1/δ)/(α−1), least over all orders α > 1."""
    unit = Iteration(epochs, steps, 1.0).rho("replace-one")  # at σ: unit/σ², of which the least is r + 2·√(r·ln(1/δ))
    return sqrt(unit) / (sqrt(log(1 / _DELTA) + epsilon) - sqrt(log(1 / _DELTA)))


def _sigma(rate: float, steps: int, epsilon: float) -> float:
    return calibration.noise_multiplier(lambda sigma: Repeated(PoissonGaussian(rate, sigma), steps), epsilon, _DELTA)


ITEMS: dict[str, Item] = {
    "table-1": _table_1,
    "table-2": _table_2,
    "table-3": _table_3,
    "table-4": _table_4,
    "table-11": _table_11,
    "table-19": _table_19,
    "table-20": _table_20,
    "choices": _choices,
    "figure-1": _as_the_budget_is_spent,
    "figure-2": _as_the_budget_is_spent,
    "figure-3": _convergence,
    "figure-4": _figure_4,
    "figure-5": _figure_5,
    "figure-6": _figure_6,
    "figure-7": _figure_7,
    "figure-8": _figure_8,
    "figure-9": _figure_9,
    "figure-10": _figure_10,
    "figure-11": _convergence,
}
