"""A whole search within a budget, as `sordino search` and `sordino tune` do it: calibrated, run, charged, stated."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

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
from sordino.data import Facts, PoissonSampler
from sordino.mechanisms import ScoreNoise, deviation
from sordino.runs import Run, RunError
from sordino.selection.search.candidates import Finding, TrialTraining, right
from sordino.selection.search.executors import Executor
from sordino.selection.search.genetic import GeneticSearch
from sordino.selection.search.grid import Grid
from sordino.selection.search.randomised import GenerationalSearch, RandomSearch
from sordino.selection.search.records import Records
from sordino.selection.search.searching import Method, OnFinding, Question, Stage, check_budget, is_begun, search
from sordino.selection.search.space import C, Space, check_buildable
from sordino.training import Plan

WORKFLOW = "workflow.json"


@dataclass(frozen=True)
class Settings:
    """How every candidate is trained and judged, besides what is searched for."""

    epochs: float = 20.0
    expected_batch_size: int | None = None
    """By default a twentieth of the training records, or 256 where that is more and there are so many."""
    l2_clip: float = 1.0
    momentum: float = 0.0
    score_epsilon: float | None = None
    """ε₀ of each score's Laplace noise (PAW has .02); by default the scores may spend the whole ε on their own part."""

    def __post_init__(self) -> None:
        if self.score_epsilon is not None and not 0 < self.score_epsilon < math.inf:
            raise ValueError(f"the ε of a score's noise must be a positive finite number, not {self.score_epsilon!r}")

    def batch(self, n: int) -> int:
        usual = max(round(n / 20), min(n, 256))
        return usual if self.expected_batch_size is None else self.expected_batch_size


@dataclass(frozen=True)
class Wish(Generic[C]):
    """What is searched for, and how."""

    method: Method
    space: Space[C]
    settings: Settings

    def to_json(self) -> dict[str, Any]:
        parts = {"method": self.method.to_json(), "space": self.space.to_json(), "settings": vars(self.settings)}
        return dict(json.loads(json.dumps(parts)))  # as it reads when it comes back from a file


@dataclass(frozen=True)
class Settled:
    """What a search will do: all of it is public, and known before anything is spent."""

    asked: dict[str, Any]
    plan: Plan
    noise: ScoreNoise
    facts: Facts

    def keep(self, run: Run) -> None:
        """In the search's folder, to go on by, and for whoever uses its model."""
        priced = {"plan": self.plan.to_json(), "noise": to_json(self.noise)}
        run.write_json(WORKFLOW, {"asked": self.asked, **priced, "facts": self.facts.to_json()})

    @classmethod
    def read(cls, run: Run) -> "Settled | None":
        """From the folder of a search; None if it is none."""
        path = run.folder / WORKFLOW
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            asked, noise = dict(content["asked"]), from_json(content["noise"])
            if isinstance(noise, Laplace | Gaussian):
                return cls(asked, Plan.from_json(content["plan"]), noise, Facts.from_json(content["facts"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino")


def settled(
    run: Run | None,
    wish: Wish[C],
    records: Records,
    ledger: Ledger,
    *,
    public: Records | None = None,
    seed: int | None = None,
) -> Settled:
    """What was settled in this folder, or else the least noise that fits; writes nothing, refuses what cannot be.

    Guarantee: nothing private is read but the number of records, which is public.
    """
    material = records.material
    begun = None if run is None else Settled.read(run)
    names = {"records": records.name, "schema": records.schema, "public": public.name if public else None}
    asked = {**names, "seed": seed, **wish.to_json()}
    if run is not None and begun is not None and begun.asked != asked:
        raise RunError(f"{run.folder} holds a search with other settings or another schema: choose another --out")
    if begun is not None:
        return begun
    if run is not None and (run.started or run.model.exists()):
        raise RunError(f"{run.folder} holds something else than a search: choose another folder with --out")
    check_buildable(wish.space, material.shape, material.classes)
    paid_for: Method = wish.method if public is None else GeneticSearch(1, 1)
    plan, noise = calibrated(ledger, paid_for, len(material.train_y), wish.settings)
    check_delta_against_n(ledger.terms.target_delta or 0.0, len(material.train_y) + len(material.validation_y))
    check_budget(ledger, Question(paid_for, wish.space, TrialTraining(plan, wish.settings.momentum), noise).planned())
    return Settled(asked, plan, noise, records.facts)


def search_within(
    run: Run,
    wish: Wish[C],
    records: Records,
    ledger: Ledger,
    *,
    public: Records | None = None,
    executor: Executor | None = None,
    seed: int | None = None,
    on_finding: OnFinding = lambda finding: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Search with the least noise that keeps the whole within the ledger's target; what was found, as JSON values.

    With `public` records the search is done on those, free, and only the winner is trained on the private ones, with
    the whole budget. The same call on the same folder goes on where it was, or gives the result again.

    Guarantee: `search`'s, charged to the ledger.
    """
    material, agreed = records.material, settled(run, wish, records, ledger, public=public, seed=seed)
    agreed.keep(run)
    plan, noise = agreed.plan, agreed.noise
    training = TrialTraining(plan, wish.settings.momentum)
    say(
        f"every training: {plan.steps:,} steps, noise multiplier {plan.noise_multiplier:.3g}; "
        f"scores: {noise.describe()}"
    )
    question: Question[Any] = Question(wish.method, wish.space, training, noise)
    if public is not None:
        best = _on_public(run, wish, public, plan, executor, seed, on_finding)
        say(f"best on {public.name}: {best}")
        question = Question(GeneticSearch(1, 1), Grid((best,)), training, noise)
    try:
        shown = on_finding if public is None else lambda finding: None
        found = search(run, question, material, ledger, executor=executor, seed=seed, on_finding=shown)
    except BudgetExceeded:
        if not is_begun(run):  # nothing was drawn: a cheaper search may have the folder
            (run.folder / WORKFLOW).unlink(missing_ok=True)
        raise
    return _stated(run, wish, records, ledger, agreed, found, public)


def calibrated(ledger: Ledger, method: Method, n: int, settings: Settings) -> tuple[Plan, ScoreNoise]:
    """The plan and the scores' noise with which the method just meets the ledger's target on either part.

    The ledger's ε is the largest over its parts, so neither part takes anything from the other.
    """
    ledger.refuse_add_remove()
    epsilon, delta, adjacency = ledger.terms.target_epsilon, ledger.terms.target_delta, ledger.terms.adjacency
    if epsilon is None or delta is None:
        raise ValueError("a search within a budget needs a ledger with a target ε and δ")
    sampler = PoissonSampler(n, settings.batch(n))
    steps = steps_for(settings.epochs, n, sampler.expected_batch_size)

    def least_noise(part: str, stages: Callable[[float], tuple[Stage, ...]]) -> float:
        def event(multiplier: float) -> Event:
            events = [(s.training if part == "train" else s.score, s.most) for s in stages(multiplier)]
            return composed([Repeated(event, most) for event, most in events])

        return calibration.noise_multiplier(
            event, epsilon, delta, adjacency, price_of=lambda event: ledger.epsilon_if(event, part)
        )

    sigma = least_noise("train", lambda sigma: method.stages(Repeated(sampler.event(sigma), steps), Gaussian(1.0)))
    plan = Plan(sampler, settings.l2_clip, sigma, steps)
    if settings.score_epsilon is not None:
        return plan, Laplace(1 / settings.score_epsilon)
    return plan, Gaussian(least_noise("validation", lambda sigma: method.stages(Gaussian(1.0), Gaussian(sigma))))


def _on_public(
    run: Run,
    wish: Wish[C],
    public: Records,
    plan: Plan,
    executor: Executor | None,
    seed: int | None,
    on_finding: OnFinding,
) -> C:
    """The winner on public records, trained as the private ones will be: with that noise, batch and number of steps."""
    n = len(public.material.train_y)
    alike = Plan(
        PoissonSampler(n, min(n, plan.sampler.expected_batch_size)), plan.l2_clip, plan.noise_multiplier, plan.steps
    )
    question = Question(wish.method, wish.space, TrialTraining(alike, wish.settings.momentum), None)
    found = search(
        *(Run.at(run.folder / "public"), question, public.material, None),
        executor=executor,
        seed=seed,
        on_finding=on_finding,
    )
    return wish.space.read(found.candidate.to_json())


def _stated(
    run: Run, wish: Wish[C], records: Records, ledger: Ledger, agreed: Settled, found: Finding, public: Records | None
) -> dict[str, Any]:
    plan = agreed.plan
    where = f"on {public.name}, taken to be public: free" if public else "on the private records: counted above"
    statement = ledger.statement(unit=records.facts.protected, tuning=f"this search was done {where}")
    run.write_statement(statement)
    accuracy = None
    if records.test is not None and not found.diverged:
        accuracy = float(right(found.candidate, run, records.test).mean())
    delta = ledger.terms.target_delta or 0.0
    alone = plan.epsilon(delta, ledger.terms.adjacency)
    return {
        "candidate": found.candidate.to_json(),
        "in_words": str(found.candidate),
        "validation_accuracy": min(1.0, max(0.0, found.score)),
        "best_of_several": public is None,
        "noise_of_score": deviation(agreed.noise) / len(records.material.validation_y),
        "test_accuracy": accuracy,
        "diverged": found.diverged,
        "parameters": found.parameters,
        "trained_parameters": found.trained,
        "epsilon": statement["epsilon"],
        "delta": ledger.terms.target_delta,
        "accountant": statement["accountant"],
        "epsilon_of_one_training": alone,
        "claimed_epsilon": None if public else claimed(wish.method, alone, len(records.material.validation_y)),
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "n": plan.sampler.n,
        "run": str(run.folder),
    }


def claimed(method: Method, training_epsilon: float, validation_size: int) -> float | None:
    """What PAW would say such a search costs (Eq. 9); None where it says nothing."""
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
