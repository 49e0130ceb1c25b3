"""Accuracies of models for tables at several ε: free on a stand-in, or out of one ledger on the private table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Composed, Event, Gaussian, Ledger, Planned, Repeated, calibration
from sordino.data import DataError, Schema, Split
from sordino.mechanisms import Streams, check_count_noise, noisy_accuracy, secret_from_seed
from sordino.runs import Run
from sordino.selection.stand_ins import StandIn
from sordino.selection.table_models import Learner, Predict, PricedPlan, TableModel, classes_of, models_named
from sordino.selection.workflow_steps import keyed_steps, table_arrays

_STEP_DOWN = 2.0
"""Between neighbouring ε of a private measurement: each then costs about a quarter of the next, in squares."""
_SHRINK = 0.98

Progress = Callable[[int, int], None]
Rates = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Measured:
    """Accuracies (ε, repeats) of each model, from the simplest to the most complex."""

    epsilons: tuple[float, ...]
    accuracies: dict[str, NDArray[np.float64]]
    learning_rates: dict[str, tuple[float, ...]]
    """The best found on the stand-in, of each model at each ε."""
    where: str
    """What they were measured on, in words."""

    def to_json(self) -> dict[str, Any]:
        return {
            "measured_on": self.where,
            "epsilons": list(self.epsilons),
            "accuracies": {name: values.tolist() for name, values in self.accuracies.items()},
            "learning_rates": {name: list(rates) for name, rates in self.learning_rates.items()},
        }


def default_grid(target_epsilon: float, points: int) -> tuple[float, ...]:
    """From a hundredth of the target to ten times it: a crossover beyond the target is of interest, too."""
    calibration.check_target(target_epsilon)
    if points < 2:
        raise ValueError(f"a crossover needs at least 2 points, not {points}")
    return tuple(float(f"{value:.3g}") for value in np.geomspace(target_epsilon / 100, 10 * target_epsilon, points))


def rehearsed(
    models: Sequence[TableModel],
    schema: Schema,
    stand_in: StandIn,
    n: int,
    epsilons: Sequence[float],
    target_delta: float,
    repeats: int,
    on_progress: Progress = lambda done, total: None,
) -> Measured:
    """On public or made-up rows, with the noise that n private records need, and learning rates for each model and ε.

    Rates are chosen on a first draw of rows that the accuracies are not measured on.

    Guarantee: nothing private is read; the noise comes from a fixed seed, so that the answer can be repeated.
    """
    if repeats < 2:
        raise ValueError(f"intervals need at least 2 repeats, not {repeats}")
    classes = len(classes_of(schema))
    plans = {m.name: [m.plan(schema, n, epsilon, target_delta) for epsilon in epsilons] for m in models}
    total = len(epsilons) * sum(len(model.learning_rates) + repeats for model in models)
    done = count(1)
    rates: dict[str, tuple[float, ...]] = {}
    found = {model.name: np.empty((len(epsilons), repeats)) for model in models}
    for repeat in range(repeats + 1):
        train, test = stand_in.draw(repeat)
        for model in models:
            learner = model.learner(model.encode(schema, train.x), train.y, classes)
            stage = _Stage(learner, model.encode(schema, test.x), test.y)
            rehearsals = [model.rehearsal(plan, len(train), n) for plan in plans[model.name]]

            def accuracy(plan: PricedPlan, rate: float, stage: _Stage = stage) -> float:
                number = next(done)
                value = stage.accuracy(plan, rate, seed=number)
                on_progress(number, total)
                return value

            if repeat == 0:
                scores = [[accuracy(plan, rate) for rate in model.learning_rates] for plan in rehearsals]
                rates[model.name] = tuple(model.learning_rates[int(np.argmax(row))] for row in scores)
            else:
                pairs = zip(rehearsals, rates[model.name], strict=True)
                found[model.name][:, repeat - 1] = [accuracy(plan, rate) for plan, rate in pairs]
    return Measured(tuple(epsilons), found, rates, stand_in.words)


class _Stage(NamedTuple):
    """A model with public rows to learn from and others to be scored on."""

    learner: Learner
    inputs: NDArray[np.float32]
    labels: NDArray[Any]

    def accuracy(self, plan: PricedPlan, rate: float, seed: int) -> float:
        predict = self.learner.rehearse(plan, rate, Streams(secret_from_seed(seed)))
        return float((predict(self.inputs) == self.labels).mean())


@dataclass(frozen=True)
class PrivatePlan:
    """All that a private measurement will do, settled before it begins: so that it is priced as a whole."""

    models: tuple[TableModel, ...]
    plans: dict[str, tuple[PricedPlan, ...]]
    """Of each model, one for each ε."""
    epsilons: tuple[float, ...]
    n: int
    """Records trained on."""
    repeats: int
    score_noise: float
    """Noise multiplier of one accuracy, that is, of a count of correct predictions."""

    def __post_init__(self) -> None:
        check_count_noise(self.score_noise)

    @classmethod
    def calibrated(
        cls,
        models: Sequence[TableModel],
        schema: Schema,
        n: int,
        points: int,
        repeats: int,
        ledger: Ledger,
        target_epsilon: float,
    ) -> PrivatePlan:
        """The largest ε that all trainings together leave within the target, and smaller ones below it.

        The parts train (of n records) and validation are disjoint, so that each may cost the whole target.
        """
        ledger.refuse_add_remove()
        if points < 2 or repeats < 2:
            raise ValueError(f"a crossover needs at least 2 points and 2 repeats, not {points} and {repeats}")
        calibration.check_target(target_epsilon)
        delta = ledger.terms.target_delta
        if delta is None:
            raise ValueError("a private measurement needs a ledger with a target δ")
        copies = len(models) * repeats
        down = _STEP_DOWN ** -np.arange(points - 1, -1, -1.0)
        # In the Gaussian's terms squares add up: start there, and shrink until the ledger agrees.
        top = target_epsilon / np.sqrt(copies * (down**2).sum())
        spent = ledger.epsilon_if(Composed(()))
        while top > target_epsilon / (1e3 * copies) and spent < target_epsilon:
            epsilons = tuple(float(f"{top * factor:.3g}") for factor in down)
            plans = _plans(models, schema, n, epsilons, delta)
            price = ledger.epsilon_if(_together(plans, repeats))
            if price <= target_epsilon:
                break
            top *= _SHRINK * np.sqrt((target_epsilon - spent) / (price - spent))
        else:
            raise calibration.OutOfReach(
                f"the ledger's ε is {spent:.4g}, which leaves too little of ε={target_epsilon:g} for a measurement"
            )
        scores = copies * points
        noise = calibration.noise_multiplier(
            lambda sigma: Repeated(Gaussian(sigma), scores),
            target_epsilon,
            delta,
            ledger.terms.adjacency,
            lambda event: ledger.epsilon_if(event, "validation"),
        )
        return cls(tuple(models), plans, epsilons, n, repeats, noise)

    def trials(self) -> list[tuple[TableModel, int, int]]:
        """Model, number of the ε, and repeat."""
        return [(m, k, r) for m in self.models for k in range(len(self.epsilons)) for r in range(self.repeats)]

    def announcements(self) -> list[tuple[Event, str, str]]:
        """For a ledger that opens with them, or is told before anything was drawn: then PLD prices the whole."""
        trials = [(self.plans[model.name][k].event, _what(model, self.epsilons[k], r)) for model, k, r in self.trials()]
        scores: list[tuple[Event, str, str]] = [
            (Gaussian(self.score_noise), _score_of(w), "validation") for _, w in trials
        ]
        return [*((event, what, "train") for event, what in trials), *scores]

    def to_json(self) -> dict[str, Any]:
        return {
            "models": [model.name for model in self.models],
            "epsilons": list(self.epsilons),
            "repeats": self.repeats,
            "score_noise": self.score_noise,
            "n": self.n,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any], schema: Schema, target_delta: float) -> PrivatePlan:
        """The same plan again, to go on with: noise follows from n, ε and δ. Learning rates beside it are checked."""
        try:
            epsilons = tuple(float(epsilon) for epsilon in document["epsilons"])
            models, n = models_named(",".join(document["models"])), int(document["n"])
            repeats, noise = int(document["repeats"]), float(document["score_noise"])
            if len(epsilons) < 2 or repeats < 2 or not 0 < noise < np.inf:
                raise ValueError("no plan is like this")
            if "learning_rates" in document:
                _check_rates(document["learning_rates"], models, epsilons)
            return cls(models, _plans(models, schema, n, epsilons, target_delta), epsilons, n, repeats, noise)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError("the plan of the measurement cannot be read: it is damaged or of another version") from None


def measured_privately(
    private: PrivatePlan,
    schema: Schema,
    parts: tuple[Split, Split],
    rates: Rates,
    ledger: Ledger,
    folder: Path,
    on_progress: Progress = lambda done, total: None,
) -> Measured:
    """On the private table: trained on its part train, scored with noise on its part validation.

    A trial that is finished in the folder is not trained, scored or paid for again, and one that was killed goes on.

    Guarantee: each training is its plan's event on "train", each score a count that one record moves by at most 1 with
    Gaussian noise on "validation"; the ledger is charged before each. The learning rates must not come from the table.
    """
    train, validation = parts
    classes = len(classes_of(schema))
    found = {model.name: np.empty((len(private.epsilons), private.repeats)) for model in private.models}
    inputs = {model.name: model.encode(schema, validation.x) for model in private.models}
    trials = private.trials()
    scores = [folder / f"{model.name}-{k}-{repeat}" / "score.json" for model, k, repeat in trials]
    question = (private, schema, sorted((name, tuple(each)) for name, each in rates.items()))
    data = table_arrays(schema, train, validation)
    with keyed_steps(Run.at(folder), ledger, question, data, scores) as steps:
        for number, (model, k, repeat) in enumerate(trials):
            score, what = scores[number], _what(model, private.epsilons[k], repeat)
            charge = Planned(Gaussian(private.score_noise), _score_of(what), "validation")
            if not score.exists():
                run = Run.at(score.parent)
                learner = model.learner(model.encode(schema, train.x), train.y, classes)
                predict = learner.train(run, private.plans[model.name][k], rates[model.name][k], steps, what)
                draw = partial(_scored, predict, inputs[model.name], validation.y, private.score_noise, charge.what)
                steps.values(score, charge, draw, run.model.read_bytes())
            found[model.name][k, repeat] = steps.known(score, charge)["accuracy"]
            on_progress(number + 1, len(trials))
    noise = private.score_noise / len(validation)
    where = f"the private table: {len(train):,} records trained, {len(validation):,} scored (noise ±{noise:.2g})"
    return Measured(private.epsilons, found, {name: tuple(each) for name, each in rates.items()}, where)


def _scored(
    predict: Predict, x: NDArray[np.float32], y: NDArray[Any], noise: float, what: str, notes: Ledger, streams: Streams
) -> dict[str, Any]:
    return {"accuracy": noisy_accuracy(predict(x) == y, noise, notes, what, "validation", streams)}


def _plans(
    models: Sequence[TableModel], schema: Schema, n: int, epsilons: Sequence[float], delta: float
) -> dict[str, tuple[PricedPlan, ...]]:
    return {model.name: tuple(model.plan(schema, n, epsilon, delta) for epsilon in epsilons) for model in models}


def _check_rates(rates: Any, models: Sequence[TableModel], epsilons: Sequence[float]) -> None:
    """One for each model at each ε."""
    if sorted(rates) != sorted(model.name for model in models):
        raise ValueError("the learning rates are of other models")
    for each in rates.values():
        if len(each) != len(epsilons) or not all(0 < float(rate) < np.inf for rate in each):
            raise ValueError("learning rates are positive numbers, one for each ε")


def _together(plans: Mapping[str, tuple[PricedPlan, ...]], repeats: int) -> Event:
    return Composed(tuple(Repeated(plan.event, repeats) for each in plans.values() for plan in each))


def _what(model: TableModel, epsilon: float, repeat: int) -> str:
    return f"crossover: {model.name} at ε={epsilon:g}, repeat {repeat + 1}"


def _score_of(what: str) -> str:
    return f"score of {what}"
