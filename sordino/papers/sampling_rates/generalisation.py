"""Figure 1's three descents on few images: all of them, some of them, or all of them with the noise of privacy."""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino import models
from sordino.budget import Ledger
from sordino.data import PoissonSampler, load
from sordino.features import Pixels, as_array
from sordino.papers.keeping import Store, begun_or_anew
from sordino.papers.trials import Say
from sordino.runs import Run
from sordino.training import SGD, USUAL_SCALE, NetworkHead, Plan, fit

RECORDS, BATCH, LEARNING_RATE = 1000, 50, 0.01
PARAMETERS = 11_330
SIGMA = round(RECORDS * math.sqrt((1 - BATCH / RECORDS) / (BATCH * PARAMETERS)), 3)
"""Noise of the same variance as a draw of BATCH records has, where gradients are as long as the clip of 1."""
_UNCLIPPED = 1e6
_REVISION = 1


@dataclass(frozen=True)
class Descent:
    """A way to descend on RECORDS images of Fashion-MNIST, by a network of PARAMETERS weights."""

    name: str
    batch: int
    noise_multiplier: float = 0.0
    """0: without noise and without clipping. Otherwise clipped to 1."""
    seed: int = 0

    def plan(self, records: int, iterations: int) -> Plan:
        sampler = PoissonSampler(records, min(records, self.batch))
        if self.noise_multiplier == 0:
            return Plan(sampler, _UNCLIPPED, 0.0, iterations, private=False)
        return Plan(sampler, 1.0, self.noise_multiplier, iterations)

    def curve(self, iterations: int, marks: int, records: int, tested: int, say: Say, store: Store) -> Any:
        """Accuracies in training and test along the run, from the store or else trained now: {iteration: [both]}."""
        words = f"{_REVISION} {self} {iterations} {marks} {records} {tested}"
        key = hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

        def train(run: Run) -> dict[str, Any]:
            return self._trained(iterations, marks, records, tested, say, run)

        return store.kept(f"descent-{key}", lambda folder: begun_or_anew(folder, train))

    def _trained(self, iterations: int, marks: int, records: int, tested: int, say: Say, run: Run) -> dict[str, Any]:
        data, pixels = load("fashion-mnist"), Pixels(*USUAL_SCALE["fashion-mnist"])
        rows = np.sort(np.random.default_rng(0).permutation(len(data.train))[:records])
        x, y = as_array(pixels(data.train.x[rows])), data.train.y[rows]
        test_x, test_y = as_array(pixels(data.test.x[:tested])), data.test.y[:tested]
        head, plan = NetworkHead(models.lsr_small_cnn), self.plan(records, iterations)
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

        every = math.ceil(iterations / marks)
        fit(
            *(run, plan, trainee, SGD(LEARNING_RATE), Ledger(path=run.ledger)),
            seed=self.seed,
            checkpoint_every=every,
            on_progress=measure,
        )
        if str(iterations) not in curve:  # stopped between the last step and its measurement
            measure(iterations, iterations)
        return curve
