"""A space that is a list: settings of one network to tune, or a single candidate to train."""

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from sordino.selection.search.space import C, another, one_of


@dataclass(frozen=True)
class Grid(Generic[C]):
    """These candidates, each as likely as the others."""

    candidates: tuple[C, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("a grid needs at least one candidate")

    def draw(self, generator: np.random.Generator) -> C:
        return one_of(self.candidates, generator)

    def crossover(self, one: C, other: C, generator: np.random.Generator) -> C:
        return one_of((one, other), generator)

    def mutate(self, candidate: C, generator: np.random.Generator) -> C:
        return another(self.candidates, candidate, generator)

    def widest(self) -> tuple[C, ...]:
        return self.candidates

    def read(self, document: dict[str, Any]) -> C:
        # Tuples are lists in JSON, and compare unequal: both sides are compared as they are written.
        for candidate in self.candidates:
            if _plain(candidate.to_json()) == _plain(document):
                return candidate
        raise ValueError("this candidate is not in the grid")

    def to_json(self) -> dict[str, Any]:
        return {"space": "grid", "candidates": [candidate.to_json() for candidate in self.candidates]}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
