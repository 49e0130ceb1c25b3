"""Refusing models in which one example's input changes another example's loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from sordino.gradients import batches
from sordino.gradients.batches import Setup
from sordino.gradients.specimens import Untouched, specimens


class ExamplesMixError(ValueError):
    """A model in which one example's input changes another example's loss: no clip bounds what an example does."""


class NothingToldError(ValueError):
    """A batch on which the model gives no finite loss: nothing can be learnt from it."""


_TOLERANCE = 1e-5
_EXAMPLES = 3

Change = Callable[[Tensor, Tensor], Tensor]


def refuse_mixing(setup: Setup, x: Any, y: Any) -> None:
    """Raise if the model mixes examples, or keeps statistics of them."""
    for name, layer in setup.model.named_modules():
        _refuse_layer(name or "model", layer)
    x, y = specimens(x, y, setup.views, _EXAMPLES)
    with Untouched(setup.model), torch.no_grad():
        kept = {name: buffer.clone() for name, buffer in setup.model.named_buffers()}
        base = _losses(setup, x, y)
        for name, buffer in setup.model.named_buffers():
            if not torch.equal(torch.nan_to_num(buffer), torch.nan_to_num(kept[name])):
                raise ExamplesMixError(
                    f"buffer {name} changes as examples pass: it would keep statistics of private data"
                )
        if not bool(torch.isfinite(base).all()):
            raise NothingToldError("the model gives no finite loss on these examples")
        for change in (_opposite, _far, _another, _zero):
            for place in range(_EXAMPLES):
                _refuse_change(setup, x, y, base, change, place)


def _refuse_layer(name: str, layer: nn.Module) -> None:
    if isinstance(layer, _BatchNorm) and layer.training:
        raise ExamplesMixError(
            f"layer {name} ({type(layer).__name__} in training mode) mixes examples: use "
            "sordino.gradients.repair(model), which puts group norms in its place, or put it in evaluation mode"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.scale_grad_by_freq or layer.max_norm is not None):
        raise ExamplesMixError(
            f"layer {name} ({type(layer).__name__}) mixes examples: set max_norm=None and scale_grad_by_freq=False"
        )
    if isinstance(layer, torch.jit.ScriptModule):
        raise TypeError(f"layer {name} is scripted, which hides its parameters: pass the module it was made from")


def _refuse_change(setup: Setup, x: Any, y: Any, base: Tensor, change: Change, place: int) -> None:
    """Raise if another example in this place changes the losses of the rest."""
    changed_x, changed_y = _changed(x, change, place, setup.views), _changed(y, _another, place, 1)
    try:
        changed = _losses(setup, changed_x, changed_y)
    except (RuntimeError, ValueError, IndexError):
        return  # an input that the model does not take tells nothing
    others = [other for other in range(_EXAMPLES) if other != place]
    if not _same(base[others], changed[others]):
        culprit = _first_difference(setup, (x, y), (changed_x, changed_y), others)
        raise ExamplesMixError(
            f"{culprit} mixes examples: another example's input changes an example's loss, so no clip bounds what one "
            "example does; compute each example's output from that example alone"
        )


def _losses(setup: Setup, x: Any, y: Any) -> Tensor:
    torch.manual_seed(0)
    return batches.losses_of(setup.model, setup.loss, x, y, _EXAMPLES, setup.views)


def _same(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left.double(), right.double(), rtol=_TOLERANCE, atol=_TOLERANCE * 1e-3, equal_nan=False)


def _changed(batch: Any, change: Change, place: int, views: int) -> Any:
    """The batch with the example in this place changed."""

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        parts = list(leaf.split(views))
        parts[place] = change(parts[place], parts[place - 1])
        return torch.cat(parts)

    return pytree.tree_map(changed, batch)


def _opposite(own: Tensor, other: Tensor) -> Tensor:
    return 0.3 - 1.7 * own if own.dtype.is_floating_point else other


def _far(own: Tensor, other: Tensor) -> Tensor:
    return 1e3 * own + 1e3 if own.dtype.is_floating_point else other


def _another(own: Tensor, other: Tensor) -> Tensor:
    return other


def _zero(own: Tensor, other: Tensor) -> Tensor:
    return torch.zeros_like(own)


def _first_difference(setup: Setup, before: tuple[Any, Any], after: tuple[Any, Any], others: list[int]) -> str:
    """The first layer whose output for the other examples depends on the changed one."""
    runs = [_outputs(setup, *batch) for batch in (before, after)]
    for (name, left), (_, right) in zip(*runs, strict=False):
        if left.shape != right.shape or not _same(left[others], right[others]):
            return name
    return f"the {type(setup.model).__name__} model or its loss"


def _outputs(setup: Setup, x: Any, y: Any) -> list[tuple[str, Tensor]]:
    """What each layer gives, in the order of their calls, by example."""
    found: list[tuple[str, Tensor]] = []

    def note(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim and len(output) == _EXAMPLES * setup.views:
                rows = output.detach().unflatten(0, (_EXAMPLES, setup.views))
                found.append((f"layer {name} ({type(layer).__name__})", rows))

        return hook

    handles = [layer.register_forward_hook(note(name)) for name, layer in setup.model.named_modules() if name]
    try:
        _losses(setup, x, y)
    finally:
        for handle in handles:
            handle.remove()
    return found
