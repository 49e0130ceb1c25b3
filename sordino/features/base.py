"""Features: fixed functions of one example. `a >> b` applies one after the other."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class Feature:
    """From a batch of examples to a batch of features.

    Guarantee: the features of an example are a function of that example and of public constants alone, so they cost no
    privacy. Subclasses are frozen dataclasses whose repr names every constant: stored features are found by it.

    >>> import numpy as np
    >>> from sordino.features import GroupNorm, Pixels, Scattering
    >>> features = Pixels() >> Scattering(J=2) >> GroupNorm(27)
    >>> features(np.zeros((10, 28, 28), np.uint8)).shape
    torch.Size([10, 81, 7, 7])
    """

    revision: ClassVar[int] = 1
    """Raised with every change of the numbers, so that features stored by an older revision are not used."""

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


# For rounding examples to single precision: numbers too large for it become infinite, and no warning may reveal that
# there is such an example.
without_warning = np.errstate(over="ignore", invalid="ignore")


def as_array(batch: Any) -> NDArray[Any]:
    return np.asarray(batch.numpy(force=True) if hasattr(batch, "numpy") else batch)
