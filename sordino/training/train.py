"""`sordino train` as a function: a named dataset, a recipe and a budget in; a run folder out."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.budget import Composed, Event, Ledger, Planned, cost
from sordino.data import DataError, Dataset, ImageFiles, description_of, load
from sordino.features import StoredImages, as_array, stored
from sordino.runs import Run, RunError
from sordino.training import canaries, normalising
from sordino.training.dataset_recipes import AnyPlan, DatasetRecipe
from sordino.training.description import Description, Request, is_named
from sordino.training.distribution import processes
from sordino.training.dpsgd import Trainable, TrainingState
from sordino.training.expected_time import expected_seconds, in_words, quicker_recipe
from sordino.training.fitting import fit
from sordino.training.image_files import NOTES, deviation_of, image_dataset, noisy_score, note_unreadable, score_charge
from sordino.training.optimisers import as_optimiser
from sordino.training.plan import Plan
from sordino.training.recipes import BEST, recipe, strongest

_PATIENCE = 300.0
"""Seconds from which a quicker recipe is named."""


def train(
    request: Request,
    out: str | Path | None = None,
    on_progress: Callable[[int, int, float], None] = lambda done, total, epsilon: None,
    say: Callable[[str], None] = lambda line: None,
    on_features: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Train, or resume the unfinished run in `out`; returns the result that `sordino train --json` prints.

    `on_progress` is called with the steps done and in all and the ε drawn so far; `on_features` with the examples
    described and in all.
    """
    begun = Description.read(Run(out)) if out is not None and Run(out).started else None
    if begun is not None and out is not None:
        request = request if request.recipe != BEST else replace(request, recipe=begun.request.recipe)
        _check_same_request(Run(out), begun, request)
    elif out is not None:
        Run(out).check_free()
    name, dataset = _named_dataset(request) if is_named(request) else image_dataset(request)
    n, classes = len(dataset.train), len(dataset.facts.classes or ())
    if request.recipe == BEST:
        request = replace(request, recipe=name)
        say(f"recipe: {request.recipe}")
    chosen = recipe(request.recipe, request.dataset, dataset.facts).starting_from(request.weights, dataset.facts, say)

    say(f"features of {n:,} training and {len(dataset.test):,} test examples")
    total = n + len(dataset.test)
    train_x = _features(chosen, dataset.train.x, lambda done: on_features(done, total))
    test_x = _features(chosen, dataset.test.x, lambda done: on_features(n + done, total))
    before = normalising.spent_before(chosen.moments)
    n += request.canaries
    if begun is None or out is None:
        if request.canaries and not chosen.recipe.noisy_gradients:
            raise ValueError(f"canaries watch noisy gradients, which {chosen.name} does not have: train without them")
        if request.canaries:  # refused before there is a folder; statistics do not change the size of a model
            one = chosen.head.model(train_x[:1].size, classes)
            canaries.check_count(request.canaries, one.parameters)
        plan = chosen.plan(n, request.epsilon, request.delta, exact=request.exact)
        run = Run.create(out, Path(request.dataset).resolve().stem)
        begun = Description("training", request, plan, dataset.facts, _words(request, dataset, chosen, plan))
        begun.write(run)
    else:
        run, plan = Run.at(out), begun.plan
        if not run.ledger.exists() and any(path.exists() for path in (run.checkpoint, run.model, run.normalisation)):
            raise RunError(f"{run.folder} has results but no ledger: what they cost is lost; restore ledger.json")
    say(f"run folder: {run.folder}")
    what = chosen.recipe.charged_as
    planned = [*normalising.planned(chosen.moments), (plan.event, what, "train")]
    score = None if is_named(request) else score_charge(request.epsilon, request.delta)
    planned += [] if score is None else [score]
    ledger = Ledger(request.epsilon, request.delta, path=run.ledger, planned=planned)
    scale = None
    if chosen.moments is not None:
        scale = normalising.statistics(run, chosen.moments, train_x, ledger, request.seed)
    model: Trainable = chosen.head.model(train_x[:1].size, classes, double=request.exact)
    streams = chosen.head.streams and scale is None and isinstance(train_x, StoredImages)
    x = train_x if streams else normalising.standardised(scale, train_x)
    records = chosen.head.records(x, dataset.train.y, double=request.exact)

    plain, plain_records = model, records

    def expect(steps: int) -> None:
        if not isinstance(plan, Plan):
            return
        seconds = expected_seconds(plain, plain_records, plan, steps) / processes().size
        say(f"{steps:,} steps: {in_words(seconds)} on this machine")
        quicker = quicker_recipe(request.dataset, request.recipe)
        if quicker is not None and seconds > _PATIENCE:
            say(quicker)

    expectation = [expect]  # told once, as soon as the model is prepared, before anything is charged

    def report(done: int, total: int) -> None:
        if expectation:
            expectation.pop()(total - done)
        charged = done + plan.steps - total
        on_progress(done, total, _epsilon_within(before, plan, charged, request.delta))

    optimiser = chosen.optimiser(plan.sampler.n, request.epsilon)
    planted = canaries.begin_or_resume(run, request.canaries, request.seed) if request.canaries else None
    if planted is not None:
        optimiser = canaries.Scoring(as_optimiser(optimiser, model.parameters), planted)
        model = canaries.WithCanaries(model, planted)

    def keep_scores(state: TrainingState) -> None:
        if planted is not None:
            canaries.keep_outcome(run, planted, state)

    fitted = fit(
        plan,
        model,
        records if planted is None else canaries.CanaryRecords(records, planted),
        optimiser=optimiser,
        ledger=ledger,
        run=run,
        averaging=chosen.averaging(plan.steps),
        what=what,
        seed=request.seed,
        on_progress=report,
        on_trained=keep_scores,
    )
    scores = chosen.scores(fitted.weights, test_x, classes, lambda rows: normalising.standardised(scale, rows))
    correct = np.isfinite(scores).all(axis=1) & (scores.argmax(axis=1) == dataset.test.y)
    if score is None:
        return _finish(run, begun, ledger, dataset, float(np.mean(correct)), None, fitted.steps)
    note_unreadable(run, train=train_x, held_out=test_x)
    accuracy = noisy_score(run, correct, score, ledger, request.seed)
    return _finish(run, begun, ledger, dataset, accuracy, score, fitted.steps)


@lru_cache(maxsize=32)
def _epsilon_up_to(before: Event | None, plan: AnyPlan, steps: int, delta: float) -> float:
    drawn = plan.event_after(steps)
    return cost(drawn if before is None else Composed((before, drawn)), delta).epsilon


def _epsilon_within(before: Event | None, plan: AnyPlan, charged: int, delta: float) -> float:
    """ε for display: up to the next eighth of the plan, since pricing every block could take longer than training."""
    eighth = math.ceil(plan.steps / 8)
    return _epsilon_up_to(before, plan, min(plan.steps, math.ceil(charged / eighth) * eighth), delta)


def _named_dataset(request: Request) -> tuple[str, Dataset]:
    """The strongest recipe's name, and the dataset."""
    given = [name for name in ("side", "channels", "classes") if getattr(request, name) is not None]
    if given:
        raise ValueError(f"{request.dataset} is a named dataset, and --{given[0]} is for images in files: leave it out")
    task = description_of(request.dataset)["task"]
    if task != "classification":
        raise DataError(f"{request.dataset} is a {task} task: no recipe for it yet")
    dataset = load(request.dataset)
    if len(dataset.train) == 0:
        raise DataError(f"{dataset.name} has no training rows on this machine (n=0): {dataset.facts.note}")
    return strongest(dataset.facts, request.epsilon), dataset


def _features(chosen: DatasetRecipe, examples: Any, on_progress: Callable[[int], None]) -> Any:
    if isinstance(examples, ImageFiles):
        return StoredImages(examples, chosen.features, slow=chosen.slow_features, on_progress=on_progress)
    if chosen.slow_features and len(examples):
        found = stored(chosen.features, examples, on_progress=on_progress)
        on_progress(len(examples))  # from the cache too: progress must not show whether these records were seen before
        return found
    return as_array(chosen.features(examples))


def _words(request: Request, dataset: Dataset, chosen: DatasetRecipe, plan: AnyPlan) -> dict[str, Any]:
    notes = ["the test set is a public benchmark: its accuracy is not charged"] if is_named(request) else [*NOTES]
    notes += [dataset.facts.note] if dataset.facts.note else []
    if request.weights is not None:
        digest = hashlib.sha256(Path(request.weights).read_bytes()).hexdigest()
        notes.append(f"training starts from weights that are taken as public, of SHA-256 {digest}")
    if request.canaries:
        notes.append(f"{request.canaries:,} synthetic canaries took part, for an audit; the plan's n counts them")
    if request.exact:
        notes.append(
            "exact: clipped sums in double precision, in whole units of a public grid, with exactly rounded noise that "
            "is scaled up for what rounding may add to a record's influence; that assumes that an example's own passes "
            "lose no more than 23 of 53 bits"
        )
    notes += plan.notes(request.delta)
    tuning = chosen.tuning(request.dataset)
    return {"unit": dataset.facts.protected, "tuning": tuning, "notes": notes}


def _finish(
    run: Run,
    begun: Description,
    ledger: Ledger,
    dataset: Dataset,
    accuracy: float,
    score: Planned | None,
    trained: int,
) -> dict[str, Any]:
    request, plan, words = begun.request, begun.plan, begun.statement
    if trained < plan.steps:
        lost = f"{plan.steps - trained} steps were lost to a change of environment or checkpoint: charged, in no model"
        words = words | {"notes": [*words["notes"], lost]}
    statement = ledger.statement(**words)
    noise = {} if score is None else {"test_accuracy_noise": deviation_of(score) / len(dataset.test)}
    test = {"n_test": len(dataset.test), "test_set": "public" if score is None else "private: noisy and charged"}
    run.write_json("metrics.json", {"test_accuracy": accuracy, **noise, **test, "canaries": request.canaries})
    run.write_statement(statement)
    replace(begun, status="finished", statement=words).write(run)
    return {
        "test_accuracy": accuracy,
        **noise,
        "epsilon": statement["epsilon"],
        **plan.claims(request.delta),
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
        "canaries": request.canaries,
        "exact": request.exact,
    }


def _check_same_request(run: Run, begun: Description, request: Request) -> None:
    if begun.status == "finished":
        raise RunError(f"the run in {run.folder} is finished: choose another folder with --out")
    before, now = asdict(begun.request), asdict(request)
    changed = [f"{name} was {before[name]!r}, not {now[name]!r}" for name in now if before[name] != now[name]]
    if changed:
        raise RunError(f"{run.folder} holds an unfinished run of another plan ({'; '.join(changed)}): refused")
