"""Who is measured: the same step, from the batch to the updated parameters, by each library in each of its modes.

A contender takes a model of its own, prepares a batch once (unmeasured), gives its clipped sums for checking, and makes
steps. Every private step clips to l2_clip, adds Gaussian noise, divides by the batch size and takes a step of SGD.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rows import Batch, Row

LEARNING_RATE, NOISE_MULTIPLIER = 0.01, 1.0


class Contender(Protocol):
    def prepare(self, batch: Batch) -> Any: ...

    def sums(self, batch: Any) -> dict[str, Tensor] | None: ...

    def step(self, batch: Any) -> None: ...


class Unsupported(Exception):  # noqa: N818
    """This contender cannot run this row, for the reason given."""


class NonPrivate:
    """Plain PyTorch, in the memory format given: what the private steps are compared with."""

    def __init__(self, row: Row, model: nn.Module, l2_clip: float, memory_format: torch.memory_format) -> None:
        if memory_format == torch.channels_last and len(row.shape) != 3:
            raise Unsupported("no images")
        self._format = memory_format
        self._model = model.to(memory_format=memory_format)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def prepare(self, batch: Batch) -> Batch:
        return batch[0].to(memory_format=self._format), batch[1]

    def sums(self, batch: Batch) -> None:
        return None

    def step(self, batch: Batch) -> None:
        x, y = batch
        self._optimizer.zero_grad()
        functional.cross_entropy(self._model(x), y).backward()
        self._optimizer.step()


class Sordino:
    """This library."""

    def __init__(self, row: Row, model: nn.Module, l2_clip: float) -> None:
        from sordino.gradients import ClippedGradients

        self._model, self._l2_clip = model, l2_clip
        self._clipped = ClippedGradients(model, partial(functional.cross_entropy, reduction="none"), l2_clip=l2_clip)

    def prepare(self, batch: Batch) -> Batch:
        self._clipped.prepare(*batch)
        return batch

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        return dict(self._clipped(*batch).sums)

    def step(self, batch: Batch) -> None:
        noisy_step(self._model, self.sums(batch), self._l2_clip, len(batch[1]))


class ClosedForm:
    """This library's closed form for dense networks on stored vectors: the batch is all that is stored."""

    def __init__(self, row: Row, model: nn.Module, l2_clip: float) -> None:
        from sordino.training.dense import DenseNetwork
        from sordino.training.dense_sums import softmax_slope

        self._l2_clip = l2_clip
        self._network = partial(DenseNetwork, lambda: model, softmax_slope)

    def prepare(self, batch: Batch) -> tuple[Any, Any]:
        from sordino.data import ArrayRecords

        records = ArrayRecords(*(part.numpy() for part in batch))
        try:
            network = self._network()
            network.choose(records, None, len(records))
        except ValueError:
            raise Unsupported("not a dense network") from None
        return network, records

    def sums(self, batch: tuple[Any, Any]) -> dict[str, Tensor]:
        network, records = batch
        return dict(network.clipped_sum(records, np.arange(len(records)), self._l2_clip).sums)

    def step(self, batch: tuple[Any, Any]) -> None:
        noisy_step(batch[0].model, self.sums(batch), self._l2_clip, len(batch[1]))


class Vmap:
    """vmap(grad(loss)) of torch.func, as in PyTorch's tutorial on per-example gradients."""

    def __init__(self, row: Row, model: nn.Module, l2_clip: float) -> None:
        warnings.filterwarnings("ignore", message="There is a performance drop")  # the LSTM: example by example
        self._model, self._l2_clip = model, l2_clip

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

        self._gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        parameters = {name: value.detach() for name, value in self._model.named_parameters()}
        gradients = self._gradients(parameters, *batch)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (self._l2_clip / norms).clamp(max=1)
        return {name: torch.tensordot(factors, g, dims=1) for name, g in gradients.items()}

    def step(self, batch: Batch) -> None:
        noisy_step(self._model, self.sums(batch), self._l2_clip, len(batch[1]))


@torch.no_grad()
def noisy_step(model: nn.Module, sums: dict[str, Tensor], l2_clip: float, batch_size: int) -> None:
    for name, parameter in model.named_parameters():
        noisy = sums[name] + torch.normal(0.0, NOISE_MULTIPLIER * l2_clip, parameter.shape)
        parameter.sub_(noisy, alpha=LEARNING_RATE / batch_size)


def _opacus(mode: str) -> Callable[[Row, nn.Module, float], Contender]:
    def build(row: Row, model: nn.Module, l2_clip: float) -> Contender:
        from benchmarks.opacus_peer import Opacus

        return Opacus(row, model, l2_clip, mode)

    return build


def _jax_privacy(microbatch: int | None) -> Callable[[Row, nn.Module, float], Contender]:
    def build(row: Row, model: nn.Module, l2_clip: float) -> Contender:
        from benchmarks.jax_peer import JaxPrivacy

        return JaxPrivacy(row, model, l2_clip, microbatch)

    return build


BASELINES: dict[str, Callable[[Row, nn.Module, float], Contender]] = {
    "non-private": partial(NonPrivate, memory_format=torch.contiguous_format),
    "non-private, channels-last": partial(NonPrivate, memory_format=torch.channels_last),
}
PEERS: dict[str, Callable[[Row, nn.Module, float], Contender]] = {
    "opacus hooks": _opacus("hooks"),
    "opacus functorch": _opacus("functorch"),
    "opacus ew": _opacus("ew"),
    "opacus ghost": _opacus("ghost"),
    "opacus fast": _opacus("fast"),
    "jax-privacy": _jax_privacy(None),
    "jax-privacy, microbatches": _jax_privacy(32),
    "torch.func vmap": Vmap,
}
OURS, CLOSED_FORM = "sordino", "sordino, closed form"
CONTENDERS = {**BASELINES, OURS: Sordino, CLOSED_FORM: ClosedForm, **PEERS}
