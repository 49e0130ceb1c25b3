"""Pretraining on public images, then fine-tuning under DP with frozen groups: Tables 6, 7, 10 to 12, best run.

Five classes of CIFAR-10 are public, in the place of Places365, and the other five private, in that of ImageNet.
"""

from dataclasses import replace
from typing import Any

from sordino.papers.declarations import Declaration
from sordino.papers.imagenet_scale.networks import PRIVATE
from sordino.papers.imagenet_scale.trainings import UNCLIPPED, PrivateTraining, PublicTraining, tuned
from sordino.papers.records import Cell, Record, percent
from sordino.papers.trials import Experiment

_NETWORK = ("ResNet-18, 1/8", "ResNet-18")
_SIZES: tuple[dict[str, Any], dict[str, Any]] = (
    {"records": 5000, "held_out": 1000, "pooled": True},
    {"records": 22_500, "held_out": 2500},
)
_PUBLIC_EPOCHS = (6, 40)


def _public(experiment: Experiment, epochs: int | None = None) -> PublicTraining:
    pooled = experiment.pick(True, False)
    return PublicTraining(experiment.pick(*_NETWORK), epochs or experiment.pick(*_PUBLIC_EPOCHS), pooled=pooled)


def pretraining(experiment: Experiment, item: Declaration) -> Record:
    """Table 10. Published: the paper's epochs and accuracy on Places365, and ours."""
    rows: list[list[Cell]] = []
    for paper_epochs, theirs, epochs in experiment.some(item.published, 2):
        found = experiment.run(_public(experiment, epochs))
        rows.append([paper_epochs, theirs, epochs, percent([found["accuracy"]]), 1])
    return item.record(experiment, rows)


def fine_tuning(experiment: Experiment, item: Declaration) -> Record:
    """Published: frozen groups ("scratch": trained from random weights), the paper's batch in thousands (of 1024),
    epochs and accuracy, and our batch (a share of the records) and epochs."""
    given = item.given
    rows: list[list[Cell]] = []
    for frozen, units, paper_epochs, theirs, share, epochs in experiment.some(item.published, 2):
        size = experiment.pick(*_SIZES)
        trial = PrivateTraining(PRIVATE, experiment.pick(*_NETWORK), 1.0, round(share * size["records"]), epochs)
        trial = replace(trial, epsilon=given.get("epsilon"), **size)
        if trial.epsilon is None:
            trial = replace(trial, l2_clip=UNCLIPPED)
        if frozen != "scratch":
            trial = replace(trial, start=_public(experiment), frozen=frozen)
        rate, found = tuned(experiment, trial, given["rates"])
        ours, sigma = percent([found["accuracy"]]), found["noise_multiplier"]
        rows.append([frozen, 1024 * units, paper_epochs, theirs, trial.batch, epochs, ours, rate, sigma, 1])
    return item.record(experiment, rows)
