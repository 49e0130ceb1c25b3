"""Tables 1, 2, 3, 4, 11, 19 and 20 of T&B, and how what they leave open was chosen."""

from statistics import median
from typing import Any

from torch import nn

from sordino import models
from sordino.papers.better_features.common import (
    CNN,
    DATASETS,
    LINEAR,
    PAPER,
    RATES,
    SCATTER_CNN,
    SMALL_CNN,
    T_AND_B_START,
    TUNING,
    grid,
    seeds,
    to_the_end,
)
from sordino.papers.outcomes import OURS, ours
from sordino.papers.recipe_trials import RecipeTrial, settings
from sordino.papers.records import Cell, Record, percent
from sordino.papers.trials import Experiment
from sordino.training import TABLE_12


def table_1(experiment: Experiment) -> Record:
    """Accuracy at the budgets of earlier work."""
    published: dict[tuple[str, str], dict[float, float | None]] = {
        ("mnist", LINEAR): {1.2: 98.1, 2.0: 98.5, 2.32: 98.6, 2.5: 98.7, 2.93: 98.7},
        ("mnist", SCATTER_CNN): {1.2: 97.8, 2.0: 98.4, 2.32: 98.5, 2.5: 98.6, 2.93: 98.7, 3.0: None},
        ("mnist", CNN): {3.0: 98.1},
        ("fashion-mnist", LINEAR): {2.7: 89.5, 3.0: 89.7},
        ("fashion-mnist", SCATTER_CNN): {2.7: 88.7, 3.0: 89.0},
        ("fashion-mnist", CNN): {3.0: 86.0},
        ("cifar-10", LINEAR): {3.0: 67.0},
        ("cifar-10", SCATTER_CNN): {3.0: 69.3},
    }
    rows: list[list[Cell]] = []
    for (dataset, recipe), budgets in published.items():
        for epsilon, theirs in budgets.items():
            trial = to_the_end(dataset, recipe) if epsilon == 3 else RecipeTrial(dataset, recipe, epsilon=epsilon)
            found = experiment.repeated(trial, seeds(trial))
            rows.append([dataset, recipe, epsilon, theirs, *ours(found)])
    return Record(
        PAPER,
        "table-1",
        "Accuracy at the privacy budgets of earlier work",
        ["data", "model", "ε", "paper", *OURS],
        rows,
        [
            "δ=1e-5; each run is calibrated to its own ε, private normalisation included",
            "The CNN's published figures are those of Table 19 at ε=3, shuffled",
        ],
        experiment.shortfall(linear_models=3, most_networks=1),
        tuning=TUNING,
    )


def table_2(experiment: Experiment) -> Record:
    """Normalisation of features, without noise."""
    published = {"mnist": (95.9, 99.1, 99.1, 99.3), "fashion-mnist": (82.6, 90.9, 91.0, 91.5)}
    published["cifar-10"] = (58.0, 67.8, 70.7, 71.1)
    rates = {"mnist": 2.0, "fashion-mnist": 4.0, "cifar-10": 2.0}
    rows: list[list[Cell]] = []
    for dataset in DATASETS:
        kinds: dict[str, list[dict[str, Any]]] = {
            "none": [{}],
            "group": [{"groups": groups} for groups in (9, 27, 81)],
            "data": [{"moments": TABLE_12[dataset]}],
        }
        usual = {"groups": None, "moments": None, "batch": 512, "learning_rate": rates[dataset], "epochs": 20}
        highest: list[float] = []
        for (kind, variants), theirs in zip(kinds.items(), published[dataset], strict=False):
            candidates = []
            for variant in variants:
                changes = settings(averaged=0.0, **usual | variant)
                found = experiment.repeated(RecipeTrial(dataset, LINEAR, epsilon=None, settings=changes, marks=10))
                candidates.append((variant.get("groups"), found))
            groups, best = max(candidates, key=lambda candidate: candidate[1][0]["accuracy"])
            name = kind if groups is None else f"{kind}, {groups} groups"
            rows.append([dataset, name, theirs, percent(result["accuracy"] for result in best), len(best)])
            highest += [point["accuracy"] for _, results in candidates for run in results for point in run["curve"]]
        rows.append([dataset, "highest seen", published[dataset][3], percent([max(highest)]), 1])
    return Record(
        PAPER,
        "table-2",
        "Normalisation of features, without noise, after 20 epochs",
        ["data", "normalisation", "paper", "ours", "seeds"],
        rows,
        [
            "Gradients are clipped, statistics are exact: ε=∞",
            "The number of groups is the best on the test set, as theirs",
        ],
        experiment.shortfall(always="the highest accuracy is that along these runs, not upon convergence", all=1),
        tuning="Settings are T&B's (Table 10)",
    )


def table_3(experiment: Experiment) -> Record:
    """How much the hyper-parameters matter."""
    published = {
        "mnist": (96.8, 98.8, 98.4, 0.2),
        "fashion-mnist": (85.3, 89.8, 88.7, 0.5),
        "cifar-10": (59.5, 67.0, 65.4, 0.9),
    }
    rows: list[list[Cell]] = []
    for dataset, theirs in published.items():
        found = [100 * result["accuracy"] for _, result in grid(experiment, dataset)]
        middle = median(found)
        values = min(found), max(found), middle, median(abs(value - middle) for value in found)
        for name, figure, value in zip(("min", "max", "median", "MAD"), theirs, values, strict=True):
            rows.append([dataset, LINEAR, name, figure, f"{value:.2f}", len(found)])
    return Record(
        PAPER,
        "table-3",
        "Accuracy over the grid of hyper-parameters (Table 12) at ε=3",
        ["data", "model", "over the grid", "paper", "ours", "settings tried"],
        rows,
        ["δ=1e-5, PLD; each run is paid for by itself: the search as a whole would cost more"],
        experiment.shortfall("some settings, drawn at random from the grid of 360", "linear models only"),
        tuning="None but the averaging of weights: this is the grid itself",
    )


def table_4(experiment: Experiment) -> Record:
    """Sizes of the models."""
    networks: dict[str, tuple[int, nn.Module]] = {
        "scatter-linear, 28×28": (40_000, models.linear(81 * 7 * 7, 10)),
        "scatter-CNN, 28×28": (33_000, models.mnist_scatter_cnn()),
        "CNN, 28×28": (26_000, models.mnist_cnn()),
        "scatter-linear, CIFAR-10": (155_000, models.linear(243 * 8 * 8, 10)),
        "scatter-CNN, CIFAR-10": (187_000, models.cifar_scatter_cnn()),
        "CNN, CIFAR-10": (551_000, models.cifar_cnn()),
        "small CNN, CIFAR-10": (168_000, models.cifar_small_cnn()),
    }
    rows: list[list[Cell]] = [[name, theirs, _size(network)] for name, (theirs, network) in networks.items()]
    return Record(PAPER, "table-4", "Parameters", ["model", "paper", "ours"], rows)


def table_11(experiment: Experiment) -> Record:
    """Without privacy."""
    published = {"mnist": (99.3, 99.2, 99.2), "fashion-mnist": (91.5, 91.5, 90.1), "cifar-10": (71.1, 73.8, 80.0)}
    epochs = experiment.pick({LINEAR: 20, SCATTER_CNN: 10, CNN: 10}, {LINEAR: 60, SCATTER_CNN: 60, CNN: 60})
    rows: list[list[Cell]] = []
    for dataset, theirs in published.items():
        for recipe, figure in zip((LINEAR, SCATTER_CNN, CNN), theirs, strict=True):
            if (dataset, recipe) == ("cifar-10", CNN) and not experiment.full:
                continue
            changes = {"batch": 512, "learning_rate": RATES[dataset][1], "epochs": epochs[recipe], "averaged": 0.0}
            changes |= T_AND_B_START.get((dataset, recipe), {})
            trial = RecipeTrial(dataset, recipe, epsilon=None, settings=settings(**changes), marks=5)
            found = experiment.repeated(trial)
            best = [max(point["accuracy"] for point in result["curve"]) for result in found]
            rows.append([dataset, recipe, figure, percent(best), len(best)])
    return Record(
        PAPER,
        "table-11",
        "Without privacy",
        ["data", "model", "paper", "ours", "seeds"],
        rows,
        ["Gradients clipped to 0.1, no noise: ε=∞; the highest accuracy along the run"],
        experiment.shortfall("20 epochs for linear models and 10 for networks, no CNN on CIFAR-10", all=1),
        tuning="High learning rates of T&B's Table 14; the paper does not give those of this table",
    )


def table_19(experiment: Experiment) -> Record:
    """Poisson against shuffled batches."""
    published = {
        ("mnist", LINEAR): (98.6, 98.7),
        ("mnist", CNN): (98.0, 98.1),
        ("fashion-mnist", LINEAR): (89.6, 89.7),
        ("fashion-mnist", CNN): (86.1, 86.0),
        ("cifar-10", LINEAR): (66.8, 67.0),
        ("cifar-10", CNN): (59.0, 59.2),
    }
    rows: list[list[Cell]] = []
    for (dataset, recipe), theirs in published.items():
        for shuffled, figure in zip((False, True), theirs, strict=True):
            trial = RecipeTrial(dataset, recipe, shuffled=True) if shuffled else to_the_end(dataset, recipe)
            found = experiment.repeated(trial, seeds(trial))
            batches, claimed = ("shuffled", found[0]["claimed"]["epsilon"]) if shuffled else ("Poisson", None)
            rows.append([dataset, recipe, batches, claimed, figure, *ours(found)])
    return Record(
        PAPER,
        "table-19",
        "Poisson sampling against shuffled batches, at the same noise",
        ["data", "model", "batches", "ε claimed", "paper", *OURS],
        rows,
        ["δ=1e-5; shuffled batches claim the ε of Poisson sampling: ε spent is what holds without amplification"],
        experiment.shortfall(linear_models=3, most_networks=1),
        tuning=TUNING,
    )


def table_20(experiment: Experiment) -> Record:
    """A smaller CNN on CIFAR-10."""
    rows: list[list[Cell]] = []
    for recipe, network, theirs in ((SMALL_CNN, models.cifar_small_cnn(), 60.7), (CNN, models.cifar_cnn(), 59.2)):
        found = experiment.repeated(to_the_end("cifar-10", recipe))
        rows.append([recipe, _size(network), theirs, *ours(found)])
    return Record(
        PAPER,
        "table-20",
        "Two sizes of the CNN on CIFAR-10 at ε=3",
        ["model", "parameters", "paper", *OURS],
        rows,
        ["δ=1e-5"],
        experiment.shortfall(all=1),
        tuning=TUNING,
    )


def choices(experiment: Experiment) -> Record:
    """What T&B do not settle, chosen on training records that were held out."""
    candidates: list[tuple[str, str, float, dict[str, Any]]] = [
        ("fashion-mnist", LINEAR, 3.0, {"averaged": share}) for share in (0.0, 0.02, 0.1, 0.3)
    ]
    candidates += [("fashion-mnist", SCATTER_CNN, 3.0, {"averaged": share}) for share in (0.0, 0.1)]
    theirs = {"batch": 1024, "learning_rate": 1.0, "epochs": 25, "input_scale": 1.0, "orthogonal": False}
    larger = theirs | {"batch": 2048, "learning_rate": 4.0, "epochs": 40}
    smaller = larger | {"input_scale": 0.3}
    networks = (theirs, larger, smaller, smaller | {"orthogonal": True})
    candidates += [("mnist", SCATTER_CNN, 3.0, changes) for changes in networks]
    candidates += [
        ("cifar-10", "transfer-linear", 2.0, {"learning_rate": rate, "epochs": epochs})
        for epochs in (10, 20, 40)
        for rate in (1.5, 3.0, 6.0)
    ]
    rows: list[list[Cell]] = []
    for dataset, recipe, epsilon, changes in candidates:
        trial = RecipeTrial(dataset, recipe, epsilon=epsilon, settings=settings(**changes), validation=5000)
        found = experiment.repeated(trial, 2 if dataset == "mnist" else 1)
        rows.append([dataset, recipe, epsilon, ", ".join(f"{name} {value}" for name, value in changes.items())])
        rows[-1] += [percent(result["accuracy"] for result in found), len(found)]
    return Record(
        PAPER,
        "choices",
        "What the paper leaves open, chosen on 5,000 held-out training records",
        ["data", "model", "ε", "setting", "ours", "seeds"],
        rows,
        [
            "δ=1e-5, PLD; the learning rate is that at ε=3",
            "Taken: an average over 0.1 (0.3 is a ninth in fact: see Averaging), and for transfer 20 epochs at 3.0, "
            "near the best at half its steps",
            "Taken for the network on MNIST: the last row, after some twenty more trials on the same records that are "
            "not kept. What gains is the smaller input; the orthogonal start had helped one bad start there, and two "
            "seeds here do not show that it matters",
            "Benchmarks are public: looking at their held-out records is not counted; on private data it must be",
        ],
        tuning="This is the tuning",
    )


def _size(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())
