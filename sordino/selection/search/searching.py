"""A search in a run folder: what is charged when, where trials are kept, and how a killed search goes on.

A search is replayed: its secret key decides every candidate and every number of trials again, and trials that are
finished are read from their folders. So a search killed at any point comes to the end that it would have come to.
"""

import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol

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
    composed,
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
    number_of_trials,
    secret_from_seed,
)
from sordino.runs import Key, Run, RunError
from sordino.selection.search.candidates import Finding, Material, Task, Trial, TrialTraining
from sordino.selection.search.executors import Executor, InProcess, Work
from sordino.selection.search.space import C, Space, check_buildable

_KEY = "search.json"
OUTCOME = "search.json"


@dataclass(frozen=True)
class Stage:
    """A part of a search that is paid for: its events on the two parts of the data, and how often they may happen."""

    name: str
    most: int
    training: Event
    score: Event


class Method(Protocol):
    """How candidates are chosen, and what that costs."""

    @property
    def hides_trials(self) -> bool:
        """Whether trials that are not chosen must stay secret, and their number too."""

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        """What the whole search may draw, fixed before the first output."""

    def run(self, search: "Search[C]") -> Trial:
        """The chosen trial."""

    def to_json(self) -> dict[str, Any]: ...


OnFinding = Callable[[Finding], None]


@dataclass(frozen=True)
class Question(Generic[C]):
    """What is searched for and how; a folder goes on for the same question only."""

    method: Method
    space: Space[C]
    training: TrialTraining
    noise: ScoreNoise | None
    """On the number of correct validation records; None only for public records or where nothing is private."""

    def stages(self) -> tuple[Stage, ...]:
        return self.method.stages(self.training.plan.event, self.noise or NonPrivate())

    def planned(self) -> list[Planned]:
        """All that may be drawn, as a ledger is told of it."""
        return [
            Planned(Repeated(event, stage.most), stage.name, part)
            for stage in self.stages()
            for part, event in _parts(stage)
        ]

    def facts(self) -> dict[str, Any]:
        noise = None if self.noise is None else repr(self.noise)
        return {name: getattr(self, name).to_json() for name in ("method", "space", "training")} | {"noise": noise}


def search(
    run: Run,
    question: Question[C],
    material: Material,
    ledger: Ledger | None,
    *,
    executor: Executor | None = None,
    seed: int | None = None,
    on_finding: OnFinding = lambda finding: None,
) -> Finding:
    """The best candidate by the question's method, with its weights in the run's folder; goes on where it was killed.

    Without a ledger the records are public and cost nothing. `on_finding` is told of what may be shown, and of nothing
    else. A trial whose training diverged may win where all did: then there are no weights.

    Guarantee: what the question's stages say, charged to the parts "train" and "validation" before a trial begins. A
    trial is a training M(T) on the training records and a noisy score S(M(T), V) on the validation records, which no
    record is both of. Take a record of T: V is fixed, the score is computed from the model with fresh randomness, so
    the pair (model, score) is post-processing of M(T), and any selection by scores is a selection among outputs of M.
    Take a record of V: T is fixed, models are as likely as before, and a trial is S alone. So each part pays for its
    own events, and with trials hidden each part's event is the best of a random number of its own.
    """
    _check(question, ledger)
    check_buildable(question.space, material.shape, material.classes)
    with run.alone():
        kept = _Key.begin_or_resume(run, question, material, seed)
        if kept is None:
            return _finished(run, question, ledger)
        hidden = question.method.hides_trials or not question.training.plan.private
        trials = (run.private if hidden and ledger is not None else run.folder) / "trials"
        with (executor or InProcess()).at_work(material) as work:  # before anything is paid: a cluster may not answer
            if ledger is not None:
                _reserve(ledger, question, kept, run, trials)
            trials.mkdir(exist_ok=True)
            chosen = question.method.run(Search(question, ledger, kept, trials, work, on_finding))
        _release(run, question, chosen, [] if ledger is None else kept.entries(question))
        _forget(run)
    return chosen.finding


@dataclass(eq=False)
class Search(Generic[C]):
    """What a method may do in a search that is under way."""

    question: Question[C]
    ledger: Ledger | None
    key: "_Key"
    trials: Path
    work: Work
    on_finding: OnFinding
    begun: int = 0

    def generator(self, what: str, place: int = 0) -> np.random.Generator:
        """Randomness for a purpose, the same whenever the search is replayed."""
        streams = bound_streams(self.key.secret, {"search": what}, predictable=self.key.seed is not None)
        return streams.generator(Stream.SAMPLING, place)

    def number_of_trials(self, stage: int, mean: float, shape: float) -> int:
        """From the law that the stage is charged for. Secret, like the key it is a function of."""
        return number_of_trials(mean, shape, self.generator("number of trials", stage))

    def shown(self, stage: int, candidates: Iterable[C]) -> list[Trial]:
        """Trials that are all released: each is charged to the stage as it begins."""
        found = []
        for trial in self.work(self._tasks(candidates, lambda: self._charge(stage, self.begun))):
            self.on_finding(trial.finding)
            found.append(trial)
        return sorted(found, key=lambda trial: trial.number)

    def hidden(self, stage: int, candidates: Iterable[C]) -> list[Trial]:
        """Trials of which only the best may leave the method: the stage is charged once for all of them."""
        self._charge(stage, 1)
        trials = sorted(self.work(self._tasks(candidates, lambda: None)), key=lambda trial: trial.number)
        for trial in trials if self.ledger is None else ():  # of public records nothing is secret
            self.on_finding(trial.finding)
        return trials

    def _tasks(self, candidates: Iterable[C], charge: Callable[[], None]) -> Iterator[Task]:
        for candidate in candidates:
            number = self.begun
            self.begun += 1
            charge()
            adjacency = "zero-out" if self.ledger is None else self.ledger.terms.adjacency
            yield Task(
                *(number, self.trials / f"{number:04d}", candidate, self.question.training, adjacency),
                noise=self.question.noise,
                secret=self.key.secret,
                seed=self.key.seed_of(number),
            )

    def _charge(self, stage: int, count: int) -> None:
        """On disk before anything is drawn; a replayed search finds that it has paid."""
        if self.ledger is None:
            return
        for part, _ in _parts(self.question.stages()[stage]):
            number = self.ledger.number_of(self.key.entry(stage, part))
            if number is None:
                raise RunError("the ledger has lost this search's entry: it is not the search's ledger, or an old copy")
            if self.ledger.entries[number].count < count:
                self.ledger.raise_count(number, count)


@dataclass(frozen=True)
class _Key:
    """The secret of a search with all that it is bound to."""

    secret: bytes = field(repr=False)
    seed: int | None
    bound: str
    """The question and the data."""
    new: bool

    @property
    def name(self) -> str:
        """Public, for the ledger's entries; other questions or data have other names, also under the same seed."""
        return hmac.new(self.secret, f"search {self.bound}".encode(), hashlib.sha256).hexdigest()[:16]

    def entry(self, stage: int, part: str) -> str:
        return f"{self.name} {stage} {part}"

    def entries(self, question: Question[C]) -> list[str]:
        """All that the ledger holds of the search."""
        stages = enumerate(question.stages())
        return [self.entry(place, part) for place, stage in stages for part, _ in _parts(stage)]

    def seed_of(self, trial: int) -> int | None:
        """Trials draw keys of their own from the operating system, unless the user has fixed all randomness."""
        if self.seed is None:
            return None
        return int.from_bytes(hmac.new(self.secret, f"trial {trial}".encode(), hashlib.sha256).digest()[:7], "little")

    @classmethod
    def begin_or_resume(cls, run: Run, question: Question[C], material: Material, seed: int | None) -> "_Key | None":
        """The key of a new or an unfinished search; None if the folder holds a finished one."""
        if (run.folder / OUTCOME).exists():
            _forget(run)
            return None
        facts = {"question": _digest(question), "seed": seed, "generator": GENERATOR}
        path = run.private / _KEY
        if not path.exists():
            secret = new_secret() if seed is None else secret_from_seed(seed)
            tag = data_tag(secret, *material.arrays())
            run.write_private(_KEY, {"secret": secret.hex(), "data": tag, **facts})
            return cls(secret, seed, f"{facts['question']} {tag}", new=True)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            secret = bytes.fromhex(content["secret"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise RunError(f"the key in {run.private} is damaged: the search cannot go on; start a new one") from None
        if any(content.get(name) != facts[name] for name in ("question", "seed")):
            raise RunError(f"{run.folder} holds an unfinished search with other settings: resuming it is refused")
        if content.get("generator") != GENERATOR:
            raise RunError(
                f"{run.folder} holds an unfinished search by a version of sordino that draws its noise otherwise: "
                "finish it with that version, or start a new one in another folder"
            )
        tag = data_tag(secret, *material.arrays())
        if content.get("data") != tag:
            raise RunError(f"{run.folder} holds an unfinished search on other data: resuming it is refused")
        return cls(secret, seed, f"{facts['question']} {tag}", new=False)


def _check(question: Question[C], ledger: Ledger | None) -> None:
    if ledger is None:
        return
    ledger.refuse_add_remove()
    if question.noise is not None:
        check_count_noise(question.noise.noise_multiplier)
    if question.noise is None and question.training.plan.private:
        raise ValueError("scores on private records need noise: give the question Laplace or Gaussian noise")


def _parts(stage: Stage) -> tuple[tuple[str, Event], ...]:
    return ("train", stage.training), ("validation", stage.score)


@dataclass(frozen=True)
class _Reservation:
    """One event of one stage on one part of the data, as the ledger will hold it."""

    entry: str
    event: Event
    most: int
    what: str
    part: str

    @property
    def planned(self) -> Planned:
        return Planned(Repeated(self.event, self.most), self.what, self.part)


def _reserve(ledger: Ledger, question: Question[C], key: _Key, run: Run, trials: Path) -> None:
    """Announce and reserve all that the search may draw, so that it is refused at its start or not at all."""
    wanted = [
        _Reservation(key.entry(place, part), event, stage.most, f"search {key.name}, {stage.name}", part)
        for place, stage in enumerate(question.stages())
        for part, event in _parts(stage)
    ]
    ledger.reload()
    missing = [item for item in wanted if ledger.number_of(item.entry) is None]
    if key.new and len(missing) < len(wanted):
        _forget(run)
        raise RunError("the ledger already holds a search with this seed, question and data: choose another seed")
    if missing and trials.exists():
        raise RunError(f"{run.folder} has trials that this ledger has not paid for: use the ledger that has")
    unannounced = [item.planned for item in missing if item.planned not in ledger.plan]
    try:
        check_budget(ledger, unannounced)
        for planned in unannounced:
            # Where something was drawn before, the search goes through the ledger's filter instead.
            with suppress(LedgerError):
                ledger.announce(*planned)
        for item in missing:
            seeded = key.seed is not None
            ledger.begin(item.event, item.most, item.what, item.part, seeded=seeded, run=item.entry)
    except (BudgetExceeded, UnsupportedEvent):
        if key.new and all(ledger.number_of(item.entry) is None for item in wanted):
            _forget(run)  # nothing was reserved: a cheaper search may have the folder
        raise


def check_budget(ledger: Ledger, items: list[Planned]) -> None:
    """All parts before anything is announced: what is announced counts, drawn or not."""
    target = ledger.terms.target_epsilon
    if target is None:
        return
    for part in dict.fromkeys(item.part for item in items):
        epsilon = ledger.epsilon_if(composed([item.event for item in items if item.part == part]), part)
        if not epsilon <= target:
            raise BudgetExceeded(
                f"all of it would bring ε on the {part} records to {epsilon:.4g}, above the target {target:g}: "
                "use more noise, fewer steps or fewer trials. Nothing was recorded"
            )


def _release(run: Run, question: Question[C], chosen: Trial, paid: list[str]) -> None:
    """The chosen trial becomes the run's: weights first, then the outcome that says that the search is finished."""
    if not chosen.finding.diverged:
        trained = Run(chosen.folder)
        weights, facts = trained.read_tensors(trained.model)
        run.write_tensors(run.model, weights, {"steps": facts["steps"]})
    outcome = {"question": question.facts(), "digest": _digest(question), "chosen": chosen.finding.to_json()}
    run.write_json(OUTCOME, outcome | {"paid": paid})


def _finished(run: Run, question: Question[C], ledger: Ledger | None) -> Finding:
    """What a finished search found, without looking at anything again; only beside the ledger that paid for it."""
    path = run.folder / OUTCOME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        same, paid = content["digest"] == _digest(question), list(content["paid"])
        chosen = Finding(**content["chosen"] | {"candidate": question.space.read(content["chosen"]["candidate"])})
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
    """Delete the key and all hidden trials: what was not chosen is never shown; and the keys of trials that are shown.

    A trial deletes its own key as it ends; those of earlier versions kept it if they diverged.
    """
    shutil.rmtree(run.private / "trials", ignore_errors=True)
    for path in (run.private / _KEY, partial_of(run.private / _KEY)):
        path.unlink(missing_ok=True)
    for trial in (run.folder / "trials").glob("*/private"):
        Key.end(Run(trial.parent))


def _digest(question: Question[C]) -> str:
    return hashlib.sha256(json.dumps(question.facts(), sort_keys=True).encode()).hexdigest()
