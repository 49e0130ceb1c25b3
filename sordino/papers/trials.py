"""Trials: the parts of an experiment, each computed once and kept on disk.

A trial is a frozen dataclass derived from `Trial`. Its fields say all that decides its result, its `key` is a digest of
them, and its result is a JSON object, kept in the cache folder and, if it took five minutes or more, under
results/PAPER/trials as well. Items run their trials through an `Experiment`:

    experiment.run(trial)                      # one result, from the store or computed now; the record lists it
    experiment.repeated(trial, seeds)          # under several seeds
    experiment.run_together(trials, compute)   # many, of which the missing ones are computed in one go

To add a kind of trial, derive from `Trial`, set `kind`, and write `compute(folder, say)`; wrap what trains in
`resumed_or_restarted` so that an interrupted training continues in its folder. What is not worth a class is kept by
`experiment.store.get(key, compute)` under a key such as `digest(description)`.

Kept results stay valid as long as descriptions do: a field with a default can be added, but a field's name, its values
and `kind` are part of the key. Code and names elsewhere (reprs of networks, facts of datasets) must not be.
"""

import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from sordino.budget import write_durably
from sordino.data import cache_folder
from sordino.runs import Run, RunBusy, RunError
from sordino.training import Progress

_T = TypeVar("_T")
_RESULT = "result.json"
_EARLIER = "earlier.json"
_LONG = 300.0
"""Seconds from which a result is worth a file beside the records."""
_SEEDS = 5
"""Repeats of a training in most of the papers."""

Say = Callable[[str], None]
"""Shows the user what is being done."""
Result = dict[str, Any]
Compute = Callable[[Path], Result]
"""Computes a result, with a folder to work in."""


@dataclass(frozen=True)
class TrialStore:
    """Where trials work and leave their results: the cache folder, and for long ones the folder of the records too.

    An hour of training is then as safe as the record made of it, and can be used on another machine. Results that
    were kept before keys were digests of descriptions are found through `trials/earlier.json`.
    """

    folder: Path | None = None
    records: Path | None = None
    """results/PAPER, unless the results are not worth keeping there."""

    def get(self, key: str, compute: Compute) -> Result:
        """The result under this key, computed if it is missing."""
        (found,) = self.get_all([key], lambda missing: [compute(folder) for folder in missing.values()])
        return found

    def get_all(self, keys: Sequence[str], compute: Callable[[dict[str, Path]], Sequence[Result]]) -> list[Result]:
        """The results under these keys; those that are missing are computed together, each in its folder."""
        missing = {key: self._folder(key) for key in keys if self._find(key) is None}
        if missing:
            resumed, began = any(folder.exists() for folder in missing.values()), time.monotonic()
            computed = compute(missing)
            long = resumed or time.monotonic() - began >= _LONG
            for key, found in zip(missing, computed, strict=True):
                self._keep(key, found, long)
        return [_read(self._find(key) or self._folder(key) / _RESULT) for key in keys]

    def _names(self, key: str) -> list[str]:
        earlier = None if self.records is None else _earlier(self.records / "trials" / _EARLIER).get(key)
        return [key] if earlier is None else [key, earlier]

    def _cached(self, name: str) -> Path:
        return (self.folder or cache_folder() / "trials") / name

    def _folder(self, key: str) -> Path:
        """The trial's working folder: where it began, if it has begun."""
        folders = [self._cached(name) for name in self._names(key)]
        return next((folder for folder in folders if folder.exists()), folders[0])

    def _find(self, key: str) -> Path | None:
        names = self._names(key)
        places = [self._cached(name) / _RESULT for name in names]
        places += [self.records / "trials" / f"{name}.json" for name in names] if self.records else []
        return next((place for place in places if place.exists()), None)

    def _keep(self, key: str, found: Result, long: bool) -> None:
        content = (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
        lasting = [self.records / "trials" / f"{key}.json"] if self.records and long else []
        for place in (*lasting, self._folder(key) / _RESULT):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_durably(place, content)


@lru_cache(maxsize=8)
def _earlier(path: Path) -> Mapping[str, str]:
    """From the keys of trials to the names that their results were kept under before."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _read(path: Path) -> Result:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        what = "its folder" if path.name == _RESULT else "it"
        raise ValueError(f"{path} is damaged: delete {what}, and the trial is run again") from None


CACHE = TrialStore()


@dataclass(frozen=True)
class Trial(ABC):
    """One part of an experiment: a training, a search, an audit. A frozen dataclass adds its choices as fields."""

    kind: ClassVar[str]
    revision: ClassVar[int] = 1
    """Raised when a change of code, or of a default elsewhere, changes the result."""

    @abstractmethod
    def compute(self, folder: Path, say: Say) -> Result:
        """The result, as JSON; its "trial" is the trial in words."""

    def description(self) -> dict[str, Any]:
        """All that decides the result, as JSON: the fields that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        varied = {name: as_json(value) for name, (value, usual) in values.items() if value != usual}
        return {"kind": self.kind, "revision": self.revision, **varied}

    @property
    def key(self) -> str:
        return digest(self.description())

    def listed(self, result: Result) -> Result:
        """What a record says of the result."""
        return {name: value for name, value in result.items() if name != "curve"}

    def quick(self) -> Self:
        """A trial of the same code that takes a moment, for `--quick`."""
        return self

    def run(self, say: Say = lambda line: None, store: TrialStore = CACHE) -> Result:
        """The result: from the store, or else computed now."""
        return store.get(self.key, lambda folder: self.compute(folder, say))


_Trial = TypeVar("_Trial", bound=Trial)


def as_json(value: Any) -> Any:
    """A value of a description: dataclasses by their fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    return [as_json(each) for each in value] if isinstance(value, tuple | list) else value


def digest(description: Any) -> str:
    """The key of a description: equal descriptions have equal keys."""
    words = json.dumps(description, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


def resumed_or_restarted(folder: Path, train: Callable[[Run], Result]) -> Result:
    """A seeded training in this folder: from where it stopped, or where it cannot be resumed, from its start."""
    try:
        return train(Run.at(folder))
    except RunBusy:
        raise
    except RunError:  # started in another environment; under a seed there is no privacy to lose
        shutil.rmtree(folder)
        return train(Run.at(folder))


def scored_along(run: Run, every: int, score: Callable[[], Any], on_progress: Progress) -> tuple[Result, Progress]:
    """Scores of a training by its step, every so many steps and at its end, and what to give `fit` as `on_progress`.

    They are kept in the training's folder: one that is resumed has those from before it was stopped.
    """
    kept = run.folder / "curve.json"
    curve: Result = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}

    def measure(done: int, total: int) -> None:
        on_progress(done, total)
        if done and (done % every == 0 or done == total):
            curve[str(done)] = score()
            run.write_json(kept.name, curve)

    return curve, measure


@dataclass(frozen=True)
class Experiment:
    """How an item is reproduced: reduced to two cores and an hour, or in full, or quickly, to try it out."""

    seeds: int | None = None
    full: bool = False
    quick: bool = False
    more: Path | None = None
    """Further training examples of the user's, for items about more data."""
    say: Say = lambda line: None
    store: TrialStore = CACHE
    ran: dict[str, Result] = field(default_factory=dict)
    """What every trial found, for the record."""

    def pick(self, reduced: _T, full: _T) -> _T:
        """What is done here, or in full."""
        return full if self.full and not self.quick else reduced

    def some(self, rows: Sequence[_T], count: int = 1) -> Sequence[_T]:
        """All of them, or in the quick form the first few."""
        return rows[:count] if self.quick else rows

    def seeds_of(self, reduced: int, full: int = _SEEDS) -> range:
        return range(1 if self.quick else self.seeds or self.pick(reduced, full))

    def shortfall(self, here: str = "", always: str = "", *, of: int = _SEEDS, **seeds: int) -> str | None:
        """How an item falls short of the paper's: always, when reduced, and in repeats (`of` which they have).

        >>> Experiment().shortfall("3 epochs, not 20", networks=1)
        '3 epochs, not 20; 1 seed for networks, not 5'
        """
        counts = {what.replace("_", " "): len(self.seeds_of(count, of)) for what, count in seeds.items()}
        few = [f"{count} seed{'s' * (count > 1)} for {what}" for what, count in counts.items() if count < of]
        reasons = [always, "" if self.full else here, f"{' and '.join(few)}, not {of}" if few else ""]
        return "; ".join(reason for reason in reasons if reason) or None

    def run(self, trial: Trial) -> Result:
        trial = trial.quick() if self.quick else trial
        return self._listed(trial, trial.run(self.say, self.store))

    def repeated(self, trial: Any, seeds: int = 1, full: int = _SEEDS) -> list[Result]:
        """The trial under so many seeds, or in full under as many as the paper has."""
        return [self.run(replace(trial, seed=seed)) for seed in self.seeds_of(seeds, full)]

    def run_together(
        self, trials: Sequence[_Trial], compute: Callable[[dict[_Trial, Path]], Sequence[Result]]
    ) -> list[Result]:
        """The results of these trials; those that are missing are computed in one go, each with its folder."""
        by_key = {trial.key: trial for trial in (trial.quick() if self.quick else trial for trial in trials)}
        found = self.store.get_all(
            list(by_key), lambda missing: compute({by_key[key]: folder for key, folder in missing.items()})
        )
        return [self._listed(trial, result) for trial, result in zip(by_key.values(), found, strict=True)]

    def _listed(self, trial: Trial, result: Result) -> Result:
        self.ran[trial.key] = trial.listed(result)
        return result
