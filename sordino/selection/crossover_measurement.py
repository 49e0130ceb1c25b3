"""Accuracies of table models at several ε: free on proxy rows, or charged to one ledger on the private table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Composed, Gaussian, Ledger, Planned, Repeated, calibration
from sordino.data import Schema, Split, set_aside
from sordino.mechanisms import check_count_noise
from sordino.runs import Run, RunError, TableLedger, kept_json, workflow_steps
from sordino.selection.crossover_epsilon import (
    Curve,
    crossover_in_words,
    crossovers,
    curve,
    draw_crossover,
    winning_ranges,
)
from sordino.selection.proxy_rows import ProxyRows
from sordino.selection.sources import PrivateTable
from sordino.selection.table_models import PricedPlan, TableModel, models_named, table_arrays

_STEP_DOWN = 2.0
"""Between neighbouring ε of a private measurement: each then costs about a quarter of the next, in squares."""
_SHRINK = 0.98

Progress = Callable[[int, int], None]
Rates = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class MeasuredAccuracies:
    """Accuracies (ε, repeats) of each model, from the simplest to the most complex."""

    epsilons: tuple[float, ...]
    accuracies: dict[str, NDArray[np.float64]]
    learning_rates: dict[str, tuple[float, ...]]
    """The best on the proxy rows, for each model at each ε."""
    where: str
    """What they were measured on, in words."""

    @property
    def curves(self) -> list[Curve]:
        return [curve(name, self.epsilons, values) for name, values in self.accuracies.items()]

    def report(
        self, models: Sequence[TableModel], schema: Schema, target_epsilon: float, confidence: float = 0.95
    ) -> dict[str, Any]:
        """Which model is best at which ε, and where they cross, as JSON values."""
        ranges = winning_ranges(self.curves)
        best = next((each for each in ranges if target_epsilon <= each.high), ranges[-1])
        return {
            "parameters": {model.name: model.parameters(schema) for model in models},
            "best": best.model,
            "best_beyond_measured": target_epsilon > self.epsilons[-1],
            "clear": best.clear,
            "ranges": [vars(each) for each in ranges],
            "crossovers": [
                {"simple": simple, "complex": other, **found.to_json(), "words": crossover_in_words(found)}
                for (simple, other), found in crossovers(self.epsilons, self.accuracies, confidence).items()
            ],
            "measured_on": self.where,
            "epsilons": list(self.epsilons),
            "accuracies": {name: values.tolist() for name, values in self.accuracies.items()},
            "learning_rates": {name: list(rates) for name, rates in self.learning_rates.items()},
        }

    def draw(self, path: Path, title: str, confidence: float = 0.95) -> None:
        """The curves and their crossovers, as PNG."""
        draw_crossover(self.curves, crossovers(self.epsilons, self.accuracies, confidence), path, title)


def epsilon_grid(target_epsilon: float, points: int) -> tuple[float, ...]:
    """From a hundredth of the target to ten times it: a crossover beyond the target is of interest, too."""
    calibration.check_target(target_epsilon)
    if points < 2:
        raise ValueError(f"a crossover needs at least 2 points, not {points}")
    return tuple(float(f"{value:.3g}") for value in np.geomspace(target_epsilon / 100, 10 * target_epsilon, points))


def measure_on_proxy(
    models: Sequence[TableModel],
    schema: Schema,
    proxy: ProxyRows,
    n: int,
    epsilons: Sequence[float],
    target_delta: float,
    repeats: int,
    on_progress: Progress = lambda done, total: None,
) -> MeasuredAccuracies:
    """Measure on public or synthetic rows, with the noise that n private records need; tunes the learning rates first.

    Rates are chosen on a first draw of rows that the accuracies are not measured on.

    Guarantee: nothing private is read; the noise comes from a fixed seed, so that the answer can be repeated.
    """
    if repeats < 2:
        raise ValueError(f"intervals need at least 2 repeats, not {repeats}")
    plans = _plans(models, schema, n, epsilons, target_delta)
    total = len(epsilons) * sum(len(model.learning_rates) + repeats for model in models)
    done = count(1)
    rates: dict[str, tuple[float, ...]] = {}
    found = {model.name: np.empty((len(epsilons), repeats)) for model in models}
    for repeat in range(repeats + 1):
        rows = proxy.draw(repeat)
        for model in models:
            accuracy = model.rehearsed_on(schema, rows, n)
            tried = [model.learning_rates] * len(epsilons) if repeat == 0 else [(r,) for r in rates[model.name]]
            scores: list[list[float]] = []
            for plan, learning_rates in zip(plans[model.name], tried, strict=True):
                scores.append([])
                for rate in learning_rates:
                    number = next(done)
                    scores[-1].append(accuracy(plan, rate, number))
                    on_progress(number, total)
            if repeat == 0:
                rates[model.name] = tuple(model.learning_rates[int(np.argmax(row))] for row in scores)
            else:
                found[model.name][:, repeat - 1] = [row[0] for row in scores]
    return MeasuredAccuracies(tuple(epsilons), found, rates, proxy.words)


@dataclass(frozen=True)
class CrossoverPlan:
    """All that a private measurement will do, fixed before it begins, so that it is priced as a whole."""

    models: tuple[TableModel, ...]
    plans: dict[str, tuple[PricedPlan, ...]]
    """For each model a plan for each ε."""
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
    ) -> CrossoverPlan:
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
            together = [Repeated(plan.event, repeats) for each in plans.values() for plan in each]
            price = ledger.epsilon_if(Composed(tuple(together)))
            if price <= target_epsilon:
                break
            top *= _SHRINK * np.sqrt((target_epsilon - spent) / (price - spent))
        else:
            raise calibration.OutOfReach(
                f"the ledger's ε is {spent:.4g}, which leaves too little of ε={target_epsilon:g} for a "
                "measurement: measure on public or synthetic rows, without --private"
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

    def charges(self, model: TableModel, k: int, repeat: int) -> tuple[Planned, Planned]:
        """Of a trial: its training and its score."""
        what = f"crossover: {model.name} at ε={self.epsilons[k]:g}, repeat {repeat + 1}"
        score = Planned(Gaussian(self.score_noise), f"score of {what}", "validation")
        return Planned(self.plans[model.name][k].event, what), score

    def announcements(self) -> list[Planned]:
        """For a ledger that opens with them, before anything is drawn: then PLD prices the whole."""
        trainings, scores = zip(*(self.charges(*trial) for trial in self.trials()), strict=True)
        return [*trainings, *scores]

    def keep(self, path: Path, schema: Schema, rates: Rates) -> None:
        """In the folder of the measurement, to resume from."""
        document = {
            "models": [model.name for model in self.models],
            "epsilons": list(self.epsilons),
            "repeats": self.repeats,
            "score_noise": self.score_noise,
            "n": self.n,
            "learning_rates": {name: list(each) for name, each in rates.items()},
            "schema": schema.to_json(),
        }
        Run(path.parent).write_json(path.name, document)

    @classmethod
    def read(cls, path: Path, schema: Schema, target_delta: float) -> tuple[CrossoverPlan, Rates]:
        """The plan that `keep` has written, and its learning rates: noise follows from n, ε and δ."""
        with kept_json(path) as document:
            epsilons = tuple(float(epsilon) for epsilon in document["epsilons"])
            models, n = models_named(",".join(document["models"])), int(document["n"])
            repeats, noise = int(document["repeats"]), float(document["score_noise"])
            rates = {name: tuple(map(float, each)) for name, each in document["learning_rates"].items()}
            sizes = {name: len(each) for name, each in rates.items()}
            if len(epsilons) < 2 or repeats < 2 or sizes != {model.name: len(epsilons) for model in models}:
                raise ValueError("no plan is like this")
            if not all(0 < number < np.inf for number in (noise, *(rate for each in rates.values() for rate in each))):
                raise ValueError("noise and learning rates are positive numbers")
            if document["schema"] == schema.to_json():
                plans = _plans(models, schema, n, epsilons, target_delta)
                return cls(models, plans, epsilons, n, repeats, noise), rates
        raise RunError(f"{path.parent} holds other settings: give the same schema, or another --out")

    def check_same(self, models: Sequence[TableModel], points: int, repeats: int, n: int, folder: Path) -> None:
        """Refuse to resume with other settings."""
        if (self.models, len(self.epsilons), self.repeats, self.n) != (tuple(models), points, repeats, n):
            raise ValueError(f"{folder} holds a measurement with other settings: give the same, or another --out")


def measure_within_budget(
    table: PrivateTable,
    models: Sequence[TableModel],
    account: TableLedger,
    folder: Path,
    points: int,
    repeats: int,
    on_progress: Progress = lambda done, total: None,
) -> tuple[MeasuredAccuracies, Ledger]:
    """Compare models on the private table, within the whole budget of its ledger; resumes in its folder.

    Guarantee: that of `measure_privately`; learning rates come from public or synthetic rows.
    """
    parts = set_aside(table.read())
    kept, n = folder / "measurement.json", table.trained
    if kept.exists():
        plan, rates = CrossoverPlan.read(kept, table.schema, account.delta)
        plan.check_same(models, points, repeats, n, folder)
    else:
        plan = CrossoverPlan.calibrated(models, table.schema, n, points, repeats, account.now(), account.epsilon)
        proxy = table.proxy_rows()
        found = measure_on_proxy(models, table.schema, proxy, n, plan.epsilons, account.delta, 2, on_progress)
        rates = found.learning_rates
        account.bind(folder)
        # Before the ledger holds it: a plan that was announced and then lost would still count.
        plan.keep(kept, table.schema, rates)
    ledger = account.opened(folder, plan.announcements())
    measured = measure_privately(plan, table.schema, parts, rates, ledger, folder, on_progress)
    tuning = "models were compared on the private records: counted above; learning rates on other rows: free"
    Run(folder).write_statement(ledger.statement(unit="one row of the table", tuning=tuning))
    return measured, ledger


def measure_privately(
    plan: CrossoverPlan,
    schema: Schema,
    parts: tuple[Split, Split],
    rates: Rates,
    ledger: Ledger,
    folder: Path,
    on_progress: Progress = lambda done, total: None,
) -> MeasuredAccuracies:
    """Measure on the private table: train on its part "train", score with noise on its part "validation".

    A trial that is finished in the folder is not trained, scored or paid for again, and a killed one is resumed.

    Guarantee: each training is its plan's event on "train", each score a count that one record moves by at most 1 with
    Gaussian noise on "validation"; the ledger is charged before each. The learning rates must not come from the table.
    """
    train, validation = parts
    found = {model.name: np.empty((len(plan.epsilons), plan.repeats)) for model in plan.models}
    trials = plan.trials()
    scores = [folder / f"{model.name}-{k}-{repeat}" / "score.json" for model, k, repeat in trials]
    settings = repr((plan, schema, sorted((name, tuple(each)) for name, each in rates.items())))
    settings = settings.replace("CrossoverPlan", "PrivatePlan", 1)  # as earlier versions bound their keys to it
    data = table_arrays(schema, train, validation)
    with workflow_steps(Run.at(folder), ledger, settings, data, scores) as steps:
        for number, (model, k, repeat) in enumerate(trials):
            score, (paid, charge) = scores[number], plan.charges(model, k, repeat)
            if not score.exists():
                training, rate, run = plan.plans[model.name][k], rates[model.name][k], Run.at(score.parent)
                model.train_and_score(
                    schema, parts, training, rate, steps, run=run, what=paid.what, score=score, charge=charge
                )
            found[model.name][k, repeat] = steps.known(score, charge)["accuracy"]
            on_progress(number + 1, len(trials))
    noise = plan.score_noise / len(validation)
    where = f"the private table: {len(train):,} records trained, {len(validation):,} scored (noise ±{noise:.2g})"
    return MeasuredAccuracies(plan.epsilons, found, {name: tuple(each) for name, each in rates.items()}, where)


def _plans(
    models: Sequence[TableModel], schema: Schema, n: int, epsilons: Sequence[float], delta: float
) -> dict[str, tuple[PricedPlan, ...]]:
    return {model.name: tuple(model.plan(schema, n, epsilon, delta) for epsilon in epsilons) for model in models}
