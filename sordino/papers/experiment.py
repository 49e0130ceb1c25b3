"""What every item of every paper is given: how much to do, and a way to run its trials."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sordino.papers.records import Record
from sordino.papers.trials import Say, Trial

_T = TypeVar("_T")


@dataclass(frozen=True)
class Experiment:
    """How an item is reproduced: reduced to two cores and an hour, or in full, or quickly, to try it out."""

    seeds: int | None = None
    full: bool = False
    quick: bool = False
    more: Path | None = None
    """Further training examples that the user has, for items about more data."""
    say: Say = lambda line: None
    store: Path | None = None

    def pick(self, reduced: _T, full: _T) -> _T:
        """What to do here, or in full."""
        return full if self.full and not self.quick else reduced

    def seeds_of(self, reduced: int) -> range:
        return range(1 if self.quick else self.seeds or self.pick(reduced, 5))

    def run(self, trial: Trial) -> dict[str, Any]:
        return (_few(trial) if self.quick else trial).run(self.say, self.store)

    def repeated(self, trial: Trial, seeds: int = 1) -> list[dict[str, Any]]:
        """The trial under each of so many seeds, or of five in full."""
        return [self.run(replace(trial, seed=seed)) for seed in self.seeds_of(seeds)]


Item = Callable[[Experiment], Record]


def settings(**changes: Any) -> tuple[tuple[str, Any], ...]:
    """Changes to a recipe's settings, in an order of their own: equal changes make equal trials."""
    return tuple(sorted(changes.items()))


def average(results: Iterable[dict[str, Any]]) -> list[float]:
    """Along their curves, the mean accuracy in per cent."""
    curves = [[100 * point["accuracy"] for point in result["curve"]] for result in results]
    return [sum(points) / len(points) for points in zip(*curves, strict=True)]


def _few(trial: Trial) -> Trial:
    """The same code on a few hundred records, in seconds."""
    few = dict(trial.settings) | {"epochs": 0.8, "batch": 4096, "n": 50_000}  # alike, so that they share one plan
    budget = None if trial.epsilon is None else 3.0
    marks = min(trial.marks, 2)
    return replace(trial, settings=settings(**few), epsilon=budget, delta=1e-4, records=96, test=50, marks=marks)
