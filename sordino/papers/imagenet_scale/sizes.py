"""Does a larger network do better under noise? Tables 2 to 4 (ResNet-18 and ResNet-50) and Figure 6 (simpleVGGs)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Self

import torch

from sordino.gradients import ClippedGradients
from sordino.papers.declarations import Declaration
from sordino.papers.imagenet_scale.networks import NETWORKS, SIMPLE_VGGS
from sordino.papers.imagenet_scale.trainings import UNCLIPPED, PrivateTraining, tuned
from sordino.papers.records import Cell, Record, Series, percent
from sordino.papers.trials import Experiment, Result, Say, Trial
from sordino.training import cross_entropy

_DELTA = 1e-5


def resnets(experiment: Experiment, item: Declaration) -> Record:
    """Tables 3 and 4. Published: the paper's setting, its accuracy with each network, and our ε (0: no noise)."""
    given = item.given
    rows: list[list[Cell]] = []
    suffix = experiment.pick(", 1/8", "")
    for setting, *accuracies, epsilon, epochs in experiment.some(item.published, 1):
        for network, theirs in zip(("ResNet-18", "ResNet-50"), accuracies, strict=True):
            size: dict[str, Any] = experiment.pick({"records": 10_000, "pooled": True}, {"records": 45_000})
            batch = round(given["share"] * size["records"])
            trial = PrivateTraining("cifar-10", network + suffix, 1.0, batch, epochs, epsilon or None, **size)
            if not epsilon:
                trial = replace(trial, l2_clip=UNCLIPPED)
            rate, found = tuned(experiment, trial, given["rates" if epsilon else "plain_rates"])
            ours, sigma = percent([found["accuracy"]]), found["noise_multiplier"]
            rows.append([setting, network, theirs, epsilon or "∞", epochs, ours, rate, sigma, 1])
    return item.record(experiment, rows)


def simple_vggs(experiment: Experiment, item: Declaration) -> Record:
    """Figure 6: seven networks at each σ, in three groups that share the first."""
    given = item.given
    rows: list[list[Cell]] = []
    suffix = experiment.pick(", 1/4", "")
    size: dict[str, Any] = experiment.pick(
        {"records": 5000, "held_out": 1000, "pooled": True}, {"records": 45_000, "held_out": 5000}
    )
    batch, epochs = experiment.pick((250, 10), (500, 100))
    lines = []
    for name in experiment.some(SIMPLE_VGGS, 2):
        line = Series(name, [], [])
        for sigma in given["noise"]:
            trial = PrivateTraining("cifar-10", f"simpleVGG-{name}{suffix}", 1.0, batch, epochs, **size)
            trial = replace(trial, noise_multiplier=sigma or None, l2_clip=1.0 if sigma else UNCLIPPED)
            rate, found = tuned(experiment, trial, given["rates" if sigma else "plain_rates"])
            line.add(sigma, [found["accuracy"]])
            weights = sum(value.numel() for value in NETWORKS[trial.network]().parameters())
            rows.append([name, weights, sigma, percent([found["accuracy"]]), rate, found["epsilon"], 1])
        lines.append(line)
    return item.record(experiment, rows, lines)


@dataclass(frozen=True)
class StepTime(Trial):
    """Processor time of a private step and of a plain one on made-up images, in turns: their ratio is what counts."""

    kind: ClassVar[str] = "step time"

    network: str
    side: int
    batch: int = 32
    rounds: int = 7

    def quick(self) -> Self:
        return replace(self, batch=2, rounds=1)

    def compute(self, folder: Path, say: Say) -> Result:
        say(f"{self}")
        model = NETWORKS[self.network](classes=10)
        x, y = torch.randn(self.batch, 3, self.side, self.side), torch.randint(0, 10, (self.batch,))
        clipped = ClippedGradients(model, cross_entropy)

        def private() -> None:
            clipped(x, y, l2_clip=1.0)

        def plain() -> None:
            model.zero_grad()
            cross_entropy(model(x), y).mean().backward()

        private()  # which measures what is fastest
        times = [(_seconds(private), _seconds(plain)) for _ in range(self.rounds)]
        ratio = median(ours / theirs for ours, theirs in times)
        ours, theirs = (median(pair[place] for pair in times) / self.batch for place in (0, 1))
        return {"trial": str(self), "private": ours, "plain": theirs, "ratio": ratio}

    def __str__(self) -> str:
        return f"{self.network} on {self.side}×{self.side}, batch {self.batch}"


def _seconds(step: Callable[[], None]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def step_times(experiment: Experiment, item: Declaration) -> Record:
    """Table 2. Published: the network and the paper's seconds an epoch, private and plain."""
    rows: list[list[Cell]] = []
    for network, private, plain in item.published:
        for side in experiment.some((32, 64)):
            found = experiment.run(StepTime(network + experiment.pick(", 1/8", ""), side))
            milliseconds = [1000 * found[name] for name in ("private", "plain")]
            rows.append([network, f"{side}×{side}", private, plain, private / plain, *milliseconds, found["ratio"]])
    return item.record(experiment, rows)
