"""A whole search within a budget, as `sordino search` and `sordino tune` do it: calibrated, run, charged, stated."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, cast

from sordino.budget import (
    BudgetExceeded,
    Event,
    Gaussian,
    Laplace,
    Ledger,
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
from sordino.runs import Run, RunError, TableLedger, check_budget, kept_json, kind_of, spending
from sordino.selection.executors import Executor
from sordino.selection.search_methods import GenerationalSearch, GeneticSearch, RandomSearch, SearchMethod, Stage
from sordino.selection.search_spaces import C, Grid, Space, check_buildable, read_candidate
from sordino.selection.searching import OUTCOME, OnResult, SearchPlan, is_begun, search
from sordino.selection.sources import SearchData, check_source, feature_of, refuse_private_as_public
from sordino.selection.trials import TrialData, TrialResult, predicted_classes
from sordino.training import Plan, as_expected

_WORKFLOW = "workflow.json"


@dataclass(frozen=True)
class SearchRequest(Generic[C]):
    """What is searched for, and how every candidate is trained and scored."""

    method: SearchMethod
    space: Space[C]
    epochs: float = 20.0
    expected_batch_size: int | None = None
    """By default a twentieth of the training records, or 256 if that is more and there are so many."""
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
class PreparedSearch(Generic[C]):
    """A request with its data and the least noise that fits the ledger: all public, known before anything is spent."""

    request: SearchRequest[C]
    data: SearchData
    public: SearchData | None
    seed: int | None
    training: Plan
    noise: ScoreNoise

    def keep(self, run: Run) -> None:
        """In the search's folder, to resume from and to predict with."""
        asked = _asked(self.request, self.data, self.public, self.seed)
        priced = {"plan": self.training.to_json(), "noise": to_json(self.noise)}
        run.write_json(_WORKFLOW, {"asked": asked, **priced, "facts": self.data.facts.to_json()})


def prepare_search(
    run: Run | None,
    request: SearchRequest[C],
    data: SearchData,
    ledger: Ledger,
    *,
    public: SearchData | None = None,
    seed: int | None = None,
) -> PreparedSearch[C]:
    """The search that the folder holds, or else one with the least noise that fits; refuses what cannot be done.

    Guarantee: nothing is written, and nothing private is read but the number of records, which is public.
    """
    kept = None if run is None else _read(run)
    if run is not None and kept is not None:
        asked, training, noise, _ = kept
        if asked != json.loads(json.dumps(_asked(request, data, public, seed))):
            raise RunError(f"{run.folder} holds a search with other settings or another schema: choose another --out")
        return PreparedSearch(request, data, public, seed, training, noise)
    if run is not None and ((run.started and kind_of(run.folder).name != "search") or run.model.exists()):
        raise RunError(f"{run.folder} holds something else than a search: choose another folder with --out")
    parts = data.parts
    check_buildable(request.space, parts.shape, parts.classes)
    paid_for: SearchMethod = request.method if public is None else GeneticSearch(1, 1)
    training, noise = calibrated(ledger, request, paid_for, len(parts.train_y))
    check_delta_against_n(ledger.terms.target_delta or 0.0, len(parts.train_y) + len(parts.validation_y))
    check_budget(ledger, SearchPlan(paid_for, request.space, training, noise, request.momentum).planned())
    return PreparedSearch(request, data, public, seed, training, noise)


@dataclass(frozen=True)
class OpenSearch(Generic[C]):
    """A search ready to run: `search(job.run, job.plan, job.parts, job.ledger)`, then `job.outcome(found)`."""

    run: Run
    ledger: Ledger
    prepared: PreparedSearch[C]
    plan: SearchPlan[Any]
    """To run on the private data; with public data, the training of that search's winner."""
    on_private_result: OnResult

    @property
    def parts(self) -> TrialData:
        return self.prepared.data.parts

    def outcome(self, found: TrialResult) -> dict[str, Any]:
        """What the search found and spent, as JSON values; writes the privacy statement."""
        plan, public, data = self.prepared.training, self.prepared.public, self.prepared.data
        held_out, terms = len(data.parts.validation_y), self.ledger.terms
        where = f"on {public.name}, taken to be public: free" if public else "on the private records: counted above"
        tuning = f"this search was done {where}"
        self.run.write_statement(self.ledger.statement(unit=data.facts.protected, tuning=tuning))
        accuracy = None
        if data.test is not None and not found.diverged:
            predicted = predicted_classes(found.candidate, self.run, data.test.x, data.parts.classes)
            accuracy = float((predicted == data.test.y).mean())
        alone = plan.epsilon(terms.target_delta or 0.0, terms.adjacency)
        claimed = None if public else claimed_search_epsilon(self.prepared.request.method, alone, held_out)
        return {
            "candidate": found.candidate.to_json(),
            "in_words": str(found.candidate),
            "validation_accuracy": min(1.0, max(0.0, found.score)),
            "best_of_several": public is None,
            "noise_of_score": score_deviation(self.prepared.noise) / held_out,
            "test_accuracy": accuracy,
            "diverged": found.diverged,
            "parameters": found.parameters,
            "trained_parameters": found.trained,
            "epsilon_of_one_training": alone,
            "claimed_epsilon": claimed,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "n": plan.sampler.n,
            "run": str(self.run.folder),
            **spending(self.ledger),
        }


@contextmanager
def open_search(
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
) -> Iterator[OpenSearch[C]]:
    """Read the data, open or make the ledger and the folder, and calibrate the noise: parameters as for `tune`.

    Guarantee: refuses what cannot be done before a folder is made or anything is charged.
    """
    source, schema, public = str(source), schema and Path(schema), None if public is None else str(public)
    refuse_private_as_public(source, public)
    domains = Schema.read(schema) if schema else None
    shared = domains  # with the public table
    if is_named(source) and domains is None and public is not None and not is_named(public):
        shared = Schema.of(load(source).facts, target or "target")
    elif domains is None and public is not None and target is not None and Path(public).is_file():
        domains = shared = Schema.inferred(public, target)
    check_source(source)
    account = TableLedger(
        source,
        source_fingerprint(source),
        epsilon,
        delta,
        None if ledger is None else Path(ledger),
        None if out is None else Path(out),
        schema or None,
        kind="search",
    )
    data = SearchData.read(source, schema=domains, target=target)
    others = None if public is None else SearchData.read(public, schema=shared, target=target)
    known = None if out is None else Run(out)
    prepared = prepare_search(known, request, data, account.now(), public=others, seed=seed)
    run = known or Run.create(None, "search")  # from here on nothing is refused that could have been before
    account.bind(run.folder)
    prepared.keep(run)
    say(f"search folder: {run.folder}")
    with begun_search(run, prepared, account.opened(run.folder), executor, on_result, say) as job:
        yield job


@contextmanager
def begun_search(
    run: Run,
    prepared: PreparedSearch[C],
    ledger: Ledger,
    executor: Executor | None = None,
    on_result: OnResult = lambda result: None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[OpenSearch[C]]:
    """The search to run on the private data, while it runs.

    With public data the search itself is done on that, here and free; what is left is to train its winner alone.
    """
    request, training, noise = prepared.request, prepared.training, prepared.noise
    prepared.keep(run)
    say(
        f"every training: {training.steps:,} steps, noise multiplier {training.noise_multiplier:.3g}; "
        f"scores: {noise.describe()}"
    )
    plan: SearchPlan[Any] = SearchPlan(request.method, request.space, training, noise, request.momentum)
    if prepared.public is not None:
        best = _best_on_public(run, prepared, prepared.public, executor, on_result)
        say(f"best on {prepared.public.name}: {best}")
        plan = SearchPlan(GeneticSearch(1, 1), Grid((best,)), training, noise, request.momentum)
        on_result = lambda result: None  # noqa: E731 (its score belongs to the outcome)
    try:
        yield OpenSearch(run, ledger, prepared, plan, on_result)
    except BudgetExceeded:
        if not is_begun(run):  # nothing was drawn: a cheaper search may use the folder
            (run.folder / _WORKFLOW).unlink(missing_ok=True)
        raise


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
    """What PAW would claim such a search costs (Eq. 9); None where it says nothing."""
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


def classify_by_search(folder: str | Path, file: Path) -> list[str]:
    """The class of each example in the file, by the model that a search has chosen; reads nothing else."""
    run = Run(folder)
    kept = _read(run)
    if kept is None or not (run.folder / OUTCOME).exists():
        raise RunError(f"the search in {folder} is not finished: rerun its command with --out {folder} to resume it")
    with kept_json(run.folder / OUTCOME) as content:
        candidate = read_candidate(content["chosen"]["candidate"])
        diverged = bool(content["chosen"]["diverged"])
    if diverged:
        raise RunError(f"the search in {folder} has no model: the training it chose diverged")
    _, _, _, facts = kept
    classes = facts.classes or ()
    examples = read_inputs(file, facts.columns) if facts.columns else as_expected(read_examples(file), facts)
    x = as_array(feature_of(facts, str(folder))(examples))
    try:
        return [classes[index] for index in predicted_classes(candidate, run, x, len(classes))]
    except RuntimeError:  # torch lists all that does not fit, over many lines
        raise RunError(f"{run.model} does not hold the model that the search chose") from None


def _asked(request: SearchRequest[C], data: SearchData, public: SearchData | None, seed: int | None) -> dict[str, Any]:
    names = {"records": data.name, "schema": data.schema, "public": public.name if public else None}
    return {**names, "seed": seed, **request.to_json()}


def _read(run: Run) -> tuple[dict[str, Any], Plan, ScoreNoise, Facts] | None:
    """Request, training plan, noise and facts from the folder of a search; None if it is none."""
    path = run.folder / _WORKFLOW
    if not path.exists():
        return None
    with kept_json(path) as content:
        noise = from_json(content["noise"])
        if not isinstance(noise, Laplace | Gaussian):
            raise ValueError("scores have Laplace or Gaussian noise")
        return dict(content["asked"]), Plan.from_json(content["plan"]), noise, Facts.from_json(content["facts"])


def _best_on_public(
    run: Run, prepared: PreparedSearch[C], public: SearchData, executor: Executor | None, on_result: OnResult
) -> C:
    """The winner on public data, trained as on the private: with that noise, batch and number of steps."""
    request, plan, n = prepared.request, prepared.training, len(public.parts.train_y)
    sampler = PoissonSampler(n, min(n, plan.sampler.expected_batch_size))
    alike = Plan(sampler, plan.l2_clip, plan.noise_multiplier, plan.steps)
    found = search(
        Run.at(run.folder / "public"),
        SearchPlan(request.method, request.space, alike, None, request.momentum),
        public.parts,
        None,
        executor=executor,
        seed=prepared.seed,
        on_result=on_result,
    )
    return cast(C, found.candidate)
