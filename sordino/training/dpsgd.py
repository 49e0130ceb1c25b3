"""DP-SGD, readable in one go: draw, clip and sum, add noise, divide by the expected batch size, step.

What gives the clipped sums is behind a protocol (`Trainable`): a linear classifier has them in closed form, any other
model from the clipped-gradient engine.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import Records
from sordino.gradients import ExamplesMixError
from sordino.mechanisms import Stream, Streams, gaussian_noise, noisy_sum
from sordino.runs import Diverged, RunError
from sordino.training.optimisers import Averaging, Optimiser, State, Weights
from sordino.training.plan import SENSITIVITY, UNIT, Plan

T = TypeVar("T")
_TOGETHER = 2**20
"""Numbers that are noised in one piece."""


class ClippedSum(NamedTuple):
    """What a model gives for a draw. Both are private: only `release` may show something of them."""

    sums: Weights
    norms: Tensor
    """The norm of each example's gradient before the clip."""


class Trainable(Protocol):
    """A model as training sees it: parameters, and sums of clipped per-example gradients over private records.

    A `TrainableModule` is any nn.Module; `LinearClassifier` and `DenseNetwork` have their sums in closed form.
    """

    @property
    def parameters(self) -> Weights:
        """What is trained; an optimiser changes it in place."""

    def weights(self) -> Weights:
        """All that makes up the model: the parameters, and what is fixed."""

    def load(self, weights: Weights) -> None: ...

    def initialise(self, streams: Streams) -> None: ...

    def facts(self) -> dict[str, Any]:
        """What the model is, for binding a run to it."""

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Settle all that decides how sums are rounded, as known from before if that can be; and what it is now."""

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator
    ) -> ClippedSum: ...


@dataclass(frozen=True)
class Training:
    """What is to be done: a plan, the model and the records under it, and how noisy gradients become weights."""

    plan: Plan
    model: Trainable
    records: Records
    optimiser: Optimiser
    averaging: Averaging | None = None

    def __post_init__(self) -> None:
        check_count(self.plan.sampler.n, self.records)
        refuse_mixing(self.model, self.plan.private)

    def facts(self) -> list[Any]:
        """All that must be the same for a run to be resumed."""
        average = None if self.averaging is None else self.averaging.to_json()
        return [self.plan.to_json(), self.optimiser.to_json(), average, self.model.facts()]

    def start(self) -> "TrainingState":
        parameters = self.model.parameters
        average = None if self.averaging is None else self.averaging.start(parameters)
        return TrainingState(0, self.plan.l2_clip, self.optimiser.start(parameters), average)

    def draw(self, state: "TrainingState", streams: Streams) -> "Wanted":
        """The next step's records, of which the clipped sum is wanted."""
        indices = self.plan.sampler.draw(streams, state.done)
        return Wanted(self.model, self.records, indices, state.l2_clip, streams, state.done)

    @torch.no_grad()
    def update(self, state: "TrainingState", parameters: Weights, gradient: Weights, next_clip: float) -> None:
        """Move the model's parameters by what a step has released.

        The step is over before the optimiser is called: whatever happens there, its noise is never drawn again.
        """
        step, deviation = state.done, self.plan.noise_multiplier * state.l2_clip / self.plan.sampler.expected_batch_size
        state.done, state.l2_clip = step + 1, next_clip
        self.optimiser.step(parameters, state.optimiser, gradient, step, deviation)
        if self.averaging is not None and state.average is not None:
            self.averaging.step(state.average, parameters, step)


@dataclass
class TrainingState:
    """How far a training has come, besides its weights: all of it computed from releases."""

    done: int
    l2_clip: float
    optimiser: State
    average: Weights | None


class Wanted(NamedTuple):
    """A draw whose clipped sum a training waits for."""

    model: Trainable
    records: Records
    indices: NDArray[np.int64]
    l2_clip: float
    streams: Streams
    step: int

    @torch.no_grad()
    def found(self) -> ClippedSum:
        augmentation = self.streams.generator(Stream.AUGMENTATION, self.step)
        return self.model.clipped_sum(self.records, self.indices, self.l2_clip, augmentation)


Steps = Generator[Wanted, ClippedSum, T]
"""A training that stops at each draw until it is sent the clipped sum: so several can wait for theirs together."""


def train_steps(training: Training, state: TrainingState, streams: Streams, last: int) -> None:
    """Steps of the plan from where the training is up to the last, which is left out: for experiments, not charged."""
    parameters = training.model.parameters
    while state.done < last:
        clipped = training.draw(state, streams).found()
        gradient, next_clip = release(clipped, state.l2_clip, training.plan, streams, state.done)
        training.update(state, parameters, gradient, next_clip)


@torch.no_grad()
def release(clipped: ClippedSum, l2_clip: float, plan: Plan, streams: Streams, step: int) -> tuple[Weights, float]:
    """All that a step shows of its draw: the noisy mean gradient, and the clip of the next step.

    Guarantee: one of the plan's step events, which the ledger must hold before the step is drawn, if each example's
    part of the sums is within l2_clip. The count of a quantile clip is a single number that everybody sees: its noise
    is always exact.
    """
    generator = streams.generator(Stream.NOISE, step)
    mean = noisy_mean(clipped.sums, l2_clip, plan, generator)
    if plan.quantile_clip is None:
        return mean, l2_clip
    units = np.array(plan.quantile_clip.units(clipped.norms, l2_clip))
    deviation = plan.quantile_clip.noise_multiplier * SENSITIVITY * plan.sensitivity_of_count
    count = float(noisy_sum(generator, units, UNIT, deviation))
    return mean, plan.quantile_clip.next_clip(l2_clip, count, plan.sampler.expected_batch_size, plan.l2_clip)


def noisy_mean(sums: Weights, l2_clip: float, plan: Plan, generator: np.random.Generator) -> Weights:
    """The sums with the plan's noise, divided by the public expected batch size, never by the realised one."""
    deviation = plan.noise_multiplier * l2_clip
    if plan.exact:
        deviation *= plan.sensitivity(sum(value.numel() for value in sums.values()))
    mean = {}
    for names in together(sums):
        flat = torch.cat([sums[name].flatten() for name in names])
        if plan.exact:
            total = _exact_total(flat, l2_clip, plan, deviation, generator)
        elif plan.private:
            total = torch.from_numpy(gaussian_noise(generator, tuple(flat.shape), deviation)).to(flat.device).add_(flat)
        else:  # a plan that promises nothing has no noise, and zeros would cost as much to draw
            total = flat.double()
        total = total.div_(plan.sampler.expected_batch_size).to(flat.dtype)
        for name, part in zip(names, total.split([sums[name].numel() for name in names]), strict=True):
            mean[name] = part.view(sums[name].shape)
    return mean


def _exact_total(flat: Tensor, l2_clip: float, plan: Plan, deviation: float, generator: np.random.Generator) -> Tensor:
    """Sums in whole units with exactly rounded noise."""
    units = np.rint(flat.double().cpu().numpy() / l2_clip / plan.unit).astype(np.int64)
    return torch.from_numpy(noisy_sum(generator, units, l2_clip * plan.unit, deviation)).to(flat.device)


def together(sums: Weights) -> Iterator[list[str]]:
    """Names in one order, so that the same key gives the same noise to the same parameter; small ones in one piece.

    Pieces follow from names, shapes and types alone, so a repeated step has the same. They are part of what a key turns
    into noise: under an exact plan a piece's doubtful numbers take further bits before the next piece is drawn.
    """
    piece: list[str] = []
    held = 0
    for name in sorted(sums):
        alike = not piece or (sums[name].dtype, sums[name].device) == (sums[piece[0]].dtype, sums[piece[0]].device)
        if piece and (held + sums[name].numel() > _TOGETHER or not alike):
            yield piece
            piece, held = [], 0
        piece.append(name)
        held += sums[name].numel()
    if piece:
        yield piece


def check_count(n: int, records: Records) -> None:
    if len(records) != n:
        raise RunError(f"the plan is for n={n} records, the data has {len(records)}")


def refuse_mixing(model: Trainable, private: bool) -> None:
    """Under a plan that promises privacy no model may let examples mix; others are free to (`MixingModule`)."""
    if private and getattr(model, "examples_mix", False):
        raise ExamplesMixError(
            "examples mix in this model, so no clip bounds what one of them does: train it under a plan that says so "
            "(examples_mix=True, charged ε=∞), or compute each example's output from that example alone"
        )


def refuse_single_precision(plan: Plan, model: Trainable, records: Records) -> None:
    """What an exact plan counts for rounding holds in double precision alone: of all weights, and in each pass."""
    if not plan.exact:
        return
    for name, value in model.weights().items():
        if value.is_floating_point() and value.dtype != torch.float64:
            raise ValueError(
                f"an exact plan needs sums in double precision, and {name} is not: pass model.double() and inputs in "
                "float64, or leave exact out"
            )
    operation = getattr(model, "narrow_operation", lambda records: None)(records)
    if operation is not None:
        raise ValueError(
            f"an exact plan needs double precision throughout, and in the model or its loss {operation}: remove the "
            "cast or autocast, or leave exact out"
        )


def check_finite(parameters: Weights) -> None:
    if not all(bool(torch.isfinite(value).all()) for value in parameters.values()):
        raise Diverged("training diverged: the parameters are no longer finite; lower the learning rate")
