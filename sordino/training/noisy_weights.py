"""Training at weights drawn anew in each step around learnt means: how much noise a network bears (SI, section 3)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sordino.mechanisms import Stream, Streams, bound_streams, secret_from_seed
from sordino.training.modules import built, seed_of

_TEST_BATCH = 500
_FIRST_LOOK = 2**40
"""Draws at which accuracy is measured are counted from here: no step of training has their noise."""


@dataclass(frozen=True)
class NoisyTraining:
    """Adam on the means, with gradients at weights θ = μ + N(0, deviation²), one draw for each batch, and no clip.

    Batches are those of shuffled epochs; a last one that is not full is left out, but for the only one.
    """

    deviation: float
    epochs: int
    batch: int = 128
    learning_rate: float = 1e-3
    looks: int = 1
    """How many times an epoch the accuracy is measured, at equal distances."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.deviation < math.inf:
            raise ValueError(f"the deviation of weights must be a finite number from 0, not {self.deviation!r}")
        if min(self.epochs, self.batch, self.looks) < 1:
            raise ValueError(
                f"epochs, batch and looks must be at least 1, not {self.epochs}, {self.batch} and {self.looks}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"the learning rate must be a positive number, not {self.learning_rate!r}")


@dataclass(frozen=True)
class Look:
    """Test accuracies at a moment, and the mean loss on the batches since the last (at the weights drawn for them)."""

    epoch: float
    sampled: float
    """At weights drawn as in training: what SI's algorithm would release."""
    means: float
    """At the means, which SI's algorithm would keep secret."""
    loss: float


def train_noisy(
    build: Callable[[], nn.Module],
    train: tuple[Tensor, NDArray[np.int64]],
    test: tuple[Tensor, NDArray[np.int64]],
    settings: NoisyTraining,
    on_progress: Callable[[float], None] = lambda epochs: None,
) -> list[Look]:
    """Train the network that `build` makes, and look at it now and then.

    Networks are examined in evaluation mode and batches of 500: SI's batch norm, which keeps no running statistics, is
    then that of the test batch.

    Guarantee: none. Gradients are neither clipped nor accounted; for public benchmarks only, and no ledger knows of it.
    """
    streams = bound_streams(secret_from_seed(settings.seed), {"what": "noisy weights"}, predictable=True)
    network = built(build, seed_of(streams))
    means = [parameter.detach().clone() for parameter in network.parameters()]
    optimiser = torch.optim.Adam(means, lr=settings.learning_rate, fused=True)
    x, y = train[0], torch.from_numpy(np.asarray(train[1]))
    if len(x) != len(y) or not len(y):
        raise ValueError(f"there are {len(x)} examples but {len(y)} labels; at least one of each is needed")
    batches = max(1, len(y) // settings.batch)
    marks = {math.ceil(batches * (look + 1) / settings.looks) for look in range(settings.looks)}
    looks: list[Look] = []
    losses: list[float] = []
    for epoch in range(settings.epochs):
        order = torch.from_numpy(streams.generator(Stream.SAMPLING, epoch).permutation(len(y)))
        for place, rows in enumerate(order.split(settings.batch)[:batches]):
            _draw(network.train(), means, settings.deviation, streams, epoch * batches + place)
            loss = cross_entropy(network(x[rows]), y[rows])
            # The derivative of θ = μ + noise by μ is one: gradients at the draw are the means'.
            for mean, gradient in zip(means, torch.autograd.grad(loss, list(network.parameters())), strict=True):
                mean.grad = gradient
            optimiser.step()
            losses.append(float(loss.detach()))
            if place + 1 in marks:
                _draw(network, means, settings.deviation, streams, _FIRST_LOOK + len(looks))
                sampled = accuracy(network, *test)
                _draw(network, means, 0.0, streams, 0)
                done = epoch + (place + 1) / batches
                looks.append(Look(done, sampled, accuracy(network, *test), float(np.mean(losses))))
                losses.clear()
                on_progress(done)
    return looks


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: NDArray[np.int64]) -> float:
    """The share of examples whose highest score is their class's, in evaluation mode; what is no number misses."""
    network.eval()
    scores = torch.cat([network(part) for part in x.split(_TEST_BATCH)]).nan_to_num(nan=-math.inf)
    right = (scores.argmax(1).numpy() == y) & torch.isfinite(scores).any(1).numpy()
    return float(np.mean(right))


@torch.no_grad()
def _draw(network: nn.Module, means: list[Tensor], deviation: float, streams: Streams, step: int) -> None:
    """Set the network's weights to a draw around the means; no privacy hangs on it, and torch's noise is the faster."""
    generator = torch.Generator().manual_seed(int(streams.generator(Stream.NOISE, step).integers(2**63)))
    for parameter, mean in zip(network.parameters(), means, strict=True):
        parameter.copy_(mean)
        if deviation:
            parameter.add_(torch.randn(mean.shape, generator=generator), alpha=deviation)
