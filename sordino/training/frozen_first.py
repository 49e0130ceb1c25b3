"""Networks whose first layers are frozen: what those make of the records is computed once, the rest is trained."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.gradients import Choices, Loss
from sordino.training.module import ModuleTrainee
from sordino.training.optimisers import Weights

_BLOCK = 4096
_FIXED = (nn.Flatten, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Identity)
_FREEZABLE = (nn.Linear, nn.Conv2d)


def module_trainee(
    build: Callable[[], nn.Module], loss: Loss, x: NDArray[np.float32], y: Any, choices: Choices | None = None
) -> ModuleTrainee:
    """The trainee of this network: on what its first layers make of the records if they are frozen, else as any."""
    return (FrozenFirst if frozen_first(build()) else ModuleTrainee)(build, loss, x, y, choices=choices)


def frozen_first(model: nn.Module) -> int:
    """How many layers, from the first, are fixed functions of one example; none if no weights are among them."""
    fixed, frozen = 0, False
    for layer in model if isinstance(model, nn.Sequential) else ():
        still = isinstance(layer, _FREEZABLE) and not any(value.requires_grad for value in layer.parameters())
        if not still and not isinstance(layer, _FIXED):
            break
        fixed, frozen = fixed + 1, frozen or still
    return fixed if frozen else 0


class FrozenFirst(ModuleTrainee):
    """`ModuleTrainee` of a Sequential whose frozen first layers are computed once for all steps.

    Their weights start from the run's own stream, as if the network were in one piece, and are part of the model.

    Guarantee: these layers are fixed before the first draw and work on each record alone, so a record's gradient is
    that of the whole network, and the engine's clip bounds it. The run stays bound to the records themselves: what the
    layers make of them may round differently elsewhere, where a run that is resumed computes it anew.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        loss: Loss,
        x: NDArray[np.float32],
        y: Any,
        *,
        choices: Choices | None = None,
    ) -> None:
        self._whole, self._records = build, x
        self._first, _ = self._parts(0)
        with torch.no_grad():
            shape = self._first(torch.from_numpy(x[:1])).shape[1:]
        self._described = np.zeros((len(x), *shape), dtype=np.float32)
        self._fresh = np.zeros(-(-len(x) // _BLOCK), dtype=np.bool_)
        super().__init__(lambda: self._cut(build())[1], loss, self._described, y, choices=choices)
        self._facts = self._facts | {"frozen": repr(self._first)}

    def weights(self) -> Weights:
        return {name: value.detach() for name, value in self._first.named_parameters()} | super().weights()

    def load(self, weights: Weights) -> None:
        before = [value.clone() for value in self._first.parameters()]
        super().load(weights)
        if not all(torch.equal(*pair) for pair in zip(before, self._first.parameters(), strict=True)):
            self._fresh[:] = False

    def _rows(self, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        """Blocks are computed when they are first asked for, each always in one piece, so that it rounds alike."""
        wanted = np.unique(indices // _BLOCK)
        with torch.no_grad():
            for block in wanted[~self._fresh[wanted]]:
                part = slice(block * _BLOCK, (block + 1) * _BLOCK)
                self._described[part] = self._first(torch.from_numpy(self._records[part])).numpy()
        self._fresh[wanted] = True
        return super()._rows(indices)

    def data(self) -> tuple[NDArray[Any], ...]:
        return self._records, *super().data()[1:]

    def _start(self, seed: int) -> None:
        first, rest = self._parts(seed)
        self.load({name: value.detach() for part in (first, rest) for name, value in part.named_parameters()})

    def _parts(self, seed: int) -> tuple[nn.Sequential, nn.Sequential]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._cut(self._whole())

    @staticmethod
    def _cut(model: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
        """Layers keep their names, so the two parts' weights are those of the whole."""
        if not isinstance(model, nn.Sequential):
            raise ValueError("only a Sequential can be cut after its frozen layers")
        place = frozen_first(model)
        layers = [*model.named_children()]
        return nn.Sequential(OrderedDict(layers[:place])), nn.Sequential(OrderedDict(layers[place:]))
