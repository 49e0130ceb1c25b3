"""Figure 1's three descents on few images: all of them, some of them, or all of them with the noise of privacy."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from sordino import models
from sordino.budget import Ledger
from sordino.data import PoissonSampler, load
from sordino.features import Pixels, as_array
from sordino.papers.trials import Result, Say, Trial, resumed_or_restarted
from sordino.runs import Run
from sordino.training import SGD, USUAL_SCALE, NetworkHead, Plan, fit

RECORDS, BATCH, LEARNING_RATE = 1000, 50, 0.01
PARAMETERS = 11_330
SIGMA = round(RECORDS * math.sqrt((1 - BATCH / RECORDS) / (BATCH * PARAMETERS)), 3)
"""Noise of the same variance as a draw of BATCH records has, where gradients are as long as the clip of 1."""
_UNCLIPPED = 1e6


@dataclass(frozen=True)
class Descent(Trial):
    """A way to descend on images of Fashion-MNIST, by a network of PARAMETERS weights.

    Its result has the accuracies on training and test images along the run: {iteration: [both]}.
    """

    kind: ClassVar[str] = "descent"

    name: str
    batch: int
    noise_multiplier: float = 0.0
    """0: without noise and without clipping. Otherwise clipped to 1."""
    seed: int = 0
    iterations: int = 2000
    marks: int = 20
    records: int = RECORDS
    tested: int = 10_000

    @property
    def plan(self) -> Plan:
        sampler = PoissonSampler(self.records, min(self.records, self.batch))
        if self.noise_multiplier == 0:
            return Plan(sampler, _UNCLIPPED, 0.0, self.iterations, private=False)
        return Plan(sampler, 1.0, self.noise_multiplier, self.iterations)

    def quick(self) -> "Descent":
        return replace(self, iterations=4, marks=2, records=96, tested=50)

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._trained(run, say))

    def _trained(self, run: Run, say: Say) -> Result:
        data, pixels = load("fashion-mnist"), Pixels(*USUAL_SCALE["fashion-mnist"])
        rows = np.sort(np.random.default_rng(0).permutation(len(data.train))[: self.records])
        x, y = as_array(pixels(data.train.x[rows])), data.train.y[rows]
        test_x, test_y = as_array(pixels(data.test.x[: self.tested])), data.test.y[: self.tested]
        head, plan = NetworkHead(models.lsr_small_cnn), self.plan
        trainee = head.trainee(x, y, 10)
        kept = run.folder / "curve.json"
        curve: dict[str, list[float]] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}

        def measure(done: int, total: int) -> None:
            say(f"{self.name}: iteration {done:,} of {total:,}")
            if done:
                of = [(x, y), (test_x, test_y)]
                scores = [head.scores(trainee.weights(), inputs, 10).argmax(dim=1).numpy() for inputs, _ in of]
                curve[str(done)] = [float(np.mean(s == labels)) for s, (_, labels) in zip(scores, of, strict=True)]
                run.write_json(kept.name, curve)

        every = math.ceil(self.iterations / self.marks)
        fit(
            *(run, plan, trainee, SGD(LEARNING_RATE), Ledger(path=run.ledger)),
            seed=self.seed,
            checkpoint_every=every,
            on_progress=measure,
        )
        if str(self.iterations) not in curve:  # stopped between the last step and its measurement
            measure(self.iterations, self.iterations)
        return curve
