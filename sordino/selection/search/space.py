"""What every search is given: candidates that are small frozen values, and the space that they are drawn from."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from sordino.training import require_memory

_T = TypeVar("_T")
_MOST_PARAMETERS = 100_000_000


class Candidate(Hashable, Protocol):
    """All that a search may vary of a training; equal values are the same candidate.

    The sampler, the noise multiplier and the steps are not among it: whatever is chosen, a training costs the same.
    """

    @property
    def learning_rate(self) -> float: ...

    @property
    def l2_clip(self) -> float | None:
        """Where it is varied; None takes the plan's. Noise is in units of the clip, so no clip costs more."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for examples of this shape; frozen layers take no gradient. ValueError where it cannot be."""

    def to_json(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=Candidate)


class Space(Protocol, Generic[C]):
    """Where candidates come from. All of it is computed from public choices and a generator, so none of it costs."""

    def draw(self, generator: np.random.Generator) -> C:
        """Uniformly at random."""

    def crossover(self, one: C, other: C, generator: np.random.Generator) -> C:
        """Each choice from one of the parents, at random."""

    def mutate(self, candidate: C, generator: np.random.Generator) -> C:
        """One choice, picked at random, made anew."""

    def widest(self) -> Iterable[C]:
        """The widest candidate of each kind and depth: where these can be built, all can."""

    def read(self, document: dict[str, Any]) -> C:
        """The candidate from its JSON."""

    def to_json(self) -> dict[str, Any]: ...


def check_buildable(space: Space[C], shape: tuple[int, ...], classes: int) -> None:
    """Refuse a space with candidates that are not for such examples: within a trial it would be paid for."""
    for candidate in space.widest():
        with torch.device("meta"):  # shapes alone: no weight is drawn, and none takes memory
            network = candidate.build(shape, classes)
        size = sum(weights.numel() for weights in network.parameters())
        if size > _MOST_PARAMETERS:
            raise ValueError(
                f"{candidate} would have {size:,} parameters; up to {_MOST_PARAMETERS:,} are trained here: choose "
                "narrower layers"
            )
        require_memory(network, str(candidate))


def one_of(values: Sequence[_T], generator: np.random.Generator) -> _T:
    if not values:
        raise ValueError("a choice needs at least one value to choose from")
    return values[int(generator.integers(len(values)))]


def another(values: Sequence[_T], present: _T, generator: np.random.Generator) -> _T:
    """One of the values that is not the present one, or the present one if there is no other."""
    return one_of([value for value in values if value != present] or [present], generator)
