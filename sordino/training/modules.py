"""Any nn.Module as a trainable model: its clipped gradients by the engine, its weights from a run's key or as they
are."""

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from sordino.data import ArrayRecords, Records, in_memory
from sordino.gradients import (
    Choices,
    ClippedGradients,
    Clipping,
    Loss,
    batches,
    keep_buffers,
    keep_random_state,
    narrow_operation,
)
from sordino.mechanisms import Stream, Streams, memory
from sordino.training import probing
from sordino.training.augmentation import Augment, Views
from sordino.training.dpsgd import ClippedSum
from sordino.training.optimisers import Weights

_PIECE, _BLOCK = 8, 4096
_COPIES = 12
"""Of the trained weights in single precision: sums, noise and their sum in double, the optimiser's and averaged ones,
and a checkpoint as it is written."""
_GRADIENTS_AT_ONCE = 2**24


class TrainableModule:
    """A module and its loss (one number an example), with clipped gradients by `ClippedGradients`.

    `model` is an nn.Module, which trains from the weights it has; or a function that builds one, which is called under
    a seed from the run's initialisation stream, so it may draw its weights or load public ones. A step gathers its
    records piece by piece, so a batch of any size takes bounded memory. Dropout and `augment` draw from the step's
    augmentation stream. Clipping, penalty, views and physical batch are the engine's. Its choices are measured, so they
    differ from run to run: to repeat an experiment under its seed, give them.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        *,
        clipping: Clipping | None = None,
        l2_penalty: float = 0.0,
        augment: Augment | None = None,
        views: int = 1,
        physical_batch: int | None = None,
        choices: Choices | None = None,
    ) -> None:
        self._views = Views(augment, views)
        self._build = None if isinstance(model, nn.Module) else model
        self.model = model if isinstance(model, nn.Module) else built(model, 0)
        self._loss, self._physical_batch, self._given = loss, physical_batch, choices
        self._clipped = ClippedGradients(
            self.model,
            loss,
            clipping=clipping,
            l2_penalty=l2_penalty,
            views=views,
            physical_batch=physical_batch,
        )
        self._device = next(iter(self.model.parameters())).device
        self._facts = {
            "model": words(self.model),
            "weights": {name: [str(value.dtype), *value.shape] for name, value in self.weights().items()},
            "trained": sorted(self.parameters),
            "loss": words(loss),
            "clipping": self._clipped.clipping.to_json(),
            "l2_penalty": l2_penalty,
            "augment": words(augment),
            "views": views,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: the model as it is, and all settings."""
        settings: dict[str, Any] = {
            "clipping": self._clipped.clipping,
            "l2_penalty": self._facts["l2_penalty"],
            "augment": self._views.augment,
            "views": self._views.count,
            "physical_batch": self._physical_batch,
            "choices": self._given,
        }
        return partial(type(self), **settings), (self.model, self._loss)

    @property
    def augmented(self) -> bool:
        """Whether it trains on random views of its examples."""
        return self._views.augment is not None

    @property
    def parameters(self) -> Weights:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def weights(self) -> Weights:
        return tensors(self.model)

    def load(self, weights: Weights) -> None:
        load_into(self.weights(), weights)

    def initialise(self, streams: Streams) -> None:
        self._start(seed_of(streams))

    def facts(self) -> dict[str, Any]:
        return self._facts

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Rules and chunks as before, or else those that are fastest on made-up rows like the records.

        No record is looked at, except where the model does not take made-up rows (`probing.prepare`). A model that is
        built starts anew, so that the check comes out the same whatever the model has been through.
        """
        require_memory(self.model, "the model")
        self._start(0)
        self._clipped.choices = self._usable(known)
        count = min(len(records), expected_batch_size)
        with self._random_state(0):
            rows = partial(self._rows, records)
            probing.prepare(self._clipped, self.model, self._loss, rows, count, self._views)
        # Kernels of other devices may not repeat bit for bit: a token keeps any step there from being repeated.
        device = "cpu" if self._device.type == "cpu" else f"{self._device.type} {secrets.token_hex(8)}"
        return {"engine": self.choices.to_json(), "device": device}

    def narrow_operation(self, records: Records) -> str | None:
        """What first gives less than double precision in a pass: of two records, types are seen."""
        with self._random_state(0):
            x, y = self._rows(records, np.arange(min(2, len(records))))
            seen = self._views.of(x, np.random.default_rng(0))
            return narrow_operation(self.model, self._loss, seen, y, self._views.count)

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator
    ) -> ClippedSum:
        """Σ over these examples of their clipped gradients; zeros for an empty batch.

        Guarantee: the engine's: one example more or less moves the sums by at most l2_clip, up to rounding.
        """
        piece = _PIECE * self.choices.physical_batch
        sums: Weights = {}
        norms = []
        with self._random_state(int(augmentation.integers(2**63))):
            for start in range(0, max(1, len(indices)), piece):
                x, y = self._rows(records, indices[start : start + piece])
                # Buffers that move, do so once a step: how many pieces a draw has must not show in them.
                with nullcontext() if start + piece >= len(indices) else keep_buffers(self.model):
                    found = self._summed(x, y, l2_clip, augmentation)
                norms.append(found.norms)
                sums = {name: sums[name] + value if sums else value for name, value in found.sums.items()}
        return ClippedSum(sums, torch.cat(norms))

    def clipped_sum_of(self, x: Any, y: Any, l2_clip: float, augmentation: np.random.Generator) -> ClippedSum:
        """The clipped sum of a batch that is already gathered."""
        with self._random_state(int(augmentation.integers(2**63))):
            return self._summed(x, y, l2_clip, augmentation)

    def _summed(self, x: Any, y: Any, l2_clip: float, augmentation: np.random.Generator) -> ClippedSum:
        found = self._clipped(self._views.of(x, augmentation), y, l2_clip=l2_clip)
        return ClippedSum(found.sums, found.norms)

    def gathered(
        self, records: Records, indices: NDArray[np.int64], augmentation: np.random.Generator
    ) -> tuple[Any, Any]:
        """The batch of these records on the model's device; what their dataset draws at random follows the
        generator."""
        with self._random_state(int(augmentation.integers(2**63))):
            x, y = self._rows(records, indices)
            return batches.plain(x), batches.plain(y)

    @property
    def choices(self) -> Choices:
        """The engine's rules and chunks, once they are chosen."""
        if self._clipped.choices is None:
            raise ValueError("rules and chunks are chosen before the first sum: call choose")
        return self._clipped.choices

    def refuse_changes(self) -> None:
        """Refuse a model whose layers or modes have changed since it was checked."""
        self._clipped.refuse_changes()

    def _usable(self, known: dict[str, Any] | None) -> Choices | None:
        try:
            before = Choices.from_json(known["engine"]) if known is not None else self._given
        except (KeyError, TypeError):
            return self._given
        fits = before is not None and self._physical_batch in (None, before.physical_batch)
        return before if fits else self._given

    def _rows(self, records: Records, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        batch: tuple[Any, Any] = pytree.tree_map_only(
            Tensor, lambda leaf: leaf.to(self._device), records.batch(indices)
        )
        return batch

    def _start(self, seed: int) -> None:
        if self._build is not None:
            self.load(tensors(built(self._build, seed)))

    def _random_state(self, seed: int) -> AbstractContextManager[None]:
        """Dropout and its like under this seed (no noise of privacy comes from here), and the caller's state after.

        A model that draws from NumPy or Python, too, must draw the same when a step is repeated under its noise.
        """
        return keep_random_state({self._device}, seed)


class MixingModule(TrainableModule):
    """A module whose examples mix, such as SI's batch norm (Algorithm 2): per-example gradients through shared
    statistics, each clipped.

    Guarantee: none. Another example changes everybody's clipped gradient: with m examples in the batch the sum moves by
    up to (2m − 1)·l2_clip. `fit` refuses it except under a plan whose event says so (ε=∞).
    """

    examples_mix = True

    def __init__(self, model: nn.Module | Callable[[], nn.Module], loss: Loss) -> None:
        super().__init__(model, loss)
        for name, layer in self.model.named_modules():
            if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                raise ValueError(
                    f"layer {name} keeps running statistics of private data: set track_running_stats=False"
                )

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"examples_mix": True}

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Nothing to choose: the batch passes as a whole."""
        return {}

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator
    ) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖), g the gradient of the example's loss in this batch."""
        parameters = self.parameters
        sums = {name: torch.zeros_like(value, requires_grad=False) for name, value in parameters.items()}
        if not len(indices):
            return ClippedSum(sums, torch.zeros(0))
        with self._random_state(int(augmentation.integers(2**63))), torch.enable_grad():
            x, y = self._rows(records, indices)
            losses = batches.losses_of(self.model, self._loss, x, y, len(indices), 1)
        found = []
        rows = max(1, _GRADIENTS_AT_ONCE // sum(value.numel() for value in parameters.values()))
        for chosen in torch.eye(len(indices), device=losses.device).split(rows):
            gradients = torch.autograd.grad(
                losses,
                list(parameters.values()),
                chosen,
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
                materialize_grads=True,
            )
            squares = [value.flatten(1).double().square().sum(1) for value in gradients]
            norms = torch.stack(squares).sum(0).sqrt()
            factors = torch.where(torch.isfinite(norms), (l2_clip / norms).clamp(max=1), 0)
            for total, value in zip(sums.values(), gradients, strict=True):
                total += torch.einsum("i,i...->...", factors.to(value.dtype), torch.nan_to_num(value, 0.0, 0.0, 0.0))
            found.append(norms.float())
        return ClippedSum(sums, torch.cat(found))


class FrozenFirst(TrainableModule):
    """A Sequential whose first layers are frozen: what they make of the records is computed once for all steps.

    Their weights start from the run's own stream, as if the network were in one piece, and are part of the model.

    Guarantee: these layers are fixed before the first draw and work on each record alone, so a record's gradient is
    that of the whole network, and the engine's clip bounds it. The run stays bound to the records themselves: what the
    layers make of them may round differently elsewhere, where a run that is resumed computes it anew.
    """

    def __init__(self, build: Callable[[], nn.Module], loss: Loss, *, choices: Choices | None = None) -> None:
        self._whole = build
        self._first, _ = self._parts(0)
        self._described: tuple[Records, NDArray[np.float32]] | None = None
        self._fresh = np.zeros(0, dtype=np.bool_)
        super().__init__(lambda: self._cut(build())[1], loss, choices=choices)
        self._facts = self._facts | {"frozen": repr(self._first)}

    def weights(self) -> Weights:
        return {name: value.detach() for name, value in self._first.named_parameters()} | super().weights()

    def load(self, weights: Weights) -> None:
        before = [value.clone() for value in self._first.parameters()]
        super().load(weights)
        if not all(torch.equal(*pair) for pair in zip(before, self._first.parameters(), strict=True)):
            self._fresh[:] = False

    def _rows(self, records: Records, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        """Blocks are computed when they are first asked for, each always in one piece, so that it rounds alike."""
        x, y = in_memory(records)
        described, wanted = self._room(records, x), np.unique(indices // _BLOCK)
        with torch.no_grad():
            for block in wanted[~self._fresh[wanted]]:
                part = slice(block * _BLOCK, (block + 1) * _BLOCK)
                described[part] = self._first(torch.as_tensor(x[part])).numpy()
        self._fresh[wanted] = True
        return super()._rows(ArrayRecords(described, y), indices)

    def _room(self, records: Records, x: Any) -> NDArray[np.float32]:
        """For what the frozen layers make of these records; empty at first."""
        if self._described is None or self._described[0] is not records:
            with torch.no_grad():
                shape = self._first(torch.as_tensor(x[:1])).shape[1:]
            self._described = records, np.zeros((len(records), *shape), dtype=np.float32)
            self._fresh = np.zeros(-(-len(records) // _BLOCK), dtype=np.bool_)
        return self._described[1]

    def _start(self, seed: int) -> None:
        first, rest = self._parts(seed)
        self.load({name: value.detach() for part in (first, rest) for name, value in part.named_parameters()})

    def _parts(self, seed: int) -> tuple[nn.Sequential, nn.Sequential]:
        return self._cut(built(self._whole, seed))

    @staticmethod
    def _cut(model: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
        """Layers keep their names, so the two parts' weights are those of the whole."""
        if not isinstance(model, nn.Sequential):
            raise ValueError("only a Sequential can be cut after its frozen layers")
        place = frozen_first(model)
        layers = [*model.named_children()]
        return nn.Sequential(OrderedDict(layers[:place])), nn.Sequential(OrderedDict(layers[place:]))


_FIXED = (nn.Flatten, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Identity)
_FREEZABLE = (nn.Linear, nn.Conv2d)


def frozen_first(model: nn.Module) -> int:
    """How many layers, from the first, are fixed functions of one example; none if no weights are among them."""
    fixed, frozen = 0, False
    for layer in model if isinstance(model, nn.Sequential) else ():
        still = isinstance(layer, _FREEZABLE) and not any(value.requires_grad for value in layer.parameters())
        if not still and not isinstance(layer, _FIXED):
            break
        fixed, frozen = fixed + 1, frozen or still
    return fixed if frozen else 0


def trainable_network(build: Callable[[], nn.Module], loss: Loss, choices: Choices | None = None) -> TrainableModule:
    """The network, with its first layers computed once if they are frozen."""
    return (FrozenFirst if frozen_first(build()) else TrainableModule)(build, loss, choices=choices)


def built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What `build()` makes under this seed; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def seed_of(streams: Streams) -> int:
    """The seed under which a run builds its model."""
    return int(streams.generator(Stream.INITIALISATION).integers(2**63))


def tensors(model: nn.Module) -> Weights:
    """Parameters, frozen ones and buffers: frozen random layers are part of the model, too."""
    return {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def require_memory(model: nn.Module, what: str) -> None:
    """Refuse a training whose weights memory has no room for, before it is charged."""
    size = sum(value.numel() for value in model.parameters() if value.requires_grad)
    memory.require(4.0 * _COPIES * size, f"to train {what} ({size:,} weights)", "choose a smaller model")


@torch.no_grad()
def load_into(own: Weights, weights: Weights) -> None:
    """Copy weights into a model's own tensors."""
    if {name: value.shape for name, value in own.items()} != {n: value.shape for n, value in weights.items()}:
        raise ValueError("these weights are of another model: names or shapes differ")
    for name, value in own.items():
        value.copy_(weights[name])


@torch.no_grad()
def load_linear(model: nn.Linear, weights: Tensor) -> None:
    """Copy what a regression has released, its bias last in each row."""
    rows = weights.reshape(-1, weights.shape[-1])
    if rows.shape != (model.out_features, model.in_features + 1):
        raise ValueError("these weights are of another model: shapes differ")
    model.weight.copy_(rows[:, :-1])
    model.bias.copy_(rows[:, -1])


def words(thing: Any) -> str:
    """What a model or a function is called, the same in another process."""
    if isinstance(thing, nn.Module):
        return re.sub(r"0x[0-9a-f]+", "", repr(thing))
    name = getattr(thing, "__qualname__", None)
    return f"{thing.__module__}.{name}" if name else re.sub(r"0x[0-9a-f]+", "", repr(thing))
