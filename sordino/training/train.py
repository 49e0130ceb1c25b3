"""`sordino train` as a function: a named dataset, a recipe and a budget in; a run folder out."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.budget import Ledger, Repeated, cost
from sordino.budget.calibration import check_target
from sordino.budget.events import check_delta
from sordino.budget.statement import as_text
from sordino.data import DataError, Dataset, Facts, load
from sordino.training.fitting import fit
from sordino.training.linear import LinearClassifier, predict
from sordino.training.plan import Plan
from sordino.training.recipes import recipe
from sordino.training.run import Run, RunError

# steps done, steps in all, ε drawn so far
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Request:
    """What the user asked for; a run goes on only for the same request."""

    dataset: str
    recipe: str
    epsilon: float
    delta: float
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.dataset, str) and isinstance(self.recipe, str)):
            raise ValueError("a dataset and a recipe are named by words")
        if self.seed is not None and type(self.seed) is not int:
            raise ValueError(f"a seed is a whole number, not {self.seed!r}")
        check_target(self.epsilon)
        check_delta(self.delta)
        recipe(self.recipe)


@dataclass(frozen=True)
class Description:
    """run.json: what a run was asked for, its plan, and what is public about its data."""

    status: str
    request: Request
    plan: Plan
    facts: Facts
    statement: dict[str, Any]
    """Words for the privacy statement: unit, tuning, notes."""

    def write(self, run: Run) -> None:
        settings = recipe(self.request.recipe).to_json()
        content = {"status": self.status, "request": asdict(self.request), "recipe": settings}
        content |= {"plan": self.plan.to_json(), "facts": self.facts.to_json(), "statement": self.statement}
        run.write_description(content)

    @classmethod
    def read(cls, run: Run) -> "Description":
        document = run.read_description()
        try:
            return cls(
                str(document["status"]),
                Request(**document["request"]),
                Plan.from_json(document["plan"]),
                Facts.from_json(document["facts"]),
                {name: document["statement"][name] for name in ("unit", "tuning", "notes")},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"run.json in {run.folder} is of another version of sordino") from None


def train(
    request: Request,
    out: str | Path | None = None,
    on_progress: Progress = lambda done, total, epsilon: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train, or go on with the unfinished run in `out`; returns the result that `sordino train --json` prints."""
    chosen = recipe(request.recipe)
    begun = Description.read(Run(out)) if out is not None and Run(out).started else None
    if begun is not None and out is not None:
        _check_same_request(Run(out), begun, request)
    elif out is not None:
        Run(out).check_free()
    dataset = load(request.dataset)
    _check_trainable(dataset)
    n, classes = len(dataset.train), dataset.facts.classes or ()

    say(f"features of {n:,} training and {len(dataset.test):,} test examples")
    features = chosen.features(dataset.facts)
    trainee = LinearClassifier(features(dataset.train.x), dataset.train.y, len(classes))
    if begun is None or out is None:
        plan = Plan.calibrated(
            n=n,
            expected_batch_size=chosen.expected_batch_size(n),
            epochs=chosen.epochs,
            target_epsilon=request.epsilon,
            target_delta=request.delta,
            l2_clip=chosen.l2_clip,
        )
        run = Run.create(out, request.dataset)
        begun = Description("training", request, plan, dataset.facts, _words(request, dataset))
        begun.write(run)
    else:
        run, plan = Run.at(out), begun.plan
        if not run.ledger.exists() and (run.checkpoint.exists() or run.model.exists()):
            raise RunError(f"{run.folder} has weights but no ledger: what they cost is lost; restore ledger.json")
    say(f"run folder: {run.folder}")
    ledger = Ledger(request.epsilon, request.delta, path=run.ledger, planned=[(plan.event, "training", "train")])

    def report(done: int, total: int) -> None:
        on_progress(done, total, _epsilon_within(plan, done, request.delta))

    trained = fit(
        run, plan, trainee, chosen.optimiser(n, request.epsilon), ledger, seed=request.seed, on_progress=report
    )
    accuracy = _accuracy(trainee.parameters, features(dataset.test.x), dataset.test.y)
    return _finish(run, begun, ledger, dataset, accuracy, trained)


def request_of(folder: str | Path) -> Request:
    """What the unfinished run in a folder was asked for."""
    return Description.read(Run(folder)).request


def ledger_statement(folder: str | Path) -> dict[str, Any]:
    """The privacy statement of a run as its ledger stands now."""
    run = Run(folder)
    ledger = Ledger.open(run.ledger)
    return ledger.statement(**Description.read(run).statement) if run.started else ledger.statement()


def classify(folder: str | Path, examples: Any) -> list[str]:
    """The class of each example by the model of a finished run."""
    run = Run(folder)
    known = Description.read(run)
    if known.status != "finished":
        raise RunError(f"the run in {run.folder} is not finished: run `sordino resume {run.folder}` first")
    parameters, _ = run.read_tensors(run.model)
    facts, classes = known.facts, known.facts.classes or ()
    if set(parameters) != {"weight", "bias"} or len(parameters["bias"]) != len(classes):
        raise RunError(f"{run.model} does not hold the model that run.json describes")
    vectors = recipe(known.request.recipe).features(facts)(_fitting(examples, facts))
    if vectors.shape[1] != parameters["weight"].shape[1]:
        raise DataError(f"the model expects examples of shape {facts.shape}, as in {known.request.dataset}")
    return [classes[index] for index in predict(parameters, torch.from_numpy(vectors)).argmax(dim=1).tolist()]


def _fitting(examples: Any, facts: Facts) -> Any:
    """One example alone, or a colour picture of a grey thing, made into what the model was trained on."""
    if facts.kind == "table":
        if isinstance(examples, np.ndarray):
            raise DataError("the model expects a table with named columns: .csv with a header, or .parquet")
        return examples
    if not isinstance(examples, np.ndarray):
        raise DataError(f"the model expects arrays or images of shape {facts.shape}, not a table with words")
    if examples.shape == facts.shape:
        return examples[None]
    if examples.shape[1:-1] == facts.shape and examples.shape[-1] == 3:
        return examples.mean(axis=-1).round().astype(examples.dtype)
    if examples.shape[1:] != facts.shape:
        raise DataError(f"the model expects examples of shape {facts.shape}, not {examples.shape[1:]}")
    return examples


@lru_cache(maxsize=32)
def _epsilon_up_to(plan: Plan, steps: int, delta: float) -> float:
    return cost(Repeated(plan.step_event, steps), delta).epsilon


def _epsilon_within(plan: Plan, charged: int, delta: float) -> float:
    """ε for display: up to the next eighth of the plan, since pricing every block could take longer than training."""
    eighth = math.ceil(plan.steps / 8)
    return _epsilon_up_to(plan, min(plan.steps, math.ceil(charged / eighth) * eighth), delta)


def _accuracy(parameters: dict[str, Tensor], vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    predicted = predict(parameters, torch.from_numpy(vectors)).argmax(dim=1).numpy()
    return float(np.mean(predicted == labels))


def _words(request: Request, dataset: Dataset) -> dict[str, Any]:
    notes = ["the test set is a public benchmark: its accuracy is not charged"]
    notes += [dataset.facts.note] if dataset.facts.note else []
    tuning = recipe(request.recipe).tuning(request.dataset)
    return {"unit": dataset.facts.protected, "tuning": tuning, "notes": notes}


def _finish(
    run: Run, begun: Description, ledger: Ledger, dataset: Dataset, accuracy: float, trained: int
) -> dict[str, Any]:
    request, plan, words = begun.request, begun.plan, begun.statement
    if trained < plan.steps:
        lost = f"{plan.steps - trained} steps were lost to a change of environment: charged, and in no model"
        words = words | {"notes": [*words["notes"], lost]}
    statement = ledger.statement(**words)
    run.write_json("metrics.json", {"test_accuracy": accuracy, "n_test": len(dataset.test), "test_set": "public"})
    run.write_json("statement.json", statement)
    run.write_text("statement.txt", as_text(statement))
    replace(begun, status="finished", statement=words).write(run)
    return {
        "test_accuracy": accuracy,
        "epsilon": statement["epsilon"],
        "delta": request.delta,
        "n": plan.sampler.n,
        "recipe": request.recipe,
        "accountant": statement["accountant"],
        "run": str(run.folder),
        "dataset": request.dataset,
        "steps": trained,
        "noise_multiplier": plan.noise_multiplier,
        "sample_rate": plan.sampler.sample_rate,
        "seeded": request.seed is not None,
    }


def _check_same_request(run: Run, begun: Description, request: Request) -> None:
    if begun.status == "finished":
        raise RunError(f"the run in {run.folder} is finished: choose another folder with --out")
    before = asdict(begun.request)
    changed = [
        f"{name} was {before[name]!r}, not {value!r}"
        for name, value in asdict(request).items()
        if before[name] != value
    ]
    if changed:
        raise RunError(f"{run.folder} holds an unfinished run of another plan ({'; '.join(changed)}): refused")


def _check_trainable(dataset: Dataset) -> None:
    if dataset.facts.task != "classification":
        raise DataError(f"{dataset.name} is a {dataset.facts.task} task: no recipe for it yet")
    if len(dataset.train) == 0:
        raise DataError(f"{dataset.name} has no training rows on this machine (n=0): {dataset.facts.note}")
