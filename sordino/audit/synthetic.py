"""Synthetic records whose gradients are known, in the place of private ones: what an audit runs the real code on.

Canaries: each has the largest gradient that the clip allows, along its own parameter. Coordinates never meet, and noise
and Poisson participation are independent between them: one execution of the real loop is as many independent trials of
the mechanism, at the plan's own sample rate, as there are canaries.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import ArrayRecords, Records, Sampler
from sordino.gradients import Flat
from sordino.mechanisms import Stream, Streams
from sordino.training import ClippedSum, Plan, Weights

Array = NDArray[np.float64]
Shapes = dict[str, tuple[int, ...]]
"""Of a model's tensors, by name."""

_BEFORE_CLIPPING = 8.0
"""The norm of a canary's gradient before the clip, in clips: a clip that is missing or too large shows."""
_SHAPES: Shapes = {"bias": (640,), "kernel": (8, 4, 2, 2), "weight": (16, 16)}


class _Synthetic:
    """Parameters that start at zero, records without content, and `clipped_sum` from a subclass."""

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
    """A parameter for each record; a present record's gradient lies along it, an absent one's is zero.

    The parameters are a vector and a matrix, as models have both. Gradients are clipped by the engine's own rule, in
    double precision, as an exact plan wants them.
    """

    def __init__(self, coins: NDArray[np.bool_], l2_clip: float) -> None:
        lengths: Array = coins.astype(np.float64) * (_BEFORE_CLIPPING * l2_clip)
        half = len(coins) // 2
        super().__init__(lengths, {"first": (half,), "second": (len(coins) - half, 1)})
        self._lengths = torch.from_numpy(lengths)

    def clipped_sum(
        self,
        records: Records,
        indices: NDArray[np.int64],
        l2_clip: float,
        augmentation: np.random.Generator | None = None,
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
    """Every record adds the whole clip to one parameter, and nothing to all others.

    Norms are 0, within any clip, so that a quantile clip's count is known, too.
    """

    def __init__(self, records: int, shapes: Shapes | None = None) -> None:
        chosen = {name: shape for name, shape in sorted((shapes or _SHAPES).items()) if math.prod(shape)}
        super().__init__(np.zeros(records), chosen)
        self.batch_sizes: list[int] = []

    def clipped_sum(
        self,
        records: Records,
        indices: NDArray[np.int64],
        l2_clip: float,
        augmentation: np.random.Generator | None = None,
    ) -> ClippedSum:
        self.batch_sizes.append(len(indices))
        sums = self._zeros()
        next(iter(sums.values())).view(-1)[0] = len(indices) * l2_clip
        return ClippedSum(sums, torch.zeros(len(indices)))


def by_record(weights: Weights) -> Tensor:
    """The parameters of a canary model, or gradients of them, in the order of its records."""
    return torch.cat([weights["first"], weights["second"][:, 0]])


def in_a_row(weights: Weights) -> Array:
    """All parameters in one row: of known sums, the parameter that records add to comes first."""
    return np.asarray(torch.cat([weights[name].detach().flatten() for name in sorted(weights)]).double().numpy())


def half_of(records: int, streams: Streams) -> NDArray[np.bool_]:
    """Which records are present: half of them, at random."""
    return streams.generator(Stream.INITIALISATION).permutation(records) < records // 2


def resized(sampler: Sampler, records: int) -> Sampler:
    """The sampler over so many records, or the fewest above that give the same sample rate.

    The rate is the same but for a share of 1/records by which it may be lower: then it leaks a little less, and a lower
    bound stays one. Batches of an epoch are as many.
    """
    n, expected = sampler.n, sampler.expected_batch_size
    batch = _quotient_rounded_up(records * expected, n)
    size = _quotient_rounded_up(batch * n, expected)
    return replace(sampler, n=size, expected_batch_size=batch)  # type: ignore[type-var]


def _quotient_rounded_up(number: int, divisor: int) -> int:
    return -(-number // divisor)


def plan_at(plan: Plan, records: int) -> Plan:
    """The plan over about so many canaries instead of its records."""
    return replace(plan, sampler=resized(plan.sampler, records))
