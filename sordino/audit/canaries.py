"""Canaries: records whose gradients are known and as large as the clip allows, each along a parameter of its own.

Coordinates never meet, and noise and Poisson participation are independent between them: one execution of the real
loop is as many independent trials of the mechanism, at the plan's own sample rate, as there are canaries.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import Sampler
from sordino.gradients import Flat
from sordino.mechanisms import Stream, Streams
from sordino.training import ClippedSum, Plan, Weights

_BEFORE_CLIPPING = 8.0
"""The norm of a canary's gradient before the clip, in clips: a clip that is missing or too large shows."""


class CanaryTrainee:
    """A trainee with a parameter for each record; a present record's gradient lies along its own, an absent one's is 0.

    The parameters are a vector and a matrix, as models have both. Gradients are clipped by the engine's own rule, in
    double precision, as an exact plan wants them.
    """

    def __init__(self, coins: NDArray[np.bool_], l2_clip: float) -> None:
        self._lengths = torch.from_numpy(coins.astype(np.float64)) * (_BEFORE_CLIPPING * l2_clip)
        self._sizes = (len(coins) // 2, len(coins) - len(coins) // 2)
        self.parameters: Weights = self._split(torch.zeros(len(coins), dtype=torch.float64))

    def weights(self) -> Weights:
        return self.parameters

    def load(self, weights: Weights) -> None:
        self.parameters = weights

    def initialise(self, streams: Streams) -> None:
        self.parameters = self._split(torch.zeros_like(self._lengths))

    def facts(self) -> dict[str, Any]:
        return {"model": "canaries", "records": len(self._lengths)}

    def data(self) -> tuple[NDArray[Any], ...]:
        return (self._lengths.numpy(),)

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        return {}

    def clipped_sum(
        self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator | None = None
    ) -> ClippedSum:
        rows = torch.from_numpy(indices)
        lengths = self._lengths[rows]
        clipped = lengths * Flat().factors(lengths[:, None], l2_clip)[:, 0]
        return ClippedSum(self._split(torch.zeros_like(self._lengths).index_add_(0, rows, clipped)), lengths)

    def _split(self, values: Tensor) -> Weights:
        first, second = values.split(self._sizes)
        return {"first": first, "second": second[:, None]}


def by_record(weights: Weights) -> Tensor:
    """The parameters of a canary trainee, or gradients of them, in the order of its records."""
    return torch.cat([weights["first"], weights["second"][:, 0]])


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
