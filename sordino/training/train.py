"""`sordino train` as a function: a named dataset, a recipe and a budget in; a run folder out."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.budget import Ledger
from sordino.budget.calibration import check_target
from sordino.budget.events import check_delta
from sordino.budget.statement import as_text
from sordino.budget.steps import check_delta_against_n
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


def train(
    request: Request,
    out: str | Path | None = None,
    on_progress: Progress = lambda done, total, epsilon: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train, or go on with the unfinished run in `out`; returns the result that `sordino train --json` prints."""
    check_target(request.epsilon)
    chosen = recipe(request.recipe)
    check_delta(request.delta)
    run = Run(out) if out is not None and Run(out).started else None
    if run is not None:
        _check_same_request(run, request)
    elif out is not None:
        Run(out).check_free()
    dataset = load(request.dataset)
    _check_trainable(dataset)
    check_delta_against_n(request.delta, len(dataset.train))

    say(f"features of {len(dataset.train):,} training and {len(dataset.test):,} test examples")
    features = chosen.features(dataset.facts)
    trainee = LinearClassifier(features(dataset.train.x), dataset.train.y, len(dataset.facts.classes or ()))
    if run is None:
        plan = Plan.calibrated(
            n=len(dataset.train),
            expected_batch_size=chosen.expected_batch_size(len(dataset.train)),
            epochs=chosen.epochs,
            target_epsilon=request.epsilon,
            target_delta=request.delta,
            l2_clip=chosen.l2_clip,
        )
        run = Run.create(out, request.dataset)
        run.write_json("run.json", _description(request, plan, dataset.facts, "training"))
    else:
        plan = Plan.from_json(run.read_json("run.json")["plan"])
        say(f"going on with the unfinished run in {run.folder}")
    ledger = Ledger(request.epsilon, request.delta, path=run.ledger, planned=[(plan.event, "training", "train")])

    def report(done: int, total: int) -> None:
        on_progress(done, total, ledger.epsilon())

    optimiser = chosen.optimiser(plan.sampler.n, request.epsilon)
    trained = fit(run, plan, trainee, optimiser, ledger, seed=request.seed, on_progress=report)
    accuracy = _accuracy(trainee.parameters, features(dataset.test.x), dataset.test.y)
    return _finish(run, request, plan, ledger, dataset, accuracy, trained)


def request_of(folder: str | Path) -> Request:
    """What the unfinished run in a folder was asked for."""
    try:
        return Request(**Run(folder).read_json("run.json")["request"])
    except (KeyError, TypeError):
        raise RunError(f"{folder} does not say what it was asked for: run.json is damaged") from None


def classify(folder: str | Path, examples: Any) -> list[str]:
    """The class of each example by the model of a finished run."""
    run = Run(folder)
    document = run.read_json("run.json")
    if document.get("status") != "finished":
        raise RunError(f"the run in {run.folder} is not finished: run `sordino resume {run.folder}` first")
    parameters, _ = run.read_tensors(run.model)
    try:
        facts = Facts.from_json(document["facts"])
    except (KeyError, TypeError, AttributeError):
        raise RunError(f"{run.folder} does not say what its model was trained on: run.json is damaged") from None
    vectors = recipe(document["request"]["recipe"]).features(facts)(_fitting(examples, facts.shape))
    if vectors.shape[1] != parameters["weight"].shape[1]:
        expected = "×".join(map(str, facts.shape))
        raise DataError(f"the model expects examples of shape {expected}, as in {document['request']['dataset']}")
    classes = facts.classes or ()
    return [classes[index] for index in predict(parameters, torch.from_numpy(vectors)).argmax(dim=1).tolist()]


def _fitting(examples: Any, shape: tuple[int, ...]) -> Any:
    """One example alone, or a colour picture of a grey thing, made into what the model was trained on."""
    if not isinstance(examples, np.ndarray):
        return examples
    if examples.shape == shape:
        return examples[None]
    if examples.ndim == len(shape) + 2 and examples.shape[1:-1] == shape and examples.shape[-1] == 3:
        return examples.mean(axis=-1).round().astype(examples.dtype)
    return examples


def _accuracy(parameters: dict[str, Tensor], vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    predicted = predict(parameters, torch.from_numpy(vectors)).argmax(dim=1).numpy()
    return float(np.mean(predicted == labels))


def _finish(
    run: Run, request: Request, plan: Plan, ledger: Ledger, dataset: Dataset, accuracy: float, trained: int
) -> dict[str, Any]:
    notes = ["the test set is a public benchmark: its accuracy is not charged"]
    if dataset.facts.note:
        notes.append(dataset.facts.note)
    if trained < plan.steps:
        notes.append(f"{plan.steps - trained} steps were lost to a change of environment: charged, and in no model")
    statement = ledger.statement(
        unit=dataset.facts.protected,
        tuning=f"not counted: the recipe '{request.recipe}' was fixed in advance, on other, public data",
        notes=notes,
    )
    result = {
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
    run.write_json("metrics.json", {"test_accuracy": accuracy, "n_test": len(dataset.test), "test_set": "public"})
    run.write_json("statement.json", statement)
    run.write_text("statement.txt", as_text(statement))
    run.write_json("run.json", _description(request, plan, dataset.facts, "finished"))
    return result


def _description(request: Request, plan: Plan, facts: Facts, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "request": asdict(request),
        "recipe": recipe(request.recipe).to_json(),
        "plan": plan.to_json(),
        "facts": facts.to_json(),
    }


def _check_same_request(run: Run, request: Request) -> None:
    document = run.read_json("run.json")
    if document.get("status") == "finished":
        raise RunError(f"the run in {run.folder} is finished: choose another folder with --out")
    before = document.get("request", {})
    changed = [
        f"{name} {before.get(name)!r} is now {value!r}"
        for name, value in asdict(request).items()
        if before.get(name) != value
    ]
    if changed:
        raise RunError(f"{run.folder} holds an unfinished run of another plan ({'; '.join(changed)}): refused")


def _check_trainable(dataset: Dataset) -> None:
    if dataset.facts.task != "classification":
        raise DataError(f"{dataset.name} is a {dataset.facts.task} task: no recipe for it yet")
    if len(dataset.train) == 0:
        raise DataError(f"{dataset.name} has no training rows on this machine (n=0): {dataset.facts.note}")
