"""A whole search within a budget, as `sordino search` and `sordino tune` do it: calibrated, run, charged, stated."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from sordino.budget import (
    BudgetExceeded,
    Event,
    Gaussian,
    Laplace,
    Ledger,
    Planned,
    Repeated,
    calibration,
    check_delta_against_n,
    claimed_random_search,
    composed,
    from_json,
    steps_for,
    to_json,
)
from sordino.data import (
    Facts,
    PoissonSampler,
    Schema,
    is_named,
    load,
    read_examples,
    read_inputs,
    source_fingerprint,
)
from sordino.features import as_array
from sordino.mechanisms import ScoreNoise, score_deviation
from sordino.runs import LoadedModel, Run, RunError, TableLedger, check_budget, kept_json, kind_of, spending
from sordino.selection.executors import Executor
from sordino.selection.search_methods import GenerationalSearch, GeneticSearch, RandomSearch, SearchMethod, Stage
from sordino.selection.search_spaces import C, Grid, Space, check_buildable, read_candidate
from sordino.selection.searching import OUTCOME, OnResult, SearchPlan, is_begun, search
from sordino.selection.sources import SearchData, check_source, feature_of, given_schema, refuse_private_as_public
from sordino.selection.trials import TrialData, TrialResult, network_outputs
from sordino.training import Plan, as_expected

_WORKFLOW = "workflow.json"
_ONE_TRAINING = GeneticSearch(1, 1)
"""The method that only trains the winner of a search on public data."""


@dataclass(frozen=True)
class SearchRequest(Generic[C]):
    """What is searched for, and how every candidate is trained and scored."""

    method: SearchMethod
    space: Space[C]
    epochs: float = 20.0
    expected_batch_size: int | None = None
    """Default: a twentieth of the training records, but at least 256 where there are that many."""
    l2_clip: float = 1.0
    momentum: float = 0.0
    score_epsilon: float | None = None
    """ε₀ of each score's Laplace noise (PAW: 0.02); by default the scores may spend the whole ε on their own part."""

    def __post_init__(self) -> None:
        if self.score_epsilon is not None and not 0 < self.score_epsilon < math.inf:
            raise ValueError(f"the ε of a score's noise must be a positive finite number, not {self.score_epsilon!r}")

    def batch(self, n: int) -> int:
        usual = max(round(n / 20), min(n, 256))
        return usual if self.expected_batch_size is None else self.expected_batch_size

    def to_json(self) -> dict[str, Any]:
        names = ("epochs", "expected_batch_size", "l2_clip", "momentum", "score_epsilon")
        settings = {name: getattr(self, name) for name in names}
        return {"method": self.method.to_json(), "space": self.space.to_json(), "settings": settings}


@dataclass(frozen=True)
class KeptSearch:
    """What the folder of a search keeps to resume from and to predict with; all of it public."""

    asked: dict[str, Any]
    """The request, the names of the data, their schema and the seed, as JSON values."""
    training: Plan
    noise: ScoreNoise
    facts: Facts

    def keep(self, run: Run) -> None:
        priced = {"plan": self.training.to_json(), "noise": to_json(self.noise)}
        run.write_json(_WORKFLOW, {"asked": self.asked, **priced, "facts": self.facts.to_json()})

    @classmethod
    def read(cls, run: Run) -> "KeptSearch | None":
        """None if the folder holds no search."""
        path = run.folder / _WORKFLOW
        if not path.exists():
            return None
        with kept_json(path) as content:
            noise = from_json(content["noise"])
            if not isinstance(noise, Laplace | Gaussian):
                raise ValueError("scores have Laplace or Gaussian noise")
            facts = Facts.from_json(content["facts"])
            return cls(dict(content["asked"]), Plan.from_json(content["plan"]), noise, facts)


def search_within_budget(
    source: str | Path,
    request: SearchRequest[C],
    *,
    epsilon: float,
    delta: float,
    target: str | None = None,
    schema: str | Path | None = None,
    public: str | Path | None = None,
    ledger: str | Path | None = None,
    out: str | Path | None = None,
    executor: Executor | None = None,
    seed: int | None = None,
    on_result: OnResult = lambda result: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Find a candidate for a table or dataset and train it, within one budget: parameters and result as for `tune`.

    With public data the search itself is done on that, free, and its winner alone is trained on the private data.

    Guarantee: (epsilon, delta) for the whole workflow (see `search`), charged to one ledger; refuses what cannot be
    done before a folder is made or anything is charged.
    """
    source, public = str(source), None if public is None else str(public)
    paying, folder, described = (None if path is None else Path(path) for path in (ledger, out, schema))
    refuse_private_as_public(source, public)
    check_source(source)
    domains = given_schema(source, target, described, public)
    account = TableLedger(source, source_fingerprint(source), epsilon, delta, paying, folder, described, "search")
    data, others, shared = SearchData.read(source, domains), None, domains
    if public is not None:
        if domains is None and not is_named(public):
            shared = Schema.of(load(source).facts, target or "target")
        others = SearchData.read(public, shared)
    known = None if folder is None else Run(folder)
    workflow = _workflow(known, request, data, others, domains, account.now(), seed)
    run = known or Run.create(None, "search")  # from here on nothing is refused that could have been before
    account.bind(run.folder)
    workflow.keep(run)
    paid, training, noise = account.opened(run.folder), workflow.training, workflow.noise
    say(f"search folder: {run.folder}")
    say(
        f"every training: {training.steps:,} steps, noise multiplier {training.noise_multiplier:.3g}; "
        f"scores: {noise.describe()}"
    )
    plan: SearchPlan[Any] = SearchPlan(request.method, request.space, training, noise, request.momentum)
    if others is not None:
        best = _best_on_public(run, plan, others.parts, executor, seed, on_result)
        say(f"best on {others.name}: {best}")
        plan = SearchPlan(_ONE_TRAINING, Grid((best,)), training, noise, request.momentum)
        on_result = lambda result: None  # noqa: E731 (its score belongs to the outcome)
    try:
        found = search(run, plan, data.parts, paid, executor=executor, seed=seed, on_result=on_result)
    except BudgetExceeded:
        if not is_begun(run):  # nothing was drawn: a cheaper search may use the folder
            (run.folder / _WORKFLOW).unlink(missing_ok=True)
        raise
    where = "on the private records: counted above" if others is None else f"on {others.name}, taken to be public: free"
    run.write_statement(paid.statement(unit=data.facts.protected, tuning=f"this search was done {where}"))
    alone, held_out = training.epsilon(delta, paid.terms.adjacency), len(data.parts.validation_y)
    return {
        "candidate": found.candidate.to_json(),
        "in_words": str(found.candidate),
        "validation_accuracy": min(1.0, max(0.0, found.score)),
        "best_of_several": others is None,
        "noise_of_score": score_deviation(noise) / held_out,
        "test_accuracy": _test_accuracy(run, data, found),
        "diverged": found.diverged,
        "parameters": found.parameters,
        "trained_parameters": found.trained,
        "epsilon_of_one_training": alone,
        "claimed_epsilon": None if others else claimed_search_epsilon(request.method, alone, held_out),
        "noise_multiplier": training.noise_multiplier,
        "steps": training.steps,
        "n": training.sampler.n,
        "run": str(run.folder),
        **spending(paid),
    }


def _workflow(
    run: Run | None,
    request: SearchRequest[C],
    data: SearchData,
    public: SearchData | None,
    schema: Schema | None,
    ledger: Ledger,
    seed: int | None,
) -> KeptSearch:
    """The search that the folder holds, or else one with the least noise that fits; refuses what cannot be done.

    Guarantee: nothing is written, and nothing private is read but the number of records, which is public.
    """
    asked = {
        "records": data.name,
        "schema": schema and schema.to_json(),
        "public": public and public.name,
        "seed": seed,
        **request.to_json(),
    }
    kept = None if run is None else KeptSearch.read(run)
    if run is not None and kept is not None:
        if kept.asked != json.loads(json.dumps(asked)):
            raise RunError(f"{run.folder} holds a search with other settings or another schema: choose another --out")
        return kept
    if run is not None and ((run.started and kind_of(run.folder).name != "search") or run.model.exists()):
        raise RunError(f"{run.folder} holds something other than a search: choose another folder with --out")
    parts = data.parts
    check_buildable(request.space, parts.shape, parts.classes)
    paid_for = request.method if public is None else _ONE_TRAINING
    training, noise = calibrated(ledger, request, paid_for, len(parts.train_y))
    check_delta_against_n(ledger.terms.target_delta or 0.0, len(parts.train_y) + len(parts.validation_y))
    plan = SearchPlan(paid_for, request.space, training, noise, request.momentum)
    check_budget(ledger, [Planned(*item) for item in plan.charges("").values()])
    return KeptSearch(asked, training, noise, data.facts)


def _best_on_public(
    run: Run, plan: SearchPlan[C], data: TrialData, executor: Executor | None, seed: int | None, on_result: OnResult
) -> C:
    """The winner on public data, trained as on the private: with that noise, batch and number of steps."""
    n, training = len(data.train_y), plan.training
    sampler = PoissonSampler(n, min(n, training.sampler.expected_batch_size))
    alike = replace(plan, training=replace(training, sampler=sampler), noise=None)
    folder = Run.at(run.folder / "public")
    return cast(C, search(folder, alike, data, None, executor=executor, seed=seed, on_result=on_result).candidate)


def _test_accuracy(run: Run, data: SearchData, found: TrialResult) -> float | None:
    """On a benchmark's published test records, if it has any."""
    if data.test is None or found.diverged:
        return None
    predicted = network_outputs(found.candidate, run, data.test.x, data.parts.classes).argmax(axis=1)
    return float((predicted == data.test.y).mean())


def calibrated(ledger: Ledger, request: SearchRequest[C], method: SearchMethod, n: int) -> tuple[Plan, ScoreNoise]:
    """The training plan and the scores' noise with which the method just meets the ledger's target on either part.

    The ledger's ε is the largest over its parts, so neither part takes anything from the other.
    """
    ledger.refuse_add_remove()
    epsilon, delta, adjacency = ledger.terms.target_epsilon, ledger.terms.target_delta, ledger.terms.adjacency
    if epsilon is None or delta is None:
        raise ValueError("a search within a budget needs a ledger with a target ε and δ")
    sampler = PoissonSampler(n, request.batch(n))
    steps = steps_for(request.epochs, n, sampler.expected_batch_size)

    def least_noise(part: str, stages: Callable[[float], tuple[Stage, ...]]) -> float:
        def event(multiplier: float) -> Event:
            return composed([Repeated(dict(s.events())[part], s.most) for s in stages(multiplier)])

        return calibration.noise_multiplier(
            event, epsilon, delta, adjacency, price_of=lambda event: ledger.epsilon_if(event, part)
        )

    sigma = least_noise("train", lambda sigma: method.stages(Repeated(sampler.event(sigma), steps), Gaussian(1.0)))
    plan = Plan(sampler, request.l2_clip, sigma, steps)
    if request.score_epsilon is not None:
        return plan, Laplace(1 / request.score_epsilon)
    return plan, Gaussian(least_noise("validation", lambda sigma: method.stages(Gaussian(1.0), Gaussian(sigma))))


def claimed_search_epsilon(method: SearchMethod, training_epsilon: float, validation_size: int) -> float | None:
    """What PAW would claim such a search costs (Eq. 9); None where it makes no claim."""
    match method:
        case RandomSearch(mean):
            counts = [round(mean)]
        case GenerationalSearch(means):
            counts = [round(mean) for mean in means]
        case _:
            return None
    try:
        return claimed_random_search(training_epsilon, counts, validation_size)
    except ValueError:
        return None


def loaded_search(folder: Path) -> LoadedModel:
    """The model that a search has chosen."""
    run = Run(folder)
    workflow = KeptSearch.read(run)
    if workflow is None or not (run.folder / OUTCOME).exists():
        raise RunError(f"the search in {folder} is not finished: rerun its command with --out {folder} to resume it")
    with kept_json(run.folder / OUTCOME) as content:
        candidate = read_candidate(content["chosen"]["candidate"])
        diverged = bool(content["chosen"]["diverged"])
    if diverged:
        raise RunError(f"the search in {folder} has no model: the training it chose diverged")
    facts = workflow.facts
    classes = facts.classes or ()

    def outputs(examples: Any) -> NDArray[np.floating]:
        examples = read_inputs(examples, facts.columns) if facts.columns else as_expected(examples, facts)
        x = as_array(feature_of(facts, str(folder))(examples))
        try:
            return network_outputs(candidate, run, x, len(classes))
        except RuntimeError:  # torch lists all that does not fit, over many lines
            raise RunError(f"{run.model} does not hold the model that the search chose") from None

    return LoadedModel(
        run.folder, (lambda file: file) if facts.columns else read_examples, outputs, classes, facts.columns
    )
