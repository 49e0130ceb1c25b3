"""A feature is a fixed function of one example; `a >> b` is one after the other."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class Feature:
    """A batch of examples in, a batch of descriptions out.

    Guarantee: what is told of an example is a function of that example and of public constants alone, so it costs no
    privacy. Subclasses are frozen dataclasses whose repr names every constant: what is stored is found again by it.
    """

    revision: ClassVar[int] = 1
    """To be raised with every change of the numbers: what an older revision stored is then left alone."""

    @property
    def identity(self) -> str:
        """Equal only for features that give the same numbers."""
        return f"{self!r} revision {self.revision}"

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError

    def __rshift__(self, after: "Feature") -> "Chain":
        return Chain((*_steps(self), *_steps(after)))


@dataclass(frozen=True)
class Chain(Feature):
    """Features one after the other."""

    steps: tuple[Feature, ...]

    @property
    def identity(self) -> str:
        return " >> ".join(step.identity for step in self.steps)

    def __call__(self, batch: Any) -> Any:
        for step in self.steps:
            batch = step(batch)
        return batch


def _steps(feature: Feature) -> tuple[Feature, ...]:
    return feature.steps if isinstance(feature, Chain) else (feature,)


# Around what rounds examples to single precision: numbers too large for it become infinite, and no warning shows that
# such an example is there.
without_warning = np.errstate(over="ignore", invalid="ignore")


def as_array(batch: Any) -> NDArray[Any]:
    return np.asarray(batch.numpy(force=True) if hasattr(batch, "numpy") else batch)
