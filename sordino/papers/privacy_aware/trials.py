"""One training of a network of PAW: all its choices in a frozen value, its result kept on disk under them."""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.budget import Ledger, Repeated, calibration, cost
from sordino.data import PoissonSampler
from sordino.papers.privacy_aware.inputs import Material, loaded, material
from sordino.papers.privacy_aware.networks import NETWORKS
from sordino.papers.trials import CACHE, Experiment, Say, TrialStore
from sordino.runs import Run, RunBusy, RunError
from sordino.training import SGD, Adam, Optimiser, Plan, Steps, alone, fitting, gains_by_company, side_by_side

_REVISION = 1
_BLOCKS = 10
UNCLIPPED = 1e6
"""A clip that no gradient reaches: plain SGD by the same code."""


@dataclass(frozen=True)
class NetworkTrial:
    """DP-SGD of a network at a budget, or with a given noise, or (both None) without any; a seed fixes the rest."""

    network: str
    epsilon: float | None
    learning_rate: float
    batch: int = 100
    epochs: float = 500
    seed: int = 0
    noise_multiplier: float | None = None
    """In place of a budget."""
    delta: float = 1e-5
    l2_clip: float = 1.0
    adam: bool = False
    """PAW's "SGD" at rates of 1e-3 to 1e-4 is taken for Adam."""
    validation: int = 0
    """Examine so many held-out training records in place of the test records."""
    records: int | None = None
    examined: int | None = None
    marks: int = 1
    """How many times the network is examined along the run, at equal distances."""

    @classmethod
    def plain(cls, network: str, learning_rate: float = 1e-3, batch: int = 250, epochs: float = 20) -> "NetworkTrial":
        """Without noise or clip."""
        return cls(network, None, learning_rate, batch, epochs, l2_clip=UNCLIPPED, adam=True)

    @property
    def private(self) -> bool:
        return self.epsilon is not None or self.noise_multiplier is not None

    def few(self) -> "NetworkTrial":
        """The same code on a few records, in a moment; alike, so that they share one plan."""
        budget = {"epsilon": 3.0, "noise_multiplier": None} if self.private else {}
        sizes = {"batch": 16, "epochs": 1, "records": 48, "examined": 24, "validation": min(self.validation, 24)}
        return replace(self, **budget, **sizes, delta=1e-3, marks=min(self.marks, 2))  # type: ignore[arg-type]

    def run(self, say: Say = lambda line: None, store: TrialStore = CACHE) -> dict[str, Any]:
        """Its result: from the store, or else trained now."""
        return results_of([self], say, store)[0]

    def plan(self, n: int) -> Plan:
        sampler = PoissonSampler(n, min(n, self.batch))
        steps = max(1, round(self.epochs * n / sampler.expected_batch_size))
        if not self.private:
            return Plan(sampler, self.l2_clip, 0.0, steps, private=False)
        sigma = self.noise_multiplier
        if sigma is None:
            sigma = calibrated(sampler, steps, float(self.epsilon or 0), self.delta)
        return Plan(sampler, self.l2_clip, sigma, steps)

    def training(self, folder: Path, place: tuple[int, int], say: Say) -> Steps[dict[str, Any]]:
        """Trained in this folder, from where it was stopped, or where that cannot be, from its start."""
        try:
            return (yield from self._result(Run.at(folder), place, say))
        except RunBusy:
            raise
        except RunError:  # begun in another environment; under a seed there is no privacy to lose
            shutil.rmtree(folder)
            return (yield from self._result(Run.at(folder), place, say))

    def _result(self, run: Run, place: tuple[int, int], say: Say) -> Steps[dict[str, Any]]:
        say(f"{self}: inputs")
        network = NETWORKS[self.network]
        data = material(network.dataset, network.inputs, self.validation, self.records, self.examined)
        plan = self.plan(len(data.y))
        begun = time.process_time()
        curve = yield from self._trained(run, plan, data, place, say)
        steps = max(map(int, curve))
        with np.errstate(over="ignore"):  # at an ε in the millions
            found = cost(plan.event, self.delta) if plan.private else None
        return {
            "trial": str(self),
            "score": curve[str(steps)],
            "curve": curve,
            "epsilon": None if found is None else found.epsilon,
            "accountant": None if found is None else found.accountant,
            "delta": self.delta,
            "plan": plan.to_json(),
            "learning_rate": self.learning_rate,
            "seconds": time.process_time() - begun,
        }

    def _trained(
        self, run: Run, plan: Plan, data: Material, place: tuple[int, int], say: Say
    ) -> Steps[dict[str, float]]:
        network = NETWORKS[self.network]
        trainee: Any = network.trainee(data.x, data.y, place)
        between = math.ceil(plan.steps / self.marks)
        block = math.ceil(between * self.marks / max(_BLOCKS, self.marks))
        between = block * math.ceil(between / block)  # marks fall on checkpoints
        kept_curve = run.folder / "curve.json"
        curve: dict[str, float] = json.loads(kept_curve.read_text(encoding="utf-8")) if kept_curve.exists() else {}

        def measure(done: int, total: int) -> None:
            say(f"{self}: step {done:,} of {total:,}")
            if done and (done % between == 0 or done == total):
                curve[str(done)] = network.score(trainee.model, data.examined_x, data.examined_y)
                run.write_json(kept_curve.name, curve)

        optimiser: Optimiser = Adam(self.learning_rate) if self.adam else SGD(self.learning_rate)
        planned = [(plan.event, "training", "train")]
        if self.epsilon is None:
            ledger = Ledger(path=run.ledger)
        else:
            ledger = Ledger(self.epsilon, self.delta, path=run.ledger, planned=planned)
        done = yield from fitting(
            *(run, plan, trainee, optimiser, ledger), seed=self.seed, checkpoint_every=block, on_progress=measure
        )
        if str(done) not in curve:  # stopped between the last step and its measurement
            measure(done, done)
        return curve

    def key(self) -> str:
        """Of all that decides the result but for the random numbers behind a seed.

        A change of code that computes something else raises the revision; one that draws other numbers for the same
        seed makes another draw of the same result, and does not.
        """
        network = NETWORKS[self.network]
        words = f"{_REVISION} {self!r} {network.build()!r} {network.counts} {loaded(network.dataset).facts!r}"
        return "paw-" + hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        budget = (
            "without noise" if not self.private else f"σ={self.noise_multiplier:g}" if self.noise_multiplier else ""
        )
        budget = budget or f"ε={self.epsilon:g}"
        more = [f"{self.records:,} records"] if self.records else []
        more += [f"{self.validation:,} held out"] if self.validation else []
        rate = f"rate {self.learning_rate:g}{' (Adam)' if self.adam else ''}"
        clip = [] if self.private or self.l2_clip == UNCLIPPED else [f"clip {self.l2_clip:g}"]
        size = f"batch {self.batch} for {self.epochs:g} epochs"
        return ", ".join([f"{self.network} {budget}", rate, *clip, size, *more, f"seed {self.seed}"])


@lru_cache(maxsize=256)
def calibrated(sampler: PoissonSampler, steps: int, epsilon: float, delta: float) -> float:
    """The noise that keeps so many steps within the budget, by PLD."""
    return calibration.noise_multiplier(lambda sigma: Repeated(sampler.event(sigma), steps), epsilon, delta, "zero-out")


@lru_cache(maxsize=256)
def price(plan: Plan, steps: int, delta: float) -> float:
    """ε of so many of a plan's steps."""
    return cost(Repeated(plan.step_event, steps), delta).epsilon


def results_of(trials: Sequence[NetworkTrial], say: Say, store: TrialStore) -> list[dict[str, Any]]:
    """Of trials that differ in seed and rate alone: from the store, or else trained now, side by side if that helps."""
    keyed = {trial.key(): trial for trial in trials}

    def train(missing: dict[str, Path]) -> list[dict[str, Any]]:
        network = NETWORKS[trials[0].network]
        if not network.closed_form or not gains_by_company(network.build(), trials[0].batch):
            return [alone(keyed[key].training(folder, (0, 1), say)) for key, folder in missing.items()]
        # Places are among all of them, so that those that go on find their own again, whichever are finished.
        places = {key: (place, len(keyed)) for place, key in enumerate(keyed)}
        found = side_by_side([keyed[key].training(folder, places[key], say) for key, folder in missing.items()])
        return [result | {"seconds": result["seconds"] / len(found)} for result in found]

    return store.get_all([trial.key() for trial in trials], train)


def run_all(experiment: Experiment, trials: Sequence[NetworkTrial]) -> list[dict[str, Any]]:
    """The trials' results, which the record then holds, too."""
    results = results_of([t.few() if experiment.quick else t for t in trials], experiment.say, experiment.store)
    for result in results:
        experiment.ran[result["trial"]] = {name: value for name, value in result.items() if name != "curve"}
    return results


def repeated(experiment: Experiment, trial: NetworkTrial, seeds: int) -> list[dict[str, Any]]:
    """The trial under so many seeds."""
    return run_all(experiment, [replace(trial, seed=seed) for seed in experiment.seeds_of(seeds, seeds)])
