"""Table III and Figure 5 of PAW: one task, its inputs split into more and more parts, and what noise then does."""

import math
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sordino import models
from sordino.budget import Ledger
from sordino.data import PoissonSampler
from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.intervals import Interval, line
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, calibrated
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment, Result, Say, Trial
from sordino.runs import Run
from sordino.training import SGD, Adam, DenseNetwork, Optimiser, Plan, fit, logistic_slope

_BASE = 10
SIZES = (10, 50, 100, 500, 1000)
_RATE, _PLAIN_RATE = 1.0, 0.05
_RECORDS, _TESTED, _BATCH = 10_000, 2000, 250
_REPEATS, _THEIR_REPEATS = 12, 100


def sums_of_parts(records: int, size: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Ten uniform numbers, each split evenly into size/10 inputs, labelled by whether they sum to more than 5."""
    base = np.random.default_rng(seed).random((records, _BASE))
    parts = np.repeat(base / (size // _BASE), size // _BASE, axis=1)
    return parts.astype(np.float32), (base.sum(axis=1) > _BASE / 2).astype(np.int64)


@dataclass(frozen=True)
class SplitInputs(Trial):
    """A logistic model of one input size trained with noise and without, from one start on one draw of the data."""

    kind: ClassVar[str] = "split inputs"

    size: int
    seed: int = 0
    records: int = _RECORDS
    epochs: int = 50
    batch: int = _BATCH
    epsilon: float = 0.0355
    delta: float = 1e-5

    def quick(self) -> Self:
        return replace(self, records=60, epochs=2, batch=15, epsilon=3.0, delta=1e-3)

    def listed(self, result: Result) -> Result:
        return {name: value for name, value in result.items() if name != "distances"}

    def compute(self, folder: Path, say: Say) -> Result:
        """Accuracies, and the cosine distance of the noisy weights from the plain ones after each epoch."""
        say(f"{self}")
        sampler = PoissonSampler(self.records, self.batch)
        steps = self.epochs * math.ceil(self.records / self.batch)
        plain = Plan(sampler, UNCLIPPED, 0.0, steps, private=False)
        noisy = Plan(sampler, 1.0, calibrated(sampler, steps, self.epsilon, self.delta), steps)
        with Run.at(folder).alone():  # Table III and Figure 5 share their trials
            plain_accuracy, plain_weights = self._trained(folder / "plain", plain, Adam(_PLAIN_RATE))
            accuracy, weights = self._trained(folder / "noisy", noisy, SGD(_RATE))
        end = plain_weights[-1]
        return {
            "trial": str(self),
            "plain": plain_accuracy,
            "noisy": accuracy,
            "distances": [1 - float(torch.nn.functional.cosine_similarity(now, end, dim=0)) for now in weights],
            "noise_multiplier": noisy.noise_multiplier,
            "epsilon": noisy.epsilon(self.delta),
        }

    def _trained(self, folder: Path, plan: Plan, optimiser: Optimiser) -> tuple[float, list[torch.Tensor]]:
        """The test accuracy, and the weights after each epoch. Started over if it was stopped: it takes seconds."""
        shutil.rmtree(folder, ignore_errors=True)
        run, weights = Run.at(folder), list[torch.Tensor]()
        test_x, test_y = sums_of_parts(_TESTED, self.size, 2 * self.seed + 1)
        network = DenseNetwork(lambda: models.dense(self.size, 1), logistic_slope)

        def keep(done: int, total: int) -> None:
            if done:
                weights.append(torch.cat([value.flatten().clone() for value in network.parameters.values()]))

        fit(
            plan,
            network,
            sums_of_parts(self.records, self.size, 2 * self.seed),
            optimiser=optimiser,
            ledger=Ledger(path=run.ledger),
            run=run,
            seed=self.seed,
            checkpoint_every=plan.steps // self.epochs,
            on_progress=keep,
        )
        with torch.no_grad():
            right = (network.model(torch.from_numpy(test_x))[:, 0] > 0).numpy() == (test_y == 1)
        return float(right.mean()), weights


def _results(experiment: Experiment) -> dict[int, list[Result]]:
    sizes = list(reversed(experiment.some(SIZES, 2)))
    return {size: experiment.repeated(SplitInputs(size), _REPEATS, _THEIR_REPEATS) for size in sizes}


def table_3(experiment: Experiment, item: Declaration) -> Record:
    """Accuracy of the same task at each input size; published are the sizes and DP-SGD's accuracies."""
    found, theirs = _results(experiment), dict(item.published)
    rows: list[list[Cell]] = []
    noisy = {size: Interval.of([result["noisy"] for result in results]) for size, results in found.items()}
    for size, results in found.items():
        plain = Interval.of([result["plain"] for result in results])
        row: list[Cell] = [size, 100.0, plain.percent(), theirs[size], noisy[size].percent()]
        rows.append([*row, float(results[0]["epsilon"]), float(results[0]["noise_multiplier"]), len(results)])
    sizes = list(found)
    pairs = [(sizes[0], sizes[-1]), *pairwise(sizes)]
    said = {None: "one repeat cannot tell", True: "intervals apart", False: "not shown"}
    steps = [f"{few} above {many}: {said[noisy[few].above(noisy[many])]}" for many, few in pairs]
    return item.record(
        experiment,
        rows,
        follows=[f"Whether fewer inputs are better under noise: {'; '.join(steps)}"],
    )


def figure_5(experiment: Experiment, item: Declaration) -> Record:
    """How far the noisy weights are from the plain ones, epoch by epoch."""
    series: list[Series] = []
    rows: list[list[Cell]] = []
    for size, results in _results(experiment).items():
        way = [Interval.of(at) for at in zip(*(result["distances"] for result in results), strict=True)]
        series.append(line(f"{size} inputs", [(1.0 + place, at) for place, at in enumerate(way)], scale=1))
        rows.append([size, way[0].plain(), way[len(way) // 2].plain(), way[-1].plain(), len(results)])
    return item.record(experiment, rows, series)
