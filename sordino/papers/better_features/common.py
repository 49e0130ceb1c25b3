"""What tables and figures share: the paper's settings and its grid."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

from sordino.papers.recipe_trials import RecipeTrial, settings
from sordino.papers.trials import Experiment
from sordino.training import TABLE_12

PAPER = "better-features"
DATASETS = ("mnist", "fashion-mnist", "cifar-10")
LINEAR, SCATTER_CNN, CNN, SMALL_CNN = "scatter-linear", "scatter-cnn", "cnn", "cnn-small"
DELTA = 1e-5
MARKS = 10
"""Measurements along a run to ε=3: tables and figures share these runs."""
EPOCHS = {"mnist": 40, "fashion-mnist": 40, "cifar-10": 60}
RATES = {"mnist": (0.5, 8.0), "fashion-mnist": (1.0, 16.0), "cifar-10": (0.25, 4.0)}
"""Low and high learning rates of Table 14."""
T_AND_B_START: dict[tuple[str, str], dict[str, Any]] = {
    ("mnist", SCATTER_CNN): {"input_scale": 1.0, "orthogonal": False},
}
"""Where our recipe starts otherwise than theirs, what theirs is."""
TUNING = (
    "Settings are those that T&B chose by test accuracy at ε=3, a search that is not counted, here as there; below ε=3 "
    "our learning rate shrinks with ε; the weights are averaged over the last tenth of the steps, which was tried once "
    "first runs without it had been seen on the test sets (scatter-cnn 88.7 on Fashion-MNIST), and chosen on held-out "
    "training records (item choices); the scatter-cnn on MNIST has settings of our own, sought on held-out records "
    "once T&B's had given 98.40 ± 0.16 on the test set"
)


def to_the_end(dataset: str, recipe: str) -> RecipeTrial:
    """The recipe at ε=3, measured on its way."""
    return RecipeTrial(dataset, recipe, epsilon=3.0, marks=MARKS)


def seeds(trial: RecipeTrial) -> int:
    """Linear models are quick, and the network on MNIST differs from seed to seed by more than from the paper."""
    return 3 if trial.recipe == LINEAR or trial == to_the_end("mnist", SCATTER_CNN) else 1


def grid(experiment: Experiment, dataset: str) -> list[tuple[dict[str, float], dict[str, Any]]]:
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
