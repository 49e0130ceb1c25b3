"""Principal components (PCA): vectors → coordinates along a few directions, learned from public or private vectors."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from sordino.budget import Ledger, NonPrivate
from sordino.data import DataError
from sordino.features.base import Feature, as_array, without_warning
from sordino.mechanisms import SHORTER, SecondMoments, Streams, memory, memory_of

Array = NDArray[np.float64]
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Projection(Feature):
    """Vectors (B, …), flattened, minus a mean, along k orthonormal directions: (B, k).

    Guarantee: given the mean and the directions, which must be public or released privately, a function of each example
    alone.

    >>> import numpy as np
    >>> Projection.of_public(np.random.default_rng(0).normal(size=(100, 8)), components=2)(np.zeros((5, 8))).shape
    (5, 2)
    """

    mean: Array = field(repr=False)
    components: Array = field(repr=False)
    """(k, d), the direction of the largest variance first."""

    @property
    def identity(self) -> str:
        constants = np.concatenate([self.mean[None], self.components])
        return f"Projection({constants.shape}, {hashlib.blake2b(constants.tobytes()).hexdigest()}) {self.revision}"

    @without_warning
    def __call__(self, batch: Any) -> NDArray[np.float32]:
        flat = as_array(batch).reshape(len(batch), -1)
        if flat.shape[1] != len(self.mean):
            raise DataError(f"the projection is of vectors of {len(self.mean)} numbers, not of {flat.shape[1]}")
        return np.asarray((flat - self.mean) @ self.components.T, dtype=np.float32)

    @classmethod
    def of_public(cls, vectors: NDArray[Any], components: int) -> "Projection":
        """The principal components of vectors (n, …): the caller vouches that they are PUBLIC.

        Guarantee: none for the vectors given.
        """
        return cls(*_principal(*_moments(_flat(vectors)), components))

    @classmethod
    def of_private(
        cls,
        vectors: NDArray[Any],
        components: int,
        moments: SecondMoments,
        ledger: Ledger,
        part: str = "train",
        streams: Streams | None = None,
    ) -> "Projection":
        """The leading directions of privately released second moments of vectors (n, …); see `SecondMoments`.

        Guarantee: the one Gaussian event of the moments; the directions are post-processing of them (Dwork et al. 2014,
        "Analyze Gauss"). Without the mean they are directions of mean squares and nothing is subtracted.
        """
        flat = _flat(vectors)
        _check(components, flat.shape[1])
        mean, squares = moments.release(flat, ledger, "principal components", part, streams)
        return cls(*_principal(mean, squares, components))

    @classmethod
    def not_private(cls, vectors: NDArray[Any], components: int, ledger: Ledger) -> "Projection":
        """The exact principal components of private vectors, as in papers that leave them out of their budget.

        Guarantee: none; charged as not private (ε = ∞), which a ledger with a target refuses.
        """
        flat = _flat(vectors)
        _check(components, flat.shape[1])
        memory.require(memory_of(flat.shape[1]), f"components of vectors of {flat.shape[1]:,} numbers", SHORTER)
        ledger.spend(NonPrivate(), "principal components, exact")
        return cls(*_principal(*_moments(flat), components))


def _flat(vectors: NDArray[Any]) -> NDArray[Any]:
    if vectors.ndim < 2 or 0 in vectors.shape:
        raise DataError(f"expected vectors (n, …) that are not empty, not an array {vectors.shape}")
    return vectors.reshape(len(vectors), -1)


def _check(components: int, width: int) -> None:
    if not 1 <= components <= width:
        raise ValueError(f"components must be from 1 to {width}, not {components}")


def _moments(flat: NDArray[Any]) -> tuple[Array, Array]:
    """Mean and mean square, in blocks: about a first guess of the mean, so that squares do not cancel."""
    guess = flat[:_BLOCK].astype(np.float64).mean(axis=0)
    total, squares = np.zeros(flat.shape[1]), np.zeros((flat.shape[1],) * 2)
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64) - guess
        if not np.isfinite(block).all():
            raise DataError(f"vectors must be finite: look at rows {start + 1} to {start + len(block)}")
        total += block.sum(axis=0)
        squares += block.T @ block
    shift = total / len(flat)
    mean = guess + shift
    return mean, squares / len(flat) - np.outer(shift, shift) + np.outer(mean, mean)


def _principal(mean: Array, squares: Array, components: int) -> tuple[Array, Array]:
    """The mean and the leading eigenvectors of the covariance; each vector's largest entry is made positive."""
    _check(components, len(mean))
    d = len(mean)
    _, vectors = eigh(squares - np.outer(mean, mean), subset_by_index=(d - components, d - 1))
    directions = vectors.T[::-1]
    signs = np.sign(directions[np.arange(components), np.abs(directions).argmax(axis=1)])
    return mean, np.ascontiguousarray(directions * signs[:, None])
