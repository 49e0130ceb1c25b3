"""Trainings of PAW's networks: frozen values with stored results, learning rates tuned on held-out records."""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Self

import numpy as np

from sordino.budget import Ledger, Repeated, calibration, cost
from sordino.data import PoissonSampler
from sordino.papers.privacy_aware.networks import NETWORKS, TRAINING_RECORDS, parts_of
from sordino.papers.trials import Experiment, Result, Say, Trial, scored_along
from sordino.runs import Run, RunBusy, RunError
from sordino.training import SGD, Adam, Plan, Steps, fitting, gains_by_company, side_by_side

_BLOCKS = 10
UNCLIPPED = 1e6
"""A clip that no gradient reaches: plain SGD by the same code."""


@dataclass(frozen=True)
class NetworkTrial(Trial):
    """DP-SGD of a network at a budget, or with a given noise, or (both None) without any; a seed fixes the rest.

    The revision rises with a change of code that computes something else; one that draws other numbers for the same
    seed makes another draw of the same result, and does not.
    """

    kind: ClassVar[str] = "network"

    network: str
    epsilon: float | None
    learning_rate: float
    batch: int = 100
    epochs: float = 500
    seed: int = 0
    noise_multiplier: float | None = None
    """Given in place of a budget."""
    delta: float = 1e-5
    l2_clip: float = 1.0
    adam: bool = False
    """PAW's "SGD" at rates of 1e-3 to 1e-4 is taken for Adam."""
    validation: int = 0
    """Examine so many held-out training records in place of the test records."""
    records: int | None = None
    examined: int | None = None
    marks: int = 1
    """How many times the network is scored along the run, at equal distances."""

    @property
    def private(self) -> bool:
        return self.epsilon is not None or self.noise_multiplier is not None

    def quick(self) -> Self:
        """The same code on a few records, in a moment; all alike, so that they share one plan."""
        small = replace(self, batch=16, epochs=1, records=48, examined=24, delta=1e-3)
        small = replace(small, validation=min(self.validation, 24), marks=min(self.marks, 2))
        return replace(small, epsilon=3.0, noise_multiplier=None) if self.private else small

    def compute(self, folder: Path, say: Say) -> Result:
        [result] = side_by_side([self.training(folder, (0, 1), say)])
        return result

    def plan(self, n: int) -> Plan:
        sampler = PoissonSampler(n, min(n, self.batch))
        steps = max(1, round(self.epochs * n / sampler.expected_batch_size))
        if not self.private:
            return Plan(sampler, self.l2_clip, 0.0, steps, private=False)
        sigma = self.noise_multiplier
        if sigma is None:
            sigma = calibrated(sampler, steps, float(self.epsilon or 0), self.delta)
        return Plan(sampler, self.l2_clip, sigma, steps)

    def training(self, folder: Path, place: tuple[int, int], say: Say) -> Steps[Result]:
        """Trained in this folder, from where it was stopped, or where that cannot be, from its start."""
        try:
            return (yield from self._result(Run.at(folder), place, say))
        except RunBusy:
            raise
        except RunError:  # begun in another environment; under a seed there is no privacy to lose
            shutil.rmtree(folder)
            return (yield from self._result(Run.at(folder), place, say))

    def _result(self, run: Run, place: tuple[int, int], say: Say) -> Steps[Result]:
        say(f"{self}: inputs")
        network = NETWORKS[self.network]
        parts = parts_of(network.dataset, network.inputs, self.validation, self.records, self.examined)
        plan = self.plan(len(parts.y))
        begun = time.process_time()
        model: Any = network.trainable(place)
        between = math.ceil(plan.steps / self.marks)
        block = math.ceil(between * self.marks / max(_BLOCKS, self.marks))
        between = block * math.ceil(between / block)  # marks fall on checkpoints

        def on_progress(done: int, total: int) -> None:
            say(f"{self}: step {done:,} of {total:,}")

        def score() -> float:
            return network.score(model.model, parts.examined_x, parts.examined_y)

        curve, measure = scored_along(run, between, score, on_progress)
        if self.epsilon is None:
            ledger = Ledger(path=run.ledger)
        else:
            ledger = Ledger(self.epsilon, self.delta, path=run.ledger, planned=[(plan.event, "training", "train")])
        fitted = yield from fitting(
            plan,
            model,
            (parts.x, parts.y),
            optimiser=Adam(self.learning_rate) if self.adam else SGD(self.learning_rate),
            ledger=ledger,
            run=run,
            seed=self.seed,
            checkpoint_every=block,
            on_progress=measure,
        )
        done = fitted.steps
        if str(done) not in curve:  # stopped between the last step and its score
            measure(done, done)
        with np.errstate(over="ignore"):  # at an ε in the millions
            found = cost(plan.event, self.delta) if plan.private else None
        return {
            "trial": str(self),
            "score": curve[str(done)],
            "curve": curve,
            "epsilon": None if found is None else found.epsilon,
            "accountant": None if found is None else found.accountant,
            "delta": self.delta,
            "plan": plan.to_json(),
            "learning_rate": self.learning_rate,
            "seconds": time.process_time() - begun,
        }

    def __str__(self) -> str:
        noise = f"σ={self.noise_multiplier:g}" if self.noise_multiplier else f"ε={self.epsilon or 0:g}"
        more = [f"{self.records:,} records"] if self.records else []
        more += [f"{self.validation:,} held out"] if self.validation else []
        rate = f"rate {self.learning_rate:g}{' (Adam)' if self.adam else ''}"
        clip = [] if self.private or self.l2_clip == UNCLIPPED else [f"clip {self.l2_clip:g}"]
        size = f"batch {self.batch} for {self.epochs:g} epochs"
        first = f"{self.network} {noise if self.private else 'without noise'}"
        return ", ".join([first, rate, *clip, size, *more, f"seed {self.seed}"])


@lru_cache(maxsize=256)
def calibrated(sampler: PoissonSampler, steps: int, epsilon: float, delta: float) -> float:
    """The noise that keeps so many steps within the budget, by PLD."""
    return calibration.noise_multiplier(lambda sigma: Repeated(sampler.event(sigma), steps), epsilon, delta, "zero-out")


def run_all(experiment: Experiment, trials: Sequence[NetworkTrial]) -> list[Result]:
    """The results of trials that differ in seed and rate alone; missing ones are trained side by side if that helps."""
    every = [trial.quick() if experiment.quick else trial for trial in trials]
    network = NETWORKS[every[0].network]

    def train(missing: dict[NetworkTrial, Path]) -> list[Result]:
        if not network.closed_form or not gains_by_company(network.build(), every[0].batch):
            return [trial.compute(folder, experiment.say) for trial, folder in missing.items()]
        # Places are among all of them, so that those that resume find their own again, whichever are finished.
        places = {trial: (place, len(every)) for place, trial in enumerate(every)}
        found = side_by_side([t.training(folder, places[t], experiment.say) for t, folder in missing.items()])
        return [result | {"seconds": result["seconds"] / len(found)} for result in found]

    return experiment.run_together(trials, train)


def repeated(experiment: Experiment, trial: NetworkTrial, seeds: int) -> list[Result]:
    """The trial under so many seeds."""
    return run_all(experiment, [replace(trial, seed=seed) for seed in experiment.seeds_of(seeds, seeds)])


_HELD_OUT, _MOST_HELD_OUT = 0.1, 5000
_TUNING_SEED = 1000
_MOST_FURTHER = 3


def best_rate(
    rates: Sequence[float], scored: Callable[[Sequence[float]], Sequence[float]], least: bool = False
) -> tuple[float, dict[float, float]]:
    """The rate with the highest score (or the least), and the score of each; extends the grid if an end is best."""
    tries = dict(zip(rates, scored(rates), strict=True))
    ratio = rates[1] / rates[0]
    for further in range(_MOST_FURTHER + 1):
        best = (min if least else max)(tries, key=lambda rate: tries[rate])
        if min(tries) < best < max(tries) or further == _MOST_FURTHER:
            break
        beyond = best * ratio if best == max(tries) else best / ratio
        tries[beyond] = scored([beyond])[0]
    return best, dict(sorted(tries.items()))


def tune_rate(
    experiment: Experiment, trial: NetworkTrial, rates: Sequence[float], seeds: int = 1
) -> tuple[float, dict[float, float]]:
    """The best rate on held-out records, with the trial's noise and epochs: a shorter run prefers larger rates."""
    n = trial.records or TRAINING_RECORDS[NETWORKS[trial.network].dataset]
    held_out = replace(
        trial,
        epsilon=None,
        noise_multiplier=trial.plan(n).noise_multiplier if trial.private and not experiment.quick else None,
        validation=min(_MOST_HELD_OUT, int(_HELD_OUT * n)),
        marks=1,
    )

    def scored(tried: Sequence[float]) -> list[float]:
        trials = [replace(held_out, learning_rate=rate, seed=_TUNING_SEED + s) for rate in tried for s in range(seeds)]
        found = [result["score"] for result in run_all(experiment, trials)]
        return [mean(found[place : place + seeds]) for place in range(0, len(found), seeds)]

    return best_rate(rates, scored, NETWORKS[trial.network].regression)


def tuned(experiment: Experiment, trial: NetworkTrial, rates: Sequence[float], seeds: int = 1) -> NetworkTrial:
    """The trial with the rate that did best on held-out training records."""
    if experiment.quick or len(rates) == 1:
        return replace(trial, learning_rate=rates[0])
    return replace(trial, learning_rate=tune_rate(experiment, trial, rates, seeds)[0])
