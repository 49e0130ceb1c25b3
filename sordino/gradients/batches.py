"""Batches: tensors, or tuples and dicts of them. The first dimension of every tensor is that of the examples."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

Loss = Callable[[Any, Any], Tensor]
"""loss(output, target): one loss for each example."""


@dataclass(frozen=True)
class Setup:
    """What to differentiate: a model, its loss and trainable parameters; each example has `views` rows of input."""

    model: nn.Module
    loss: Loss
    parameters: dict[str, Tensor]
    views: int


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that require a gradient, by name."""
    found: dict[str, Tensor] = {name: value for name, value in model.named_parameters() if value.requires_grad}
    for name, value in found.items():
        if is_lazy(value):
            raise ValueError(f"parameter {name} has no shape yet: run the model once on an example that is not private")
    return found


def plain(batch: Any) -> Any:
    """The batch with every mapping (such as transformers.BatchEncoding) as a dict, in tensors that autograd can save.

    A tensor made in inference mode, which autograd cannot save, is copied.
    """

    def normal(leaf: Any) -> Any:
        if isinstance(leaf, Mapping):
            return plain(dict(leaf))
        return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf

    with torch.inference_mode(False):
        return pytree.tree_map(normal, batch, is_leaf=lambda part: isinstance(part, Mapping) and type(part) is not dict)


def size(batch: Any) -> int:
    """How many examples a batch has."""
    lengths = {len(leaf) if leaf.ndim else -1 for leaf in _tensors(batch)}
    if len(lengths) != 1 or -1 in lengths:
        raise ValueError("all tensors of a batch must have the same first dimension, that of the examples")
    return lengths.pop()


def views(batch: Any) -> set[int]:
    """The sizes of the tensors' second dimensions; 0 for a tensor that has none."""
    return {leaf.shape[1] if leaf.ndim > 1 else 0 for leaf in _tensors(batch)}


def map_tensors(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """The batch with the function applied to each of its tensors; anything else stays as it is."""
    return pytree.tree_map_only(Tensor, function, batch)


def select(batch: Any, rows: Any) -> Any:
    """The same batch with these rows only (a slice or a tensor of indices)."""
    return map_tensors(lambda leaf: leaf[rows], batch)


def take(x: Any, y: Any, examples: Tensor, views: int) -> tuple[Any, Any]:
    """The examples at these indices, in this order: x has `views` rows for each, y one."""
    rows = (examples[:, None] * views + torch.arange(views, device=examples.device)).flatten()
    return select(x, rows), select(y, examples)


def between(x: Any, y: Any, start: int, stop: int, views: int) -> tuple[Any, Any]:
    """The examples from `start` up to `stop`: x has `views` rows for each, y one."""
    return select(x, slice(start * views, stop * views)), select(y, slice(start, stop))


def flatten_views(batch: Any) -> Any:
    """(examples, views, …) as (examples·views, …)."""
    return map_tensors(lambda leaf: leaf.flatten(0, 1), batch)


def repeat(batch: Any, times: int) -> Any:
    """Each example several times in a row."""
    return batch if times == 1 else map_tensors(lambda leaf: leaf.repeat_interleave(times, 0), batch)


def run(model: Callable[..., Any], x: Any) -> Any:
    """Call the model: a tuple holds its arguments, a dict its keyword arguments, anything else is its one argument."""
    if isinstance(x, Mapping):
        try:
            return model(**x)
        except TypeError:
            _check_keywords(model, x)
            raise
    return model(*x) if isinstance(x, tuple) else model(x)


def _check_keywords(model: Callable[..., Any], x: Mapping[str, Any]) -> None:
    """Refuse inputs whose names are not parameters of the model's forward."""
    try:
        inspect.signature(getattr(model, "forward", model)).bind(**x)
    except TypeError as problem:
        raise TypeError(
            "a dict of inputs is passed to the model's forward as keyword arguments, which it does not take "
            f"({problem}): name its parameters {', '.join(map(str, x))}, or give the inputs as a tuple"
        ) from None
    except ValueError:  # no signature to check against
        return


def losses_of(model: nn.Module, loss: Loss, x: Any, y: Any, examples: int, views: int) -> Tensor:
    """The loss of each example, averaged over its views: x has examples·views rows, y one target for each example."""
    losses = loss(run(model, x), repeat(y, views))
    if not isinstance(losses, Tensor) or losses.shape != (examples * views,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"the loss must return one number for each of the {examples * views} rows, not {shape}: use "
            "reduction='none' and average over all but the first dimension"
        )
    return losses if views == 1 else losses.view(examples, views).mean(1)


def channels_last(batch: Any) -> Any:
    """Image batches in the layout that convolutions on a CPU prefer."""
    # `contiguous` would leave images of one channel with strides that convolutions take for the other layout.
    return map_tensors(lambda leaf: leaf.to(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf, batch)


def _tensors(batch: Any) -> list[Tensor]:
    found = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    if not found:
        raise ValueError("a batch must hold at least one tensor")
    return found
