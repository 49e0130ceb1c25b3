"""Advice carried out: select features, train, score, all announced to one ledger before the first; and predictions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import BudgetExceeded, Gaussian, Ledger, Planned, calibration
from sordino.data import DataError, Schema, Split, read_inputs, set_aside
from sordino.mechanisms import Streams
from sordino.runs import LoadedModel, Run, RunError, TableLedger, WorkflowSteps, check_budget, kept_json, workflow_steps
from sordino.selection.advice import advised_model
from sordino.selection.advice_request import AdviceRequest
from sordino.selection.attributes import Attributes, Mask, cfs_greedy, exact_uncertainties
from sordino.selection.private_tables import private_uncertainties, tables_plan
from sordino.selection.proxy_rows import ProxyRows, PublicRows
from sordino.selection.sources import PrivateTable
from sordino.selection.table_models import (
    MODELS,
    BinnedLogisticModel,
    PricedPlan,
    TableModel,
    classes_of,
    encoded_width,
    table_arrays,
    touched,
)

_REHEARSALS = 3
_HALVINGS = 8
_FEATURES = "features.json"
ADVICE, USED, OUTCOME = "advice.json", "used.json", "result.json"
"""What is carried out; what predictions need besides the weights (model, schema and features); and the result."""
_TRAINING = "training"


@dataclass(frozen=True)
class AdvisedPlan:
    """What will be done, fixed and priced before anything private is read."""

    schema: Schema
    model: TableModel
    selection_noise: float | None
    """Noise multiplier of the tables that features are selected by; None if selecting costs nothing."""
    kept: tuple[str, ...]
    """The columns to use where nothing is selected."""
    training: PricedPlan
    n: int
    """Records to train on."""
    score_noise: float
    selects_freely: bool = False
    """Features are selected on public rows."""

    @classmethod
    def advised(cls, request: AdviceRequest, schema: Schema, model: str) -> AdvisedPlan:
        """By the advice's split of the budget; the training uses all that the selection leaves."""
        classes_of(schema)
        [chosen] = [each for each in MODELS if each.name == model]
        selection = request.split.noise(request.split.selection) if request.selects else None
        before = None if selection is None else Gaussian(selection)
        score = calibration.noise_multiplier(Gaussian, request.epsilon, request.delta)
        n, shown = request.trained, chosen.columns(schema)
        training = chosen.plan(schema, n, request.epsilon, request.delta, before)
        kept = tuple(column for column in shown if column in request.kept) or shown
        names = tuple(column.name for column in kept)
        return cls(schema, chosen, selection, names, training, n, score, request.selects_freely)

    @classmethod
    def affordable(cls, request: AdviceRequest, schema: Schema, ledger: Ledger) -> tuple[float, str]:
        """The largest ε, to within about a hundredth, whose advice fits the remaining budget, and the advised model."""
        low, high, found = 0.0, request.epsilon, None
        epsilon = high
        for _ in range(_HALVINGS):
            model = advised_model(request.at(epsilon))
            try:
                plan = cls.advised(request.at(epsilon), schema, model)
                check_budget(ledger, plan.announcements())
            except BudgetExceeded:
                high = epsilon
            else:
                low, found = epsilon, (epsilon, model)
                if epsilon == request.epsilon:
                    break
            epsilon = (low + high) / 2
        if found is None:
            raise calibration.OutOfReach(f"the ledger leaves too little of ε={request.epsilon:g} to carry out anything")
        return found

    @property
    def tuning(self) -> str:
        """For the statement; the model and its learning rate come from public facts, proxy rows and the selection."""
        if self.selects_privately:
            return "features were selected on the private records: counted above; nothing else was chosen on them"
        chosen = "features were selected on rows taken to be public; " * self.selects_freely
        return f"{chosen}nothing was chosen on the private records besides what is listed above"

    @property
    def selects_privately(self) -> bool:
        """With a single column there is nothing to select."""
        return self.selection_noise is not None and len(self.model.columns(self.schema)) > 1

    @property
    def selection_charge(self) -> Planned:
        return Planned(Gaussian(self.selection_noise or 0.0), "feature selection")

    @property
    def score_charge(self) -> Planned:
        return Planned(Gaussian(self.score_noise), "final score", "validation")

    def announcements(self) -> list[Planned]:
        selection = [] if self.selection_noise is None else [self.selection_charge]
        return [*selection, Planned(self.training.event, _TRAINING), self.score_charge]


def carry_out_advice(
    request: AdviceRequest, table: PrivateTable, account: TableLedger, folder: Path
) -> tuple[AdviceRequest, dict[str, Any], Ledger]:
    """Do what is advised for the table within the remaining budget of its ledger; resumes in its folder.

    Returns the request at the ε that fits the remaining budget, the result as JSON values, and the ledger.

    Guarantee: that of `carry_out`, announced to the ledger before anything private is read.
    """
    kept, private = folder / ADVICE, table.read()
    public = None if table.public is None else hashlib.sha256(table.public.read_bytes()).hexdigest()
    if kept.exists():
        with kept_json(kept) as content:
            epsilon, model, known = float(content["epsilon"]), str(content["model"]), content["public"]
        if known != public:
            raise ValueError(
                f"{folder} was started with another --public file, or without one: give the same, or another --out"
            )
    else:
        epsilon, model = AdvisedPlan.affordable(request, table.schema, account.now())
        account.bind(folder)
        # Before the ledger holds it: what was announced and then lost would still count.
        Run(folder).write_json(kept.name, {"epsilon": epsilon, "model": model, "public": public})
    request = request.at(epsilon)
    plan = AdvisedPlan.advised(request, table.schema, model)
    ledger = account.opened(folder, plan.announcements())
    result = carry_out(plan, private, table.proxy_rows(), ledger, folder)
    Run(folder).write_statement(ledger.statement(unit="one row of the table", tuning=plan.tuning))
    return request, {"model": model, **result}, ledger


def carry_out(plan: AdvisedPlan, table: Split, proxy: ProxyRows, ledger: Ledger, folder: Path) -> dict[str, Any]:
    """Select features, train on the part "train", score once on the part "validation"; resumes in its folder.

    Returns the result as JSON values, all of which may be published: the ledger's ε covers them.

    Guarantee: at most the announced events: one Gaussian release of pair tables and the training plan's event on
    "train", one noisy count on "validation". Learning rates come from the proxy rows and the selection, features from
    the selection or from the proxy's public rows.
    """
    train, validation = set_aside(table)
    if len(train) != plan.n:
        raise DataError(f"the advice was for {plan.n:,} records to train on, not {len(train):,}")
    run = Run.at(folder)
    run.write_kind("advice")
    outcome, score = folder / OUTCOME, folder / "score.json"
    charge = plan.score_charge
    public = [proxy.rows] if isinstance(proxy, PublicRows) else proxy.draw(0)
    data = table_arrays(plan.schema, train, validation, *public)
    settings = repr(plan).replace("AdvisedPlan", "Steps", 1)  # as earlier versions bound their keys to it
    with workflow_steps(run, ledger, settings, data, [outcome]) as steps:
        if outcome.exists():
            _check_finished(plan, steps)
            steps.known(score, charge)
            return _finished(outcome)
        chosen = _selected(plan, train, proxy, steps)
        mask = np.array(chosen["mask"], dtype=bool)
        training = plan.model.narrowed(plan.training, plan.schema, mask)
        rate = _rate(plan, training, proxy, mask)
        accuracy = plan.model.train_and_score(
            plan.schema,
            (train, validation),
            training,
            rate,
            steps,
            run=run,
            what=_TRAINING,
            score=score,
            charge=charge,
            kept=mask,
        )
        result = {
            "features": chosen["features"],
            "why_these": chosen["why"],
            "learning_rate": rate,
            "accuracy": accuracy,
            "noise_of_score": plan.score_noise / len(validation),
        }
        if not (folder / USED).exists():
            weights = hashlib.sha256(run.model.read_bytes()).hexdigest()
            run.write_sealed(USED, {**_used(plan), "mask": chosen["mask"], "weights": weights})
        run.write_json(outcome.name, result)
    return result


def _finished(path: Path) -> dict[str, Any]:
    with kept_json(path) as content:
        numbers = {name: float(content[name]) for name in ("learning_rate", "accuracy", "noise_of_score")}
        return {"features": list(map(str, content["features"])), "why_these": str(content["why_these"]), **numbers}


def _used(plan: AdvisedPlan) -> dict[str, Any]:
    return {"model": plan.model.name, "schema": plan.schema.to_json()}


def _check_finished(plan: AdvisedPlan, steps: WorkflowSteps) -> None:
    """Its key is deleted, so its settings are checked by what it has kept."""
    run = steps.run
    known = run.read_sealed(USED)
    if any(known.get(name) != value for name, value in _used(plan).items()):
        raise RunError(f"{run.folder} holds a finished workflow of another model or schema: choose another folder")
    if plan.selects_privately:
        steps.known(run.folder / _FEATURES, plan.selection_charge)


def _selected(plan: AdvisedPlan, train: Split, proxy: ProxyRows, steps: WorkflowSteps) -> dict[str, Any]:
    """A mask over the model's encoded features: by private CFS, by CFS on public rows, or by public facts alone."""
    shown = plan.model.columns(plan.schema)
    attributes = Attributes(Schema(shown, plan.schema.target))
    if plan.selection_noise is not None and plan.selects_privately:
        tables = tables_plan(attributes, plan.selection_noise)

        def draw(notes: Ledger, streams: Streams) -> dict[str, Any]:
            found = private_uncertainties(attributes, train, tables, notes, streams)
            order = cfs_greedy(found.uncertainties)
            return _described(plan, attributes, order.subset(order.best_size), f"CFS-Greedy. {found.in_words()}")

        return steps.values(steps.run.folder / _FEATURES, plan.selection_charge, draw)
    if plan.selects_freely and isinstance(proxy, PublicRows) and len(shown) > 1:
        order = cfs_greedy(exact_uncertainties(attributes, proxy.rows))
        mask, why = order.subset(order.best_size), f"CFS-Greedy on {len(proxy.rows):,} public rows: free."
    else:
        mask = np.array([shown[owner].name in plan.kept for owner in attributes.owners])
        why = "public facts: columns whose weights, if strong, stand above the noise, or all where most do"
    chosen = _described(plan, attributes, mask, why)
    steps.run.write_json(_FEATURES, chosen)
    return chosen


def _described(plan: AdvisedPlan, attributes: Attributes, mask: Mask, why: str) -> dict[str, Any]:
    usable = plan.model.usable(plan.schema, mask)
    features = [name for name, is_used in zip(attributes.names, usable, strict=True) if is_used]
    if isinstance(plan.model, BinnedLogisticModel):
        features = [column.name for column in touched(attributes.schema.columns, usable)]
    return {"mask": usable.tolist(), "features": features, "why": why}


def _rate(plan: AdvisedPlan, training: PricedPlan, proxy: ProxyRows, mask: Mask) -> float:
    """The learning rate with the best mean accuracy on the proxy rows, with the same features and noise."""
    rates = plan.model.learning_rates
    if len(rates) == 1:
        return rates[0]
    scores = np.zeros(len(rates))
    for repeat in range(_REHEARSALS):
        accuracy = plan.model.rehearsed_on(plan.schema, proxy.draw(repeat), plan.n, mask)
        scores += [accuracy(training, rate, repeat) for rate in rates]
    return rates[int(scores.argmax())]


def loaded_advice(folder: Path) -> LoadedModel:
    """The model for tables that advice has trained."""
    run = Run(folder)
    if not (run.folder / OUTCOME).exists():
        raise RunError(f"the workflow in {folder} is not finished: rerun its command with --out {folder} to resume it")
    used = run.read_sealed(USED)
    try:
        [model] = [each for each in MODELS if each.name == used["model"]]
        schema, kept = Schema.from_json(used["schema"]), np.array(used["mask"])
        classes, columns = classes_of(schema), model.columns(schema)
        if kept.shape != (encoded_width(columns),) or kept.dtype != bool or not kept.any():
            raise ValueError("the mask is of other columns")
    except (ValueError, TypeError, KeyError):
        raise RunError(f"{run.folder / USED} cannot be read: it is damaged, or not a file of sordino") from None
    if not run.model.exists():
        raise RunError(f"{run.model} is missing")
    if hashlib.sha256(run.model.read_bytes()).hexdigest() != used.get("weights"):
        raise RunError(f"{run.model} is not the model that {USED} describes")

    def outputs(table: Any) -> NDArray[np.floating]:
        x = model.encode(schema, read_inputs(table, touched(columns, kept)), kept)
        # A training is built around data, which play no part here.
        empty = model.training_on(np.zeros((1, x.shape[1]), np.float32), np.zeros(1, np.int64), len(classes))
        return empty.trained(run)(x)

    return LoadedModel(run.folder, lambda file: file, outputs, classes, touched(columns, kept))
