"""INS's training as a trial: Nesterov momentum, warm-up and cosine, weight decay in the loss, noise as asked.

A trial examines held-out training images, by which settings are chosen, and test images, which the tables report.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sordino import models
from sordino.budget import Ledger, Repeated, calibration, cost
from sordino.data import PoissonSampler
from sordino.gradients import Choices
from sordino.papers.imagenet_scale.networks import NETWORKS, PUBLIC, ImageParts, image_parts, in_pieces, share_right
from sordino.papers.trials import Experiment, Result, Say, Trial, resumed_or_restarted
from sordino.runs import Run
from sordino.training import SGD, Averaging, MeanOfIterates, Plan, TrainableModule, WarmupCosine, cross_entropy, fit

UNCLIPPED = 1e6
"""A clip that no gradient reaches: plain SGD by the same code."""
_MOMENTUM, _DECAY, _WARMUP = 0.9, 1e-4, 0.1
_PUBLIC_BATCH, _PUBLIC_RATE = 128, 0.1
_choices: dict[tuple[Any, ...], Choices] = {}
"""The engine's choices for a network, measured once in a process."""


@dataclass(frozen=True)
class PublicTraining(Trial):
    """A network trained on public images without privacy, kept as a file: what fine-tuning starts from."""

    kind: ClassVar[str] = "public images"

    network: str
    epochs: int
    records: int = 25_000
    dataset: str = PUBLIC
    pooled: bool = False
    tested: int | None = None

    def quick(self) -> Self:
        return replace(self, epochs=1, records=64, tested=24)

    def compute(self, folder: Path, say: Say) -> Result:
        begun, model, parts = time.process_time(), self.module(folder.parent, say), self._parts
        right = share_right(model, parts.test_x, parts.test_y)
        return {"trial": str(self), "accuracy": right, "seconds": time.process_time() - begun}

    def module(self, folder: Path, say: Say) -> nn.Sequential:
        """The network with its weights, trained first if the file is not there."""
        parts, file = self._parts, folder / "public" / f"{self.key}.safetensors"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = NETWORKS[self.network](classes=parts.classes)
            if file.exists():
                model.load_state_dict(load_file(file))
                return model
            say(f"{self}: training on public images")
            self._train(model, parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), file)
        return model

    @property
    def _parts(self) -> ImageParts:
        return image_parts(self.dataset, self.records, 0, self.tested, self.pooled)

    def _train(self, model: nn.Module, parts: ImageParts) -> None:
        total = self.epochs * -(-len(parts.y) // _PUBLIC_BATCH)
        rates = WarmupCosine(_PUBLIC_RATE, total // 10, total)
        optimiser = torch.optim.SGD(model.parameters(), _PUBLIC_RATE, _MOMENTUM, weight_decay=_DECAY, nesterov=True)
        labels, step = torch.from_numpy(parts.y), 0
        for _ in range(self.epochs):
            for rows in torch.randperm(len(labels)).split(_PUBLIC_BATCH):
                optimiser.param_groups[0]["lr"] = rates.rate(step)
                optimiser.zero_grad()
                seen = parts.x[rows].flip(-1) if step % 2 else parts.x[rows]  # every other batch mirrored
                cross_entropy(model(seen), labels[rows]).mean().backward()
                optimiser.step()
                step += 1

    def __str__(self) -> str:
        return f"{self.network}, {self.epochs} epochs on {self.records:,} of {self.dataset}"


@dataclass(frozen=True)
class PrivateTraining(Trial):
    """DP-SGD as INS does it, at a budget, or with a given noise, or (neither) without; a seed fixes the rest."""

    kind: ClassVar[str] = "imagenet scale"

    dataset: str
    network: str
    learning_rate: float
    batch: int
    epochs: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    """In place of a budget."""
    l2_clip: float = 1.0
    records: int = 10_000
    held_out: int = 2000
    tested: int | None = None
    delta: float = 1e-5
    start: PublicTraining | None = None
    """Weights to start from, but for the last layer."""
    frozen: int = 0
    """Groups of layers that stay as they were on public images."""
    pooled: bool = False
    """Images of half the sides."""
    average: str | None = None
    """What is released in place of the last weights: one of AVERAGES."""
    seed: int = 0

    def quick(self) -> Self:
        few = replace(self, batch=24, epochs=0.5, records=96, held_out=24, tested=24, delta=1e-3)
        if self.start is not None:
            few = replace(few, start=self.start.quick())
        if self.epsilon is not None:
            few = replace(few, epsilon=3.0)
        return replace(few, noise_multiplier=self.noise_multiplier and 1.0)

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._trained(run, say))

    def plan(self, n: int) -> Plan:
        sampler = PoissonSampler(n, min(n, self.batch))
        steps = max(1, round(self.epochs * n / sampler.expected_batch_size))
        sigma = self.noise_multiplier
        if self.epsilon is not None:
            sigma = calibration.noise_multiplier(
                lambda s: Repeated(sampler.event(s), steps), self.epsilon, self.delta, "zero-out"
            )
        if not sigma:
            return Plan(sampler, self.l2_clip, 0.0, steps, private=False)
        return Plan(sampler, self.l2_clip, sigma, steps)

    def _trained(self, run: Run, say: Say) -> Result:
        parts = image_parts(self.dataset, self.records, self.held_out, self.tested, self.pooled)
        plan, begun = self.plan(len(parts.y)), time.process_time()
        frozen, build = self._cut(parts, run.folder.parent, say)
        x = in_pieces(frozen, parts.x)
        known = self.network, self.frozen if self.start else None, tuple(parts.x.shape[1:])
        model = TrainableModule(build, cross_entropy, l2_penalty=_DECAY, choices=_choices.get(known))
        warmup = min(plan.steps - 1, round(_WARMUP * plan.steps))
        averaging = None if self.average is None else AVERAGES[self.average](plan.steps)
        done = fit(
            plan,
            model,
            (x, parts.y),
            optimiser=SGD(WarmupCosine(self.learning_rate, warmup, plan.steps), _MOMENTUM, nesterov=True),
            ledger=Ledger(path=run.ledger),
            run=run,
            averaging=averaging,
            seed=self.seed,
            on_progress=lambda done, total: say(f"{self}: step {done:,} of {total:,}"),
        )
        with suppress(ValueError):  # one that was finished before has chosen nothing
            _choices.setdefault(known, model.choices)
        return {
            "trial": str(self),
            "accuracy": share_right(done.model, in_pieces(frozen, parts.test_x), parts.test_y),
            "held_out": share_right(done.model, in_pieces(frozen, parts.held_x), parts.held_y),
            "n": len(parts.y),
            "steps": plan.steps,
            "noise_multiplier": plan.noise_multiplier,
            **self._price(plan),
            "seconds": time.process_time() - begun,
        }

    def _price(self, plan: Plan) -> dict[str, Any]:
        if not plan.private:
            return {"epsilon": None, "accountant": None}
        found = cost(plan.event, self.delta)
        return {"epsilon": found.epsilon, "accountant": found.accountant}

    def _cut(self, parts: ImageParts, folder: Path, say: Say) -> tuple[nn.Module, Any]:
        """The frozen part, whose outputs are computed once, and what builds the rest under the run's own seed."""
        classes = parts.classes
        if self.start is None:
            return nn.Identity(), lambda: NETWORKS[self.network](classes=classes)
        start = self.start

        def whole() -> nn.Sequential:
            return models.replace_head(start.module(folder, say), classes, zeros=False)

        return models.split(whole(), self.frozen)[0], lambda: models.split(whole(), self.frozen)[1]

    def __str__(self) -> str:
        noise = f"σ={self.noise_multiplier:g}" if self.noise_multiplier else f"ε={self.epsilon or 0:g}"
        words = [f"{self.network} on {self.records:,} of {self.dataset}"]
        words += [noise if self.epsilon or self.noise_multiplier else "without noise"]
        words += [f"rate {self.learning_rate:g}, clip {self.l2_clip:g}, batch {self.batch}, {self.epochs:g} epochs"]
        words += [f"{self.frozen} groups frozen after {self.start.epochs} public epochs"] if self.start else []
        words += [self.average] if self.average else []
        return ", ".join([*words, f"seed {self.seed}"])


AVERAGES: dict[str, Callable[[int], Averaging]] = {
    "the last tenth": lambda steps: Averaging(1 - 1 / max(2.0, 0.1 * steps)),
    "all iterates": lambda steps: MeanOfIterates(),
}


def tuned(experiment: Experiment, trial: PrivateTraining, rates: Sequence[float]) -> tuple[float, Result]:
    """The rate that does best on held-out training images, and what was found with it."""
    found = {rate: experiment.run(replace(trial, learning_rate=rate)) for rate in experiment.some(rates)}
    best = max(found, key=lambda rate: found[rate]["held_out"])
    return best, found[best]
