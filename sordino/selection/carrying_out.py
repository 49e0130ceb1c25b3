"""Advice for a table carried out: select, train, score, in one ledger that knew of all three before the first."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.budget import Event, Gaussian, Ledger, Planned, calibration
from sordino.data import DataError, Schema, Split, set_aside
from sordino.mechanisms import Streams, noisy_accuracy, secret_from_seed
from sordino.runs import Run, RunError
from sordino.selection.attributes import Attributes, Mask, cfs_greedy, exact_uncertainties
from sordino.selection.private_tables import private_uncertainties, tables_plan
from sordino.selection.situation import Situation
from sordino.selection.stand_ins import PublicRows, StandIn
from sordino.selection.table_models import MODELS, BinnedLogisticModel, PricedPlan, TableModel, classes_of, touched
from sordino.selection.workflow_steps import KeyedSteps, keyed_steps, table_arrays

_REHEARSALS = 3
_FEATURES = "features.json"
ADVICE, USED, OUTCOME = "advice.json", "used.json", "result.json"
"""The advice carried out; what predictions need besides the weights (model, schema and features); and the end."""
_SELECTION, _TRAINING, _SCORE = "feature selection", "training", "final score"


@dataclass(frozen=True)
class Steps:
    """What will be done, settled and priced before anything private is read."""

    schema: Schema
    model: TableModel
    selection_noise: float | None
    """Noise multiplier of the tables that features are selected by; None: that costs nothing."""
    kept: tuple[str, ...]
    """The columns to use where nothing is selected."""
    training: PricedPlan
    n: int
    """Records to train on."""
    score_noise: float
    selects_freely: bool = False
    """Features are selected on public rows."""

    @classmethod
    def advised(cls, situation: Situation, schema: Schema, model: str) -> Steps:
        """The split of the advice; the training's noise is solved for, so that it fills what the selection leaves."""
        classes_of(schema)
        [chosen] = [each for each in MODELS if each.name == model]
        selection = situation.split.noise(situation.split.selection) if situation.selects else None
        before = None if selection is None else Gaussian(selection)
        score = calibration.noise_multiplier(Gaussian, situation.epsilon, situation.delta)
        n, shown = situation.trained, chosen.columns(schema)
        training = chosen.plan(schema, n, situation.epsilon, situation.delta, before)
        kept = tuple(column for column in shown if column in situation.kept) or shown
        names = tuple(column.name for column in kept)
        return cls(schema, chosen, selection, names, training, n, score, situation.selects_freely)

    @property
    def selects_privately(self) -> bool:
        """Of a single column there is nothing to select."""
        return self.selection_noise is not None and len(self.model.columns(self.schema)) > 1

    def announcements(self) -> list[tuple[Event, str, str]]:
        selection: list[tuple[Event, str, str]] = []
        if self.selection_noise is not None:
            selection = [(Gaussian(self.selection_noise), _SELECTION, "train")]
        return [
            *selection,
            (self.training.event, _TRAINING, "train"),
            (Gaussian(self.score_noise), _SCORE, "validation"),
        ]


@dataclass(frozen=True)
class CarriedOut:
    """All of it may be told: it is what the ledger's ε covers."""

    features: tuple[str, ...]
    why_these: str
    learning_rate: float
    accuracy: float
    noise_of_score: float

    def to_json(self) -> dict[str, Any]:
        return {
            "features": list(self.features),
            "why_these": self.why_these,
            "learning_rate": self.learning_rate,
            "accuracy": self.accuracy,
            "noise_of_score": self.noise_of_score,
        }

    @classmethod
    def read(cls, path: Path) -> CarriedOut:
        """From the file of a finished workflow."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            numbers = [float(content[name]) for name in ("learning_rate", "accuracy", "noise_of_score")]
            return cls(tuple(map(str, content["features"])), str(content["why_these"]), *numbers)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino") from None


def carry_out(steps: Steps, table: Split, stand_in: StandIn, ledger: Ledger, folder: Path) -> CarriedOut:
    """Select features, train on the part train, score once on the part validation; a killed one goes on in its folder.

    Guarantee: at most the announced events: one Gaussian release of pair tables and the training's plan on "train", one
    noisy count on "validation". Learning rates come from the stand-in and the selection, features from the selection or
    from the stand-in's public rows.
    """
    train, validation = set_aside(table)
    if len(train) != steps.n:
        raise DataError(f"the advice was for {steps.n:,} records to train on, not {len(train):,}")
    run = Run.at(folder)
    outcome, score = folder / OUTCOME, folder / "score.json"
    charge = Planned(Gaussian(steps.score_noise), _SCORE, "validation")
    public = [stand_in.rows] if isinstance(stand_in, PublicRows) else stand_in.draw(0)
    data = table_arrays(steps.schema, train, validation, *public)
    with keyed_steps(run, ledger, steps, data, [outcome]) as keyed:
        if outcome.exists():
            _check_finished(steps, keyed)
            keyed.known(score, charge)
            return CarriedOut.read(outcome)
        chosen = _selected(steps, train, stand_in, keyed)
        mask = np.array(chosen["mask"], dtype=bool)
        plan = steps.model.narrowed(steps.training, steps.schema, mask)
        rate = _rate(steps, plan, stand_in, mask)
        x, held = (steps.model.encode(steps.schema, part.x, mask) for part in (train, validation))
        learner = steps.model.learner(x, train.y, len(classes_of(steps.schema)))
        predict = learner.train(run, plan, rate, keyed, _TRAINING)

        def draw(notes: Ledger, streams: Streams) -> dict[str, Any]:
            correct = predict(held) == validation.y
            return {"accuracy": noisy_accuracy(correct, steps.score_noise, notes, _SCORE, "validation", streams)}

        accuracy = keyed.values(score, charge, draw, run.model.read_bytes())["accuracy"]
        noise = steps.score_noise / len(validation)
        result = CarriedOut(tuple(chosen["features"]), chosen["why"], rate, accuracy, noise)
        if not (folder / USED).exists():
            weights = hashlib.sha256(run.model.read_bytes()).hexdigest()
            run.write_sealed(USED, {**_used(steps), "mask": chosen["mask"], "weights": weights})
        run.write_json(outcome.name, result.to_json())
    return result


def _used(steps: Steps) -> dict[str, Any]:
    return {"model": steps.model.name, "schema": steps.schema.to_json()}


def _check_finished(steps: Steps, keyed: KeyedSteps) -> None:
    """Its key is deleted, so that what it was settled on must be told by what it has kept."""
    run = keyed.run
    known = run.read_sealed(USED)
    if any(known.get(name) != value for name, value in _used(steps).items()):
        raise RunError(f"{run.folder} holds a finished workflow of another model or schema: choose another folder")
    if steps.selects_privately:
        keyed.known(run.folder / _FEATURES, _selection_charge(steps))


def _selected(steps: Steps, train: Split, stand_in: StandIn, keyed: KeyedSteps) -> dict[str, Any]:
    """A mask over the model's encoded features: by private CFS, by CFS on public rows, or by public facts alone."""
    shown = steps.model.columns(steps.schema)
    attributes = Attributes(Schema(shown, steps.schema.target))
    if steps.selection_noise is not None and steps.selects_privately:
        plan = tables_plan(attributes, steps.selection_noise)

        def draw(notes: Ledger, streams: Streams) -> dict[str, Any]:
            found = private_uncertainties(attributes, train, plan, notes, "train", streams)
            order = cfs_greedy(found.uncertainties)
            return _described(steps, attributes, order.subset(order.best_size), f"CFS-Greedy. {found.in_words()}")

        return keyed.values(keyed.run.folder / _FEATURES, _selection_charge(steps), draw)
    if steps.selects_freely and isinstance(stand_in, PublicRows) and len(shown) > 1:
        order = cfs_greedy(exact_uncertainties(attributes, stand_in.rows))
        mask, why = order.subset(order.best_size), f"CFS-Greedy on {len(stand_in.rows):,} public rows: free."
    else:
        mask = np.array([shown[owner].name in steps.kept for owner in attributes.owners])
        why = "public facts: columns whose weights, if strong, stand above the noise, or all where most do"
    chosen = _described(steps, attributes, mask, why)
    keyed.run.write_json(_FEATURES, chosen)
    return chosen


def _selection_charge(steps: Steps) -> Planned:
    return Planned(Gaussian(steps.selection_noise or 0.0), _SELECTION, "train")


def _described(steps: Steps, attributes: Attributes, mask: Mask, why: str) -> dict[str, Any]:
    usable = steps.model.usable(steps.schema, mask)
    features = [name for name, is_used in zip(attributes.names, usable, strict=True) if is_used]
    if isinstance(steps.model, BinnedLogisticModel):
        features = [column.name for column in touched(attributes.schema.columns, usable)]
    return {"mask": usable.tolist(), "features": features, "why": why}


def _rate(steps: Steps, plan: PricedPlan, stand_in: StandIn, mask: Mask) -> float:
    """The learning rate with the best mean accuracy on the stand-in, with the same features and noise."""
    rates = steps.model.learning_rates
    if len(rates) == 1:
        return rates[0]
    scores = np.zeros(len(rates))
    for repeat in range(_REHEARSALS):
        train, test = stand_in.draw(repeat)
        x, held = (steps.model.encode(steps.schema, part.x, mask) for part in (train, test))
        learner = steps.model.learner(x, train.y, len(classes_of(steps.schema)))
        rehearsal = steps.model.rehearsal(plan, len(train), steps.n)
        for number, rate in enumerate(rates):
            predict = learner.rehearse(rehearsal, rate, Streams(secret_from_seed(repeat)))
            scores[number] += float((predict(held) == test.y).mean())
    return rates[int(scores.argmax())]
