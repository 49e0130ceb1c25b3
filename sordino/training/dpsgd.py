"""DP-SGD, readable in one go: draw, clip and sum, add noise, divide by the expected batch size, step.

What gives the clipped sums is behind a seam (`Trainee`): a linear head has them in closed form.
"""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.mechanisms.gaussian import gaussian_noise
from sordino.mechanisms.streams import Stream, Streams
from sordino.training.plan import Plan


class Trainee(Protocol):
    """A model with its private data: parameters, and sums of clipped per-example gradients at them."""

    parameters: dict[str, Tensor]

    def initialise(self, streams: Streams) -> None: ...

    def facts(self) -> dict[str, Any]: ...

    def data(self) -> tuple[NDArray[Any], ...]: ...

    def clipped_sum(self, indices: NDArray[np.int64], l2_clip: float) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Momentum:
    """Stochastic gradient descent with a heavy ball: v ← momentum·v + g, w ← w − learning_rate·v."""

    learning_rate: float
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"the learning rate must be a positive finite number, not {self.learning_rate!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def start(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def step(self, parameters: dict[str, Tensor], velocity: dict[str, Tensor], gradient: dict[str, Tensor]) -> None:
        for name, value in parameters.items():
            velocity[name].mul_(self.momentum).add_(gradient[name])
            value.sub_(self.learning_rate * velocity[name])


class Diverged(ValueError):  # noqa: N818
    """The parameters are no longer finite numbers."""


def train_steps(
    plan: Plan,
    trainee: Trainee,
    optimiser: Momentum,
    velocity: dict[str, Tensor],
    streams: Streams,
    first: int,
    last: int,
) -> None:
    """Steps first … last−1 of the plan.

    Guarantee: each step is one of the plan's step events; the ledger must hold it before the step is drawn.
    """
    with torch.no_grad():
        for step in range(first, last):
            indices = plan.sampler.draw(streams, step)
            sums = trainee.clipped_sum(indices, plan.l2_clip)
            optimiser.step(trainee.parameters, velocity, noisy_mean(sums, plan, streams, step))


def noisy_mean(sums: dict[str, Tensor], plan: Plan, streams: Streams, step: int) -> dict[str, Tensor]:
    """The sums with the plan's noise, divided by the public expected batch size, never by the realised one."""
    generator = streams.generator(Stream.NOISE, step)
    deviation = plan.noise_multiplier * plan.l2_clip
    mean = {}
    for name in sorted(sums):  # one order, so that the same key gives the same noise to the same parameter
        noise = torch.from_numpy(gaussian_noise(generator, tuple(sums[name].shape), deviation))
        mean[name] = ((sums[name].double() + noise) / plan.sampler.expected_batch_size).to(sums[name].dtype)
    return mean


def check_finite(parameters: dict[str, Tensor]) -> None:
    if not all(bool(torch.isfinite(value).all()) for value in parameters.values()):
        raise Diverged("training diverged: the parameters are no longer finite; lower the learning rate")
