"""Training a model whose examples mix, such as SI's batch norm (Algorithm 2): without privacy, and charged as such."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sordino.gradients import Loss, batches
from sordino.training.dpsgd import ClippedSum
from sordino.training.module import ModuleTrainee

_GRADIENTS_AT_ONCE = 2**24


class MixingTrainee(ModuleTrainee):
    """Per-example gradients through statistics that the whole batch shares, each clipped.

    Guarantee: none. Another example changes everybody's clipped gradient: with m examples in the batch the sum moves
    by up to (2m − 1)·l2_clip. Loops refuse it but under a plan whose event says so (ε=∞).
    """

    examples_mix = True

    def __init__(self, build: Callable[[], nn.Module], loss: Loss, x: Any, y: Any) -> None:
        super().__init__(build, loss, x, y)
        for name, layer in self.model.named_modules():
            if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                raise ValueError(
                    f"layer {name} keeps running statistics of private data: set track_running_stats=False"
                )

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"examples_mix": True}

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Nothing to choose: the batch passes as a whole."""
        return {}

    def clipped_sum(self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖), g the gradient of the example's loss in this batch."""
        parameters = self.parameters
        sums = {name: torch.zeros_like(value, requires_grad=False) for name, value in parameters.items()}
        if not len(indices):
            return ClippedSum(sums, torch.zeros(0))
        x, y = self._rows(indices)
        with self._random_state(int(augmentation.integers(2**63))), torch.enable_grad():
            losses = batches.losses_of(self.model, self._loss, x, y, len(indices), 1)
        found = []
        rows = max(1, _GRADIENTS_AT_ONCE // sum(value.numel() for value in parameters.values()))
        for chosen in torch.eye(len(indices), device=losses.device).split(rows):
            gradients = torch.autograd.grad(
                *(losses, list(parameters.values()), chosen),
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
