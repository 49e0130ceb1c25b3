"""A search in a run folder: what is charged when, where trials are kept, and how a killed search resumes.

A search is replayed: its secret key decides every candidate and every number of trials again, and finished trials are
read from their folders. So a search killed at any point ends as it would have ended.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np

from sordino.budget import Ledger, LedgerError, NonPrivate, Planned, Repeated
from sordino.mechanisms import ScoreNoise, Stream, check_count_noise, data_tag
from sordino.runs import Binding, Key, Purpose, Run, RunError, charged_key, check_budget, digest, kept_json
from sordino.selection.executors import Executor, InProcess
from sordino.selection.search_methods import SearchMethod, Stage
from sordino.selection.search_spaces import C, Space, check_buildable, read_candidate
from sordino.selection.trials import FinishedTrial, TrialData, TrialResult, TrialTask
from sordino.training import Plan

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

    def charges(self, search: str) -> dict[str, tuple[Repeated, str, str]]:
        """All that may be drawn: event, words and part of each entry that a search of this name has in the ledger."""
        return {
            _entry(search, place, part): (Repeated(event, stage.most), f"search {search}, {stage.name}", part)
            for place, stage in enumerate(self.stages())
            for part, event in stage.events()
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method.to_json(),
            "space": self.space.to_json(),
            "training": {"plan": self.training.to_json(), "momentum": self.momentum},
            "noise": None if self.noise is None else repr(self.noise),
        }

    @property
    def digest(self) -> str:
        return digest(self.to_json())


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
        if (run.folder / OUTCOME).exists():
            _forget(run)
            return _finished(run, plan, ledger)
        hidden = plan.method.hides_trials or not plan.training.private
        folder = (run.private if hidden and ledger is not None else run.folder) / "trials"
        binding = Binding(
            plan.digest, lambda key: data_tag(key, *data.arrays()), seed, purpose=Purpose.SEARCH, anywhere=True
        )
        with (
            charged_key(run, ledger, binding, drawn=ledger is None or folder.exists()) as key,
            (executor or InProcess()).at_work(data) as work,  # before anything is paid: a cluster may not answer
        ):
            if ledger is not None:
                _reserve(ledger, plan, key, run, folder)
            folder.mkdir(exist_ok=True)

            def randomness(purpose: str, number: int) -> np.random.Generator:
                """A generator that is the same whenever the search is replayed."""
                return key.streams_for({"search": purpose}).generator(Stream.SAMPLING, number)

            tasks, trials = _Tasks(plan, ledger, key, folder), list[FinishedTrial]()
            for stage, candidates in plan.method.rounds(plan.space, randomness, trials):
                finished = []
                for trial in work(tasks.of(stage, candidates)):
                    finished.append(trial)
                    if ledger is None or not plan.method.hides_trials:
                        on_result(trial.result)
                if ledger is not None and plan.method.hides_trials and len(plan.stages()) > 1:
                    on_result(_best(finished).result)  # what the next round draws from is released
                trials += sorted(finished, key=lambda trial: trial.number)
            chosen = _best(trials)
        _release(run, plan, chosen, [] if ledger is None else list(plan.charges(key.name)))
        _forget(run)
    return chosen.result


@dataclass(eq=False)
class _Tasks(Generic[C]):
    """Turns candidates into tasks, and charges for them as they are taken."""

    plan: SearchPlan[C]
    ledger: Ledger | None
    key: Key
    folder: Path
    begun: int = 0

    def of(self, stage: int, candidates: Iterable[C]) -> Iterator[TrialTask]:
        """Released trials are charged to their stage one by one, hidden ones once for all."""
        hidden = self.plan.method.hides_trials
        if hidden:
            self._charge(stage, 1)
        for number, candidate in enumerate(candidates, self.begun):
            self.begun = number + 1
            if not hidden:
                self._charge(stage, self.begun)
            plan = self.plan.training
            yield TrialTask(
                number=number,
                folder=self.folder / f"{number:04d}",
                candidate=candidate,
                plan=plan if candidate.l2_clip is None else replace(plan, l2_clip=candidate.l2_clip),
                momentum=self.plan.momentum,
                adjacency="zero-out" if self.ledger is None else self.ledger.terms.adjacency,
                noise=self.plan.noise,
                secret=bytes.fromhex(self.key.secret),
                seed=_seed_of(self.key, number),
            )

    def _charge(self, stage: int, count: int) -> None:
        """On disk before anything is drawn; a replayed search finds that it has paid."""
        if self.ledger is None:
            return
        for part, _ in self.plan.stages()[stage].events():
            number = self.ledger.number_of(_entry(self.key.name, stage, part))
            if number is None:
                raise RunError("the ledger has lost this search's entry: it is another ledger, or an old copy")
            if self.ledger.entries[number].count < count:
                self.ledger.raise_count(number, count)


def _entry(search: str, stage: int, part: str) -> str:
    return f"{search} {stage} {part}"


def _seed_of(key: Key, trial: int) -> int | None:
    """Trials draw their keys from the operating system, unless the user has fixed all randomness."""
    return None if key.seed is None else int.from_bytes(key.mac(f"trial {trial}")[:7], "little")


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


def _reserve(ledger: Ledger, plan: SearchPlan[C], key: Key, run: Run, trials: Path) -> None:
    """Announce and reserve all that the search may draw, so that it is refused at its start or not at all."""
    missing = {entry: item for entry, item in plan.charges(key.name).items() if ledger.number_of(entry) is None}
    if missing and trials.exists():
        raise RunError(f"{run.folder} has trials that this ledger has not paid for: use the ledger that has")
    planned = [Planned(*item) for item in missing.values()]
    unannounced = [item for item in planned if item not in ledger.plan]
    check_budget(ledger, unannounced)
    for item in unannounced:
        # Where something was drawn before, the search goes through the ledger's filter instead.
        with suppress(LedgerError):
            ledger.announce(*item)
    for entry, (event, what, part) in missing.items():
        key.reserve(ledger, event.event, event.count, what, part, entry=entry)


def _release(run: Run, plan: SearchPlan[C], chosen: FinishedTrial, paid: list[str]) -> None:
    """The chosen trial becomes the run's: weights first, then the outcome that marks the search as finished."""
    if not chosen.result.diverged:
        trained = Run(chosen.folder)
        weights, facts = trained.read_tensors(trained.model)
        run.write_tensors(run.model, weights, {"steps": facts["steps"]})
    outcome = {"question": plan.to_json(), "digest": plan.digest, "chosen": chosen.result.to_json()}
    run.write_json(OUTCOME, outcome | {"paid": paid})


def _finished(run: Run, plan: SearchPlan[C], ledger: Ledger | None) -> TrialResult:
    """What a finished search found; reads no records, and needs the ledger that paid for it."""
    path = run.folder / OUTCOME
    with kept_json(path) as content:
        same, paid = content["digest"] == plan.digest, list(content["paid"])
        chosen = TrialResult(**content["chosen"] | {"candidate": read_candidate(content["chosen"]["candidate"])})
    if not same:
        raise RunError(f"{run.folder} holds a finished search with other settings: choose another folder")
    if ledger is not None and (not paid or any(ledger.number_of(name) is None for name in paid)):
        raise RunError(f"{run.folder} holds a search that this ledger has not paid for: give the ledger that has")
    return chosen


def is_begun(run: Run) -> bool:
    """Whether the folder holds a search that is not finished."""
    return Purpose.SEARCH.file(run).exists()


def _forget(run: Run) -> None:
    """Delete the key and all hidden trials, so that what was not chosen is never shown.

    A trial deletes its own key when it ends; those of earlier versions kept it if they diverged.
    """
    shutil.rmtree(run.private / "trials", ignore_errors=True)
    Key.end(run, purpose=Purpose.SEARCH)
    for trial in (run.folder / "trials").glob("*/private"):
        Key.end(Run(trial.parent))
