"""Tables VIII and IX of PAW: three ways to search for a network under privacy, and the search without (STW)."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isinf
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import numpy as np

from sordino.budget import Laplace, Ledger, Repeated, claimed_random_search, composed, cost, steps_for
from sordino.data import PoissonSampler, shuffled
from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.intervals import Comparison, Interval
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, calibrated
from sordino.papers.privacy_aware.networks import POOLED, loaded
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment, Result, Say, Trial, resumed_or_restarted
from sordino.runs import Run
from sordino.selection import (
    Dense,
    DenseSpace,
    GenerationalSearch,
    GeneticSearch,
    Grid,
    RandomSearch,
    SearchMethod,
    SearchPlan,
    TrialData,
    TrialResult,
    claimed_search_epsilon,
    correct_predictions,
    search,
)
from sordino.training import Plan

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
class SearchWorkflow(Trial):
    """A search among trainings at ε each (PAW), or among plain ones (STW), whose winner is then trained at each ε.

    Guarantee: what `search` charges to the workflow's one ledger, every training and score of it, those of the search
    and those after it. A search by plain trainings reads the records without noise: then the ledger says ε=∞.
    """

    kind: ClassVar[str] = "architecture search"

    method: SearchMethod
    space: DenseSpace | Grid[Dense]
    epsilon: float | None
    length: Length
    then: tuple[float, ...] = ()
    delta: float = 1e-5
    seed: int = 0

    def description(self) -> Result:
        return super().description() | {"method": self.method.to_json(), "space": self.space.to_json()}

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._result(run, say))

    def _result(self, run: Run, say: Say) -> Result:
        began = time.process_time()
        ledger = Ledger(target_delta=self.delta, path=run.ledger)
        found, score = self._searched(run.folder / "search", self.method, self.space, self.epsilon, ledger, say)
        searched = time.process_time()
        trained = {epsilon: self._trained(run, found.candidate, epsilon, ledger, say) for epsilon in self.then}
        statement = ledger.statement()
        plan = self.length.training(self.epsilon, self.delta)
        alone = plan.epsilon(self.delta) if plan.private else None
        scored = len(search_data(self.length.records, self.length.examined)[0].validation_y)
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
            "claimed_epsilon": None if alone is None else claimed_search_epsilon(self.method, alone, scored),
            "plan": plan.to_json(),
            "ledger": statement["entries"],
            "seconds": {"search": searched - began, "after it": time.process_time() - searched},
        }

    def _trained(self, run: Run, winner: Any, epsilon: float, ledger: Ledger, say: Say) -> Result:
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
        records, test = search_data(self.length.records, self.length.examined)
        noise = None if epsilon is None else Laplace(1 / SCORE_EPSILON)
        momentum = _PLAIN_MOMENTUM if epsilon is None else 0.0
        plan: SearchPlan[Any] = SearchPlan(method, space, self.length.training(epsilon, self.delta), noise, momentum)
        run = Run.at(folder)
        results: list[TrialResult] = []

        def show(result: TrialResult) -> None:
            results.append(result)
            say(f"{self}: {folder.name}, {len(results)} found")

        found = search(run, plan, records, ledger, seed=self.seed, on_result=show)
        shutil.rmtree(run.folder / "trials", ignore_errors=True)  # weights of all that were not chosen
        return found, 0.0 if found.diverged else float(correct_predictions(found.candidate, run, test).mean())

    def __str__(self) -> str:
        how = "without noise" if self.epsilon is None else f"at ε={self.epsilon:g} each"
        if isinstance(self.space, Grid):
            what = f"{self.space.candidates[0]}, and other rates"
        else:
            what = f"{self.method.to_json()['method']} search{', layers may be frozen' if self.space.freezing else ''}"
        then = [f"then {', '.join(f'ε={epsilon:g}' for epsilon in self.then)}"] if self.then else []
        return ", ".join([f"{what}, trainings {how}", *then, f"{self.length.records:,} records, seed {self.seed}"])


@lru_cache(maxsize=2)
def search_data(records: int, examined: int | None) -> tuple[TrialData, TrialData]:
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


_EPSILON, _SMALL = 2.11, 0.341
"""Of one training; PAW rounds the second to 0.34."""
_THEIR_NOISE = {_EPSILON: 2.0, _SMALL: 10.0}
_DATA = "MNIST"
_SEEDS, _FULL_SEEDS = 5, 3
_SHORT = Length(4000, 400, 12, (2.0, 4.0), (0.5, 1.0), 200, 12, (0.1, 0.3))
_LONG = Length(60_000, 100, 500, (0.1, 0.2), (0.02, 0.05), 100, 20, (0.05, 0.1))
_QUICK = Length(48, 16, 1, (0.5, 1.0), (0.5, 1.0), 16, 1, (0.1, 0.3), examined=24)
_SEARCHES: dict[str, tuple[SearchMethod, SearchMethod, SearchMethod]] = {
    "PAAS": (GeneticSearch(6, 10), GeneticSearch(4, 8), GeneticSearch(2, 2)),
    "RS": (RandomSearch(400.0), RandomSearch(30.0), RandomSearch(2.0)),
    "MGRS": (
        GenerationalSearch((40.0, 20.0, 10.0)),
        GenerationalSearch((15.0, 10.0, 5.0)),
        GenerationalSearch((2.0, 1.5)),
    ),
}
"""PAW's own, reduced, and quick."""
_STW = "STW: PAAS without noise, then its winner"


def table_8(experiment: Experiment, item: Declaration) -> Record:
    """PAAS, RS and MGRS at one ε of a training, and the standard workflow.

    Published are accuracy, GPU hours and the ε that PAW says the search costs; the first row is of Table I.
    """
    rows: list[list[Cell]] = []
    found: dict[str, Interval] = {}
    claims: list[str] = []
    for name, paper, *more in item.published:
        hours, claim = more or (None, None)
        standard = name == _STW
        workflow = standard_workflow(experiment, "PAAS", _EPSILON) if standard else aware_workflow(experiment, name)
        results = experiment.repeated(workflow, _SEEDS, _FULL_SEEDS)
        own = [result["then"][f"{_EPSILON:g}"] for result in results] if standard else results
        found[name] = Interval.of_scores(own)
        whole, ours = _whole(results), results[0]["claimed_epsilon"]
        claims += [beside_claim(name, whole, ours)] if name in ("RS", "MGRS") else []
        theirs = None if standard else their_sound_epsilon(experiment, name)
        minutes = f"{mean(sum(result['seconds'].values()) for result in results) / 60:.1f}"
        row: list[Cell] = [name, _DATA, paper, found[name].percent(), sizes(results)]
        row += [own[0]["epsilon_of_one_training"], claim, theirs, ours, whole, results[0]["accountant"]]
        rows.append([*row, hours, minutes, len(results)])
    searched = {name: each for name, each in found.items() if name != _STW}
    said = [f"{name} is {each.better_than(found[_STW], 'STW')}" for name, each in searched.items()]
    return item.record(experiment, rows, follows=[*said, among(searched), *claims])


def table_9(experiment: Experiment, item: Declaration) -> Record:
    """Random search with frozen layers, without noise and with it.

    Published are, for STW and PAW at each ε, parameters (trained) and accuracies by DP-SGD and by SGD.
    """
    standard = experiment.repeated(standard_workflow(experiment, "RS", _EPSILON, _SMALL), _SEEDS, _FULL_SEEDS)
    rows: list[list[Cell]] = []
    said: list[str] = []
    for epsilon, *theirs in item.published:
        aware = experiment.repeated(aware_workflow(experiment, "RS", epsilon), _SEEDS, _FULL_SEEDS)
        plain = [_by_sgd(experiment, result, seed) for seed, result in enumerate(aware)]
        noisy = [result["then"][f"{epsilon:g}"] for result in standard]
        of = Interval.of_scores
        comparison = Comparison(f"ε={epsilon:g}", of(noisy), of(aware), of(standard), of(plain))
        claim = beside_claim(f"RS at ε={epsilon:g}", _whole(aware), aware[0]["claimed_epsilon"])
        said += [comparison.words("PAW's network is better than STW's", "STW's"), claim]
        ours = (("STW", noisy, standard, standard), ("PAW", aware, aware, plain))
        for (name, own, results, sgd), (parameters, private, without) in zip(ours, theirs, strict=True):
            prices: list[Cell] = [None, None]
            if name == "PAW":
                prices = [claimed_random_search(epsilon, [400]), their_sound_epsilon(experiment, "RS", epsilon)]
            row: list[Cell] = [name, _DATA, epsilon, parameters, sizes(results), private, of(own).percent()]
            row += [without, of(sgd).percent(), own[0]["epsilon_of_one_training"], *prices]
            first = results[0]
            rows.append([*row, first["claimed_epsilon"], _whole(results), first["accountant"], len(results)])
    return item.record(experiment, rows, follows=said)


def _length(experiment: Experiment) -> Length:
    return _QUICK if experiment.quick else experiment.pick(_SHORT, _LONG)


def aware_workflow(experiment: Experiment, name: str, epsilon: float = _EPSILON) -> SearchWorkflow:
    """The privacy-aware workflow: every training of the search at this ε."""
    return _workflow(experiment, name, epsilon, ())


def standard_workflow(experiment: Experiment, name: str, *then: float) -> SearchWorkflow:
    """The standard workflow: the same search by SGD, and its winner trained at each ε."""
    return _workflow(experiment, name, None, then)


def _workflow(experiment: Experiment, name: str, epsilon: float | None, then: tuple[float, ...]) -> SearchWorkflow:
    """In PAW's space, in which its random searches may also freeze layers."""
    theirs, reduced, quick = _SEARCHES[name]
    method = quick if experiment.quick else experiment.pick(reduced, theirs)
    length = _length(experiment)
    widths = ((8, 16), (4,)) if experiment.quick else DenseSpace.widths
    space = DenseSpace(widths, learning_rates=length.rates_at(epsilon), freezing=name != "PAAS")
    return SearchWorkflow(method, space, epsilon, length, then, 1e-3 if experiment.quick else 1e-5)


def _by_sgd(experiment: Experiment, result: Result, seed: int) -> Result:
    """A network that was found with noise, trained without."""
    length, network = _length(experiment), Dense.from_json(result["candidate"])
    grid = Grid(tuple(replace(network, learning_rate=rate) for rate in length.plain_rates))
    method = GeneticSearch(1, len(length.plain_rates))
    return experiment.run(SearchWorkflow(method, grid, None, length, (), result["delta"], seed))


def their_sound_epsilon(experiment: Experiment, name: str, epsilon: float = _EPSILON) -> float | None:
    """What the paper's own search costs, done soundly; not in the quick form, since PAAS's takes seconds to price."""
    if experiment.quick:
        return None
    sampler = PoissonSampler(_LONG.records, _LONG.batch)
    training = Repeated(sampler.event(_THEIR_NOISE[epsilon]), round(_LONG.epochs * _LONG.records / _LONG.batch))
    stages = _SEARCHES[name][0].stages(training, training)
    return cost(composed([Repeated(stage.training, stage.most) for stage in stages]), 1e-5).epsilon


def _whole(results: Sequence[Result]) -> Cell:
    epsilon = float(results[0]["epsilon"])
    return "∞" if isinf(epsilon) else epsilon


def sizes(results: Sequence[Result]) -> str:
    """The networks found under all seeds, from the smallest to the largest."""
    found = sorted({(result["parameters"], result["trained_parameters"]) for result in results})
    words = [f"{whole:,} ({trained:,})" for whole, trained in found]
    return words[0] if len(words) == 1 else f"{words[0]} to {words[-1]}"


def among(found: dict[str, Interval]) -> str:
    """Which search did best, and whether the intervals show it."""
    best = max(found, key=lambda name: found[name].mean)
    others = [name for name in found if name != best]
    level = [name for name in others if not found[best].above(found[name])]
    end = f"its interval overlaps that of {' and '.join(level)}" if level else "its interval lies above the others'"
    if any(each.half is None for each in found.values()):
        end = "one seed cannot tell"
    return f"Of the searches under privacy {best} found the best network in the mean; {end}"


def beside_claim(name: str, sound: Cell, claim: Cell) -> str:
    """The claim and what is proven, of one search."""
    if not isinstance(sound, float) or not isinstance(claim, float):
        return f"{name}: Eq. 9 claims nothing here"
    return f"{name}: Eq. 9 would claim ε={claim:.3g} for our search, the ledger says {sound:.3g} for the same"
