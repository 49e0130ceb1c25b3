"""Amplification by iteration (Feldman, Mironov, Talwar & Thakurta 2018): only the last of many noisy iterates is
released.

The data is clipped, ‖x‖ ≤ C, and not the gradients. Why the event's price holds, with z = [x; 1]:
1. One gradient is (p − y)zᵀ, and ‖p − y‖² ≤ 2(1 − p_y)² ≤ 2: its norm is at most G = √(2(C² + 1)).
2. One Hessian is (diag p − ppᵀ) ⊗ zzᵀ, and uᵀ(diag p − ppᵀ)u = Var_p(u) ≤ (max u − min u)²/4 ≤ ‖u‖²/2: the mean loss is
   convex and β-smooth, β = ½(C² + 1), so a step of rate η ≤ 2/β brings no two models further apart.
3. In units of ηG/B a step adds N(0, σ²); a record zeroed out (d = 1) or replaced (d = 2) shifts one step an epoch by d.
4. Noise absorbs shifts (their Theorem 22): portions aₜ, of what has come in until then, cost Σ α·aₜ²/(2σ²).
5. At place j of S, each shift but the last has S steps till the record returns, d/S a step; the last has S − j + 1. So
   RDP(α) = α·d²/(2σ²)·[(E − 1)/S + 1/(S − j + 1)], the most at j = S, which is charged. No other portions sum to less.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.budget import Event, Iteration
from sordino.mechanisms import Stream, Streams, clip_rows, gaussian_noise
from sordino.training.dpsgd import check_count
from sordino.training.fitting import Fitted, Job
from sordino.training.hidden import HiddenTraining
from sordino.training.linear import LinearClassifier
from sordino.training.optimisers import Weights
from sordino.training.planning import OneReleasePlan, Target, check_whole

_ROWS = 1000


@dataclass(frozen=True)
class LastIteratePlan(OneReleasePlan):
    """Passes over the records in their given order, in batches of the same size, with noise on every gradient sum.

    Guarantee: the last iterate, and nothing else of the run, is the plan's `event`. A record's place must not depend
    on what any record holds; the n % batch records at the end are never used, and nothing about them is released.
    """

    n: int
    batch: int
    epochs: int
    data_clip: float
    noise_multiplier: float
    learning_rate: float

    def __post_init__(self) -> None:
        check_whole("n", self.n)
        check_whole("batch", self.batch)
        if self.batch > self.n:
            raise ValueError(f"a batch of {self.batch} is more than the n={self.n} records")
        for name in ("data_clip", "learning_rate"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-15 <= value <= 1e15:
                raise ValueError(f"{name} must be a number from 1e-15 to 1e15, not {value!r}")
        if self.learning_rate > largest_learning_rate(self.data_clip):
            raise ValueError(
                f"learning_rate {self.learning_rate:g} lets steps expand, and the last iterate would not be private: "
                f"at data_clip {self.data_clip:g} it must be at most {largest_learning_rate(self.data_clip):.6g}"
            )
        _ = self.event  # checks epochs and noise

    @classmethod
    def calibrated(
        cls,
        *,
        n: int,
        batch: int,
        epochs: int,
        data_clip: float,
        learning_rate: float,
        target_epsilon: float,
        target_delta: float,
        before: Event | None = None,
        adjacency: str = "zero-out",
    ) -> "LastIteratePlan":
        """The plan with the least noise whose price for every record meets the target, after what is spent `before`."""
        plan = cls(n, batch, epochs, data_clip, 1.0, learning_rate)
        target = Target.of(n, target_epsilon, target_delta, adjacency, before=before)
        sigma = target.noise_multiplier(lambda sigma: replace(plan, noise_multiplier=sigma).event)
        return replace(plan, noise_multiplier=sigma)

    @property
    def steps_per_epoch(self) -> int:
        return self.n // self.batch

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def gradient_bound(self) -> float:
        """The most that one record adds to the sum of gradients, and the unit of the noise multiplier."""
        return math.sqrt(2 * (self.data_clip**2 + 1))

    @property
    def event(self) -> Iteration:
        return Iteration(self.epochs, self.steps_per_epoch, self.noise_multiplier)

    @property
    def claimed(self) -> Event | None:
        """What T&B's figure charges, which holds for 99 % of the records only; None where that is all of them."""
        ratio = self.event.rho("zero-out") / self.event.rho("zero-out", share=0.99)
        sigma = self.noise_multiplier * math.sqrt(ratio)
        return Iteration(self.epochs, self.steps_per_epoch, sigma) if ratio > 1 else None

    def fitted(self, job: Job) -> Fitted:
        check_count(self.n, job.records)
        if not isinstance(job.model, LinearClassifier):
            raise ValueError(f"the last iterate is proved for a LinearClassifier, not for a {type(job.model).__name__}")
        job.model.prepared(job.records)
        return _HiddenIterate(self, job.model, job).fitted(self.batch)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LastIteratePlan":
        return cls(**document)


def largest_learning_rate(data_clip: float) -> float:
    """2/β: beyond it a step may bring two models further apart, and later noise no longer hides a record."""
    return 4 / (data_clip**2 + 1)


class _HiddenIterate(HiddenTraining):
    """Of a linear classifier: weights and bias side by side, from zeros, in double precision."""

    plan: LastIteratePlan
    model: LinearClassifier
    kind, what, file = "last iterate", "training", "iterate.safetensors"

    def begin(self, streams: Streams, kept: Weights | None) -> None:
        plan, known = self.plan, self.model.prepared(self.job.records)
        used = plan.steps_per_epoch * plan.batch
        self._inputs = clipped_inputs(known.vectors[:used].numpy(), plan.data_clip)
        self._labels = known.labels[:used]
        zeros = torch.zeros(self.model.classes, self._inputs.shape[1], dtype=torch.float64)
        self._iterate = zeros if kept is None else kept["iterate"]

    def state(self) -> Weights:
        return {"iterate": self._iterate}

    def advance(self, streams: Streams, last: int) -> None:
        train_iterate(self.plan, self._inputs, self._labels, self._iterate, streams, range(self.done, last))

    def released(self, streams: Streams) -> Weights:
        return {"weight": self._iterate[:, :-1].float(), "bias": self._iterate[:, -1].float()}


def train_iterate(
    plan: LastIteratePlan, inputs: Tensor, labels: Tensor, iterate: Tensor, streams: Streams, steps: range
) -> None:
    """Take these steps, changing the iterate in place; in double precision, for rounding is an expansion too."""
    deviation = plan.noise_multiplier * plan.gradient_bound
    for step in steps:
        batch = slice((place := step % plan.steps_per_epoch) * plan.batch, (place + 1) * plan.batch)
        total = gradient_sum(iterate, inputs[batch].double(), labels[batch])
        noise = gaussian_noise(streams.generator(Stream.NOISE, step), tuple(total.shape), deviation)
        iterate -= (plan.learning_rate / plan.batch) * (total + torch.from_numpy(noise))


def gradient_sum(iterate: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """Σ (p − y)zᵀ over the inputs z: one example of norm ‖z‖ adds at most √2·‖z‖, and an input of zeros nothing."""
    residuals = torch.softmax(inputs @ iterate.T, dim=1)
    residuals[torch.arange(len(labels)), labels] -= 1
    return residuals.T @ inputs


def clipped_inputs(vectors: NDArray[np.float32], data_clip: float) -> Tensor:
    """[x; 1] for each vector, scaled down to ‖x‖ ≤ data_clip; one that is not finite gives zeros, its 1 included."""
    inputs = np.empty((len(vectors), vectors.shape[1] + 1), np.float32)
    for first in range(0, len(vectors), _ROWS):
        rows = slice(first, first + _ROWS)
        # A little below the clip: rounded to float32, the norm is still within it.
        inputs[rows, :-1] = clip_rows(vectors[rows].astype(np.float64), data_clip * (1 - 1e-7))
        inputs[rows, -1] = np.isfinite(vectors[rows]).all(axis=1)
    return torch.from_numpy(inputs)
