"""What every item of every paper is given: how much to do, and a way to run its trials."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sordino.papers.keeping import CACHE, Store
from sordino.papers.records import Record
from sordino.papers.trials import Say, Trial

_T = TypeVar("_T")
_SEEDS = 5


@dataclass(frozen=True)
class Experiment:
    """How an item is reproduced: reduced to two cores and an hour, or in full, or quickly, to try it out."""

    seeds: int | None = None
    full: bool = False
    quick: bool = False
    more: Path | None = None
    """Further training examples that the user has, for items about more data."""
    say: Say = lambda line: None
    store: Store = CACHE
    ran: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What every trial found, for the record."""

    def pick(self, reduced: _T, full: _T) -> _T:
        """What to do here, or in full."""
        return full if self.full and not self.quick else reduced

    def seeds_of(self, reduced: int, full: int = _SEEDS) -> range:
        return range(1 if self.quick else self.seeds or self.pick(reduced, full))

    def shortfall(self, here: str = "", always: str = "", **seeds: int) -> str | None:
        """What an item lacks of the paper's own: always, when reduced, and in repeats, of which they have five."""
        counts = {what.replace("_", " "): len(self.seeds_of(count)) for what, count in seeds.items()}
        few = [f"{count} seed{'s' * (count > 1)} for {what}" for what, count in counts.items() if count < _SEEDS]
        reasons = [always, "" if self.full else here, f"{' and '.join(few)}, not {_SEEDS}" if few else ""]
        return "; ".join(reason for reason in reasons if reason) or None

    def run(self, trial: Trial) -> dict[str, Any]:
        trial = _few(trial) if self.quick else trial
        result = trial.run(self.say, self.store)
        kept = {name: value for name, value in result.items() if name != "curve"}
        self.ran[result["trial"]] = {"delta": trial.delta, **kept}
        return result

    def repeated(self, trial: Trial, seeds: int = 1) -> list[dict[str, Any]]:
        """The trial under each of so many seeds, or in full of as many as the paper has."""
        return [self.run(replace(trial, seed=seed)) for seed in self.seeds_of(seeds)]


Item = Callable[[Experiment], Record]


def settings(**changes: Any) -> tuple[tuple[str, Any], ...]:
    """Changes to a recipe's settings, in an order of their own: equal changes make equal trials."""
    return tuple(sorted(changes.items()))


def _few(trial: Trial) -> Trial:
    """The same code on a few records, in seconds."""
    few = dict(trial.settings) | {"epochs": 0.8, "batch": 4096, "n": 50_000}  # alike, so that they share one plan
    budget = None if trial.epsilon is None else 3.0
    return replace(
        trial,
        settings=settings(**few),
        epsilon=budget,
        delta=1e-4,
        records=96,
        test=50,
        validation=min(trial.validation, 50),
        simulated=trial.simulated and 16,
        marks=min(trial.marks, 2),
    )
