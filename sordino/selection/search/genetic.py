"""PAAS: a genetic search by noisy validation accuracy (PAW Algorithms 1 and 2), in which every trial is released."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.budget import Event
from sordino.selection.search.candidates import Trial
from sordino.selection.search.searching import Search, Stage
from sordino.selection.search.space import C, Space, one_of

_ATTEMPTS = 50
"""For each child that is to be unlike the others: in a small space there may be no such child."""


@dataclass(frozen=True)
class GeneticSearch:
    """Generations of a population: the best and a few lucky ones are crossed and mutated into the next.

    The best of all generations is the answer: mutation may have lost it before the last, which Algorithm 1 looks at.

    Guarantee: population × generations trainings and as many scores, composed. All are released, so the choice among
    them is free. A candidate that came up before is not trained again: nothing is drawn and nothing charged for it. But
    how often that happens depends on scores, so what was announced is what the whole search is said to cost.
    """

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
            raise ValueError("the shares kept and lucky and the rate of mutation lie between 0 and 1")

    @property
    def hides_trials(self) -> bool:
        return False

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        return (Stage("every trial", self.generations * self.population, training, score),)

    def run(self, search: Search[C]) -> Trial:
        space = search.question.space
        population = self._distinct(space.draw, search.generator("first population"))
        known: dict[C, Trial] = {}
        for generation in range(self.generations):
            new = [candidate for candidate in population if candidate not in known]
            known |= dict(zip(new, search.shown(0, new), strict=True))
            ranked = sorted(population, key=lambda candidate: -known[candidate].score)
            population = self._evolved(space, ranked, search.generator("evolution", generation))
        return max(known.values(), key=lambda trial: trial.score)

    def to_json(self) -> dict[str, Any]:
        return {"method": "genetic", **vars(self)}

    def _evolved(self, space: Space[C], ranked: list[C], generator: np.random.Generator) -> list[C]:
        """Evolve() of Algorithm 2, the population before mutation being a set, as there."""
        best = math.ceil(self.kept * len(ranked))
        rest = ranked[best:]
        chance = generator.permutation(len(rest))[: round(self.lucky * len(ranked))]
        parents = ranked[:best] + [rest[place] for place in chance]
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
