"""Per-example gradients, whole: for models that the layer rules do not cover, and as their yardstick."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils import _pytree as pytree

from sordino.gradients import batches
from sordino.gradients.batches import Loss

PerExample = tuple[Tensor, dict[str, Tensor]]
"""The losses, and a gradient for each example by parameter name."""


def by_vmap(model: nn.Module, loss: Loss, parameters: dict[str, Tensor], x: Any, y: Any, views: int) -> PerExample:
    """One vectorised pass (torch.func); raises where an operation of the model has no vectorised form."""

    def mean_loss(trained: dict[str, Tensor], rows: Any, target: Any) -> Tensor:
        def run(*inputs: Any, **named: Any) -> Any:
            return functional_call(model, trained, inputs, named)

        target = pytree.tree_map(lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf, target)
        return batches.losses_of(run, loss, rows, target, 1, views)[0]  # type: ignore[arg-type]

    def by_example(leaf: Any) -> Any:
        return leaf.unflatten(0, (-1, views)) if isinstance(leaf, Tensor) else leaf

    rows = pytree.tree_map(by_example, x)
    places = pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, (rows, y))
    trained = {name: value.detach() for name, value in parameters.items()}
    per_example = vmap(grad_and_value(mean_loss), in_dims=(None, *places), randomness="different")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # the caller has warned already
        gradients, losses = per_example(trained, rows, y)
    return losses, gradients


def by_loop(model: nn.Module, loss: Loss, parameters: dict[str, Tensor], x: Any, y: Any, views: int) -> PerExample:
    """One example after another by plain autograd: slow, and right for whatever runs on a batch of one."""
    losses, gradients = [], []
    for place in range(batches.size(y)):
        rows = batches.select(x, slice(place * views, (place + 1) * views))
        target = batches.select(y, slice(place, place + 1))
        with torch.enable_grad():
            value = batches.losses_of(model, loss, rows, target, 1, views)[0]
        losses.append(value.detach())
        gradients.append(_gradients(value, parameters))
    return torch.stack(losses), {name: torch.stack([one[name] for one in gradients]) for name in parameters}


def _gradients(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {name: value.to_dense() for name, value in zip(parameters, found, strict=True)}
