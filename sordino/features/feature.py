"""A feature is a fixed function of one example; `a >> b` is one after the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Feature:
    """A batch of examples in, a batch of descriptions out.

    Guarantee: what is told of an example is a function of that example and of public constants alone, so it costs no
    privacy. Subclasses are frozen dataclasses whose repr names every constant: what is stored is found again by it.
    """

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError

    def __rshift__(self, after: "Feature") -> "Chain":
        return Chain((*_steps(self), *_steps(after)))


@dataclass(frozen=True)
class Chain(Feature):
    """Features one after the other."""

    steps: tuple[Feature, ...]

    def __call__(self, batch: Any) -> Any:
        for step in self.steps:
            batch = step(batch)
        return batch


def _steps(feature: Feature) -> tuple[Feature, ...]:
    return feature.steps if isinstance(feature, Chain) else (feature,)


def as_array(batch: Any) -> NDArray[Any]:
    return np.asarray(batch.numpy(force=True) if hasattr(batch, "numpy") else batch)
