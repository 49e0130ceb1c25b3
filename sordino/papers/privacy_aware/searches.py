"""A workflow of PAW that searches for a network: its choices in a frozen value, its result kept on disk under them."""

import hashlib
import shutil
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.budget import Laplace, Ledger, steps_for
from sordino.data import PoissonSampler, shuffled
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, calibrated
from sordino.papers.privacy_aware.networks import POOLED, loaded
from sordino.papers.trials import CACHE, Experiment, Say, TrialStore, resumed_or_restarted
from sordino.runs import Run
from sordino.selection import (
    Dense,
    DenseSpace,
    GeneticSearch,
    Grid,
    SearchMethod,
    SearchPlan,
    TrialData,
    TrialResult,
    claimed_search_epsilon,
    correct_predictions,
    search,
)
from sordino.training import Plan

_REVISION = 1
_DATASET = "mnist"
_CLIP, _PLAIN_MOMENTUM = 1.0, 0.9
SCORE_EPSILON = 0.1
"""Of each score's Laplace noise: 0.3 points of accuracy on 5,000 validation records. PAW's 0.02 would be 1.4 points."""


@dataclass(frozen=True)
class Length:
    """How every network of a search is trained, with noise and without, and on how many records."""

    records: int
    batch: int
    epochs: float
    rates: tuple[float, ...]
    noisy_rates: tuple[float, ...]
    """Below ε=1, where the steps of `rates` would be mostly noise."""
    plain_batch: int
    plain_epochs: float
    plain_rates: tuple[float, ...]
    examined: int | None = None
    """So many validation and test records at most."""

    def rates_at(self, epsilon: float | None) -> tuple[float, ...]:
        if epsilon is None:
            return self.plain_rates
        return self.rates if epsilon >= 1 else self.noisy_rates

    def training(self, epsilon: float | None, delta: float) -> Plan:
        """DP-SGD at this ε of one training, or (None) SGD with momentum, without clip or noise."""
        if epsilon is None:
            sampler = PoissonSampler(self.records, self.plain_batch)
            return Plan.without_noise(sampler, UNCLIPPED, self.plain_epochs)
        sampler = PoissonSampler(self.records, self.batch)
        steps = steps_for(self.epochs, self.records, self.batch)
        return Plan(sampler, _CLIP, calibrated(sampler, steps, epsilon, delta), steps)


@dataclass(frozen=True)
class Workflow:
    """A search among trainings at ε each (PAW), or among plain ones (STW), whose winner is then trained at each ε.

    Guarantee: what `search` charges to the workflow's one ledger, every training and score of it, those of the search
    and those after it. A search by plain trainings reads the records without noise: then the ledger says ε=∞.
    """

    method: SearchMethod
    space: DenseSpace | Grid[Dense]
    epsilon: float | None
    length: Length
    then: tuple[float, ...] = ()
    delta: float = 1e-5
    seed: int = 0

    def run(self, say: Say = lambda line: None, store: TrialStore = CACHE) -> dict[str, Any]:
        """Its result: from the store, or else searched for now, from where that was stopped."""

        def compute(run: Run) -> dict[str, Any]:
            return self._result(run, say)

        return store.get(self._key(), lambda folder: resumed_or_restarted(folder, compute))

    def _result(self, run: Run, say: Say) -> dict[str, Any]:
        begun = time.process_time()
        ledger = Ledger(target_delta=self.delta, path=run.ledger)
        found, score = self._searched(run.folder / "search", self.method, self.space, self.epsilon, ledger, say)
        searched = time.process_time()
        trained = {epsilon: self._trained(run, found.candidate, epsilon, ledger, say) for epsilon in self.then}
        statement = ledger.statement()
        plan = self.length.training(self.epsilon, self.delta)
        alone = plan.epsilon(self.delta) if plan.private else None
        examined = len(material(self.length.records, self.length.examined)[0].validation_y)
        return {
            "trial": str(self),
            "network": str(found.candidate),
            "candidate": found.candidate.to_json(),
            "parameters": found.parameters,
            "trained_parameters": found.trained,
            "score": score,
            "then": {f"{epsilon:g}": outcome for epsilon, outcome in trained.items()},
            "epsilon": statement["epsilon"],
            "accountant": statement["accountant"],
            "delta": self.delta,
            "epsilon_of_one_training": alone,
            "claimed_epsilon": None if alone is None else claimed_search_epsilon(self.method, alone, examined),
            "plan": plan.to_json(),
            "ledger": statement["entries"],
            "seconds": {"search": searched - begun, "after it": time.process_time() - searched},
        }

    def _trained(self, run: Run, winner: Any, epsilon: float, ledger: Ledger, say: Say) -> dict[str, Any]:
        """The winner at this ε, at the rate that does best on the validation records: all of it in the ledger."""
        rates = self.length.rates_at(epsilon)
        grid = Grid(tuple(replace(winner, learning_rate=rate) for rate in rates))
        method = GeneticSearch(1, len(rates))
        found, score = self._searched(run.folder / f"winner at {epsilon:g}", method, grid, epsilon, ledger, say)
        plan = self.length.training(epsilon, self.delta)
        return {
            "score": score,
            "learning_rate": found.candidate.learning_rate,
            "epsilon_of_one_training": plan.epsilon(self.delta),
            "plan": plan.to_json(),
        }

    def _searched(
        self,
        folder: Path,
        method: SearchMethod,
        space: DenseSpace | Grid[Dense],
        epsilon: float | None,
        ledger: Ledger,
        say: Say,
    ) -> tuple[TrialResult, float]:
        """What was found, and its test accuracy. Of trainings that all diverged there is no model: always wrong."""
        say(f"{self}: {folder.name}")
        records, test = material(self.length.records, self.length.examined)
        noise = None if epsilon is None else Laplace(1 / SCORE_EPSILON)
        momentum = _PLAIN_MOMENTUM if epsilon is None else 0.0
        plan: SearchPlan[Any] = SearchPlan(method, space, self.length.training(epsilon, self.delta), noise, momentum)
        run = Run.at(folder)
        shown = [0]

        def tell(result: TrialResult) -> None:
            shown[0] += 1
            say(f"{self}: {folder.name}, {shown[0]} found")

        found = search(run, plan, records, ledger, seed=self.seed, on_result=tell)
        shutil.rmtree(run.folder / "trials", ignore_errors=True)  # weights of all that were not chosen
        return found, 0.0 if found.diverged else float(correct_predictions(found.candidate, run, test).mean())

    def _key(self) -> str:
        """Of all that decides the result; a change of code that does, too, raises the revision."""
        words = f"{_REVISION} {self!r} {SCORE_EPSILON} {loaded(_DATASET).facts!r}"
        return "paw-search-" + hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        how = "without noise" if self.epsilon is None else f"at ε={self.epsilon:g} each"
        if isinstance(self.space, Grid):
            what = f"{self.space.candidates[0]}, and other rates"
        else:
            what = f"{self.method.to_json()['method']} search{', layers may be frozen' if self.space.freezing else ''}"
        then = [f"then {', '.join(f'ε={epsilon:g}' for epsilon in self.then)}"] if self.then else []
        return ", ".join([f"{what}, trainings {how}", *then, f"{self.length.records:,} records, seed {self.seed}"])


@lru_cache(maxsize=2)
def material(records: int, examined: int | None) -> tuple[TrialData, TrialData]:
    """Training and validation records, and the test records as validation records to be scored exactly."""
    data = loaded(_DATASET)
    parts = data.workflow_split()
    train = parts.train.take(np.sort(shuffled(len(parts.train), seed=2)[:records]))
    judged, test = (
        part.take(np.arange(min(len(part), examined or len(part)))) for part in (parts.validation, parts.test)
    )
    x, judged_x = POOLED(train.x, judged.x)
    _, test_x = POOLED(train.x[:1], test.x)
    classes = len(data.facts.classes or ())
    return TrialData(x, train.y, judged_x, judged.y, classes), TrialData(x[:1], train.y[:1], test_x, test.y, classes)


def repeated(experiment: Experiment, workflow: Workflow, seeds: int) -> list[dict[str, Any]]:
    """The workflow under so many seeds; the record holds what each found, too."""
    results = []
    for seed in experiment.seeds_of(seeds, seeds):
        result = replace(workflow, seed=seed).run(experiment.say, experiment.store)
        experiment.ran[result["trial"]] = result
        results.append(result)
    return results
