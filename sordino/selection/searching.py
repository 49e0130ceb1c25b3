"""A search in a run folder: what is charged when, where trials are kept, and how a killed search resumes.

A search is replayed: its secret key decides every candidate and every number of trials again, and finished trials are
read from their folders. So a search killed at any point ends as it would have ended.
"""

import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np

from sordino.budget import (
    BudgetExceeded,
    Event,
    Ledger,
    LedgerError,
    NonPrivate,
    Planned,
    Repeated,
    UnsupportedEvent,
    partial_of,
)
from sordino.mechanisms import (
    GENERATOR,
    ScoreNoise,
    Stream,
    bound_streams,
    check_count_noise,
    data_tag,
    new_secret,
    secret_from_seed,
)
from sordino.runs import Key, Run, RunError, check_budget
from sordino.selection.executors import Executor, InProcess
from sordino.selection.search_methods import Round, SearchMethod, Stage
from sordino.selection.search_spaces import C, Space, check_buildable
from sordino.selection.trials import FinishedTrial, TrialData, TrialResult, TrialTask
from sordino.training import Plan

_KEY = "search.json"
OUTCOME = "search.json"

OnResult = Callable[[TrialResult], None]


@dataclass(frozen=True)
class SearchPlan(Generic[C]):
    """What is searched for, how, and under which training plan; a folder resumes for an equal plan only.

    Every trial trains under `training` (with the candidate's clip, if it has one), so all trials are the same event.
    """

    method: SearchMethod
    space: Space[C]
    training: Plan
    noise: ScoreNoise | None
    """On the number of correct validation records; None only for public records or where nothing is private."""
    momentum: float = 0.0

    def stages(self) -> tuple[Stage, ...]:
        return self.method.stages(self.training.event, self.noise or NonPrivate())

    def planned(self) -> list[Planned]:
        """All that may be drawn, to announce to a ledger."""
        return [
            Planned(Repeated(event, stage.most), stage.name, part)
            for stage in self.stages()
            for part, event in stage.events()
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method.to_json(),
            "space": self.space.to_json(),
            "training": {"plan": self.training.to_json(), "momentum": self.momentum},
            "noise": None if self.noise is None else repr(self.noise),
        }

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def search(
    run: Run,
    plan: SearchPlan[C],
    data: TrialData,
    ledger: Ledger | None,
    *,
    executor: Executor | None = None,
    seed: int | None = None,
    on_result: OnResult = lambda result: None,
) -> TrialResult:
    """The best candidate by the plan's method, with its weights in the run's folder; resumes where it was killed.

    Without a ledger the records are public and cost nothing. `on_result` is called with results that may be shown, and
    with no others. A trial whose training diverged may win if all did: then there are no weights.

    Guarantee: what the plan's stages state, charged to the parts "train" and "validation" before a trial begins. A
    trial is a training M(T) on the training records and a noisy score S(M(T), V) on the validation records; no record
    is in both. Take a record of T: V is fixed, the score is computed from the model with fresh randomness, so the pair
    (model, score) is post-processing of M(T), and any selection by scores is a selection among outputs of M. Take a
    record of V: T is fixed, models are as likely as before, and a trial is S alone. So each part pays for its own
    events, and with hidden trials each part's event is the best of a random number of its own.
    """
    _check(plan, ledger)
    check_buildable(plan.space, data.shape, data.classes)
    with run.alone():
        key = _Key.begin_or_resume(run, plan, data, seed)
        if key is None:
            return _finished(run, plan, ledger)
        hidden = plan.method.hides_trials or not plan.training.private
        folder = (run.private if hidden and ledger is not None else run.folder) / "trials"
        with (executor or InProcess()).at_work(data) as work:  # before anything is paid: a cluster may not answer
            if ledger is not None:
                _reserve(ledger, plan, key, run, folder)
            folder.mkdir(exist_ok=True)
            tasks, trials = _Tasks(plan, ledger, key, folder), list[FinishedTrial]()
            for wanted in plan.method.rounds(plan.space, key.randomness, trials):
                finished = []
                for trial in work(tasks.of(wanted)):
                    finished.append(trial)
                    if ledger is None or not plan.method.hides_trials:
                        on_result(trial.result)
                if ledger is not None and plan.method.hides_trials and len(plan.stages()) > 1:
                    on_result(_best(finished).result)  # what the next round draws from is released
                trials += sorted(finished, key=lambda trial: trial.number)
            chosen = _best(trials)
        _release(run, plan, chosen, [] if ledger is None else key.entries(plan))
        _forget(run)
    return chosen.result


@dataclass(eq=False)
class _Tasks(Generic[C]):
    """Turns candidates into tasks, and charges for them as they are taken."""

    plan: SearchPlan[C]
    ledger: Ledger | None
    key: "_Key"
    folder: Path
    begun: int = 0

    def of(self, wanted: Round[C]) -> Iterator[TrialTask]:
        """Released trials are charged to their stage one by one, hidden ones once for all."""
        hidden = self.plan.method.hides_trials
        if hidden:
            self._charge(wanted.stage, 1)
        for number, candidate in enumerate(wanted.candidates, self.begun):
            self.begun = number + 1
            if not hidden:
                self._charge(wanted.stage, self.begun)
            plan = self.plan.training
            yield TrialTask(
                number=number,
                folder=self.folder / f"{number:04d}",
                candidate=candidate,
                plan=plan if candidate.l2_clip is None else replace(plan, l2_clip=candidate.l2_clip),
                momentum=self.plan.momentum,
                adjacency="zero-out" if self.ledger is None else self.ledger.terms.adjacency,
                noise=self.plan.noise,
                secret=self.key.secret,
                seed=self.key.seed_of(number),
            )

    def _charge(self, stage: int, count: int) -> None:
        """On disk before anything is drawn; a replayed search finds that it has paid."""
        if self.ledger is None:
            return
        for part, _ in self.plan.stages()[stage].events():
            number = self.ledger.number_of(self.key.entry(stage, part))
            if number is None:
                raise RunError("the ledger has lost this search's entry: it is another ledger, or an old copy")
            if self.ledger.entries[number].count < count:
                self.ledger.raise_count(number, count)


@dataclass(frozen=True)
class _Key:
    """The secret of a search with all that it is bound to."""

    secret: bytes = field(repr=False)
    seed: int | None
    bound: str
    """The plan and the data."""
    new: bool

    @property
    def name(self) -> str:
        """Public, for the ledger's entries; other plans or data have other names, also under the same seed."""
        return hmac.new(self.secret, f"search {self.bound}".encode(), hashlib.sha256).hexdigest()[:16]

    def entry(self, stage: int, part: str) -> str:
        return f"{self.name} {stage} {part}"

    def entries(self, plan: SearchPlan[C]) -> list[str]:
        """All that the ledger holds of the search."""
        stages = enumerate(plan.stages())
        return [self.entry(place, part) for place, stage in stages for part, _ in stage.events()]

    def randomness(self, purpose: str, number: int) -> np.random.Generator:
        """The same whenever the search is replayed."""
        streams = bound_streams(self.secret, {"search": purpose}, predictable=self.seed is not None)
        return streams.generator(Stream.SAMPLING, number)

    def seed_of(self, trial: int) -> int | None:
        """Trials draw their keys from the operating system, unless the user has fixed all randomness."""
        if self.seed is None:
            return None
        return int.from_bytes(hmac.new(self.secret, f"trial {trial}".encode(), hashlib.sha256).digest()[:7], "little")

    @classmethod
    def begin_or_resume(cls, run: Run, plan: SearchPlan[C], data: TrialData, seed: int | None) -> "_Key | None":
        """The key of a new or an unfinished search; None if the folder holds a finished one."""
        if (run.folder / OUTCOME).exists():
            _forget(run)
            return None
        facts = {"question": plan.digest, "seed": seed, "generator": GENERATOR}
        path = run.private / _KEY
        if not path.exists():
            secret = new_secret() if seed is None else secret_from_seed(seed)
            tag = data_tag(secret, *data.arrays())
            run.write_private(_KEY, {"secret": secret.hex(), "data": tag, **facts})
            return cls(secret, seed, f"{facts['question']} {tag}", new=True)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            secret = bytes.fromhex(content["secret"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise RunError(f"the key in {run.private} is damaged: the search cannot resume; start a new one") from None
        if any(content.get(name) != facts[name] for name in ("question", "seed")):
            raise RunError(f"{run.folder} holds an unfinished search with other settings: resuming it is refused")
        if content.get("generator") != GENERATOR:
            raise RunError(
                f"{run.folder} holds an unfinished search by a version of sordino that draws its noise otherwise: "
                "finish it with that version, or start a new one in another folder"
            )
        tag = data_tag(secret, *data.arrays())
        if content.get("data") != tag:
            raise RunError(f"{run.folder} holds an unfinished search on other data: resuming it is refused")
        return cls(secret, seed, f"{facts['question']} {tag}", new=False)


def _check(plan: SearchPlan[C], ledger: Ledger | None) -> None:
    if ledger is None:
        return
    ledger.refuse_add_remove()
    if plan.noise is not None:
        check_count_noise(plan.noise.noise_multiplier)
    elif plan.training.private:
        raise ValueError("scores on private records need noise: give the plan Laplace or Gaussian noise")


def _best(trials: list[FinishedTrial]) -> FinishedTrial:
    return max(trials, key=lambda trial: trial.result.score)


def _reserve(ledger: Ledger, plan: SearchPlan[C], key: _Key, run: Run, trials: Path) -> None:
    """Announce and reserve all that the search may draw, so that it is refused at its start or not at all."""
    wanted: dict[str, tuple[Event, int, str, str]] = {
        key.entry(place, part): (event, stage.most, f"search {key.name}, {stage.name}", part)
        for place, stage in enumerate(plan.stages())
        for part, event in stage.events()
    }
    ledger.reload()
    missing = {entry: item for entry, item in wanted.items() if ledger.number_of(entry) is None}
    if key.new and len(missing) < len(wanted):
        _forget(run)
        raise RunError("the ledger already holds a search with this seed, plan and data: choose another seed")
    if missing and trials.exists():
        raise RunError(f"{run.folder} has trials that this ledger has not paid for: use the ledger that has")
    planned = [Planned(Repeated(event, most), what, part) for event, most, what, part in missing.values()]
    unannounced = [item for item in planned if item not in ledger.plan]
    try:
        check_budget(ledger, unannounced)
        for item in unannounced:
            # Where something was drawn before, the search goes through the ledger's filter instead.
            with suppress(LedgerError):
                ledger.announce(*item)
        for entry, (event, most, what, part) in missing.items():
            ledger.begin(event, most, what, part, seeded=key.seed is not None, run=entry)
    except (BudgetExceeded, UnsupportedEvent):
        if key.new and all(ledger.number_of(entry) is None for entry in wanted):
            _forget(run)  # nothing was reserved: a cheaper search may use the folder
        raise


def _release(run: Run, plan: SearchPlan[C], chosen: FinishedTrial, paid: list[str]) -> None:
    """The chosen trial becomes the run's: weights first, then the outcome that marks the search as finished."""
    if not chosen.result.diverged:
        trained = Run(chosen.folder)
        weights, facts = trained.read_tensors(trained.model)
        run.write_tensors(run.model, weights, {"steps": facts["steps"]})
    outcome = {"question": plan.to_json(), "digest": plan.digest, "chosen": chosen.result.to_json()}
    run.write_json(OUTCOME, outcome | {"paid": paid})


def _finished(run: Run, plan: SearchPlan[C], ledger: Ledger | None) -> TrialResult:
    """What a finished search found, without looking at anything again; only beside the ledger that paid for it."""
    path = run.folder / OUTCOME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        same, paid = content["digest"] == plan.digest, list(content["paid"])
        chosen = TrialResult(**content["chosen"] | {"candidate": plan.space.read(content["chosen"]["candidate"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino") from None
    if not same:
        raise RunError(f"{run.folder} holds a finished search with other settings: choose another folder")
    if ledger is not None and (not paid or any(ledger.number_of(name) is None for name in paid)):
        raise RunError(f"{run.folder} holds a search that this ledger has not paid for: give the ledger that has")
    return chosen


def is_begun(run: Run) -> bool:
    """Whether the folder holds a search that is not finished."""
    return (run.private / _KEY).exists()


def _forget(run: Run) -> None:
    """Delete the key and all hidden trials, so that what was not chosen is never shown.

    A trial deletes its own key when it ends; those of earlier versions kept it if they diverged.
    """
    shutil.rmtree(run.private / "trials", ignore_errors=True)
    for path in (run.private / _KEY, partial_of(run.private / _KEY)):
        path.unlink(missing_ok=True)
    for trial in (run.folder / "trials").glob("*/private"):
        Key.end(Run(trial.parent))
