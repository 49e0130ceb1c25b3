"""How a search chooses candidates, and what that costs: PAW's genetic search (PAAS), random search (RS), and MGRS.

A method yields rounds of candidates to try, and finds their results in the list of trials that the search extends.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from sordino.budget import Event, RepeatAndSelect
from sordino.mechanisms import number_of_trials
from sordino.selection.search_spaces import C, Space, one_of
from sordino.selection.trials import FinishedTrial

_ATTEMPTS = 50
"""To draw a child unlike the others: in a small space there may be none."""


@dataclass(frozen=True)
class Stage:
    """A part of a search that is paid for: its events on the two parts of the data, and how often they may happen."""

    name: str
    most: int
    training: Event
    score: Event

    def events(self) -> tuple[tuple[str, Event], ...]:
        return ("train", self.training), ("validation", self.score)


Rounds = Iterator[tuple[int, Iterable[C]]]
"""Again and again the number of a stage, and candidates to try next at its expense."""
Randomness = Callable[[str, int], np.random.Generator]
"""A purpose and a number → a generator, the same whenever the search is replayed."""


class SearchMethod(Protocol):
    @property
    def hides_trials(self) -> bool:
        """Whether trials that are not chosen, and their number, must stay secret."""

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        """What the whole search may draw, fixed before the first output."""

    def rounds(self, space: Space[C], randomness: Randomness, trials: list[FinishedTrial]) -> Rounds[C]:
        """Candidates, round by round; `trials` holds all finished ones by number. The best of them all wins."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class GeneticSearch:
    """PAAS (PAW Algorithms 1 and 2): the best of a population and a few lucky ones are crossed and mutated.

    The best of all generations wins: mutation may lose it before the last one, which is all Algorithm 1 looks at.

    Guarantee: population × generations trainings and as many scores, composed. All are released, so choosing among them
    is free. A candidate that comes up again is neither trained nor charged again; how often that happens depends on
    scores, so the search is stated to cost all that was announced.
    """

    hides_trials: ClassVar[bool] = False
    generations: int = 6
    population: int = 10
    kept: float = 0.4
    """α: the share of the best that become parents."""
    lucky: float = 0.1
    """β: the share of all that become parents by chance."""
    mutation: float = 0.2

    def __post_init__(self) -> None:
        if min(self.generations, self.population) < 1:
            raise ValueError("a genetic search needs at least one generation and one candidate")
        if not (0 < self.kept <= 1 and 0 <= self.lucky <= 1 and 0 <= self.mutation <= 1):
            raise ValueError("the shares kept and lucky and the mutation rate must be between 0 and 1")

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        return (Stage("every trial", self.generations * self.population, training, score),)

    def rounds(self, space: Space[C], randomness: Randomness, trials: list[FinishedTrial]) -> Rounds[C]:
        population = self._distinct(space.draw, randomness("first population", 0))
        for generation in range(self.generations):
            known = {trial.result.candidate for trial in trials}
            yield 0, [candidate for candidate in population if candidate not in known]
            scores = {trial.result.candidate: trial.result.score for trial in trials}
            ranked = sorted(population, key=lambda candidate: -scores[candidate])
            population = self._evolved(space, ranked, randomness("evolution", generation))

    def to_json(self) -> dict[str, Any]:
        return {"method": "genetic", **vars(self)}

    def _evolved(self, space: Space[C], ranked: list[C], generator: np.random.Generator) -> list[C]:
        """Evolve() of Algorithm 2, the population before mutation being a set, as there."""
        count = math.ceil(self.kept * len(ranked))
        rest = ranked[count:]
        chance = generator.permutation(len(rest))[: round(self.lucky * len(ranked))]
        parents = ranked[:count] + [rest[place] for place in chance]
        children = self._distinct(
            lambda generator: space.crossover(one_of(parents, generator), one_of(parents, generator), generator),
            generator,
        )
        mutants = (
            space.mutate(child, generator) if generator.random() < self.mutation else child for child in children
        )
        return list(dict.fromkeys(mutants))

    def _distinct(self, draw: Callable[[np.random.Generator], C], generator: np.random.Generator) -> list[C]:
        found: dict[C, None] = {}
        for _ in range(_ATTEMPTS * self.population):
            if len(found) == self.population:
                break
            found[draw(generator)] = None
        return list(found)


@dataclass(frozen=True)
class RandomSearch:
    """RS, made sound: a random, secret number of candidates drawn at random; only the best is ever shown.

    Guarantee: the best of a random number of runs of one training, and of one score (`RepeatAndSelect`), whatever the
    number turns out to be. Trials are independent and alike (a candidate that comes twice is trained twice), and their
    number is drawn from the distribution that is charged, under the search's secret key.
    """

    hides_trials: ClassVar[bool] = True
    mean_trials: float = 400.0
    shape: float = 1.0

    def __post_init__(self) -> None:
        _check((self.mean_trials,))

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        return (_stage("the best of a random number of trials", training, score, self.mean_trials, self.shape),)

    def rounds(self, space: Space[C], randomness: Randomness, trials: list[FinishedTrial]) -> Rounds[C]:
        count = number_of_trials(self.mean_trials, self.shape, randomness("number of trials", 0))
        yield 0, (space.draw(randomness("candidates", place)) for place in range(count))

    def to_json(self) -> dict[str, Any]:
        return {"method": "random", **vars(self)}


@dataclass(frozen=True)
class GenerationalSearch:
    """MGRS: random searches in a row; from the second on, candidates are mutants of the last winner, or new draws.

    Guarantee: one `RepeatAndSelect` a generation, composed. Each generation's winner is released, so what the next one
    draws from is no secret, and choosing the best winner by score is free.
    """

    hides_trials: ClassVar[bool] = True
    mean_trials: tuple[float, ...] = (40.0, 20.0, 10.0)
    mutation: float = 0.7
    shape: float = 1.0

    def __post_init__(self) -> None:
        _check(self.mean_trials)
        if not 0 <= self.mutation <= 1:
            raise ValueError(f"the mutation rate must be between 0 and 1, not {self.mutation!r}")

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        of = len(self.mean_trials)
        return tuple(
            _stage(f"the best of generation {place} of {of}", training, score, mean, self.shape)
            for place, mean in enumerate(self.mean_trials, 1)
        )

    def rounds(self, space: Space[C], randomness: Randomness, trials: list[FinishedTrial]) -> Rounds[C]:
        last: C | None = None
        for generation, mean in enumerate(self.mean_trials):
            count = number_of_trials(mean, self.shape, randomness("number of trials", generation))
            generators = (randomness(f"candidates of generation {generation}", place) for place in range(count))
            candidates = [self._candidate(space, last, generator) for generator in generators]
            yield generation, candidates
            last = candidates[int(np.argmax([trial.result.score for trial in trials[-count:]]))]

    def to_json(self) -> dict[str, Any]:
        return {"method": "generational", **vars(self)}

    def _candidate(self, space: Space[C], last: C | None, generator: np.random.Generator) -> C:
        if last is not None and generator.random() < self.mutation:
            return space.mutate(last, generator)
        return space.draw(generator)


def _stage(name: str, training: Event, score: Event, mean: float, shape: float) -> Stage:
    return Stage(name, 1, RepeatAndSelect(training, mean, shape), RepeatAndSelect(score, mean, shape))


def _check(means: tuple[float, ...]) -> None:
    if not means or not all(1 <= mean < 1e6 for mean in means):
        raise ValueError(f"the mean number of trials must be between 1 and a million, not {', '.join(map(str, means))}")
