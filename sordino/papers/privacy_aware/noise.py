"""Table III and Figure 5 of PAW: one task, its inputs split into more and more parts, and what noise then does."""

import hashlib
import math
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino import models
from sordino.budget import Ledger
from sordino.data import PoissonSampler
from sordino.papers.privacy_aware.intervals import Interval, line
from sordino.papers.privacy_aware.network_rows import PAPER
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, calibrated
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment, Say, TrialStore, resumed_or_restarted
from sordino.runs import Run
from sordino.training import SGD, Adam, DenseNetwork, Plan, fit, logistic_slope

BASE = 10
SIZES = (1000, 500, 100, 50, 10)
_THEIRS = {1000: 59.75, 500: 67.20, 100: 84.45, 50: 84.85, 10: 85.80}
_EPSILON, _DELTA, _EPOCHS = 0.0355, 1e-5, 50
_BATCH, _RATE, _PLAIN_RATE, _REPEATS = 250, 1.0, 0.05, 12
_RECORDS, _TESTED = 10_000, 2000
_REVISION = 1


def sums_of_parts(records: int, size: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Ten uniform numbers, each split evenly into size/10 inputs, labelled by whether they sum to more than 5."""
    base = np.random.default_rng(seed).random((records, BASE))
    parts = np.repeat(base / (size // BASE), size // BASE, axis=1)
    return parts.astype(np.float32), (base.sum(axis=1) > BASE / 2).astype(np.int64)


@dataclass(frozen=True)
class Repeat:
    """A logistic model of one input size trained with noise and without, from one start on one draw of the data."""

    size: int
    seed: int
    records: int = _RECORDS
    epochs: int = _EPOCHS
    batch: int = _BATCH
    epsilon: float = _EPSILON
    delta: float = _DELTA

    def run(self, say: Say, store: TrialStore) -> dict[str, Any]:
        """Accuracies, and the cosine distance of the noisy weights from the plain ones after each epoch."""
        key = hashlib.blake2b(f"{_REVISION} {self!r}".encode(), digest_size=16).hexdigest()

        def alone(folder: Path) -> dict[str, Any]:
            with Run.at(folder).alone():  # Table III and Figure 5 are of the same trials
                return self._result(folder, say)

        return store.get(f"parts-{key}", alone)

    def _result(self, folder: Path, say: Say) -> dict[str, Any]:
        say(f"{self}")
        sampler = PoissonSampler(self.records, self.batch)
        epoch = math.ceil(self.records / self.batch)
        steps = self.epochs * epoch
        plain = Plan(sampler, UNCLIPPED, 0.0, steps, private=False)
        noisy = Plan(sampler, 1.0, calibrated(sampler, steps, self.epsilon, self.delta), steps)
        data = sums_of_parts(self.records, self.size, 2 * self.seed)
        test = sums_of_parts(_TESTED, self.size, 2 * self.seed + 1)
        found = {}
        weights: list[list[Tensor]] = []
        for name, plan, optimiser in (("plain", plain, Adam(_PLAIN_RATE)), ("noisy", noisy, SGD(_RATE))):
            way: list[Tensor] = []

            def train(run: Run, plan: Plan = plan, optimiser: Any = optimiser, way: Any = way) -> dict[str, Any]:
                model = DenseNetwork(lambda: models.dense(self.size, 1), logistic_slope)
                ledger = Ledger(path=run.ledger)

                def keep(done: int, total: int) -> None:
                    if done:
                        way.append(torch.cat([value.flatten().clone() for value in model.parameters.values()]))

                fit(
                    plan,
                    model,
                    data,
                    optimiser=optimiser,
                    ledger=ledger,
                    run=run,
                    seed=self.seed,
                    checkpoint_every=epoch,
                    on_progress=keep,
                )
                with torch.no_grad():
                    right = (model.model(torch.from_numpy(test[0]))[:, 0] > 0).numpy() == (test[1] == 1)
                return {"accuracy": float(right.mean())}

            # Stopped half-way, seconds are lost: the way is needed whole.
            shutil.rmtree(folder / name, ignore_errors=True)
            found[name] = resumed_or_restarted(folder / name, train)["accuracy"]
            weights.append(way)
        end = weights[0][-1]
        distances = [1 - float(torch.nn.functional.cosine_similarity(now, end, dim=0)) for now in weights[1]]
        return {
            "trial": str(self),
            **found,
            "distances": distances,
            "noise_multiplier": noisy.noise_multiplier,
            "epsilon": noisy.epsilon(self.delta),
        }


def _results(experiment: Experiment) -> dict[int, list[dict[str, Any]]]:
    made: dict[int, list[dict[str, Any]]] = {}
    for size in SIZES[-2:] if experiment.quick else SIZES:
        few = {"records": 60, "epochs": 2, "batch": 15, "epsilon": 3.0, "delta": 1e-3} if experiment.quick else {}
        repeats = [Repeat(size, seed, **few) for seed in experiment.seeds_of(_REPEATS, 100)]  # type: ignore[arg-type]
        made[size] = [repeat.run(experiment.say, experiment.store) for repeat in repeats]
        for result in made[size]:
            experiment.ran[result["trial"]] = {name: value for name, value in result.items() if name != "distances"}
    return made


_TUNING = (
    "The rate of DP-SGD is the best of 0.3, 1 and 3 on one draw with 10 inputs, tried by hand and not recorded; "
    "made-up data costs no privacy"
)
_NOTES = [
    "Ten uniform numbers, each split evenly into inputs that sum to it; the label says whether all sum to more than 5",
    f"PAW gives ε=0.0355 and 50 epochs. Ours: {_RECORDS:,} records, batches of {_BATCH}, δ=1e-5, calibrated by PLD, "
    f"clip 1, rate {_RATE:g}; without noise Adam at {_PLAIN_RATE:g}",
]


def table_3(experiment: Experiment) -> Record:
    """Accuracy of the same task at each input size."""
    found = _results(experiment)
    rows: list[list[Cell]] = []
    noisy = {size: Interval.of([result["noisy"] for result in results]) for size, results in found.items()}
    for size, results in found.items():
        plain = Interval.of([result["plain"] for result in results])
        row: list[Cell] = [size, 100.0, plain.percent(), _THEIRS[size], noisy[size].percent()]
        rows.append([*row, float(results[0]["epsilon"]), float(results[0]["noise_multiplier"]), len(results)])
    sizes = list(found)
    pairs = [(sizes[0], sizes[-1]), *pairwise(sizes)]
    steps = [f"{few} above {many}: {_said(noisy[few].above(noisy[many]))}" for many, few in pairs]
    return Record(
        PAPER,
        "table-3",
        "The same task with more and more inputs, with noise and without",
        ["inputs", "paper, SGD", "ours, SGD", "paper, DP-SGD", "ours, DP-SGD", "ε spent", "σ", "repeats"],
        rows,
        [f"Whether fewer inputs are better under noise: {'; '.join(steps)}", "± is half of the 95 % interval", *_NOTES],
        experiment.pick(f"{_REPEATS} repeats in place of 100", None),
        _TUNING,
    )


def _said(fall: bool | None) -> str:
    return {None: "one repeat cannot say", True: "intervals apart", False: "not shown"}[fall]


def figure_5(experiment: Experiment) -> Record:
    """How far the noisy weights are from the plain ones, epoch by epoch."""
    found = _results(experiment)
    series: list[Series] = []
    rows: list[list[Cell]] = []
    for size, results in found.items():
        way = [Interval.of(at) for at in zip(*(result["distances"] for result in results), strict=True)]
        series.append(line(f"{size} inputs", [(1.0 + place, at) for place, at in enumerate(way)], scale=1))
        rows.append([size, way[0].plain(), way[len(way) // 2].plain(), way[-1].plain(), len(results)])
    return Record(
        PAPER,
        "figure-5",
        "Cosine distance between the weights of DP-SGD and of SGD",
        ["inputs", "after the first epoch", "half-way", "at the end", "repeats"],
        rows,
        [
            "Distances are to the last weights of the training without noise, which is by Adam",
            *("± and bars are half of the 95 % interval", *_NOTES, "PAW gives the curves as a drawing without numbers"),
        ],
        experiment.pick(f"{_REPEATS} repeats in place of 100", None),
        _TUNING,
        *("epoch", "cosine distance", ""),
        series,
    )
