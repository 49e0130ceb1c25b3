"""Whole per-example gradients, for models that the layer rules do not cover and as the reference to check rules by."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sordino.gradients import batches
from sordino.gradients.batches import Setup
from sordino.gradients.dry_runs import keep_buffers
from sordino.gradients.per_example_gradients import MeasuredGradient, WholeGradient

_TRIED, _NAMED = 8, 3

PerExample = tuple[Tensor, dict[str, Tensor]]
"""The losses, and for each parameter name a gradient for each example."""


class WholeGradients:
    """A strategy: every example's gradient is formed in full, by `by_vmap` or `by_loop`."""

    def __init__(self, method: Callable[[Setup, Any, Any], PerExample], setup: Setup) -> None:
        self._method, self._setup = method, setup

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, dict[str, MeasuredGradient]]:
        losses, gradients = self._method(self._setup, x, y)
        return losses, {name: WholeGradient(value).measure("whole") for name, value in gradients.items()}


def by_vmap(setup: Setup, x: Any, y: Any) -> PerExample:
    """One vectorised pass (torch.func); raises where an operation of the model has no vectorised form."""

    def mean_loss(trained: dict[str, Tensor], rows: Any, target: Any) -> Tensor:
        def run(*inputs: Any, **named: Any) -> Any:
            return functional_call(setup.model, trained, inputs, named)

        target = batches.map_tensors(lambda leaf: leaf[None], target)
        return batches.losses_of(run, setup.loss, rows, target, 1, setup.views)[0]  # type: ignore[arg-type]

    rows = batches.map_tensors(lambda leaf: leaf.unflatten(0, (-1, setup.views)), x)
    dimensions = pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, (rows, y))
    trained = {name: value.detach() for name, value in setup.parameters.items()}
    per_example = vmap(grad_and_value(mean_loss), in_dims=(None, *dimensions), randomness="different")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # the caller has warned already
        gradients, losses = per_example(trained, rows, y)
    return losses, gradients


def by_loop(setup: Setup, x: Any, y: Any) -> PerExample:
    """One example after another by plain autograd: slow, and right for any model that runs on a batch of one."""
    losses, gradients = [], []
    for index in range(batches.size(y)):
        example = batches.between(x, y, index, index + 1, setup.views)
        try:
            value, found = _one(setup, example, _by_grad)
        except RuntimeError as error:  # reentrant checkpoints work with .backward() only
            if "use_reentrant" not in str(error):
                raise
            value, found = _one(setup, example, _by_backward)
        losses.append(value.detach())
        gradients.append(found)
    return torch.stack(losses), {name: torch.stack([one[name] for one in gradients]) for name in setup.parameters}


def _one(
    setup: Setup,
    example: tuple[Any, Any],
    gradients: Callable[[Tensor, dict[str, Tensor]], dict[str, Tensor]],
) -> tuple[Tensor, dict[str, Tensor]]:
    with keep_buffers(setup.model), torch.enable_grad(), _SafeGroupNorm():
        value = batches.losses_of(setup.model, setup.loss, *example, 1, setup.views)[0]
        return value, gradients(value, setup.parameters)


def _by_grad(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {name: value.to_dense() for name, value in zip(parameters, found, strict=True)}


def _by_backward(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    found = _reached(value, parameters)
    return {name: found[name] if name in found else torch.zeros_like(parameters[name]) for name in parameters}


def _reached(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of those parameters that a backward pass comes to."""
    before = {name: parameter.grad for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.grad = None
        value.backward()
        found = {name: parameter.grad for name, parameter in parameters.items()}
    finally:
        for name, parameter in parameters.items():
            parameter.grad = before[name]
    return {name: gradient.to_dense() for name, gradient in found.items() if gradient is not None}


class _SafeGroupNorm(TorchFunctionMode):
    """Group norms with their positions in one row.

    On a CPU, torch 2.13 crashes in the backward pass of one whose input has channels last, or could be taken to, and
    needs no gradient.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.group_norm, nn.functional.group_norm) and args and args[0].ndim > 3:
            return func(args[0].flatten(2), *args[1:], **(kwargs or {})).view(args[0].shape)
        return func(*args, **(kwargs or {}))


def check_parameters(setup: Setup, x: Any, y: Any) -> None:
    """Raise if the loss depends on a trainable tensor that is not a parameter of the model: nothing would train it.

    Warn of the opposite, parameters that the loss does not depend on.
    """
    example, leaves = batches.between(x, y, 0, 1, setup.views), []
    for _ in range(2):  # a tensor in both passes was not made by a pass
        with keep_buffers(setup.model), torch.enable_grad():
            leaves.append(_leaves(batches.losses_of(setup.model, setup.loss, *example, 1, setup.views)))
    known = {id(value) for value in setup.parameters.values()}
    for key, leaf in leaves[0].items():
        if key in leaves[1] and key not in known:
            raise ValueError(
                f"the loss depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient but is no "
                "parameter of the model, so nothing would train it: make it a parameter of the model, or call "
                "requires_grad_(False) on it"
            )
    if not known <= leaves[0].keys():
        _warn_of_unused(setup, x, y)


def _warn_of_unused(setup: Setup, x: Any, y: Any) -> None:
    """Warn of parameters that none of a few examples' losses depends on, and raise if that is so of all.

    Noise is added to them as to all others, so that they would take a random walk: an adapter that is switched off,
    layers that the model does not use, a forward under torch.no_grad().
    """
    unused = dict(setup.parameters)
    for index in range(min(batches.size(y), _TRIED)):
        example = batches.between(x, y, index, index + 1, setup.views)
        with keep_buffers(setup.model), torch.enable_grad(), _SafeGroupNorm():
            value = batches.losses_of(setup.model, setup.loss, *example, 1, setup.views)[0]
            reached = _reached(value, setup.parameters) if value.requires_grad else {}
            unused = {name: parameter for name, parameter in unused.items() if name not in reached}
    if len(unused) == len(setup.parameters):
        raise ValueError(
            "the loss depends on none of the model's trainable parameters: noise alone would move them; train those "
            "that the model uses (an adapter may be switched off or merged), and let the gradient reach them"
        )
    if unused:
        names = ", ".join(unused if len(unused) <= _NAMED else [*list(unused)[:_NAMED], "…"])
        warnings.warn(
            f"the loss does not depend on {len(unused)} of the model's trainable parameters ({names}): noise alone "
            "would move them; freeze them by requires_grad_(False), or, if they should learn, let the gradient reach "
            "them (an adapter may be switched off)",
            stacklevel=5,
        )


def _leaves(value: Tensor) -> dict[int, Tensor]:
    """The tensors that autograd would accumulate a gradient in."""
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
