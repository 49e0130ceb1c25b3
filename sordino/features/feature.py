"""A feature is a fixed function of one example; `a >> b` is one after the other."""

from collections.abc import Callable
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


def describe(
    feature: Feature, examples: NDArray[Any], block: int = 500, on_progress: Callable[[int], None] = lambda done: None
) -> NDArray[np.float32]:
    """All examples' descriptions, a block at a time."""
    first = as_array(feature(examples[:block]))
    out = np.empty((len(examples), *first.shape[1:]), np.float32)
    fill(feature, examples, out, block, on_progress, first)
    return out


def fill(
    feature: Feature,
    examples: NDArray[Any],
    out: NDArray[Any],
    block: int,
    on_progress: Callable[[int], None],
    first: NDArray[Any],
) -> None:
    """Write the descriptions into `out`, whose first block is known already."""
    for start in range(0, len(examples), block):
        rows = slice(start, start + block)
        out[rows] = as_array(feature(examples[rows])) if start else first
        on_progress(min(start + block, len(examples)))


def as_array(batch: Any) -> NDArray[Any]:
    return np.asarray(batch.numpy(force=True) if hasattr(batch, "numpy") else batch)
