"""Synthetic records with known gradients: audits run the real code on them instead of on private records.

Canaries: each has the largest gradient that the clip allows, along its own parameter. Coordinates do not interact, and
noise and Poisson sampling are independent between them: one execution of the real loop with n canaries is n independent
trials of the mechanism, at the plan's own sample rate.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import ArrayRecords, Records, Sampler
from sordino.gradients import Flat
from sordino.mechanisms import Stream, Streams
from sordino.training import ClippedSum, Plan, Weights

Array = NDArray[np.float64]
Shapes = dict[str, tuple[int, ...]]
"""The shapes of a model's tensors, by name."""

_BEFORE_CLIPPING = 8.0
"""The norm of a canary's gradient before the clip, in clips: reveals a clip that is missing or too large."""
_SHAPES: Shapes = {"bias": (640,), "kernel": (8, 4, 2, 2), "weight": (16, 16)}


class _Synthetic:
    """A model with parameters that start at zero and records without content; subclasses define `clipped_sum`."""

    def __init__(self, records: Array, shapes: Shapes) -> None:
        self.records, self._shapes = ArrayRecords(records, records), shapes
        self.parameters: Weights = self._zeros()

    def weights(self) -> Weights:
        return self.parameters

    def load(self, weights: Weights) -> None:
        self.parameters = weights

    def initialise(self, streams: Streams) -> None:
        self.parameters = self._zeros()

    def facts(self) -> dict[str, Any]:
        return {"model": type(self).__name__, "records": len(self.records)}

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        return {}

    def _zeros(self) -> Weights:
        return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self._shapes.items()}


class CanaryModel(_Synthetic):
    """One parameter per record; a present record's gradient lies along it, an absent one's is zero.

    The parameters are a vector and a matrix, since models have both. Gradients are clipped by the engine's own rule, in
    double precision, as exact plans require.
    """

    def __init__(self, coins: NDArray[np.bool_], l2_clip: float) -> None:
        lengths: Array = coins.astype(np.float64) * (_BEFORE_CLIPPING * l2_clip)
        half = len(coins) // 2
        super().__init__(lengths, {"first": (half,), "second": (len(coins) - half, 1)})
        self._lengths = torch.from_numpy(lengths)

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: Generator | None = None
    ) -> ClippedSum:
        rows = torch.from_numpy(indices)
        lengths = self._lengths[rows]
        clipped = lengths * Flat().factors(lengths[:, None], l2_clip)[:, 0]
        first, second = (
            torch.zeros_like(self._lengths)
            .index_add_(0, rows, clipped)
            .split([len(value) for value in self.parameters.values()])
        )
        return ClippedSum({"first": first, "second": second[:, None]}, lengths)


class KnownSums(_Synthetic):
    """Every record adds the whole clip to one parameter and nothing to the others.

    Norms are 0, within any clip, so that a quantile clip's count is known as well.
    """

    def __init__(self, records: int, shapes: Shapes | None = None) -> None:
        chosen = {name: shape for name, shape in sorted((shapes or _SHAPES).items()) if math.prod(shape)}
        super().__init__(np.zeros(records), chosen)
        self.batch_sizes: list[int] = []

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: Generator | None = None
    ) -> ClippedSum:
        self.batch_sizes.append(len(indices))
        sums = self._zeros()
        next(iter(sums.values())).view(-1)[0] = len(indices) * l2_clip
        return ClippedSum(sums, torch.zeros(len(indices)))


def by_record(weights: Weights) -> Tensor:
    """The parameters of a canary model, or gradients of them, in the order of its records."""
    return torch.cat([weights["first"], weights["second"][:, 0]])


def in_a_row(weights: Weights) -> Array:
    """All parameters as one flat array; in `KnownSums`, the parameter that records add to comes first."""
    return np.asarray(torch.cat([weights[name].detach().flatten() for name in sorted(weights)]).double().numpy())


def half_of(records: int, streams: Streams) -> NDArray[np.bool_]:
    """Whether each record is present: a random half of them are."""
    return streams.generator(Stream.INITIALISATION).permutation(records) < records // 2


def resized(sampler: Sampler, records: int) -> Sampler:
    """The sampler over this many records, or the next larger number that gives the same sample rate.

    The rate may be lower by a share of 1/records: then it leaks slightly less, and a lower bound remains one. An
    epoch has the same number of batches.
    """
    n, expected = sampler.n, sampler.expected_batch_size
    batch = -(-records * expected // n)  # rounded up, like the size
    size = -(-batch * n // expected)
    return replace(sampler, n=size, expected_batch_size=batch)  # type: ignore[type-var]


def plan_at(plan: Plan, records: int) -> Plan:
    """The plan over about this many canaries instead of its records."""
    return replace(plan, sampler=resized(plan.sampler, records))
