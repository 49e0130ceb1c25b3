"""Per-example gradients, whole: for models that the layer rules do not cover, and as their yardstick."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sordino.gradients import batches
from sordino.gradients.batches import Loss
from sordino.gradients.specimens import Held

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
        try:
            value, found = _one(model, loss, parameters, rows, target, views, _by_grad)
        except RuntimeError as error:  # reentrant checkpoints work with .backward() only
            if "use_reentrant" not in str(error):
                raise
            value, found = _one(model, loss, parameters, rows, target, views, _by_backward)
        losses.append(value.detach())
        gradients.append(found)
    return torch.stack(losses), {name: torch.stack([one[name] for one in gradients]) for name in parameters}


def _one(
    model: nn.Module,
    loss: Loss,
    parameters: dict[str, Tensor],
    row: Any,
    target: Any,
    views: int,
    gradients: Callable[[Tensor, dict[str, Tensor]], dict[str, Tensor]],
) -> tuple[Tensor, dict[str, Tensor]]:
    with Held(model), torch.enable_grad(), _SafeGroupNorm():
        value = batches.losses_of(model, loss, row, target, 1, views)[0]
        return value, gradients(value, parameters)


def _by_grad(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {name: value.to_dense() for name, value in zip(parameters, found, strict=True)}


def _by_backward(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    before = {name: parameter.grad for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.grad = None
        value.backward()
        found = {name: parameter.grad for name, parameter in parameters.items()}
    finally:
        for name, parameter in parameters.items():
            parameter.grad = before[name]
    return {
        name: torch.zeros_like(parameters[name]) if gradient is None else gradient.to_dense()
        for name, gradient in found.items()
    }


class _SafeGroupNorm(TorchFunctionMode):
    """Group norms of positions in one row: on a processor, torch 2.13 crashes on the way back from one whose input has
    channels last, or could be taken to have, and needs no gradient."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.group_norm, nn.functional.group_norm) and args and args[0].ndim > 3:
            return func(args[0].flatten(2), *args[1:], **(kwargs or {})).view(args[0].shape)
        return func(*args, **(kwargs or {}))


def refuse_strays(model: nn.Module, loss: Loss, parameters: dict[str, Tensor], x: Any, y: Any, views: int) -> None:
    """Raise if the loss depends on a trainable tensor that is no parameter of the model: nothing would train it."""
    row, target = batches.select(x, slice(0, views)), batches.select(y, slice(0, 1))
    leaves = []
    for _ in range(2):  # what is in both passes is no value that a pass has made
        with Held(model), torch.enable_grad():
            leaves.append(_leaves(batches.losses_of(model, loss, row, target, 1, views)))
    known = {id(value) for value in parameters.values()}
    for key, leaf in leaves[0].items():
        if key in leaves[1] and key not in known:
            raise ValueError(
                f"the loss depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient but is no "
                "parameter of the model, so nothing would train it: make it a parameter of the model, or call "
                "requires_grad_(False) on it"
            )


def _leaves(value: Tensor) -> dict[int, Tensor]:
    """The tensors that autograd would put a gradient on."""
    found: dict[int, Tensor] = {}
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        waiting += [following for following, _ in node.next_functions]
    return found
