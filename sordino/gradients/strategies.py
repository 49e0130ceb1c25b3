"""Two ways to the gradients of a batch's examples: by the rules of its layers, or formed whole."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sordino.gradients import batches
from sordino.gradients.batches import Loss
from sordino.gradients.buffers import Buffers
from sordino.gradients.fallback import PerExample
from sordino.gradients.pieces import Measured, Whole
from sordino.gradients.rules import rules_for
from sordino.gradients.tape import Layouts, Routes, Tape, installed
from sordino.gradients.watching import Watched

Parameters = dict[str, Tensor]


class Strategy(Protocol):
    """Losses of the examples, and for each parameter that the loss depends on its measured part of their gradients."""

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, dict[str, Measured]]: ...


class Ruled:
    """One forward and one backward pass with taps on the layers."""

    def __init__(self, model: nn.Module, loss: Loss, parameters: Parameters, views: int) -> None:
        self._model, self._loss, self._parameters, self._views = model, loss, parameters, views
        self._rules = rules_for(model)
        self._modules = dict(model.named_modules(remove_duplicate=False))
        # A parameter that has several names is watched at all its places.
        first = {id(value): name for name, value in parameters.items()}
        every = model.named_parameters(remove_duplicate=False)
        self._places = {name: first[id(value)] for name, value in every if id(value) in first}
        self.layouts = Layouts()
        self.routes = Routes()
        self.buffers = Buffers()
        self.channels_last = False

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, dict[str, Measured]]:
        examples = batches.size(y)
        device = next(iter(self._parameters.values())).device
        tape = Tape(examples, self.layouts, self.routes, self.buffers, device)
        arrange = batches.channels_last if self.channels_last else lambda batch: batch
        known = {name: Watched.of(name, arrange(value), tape) for name, value in self._parameters.items()}
        watched = {place: known[name] for place, name in self._places.items()}
        x = arrange(x)
        with installed(self._modules, self._rules, watched, tape), torch.enable_grad():
            losses = batches.losses_of(self._model, self._loss, x, y, examples, self._views)
            tape.backward(losses)  # still tapped: a model that checkpoints runs its layers again on the way back
        return losses.detach(), tape.measured


class Formed:
    """Every example's gradient formed, a few examples at a time."""

    def __init__(
        self,
        how: Callable[[nn.Module, Loss, Parameters, Any, Any, int], PerExample],
        model: nn.Module,
        loss: Loss,
        parameters: Parameters,
        views: int,
    ) -> None:
        self._how: Callable[[Any, Any], PerExample] = lambda x, y: how(model, loss, parameters, x, y, views)

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, dict[str, Measured]]:
        losses, gradients = self._how(x, y)
        return losses, {name: Whole(value).measure("whole") for name, value in gradients.items()}
