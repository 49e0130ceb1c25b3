"""Looks at a model before its first batch: do its examples mix, and do the layer rules give its gradients?"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import batches, fallback
from sordino.gradients.batches import Loss, Setup
from sordino.gradients.pieces import Measured
from sordino.gradients.strategies import Strategy


class ExamplesMixError(ValueError):
    """A model in which one example's input changes another example's loss: no clip bounds what an example does."""


_TOLERANCE = 1e-5
_NEGLIGIBLE = 1e-3


def refuse_mixing(model: nn.Module, loss: Loss, x: Any, y: Any, views: int) -> None:
    """Raise if the model mixes examples, or keeps statistics of them."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise ExamplesMixError(
                f"layer {name or 'model'} ({type(layer).__name__} in training mode) mixes examples: use "
                "sordino.gradients.repair(model), which puts group norms in its place, or put it in evaluation mode"
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
            layer.scale_grad_by_freq or layer.max_norm is not None
        ):
            raise ExamplesMixError(
                f"layer {name or 'model'} ({type(layer).__name__}) mixes examples: set max_norm=None and "
                "scale_grad_by_freq=False"
            )
    x, y = three(x, y, views)
    with untouched(model), torch.no_grad():
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        base = _losses(model, loss, x, y, views)
        for name, buffer in model.named_buffers():
            if not torch.equal(torch.nan_to_num(buffer), torch.nan_to_num(kept[name])):
                raise ExamplesMixError(
                    f"buffer {name} changes as examples pass: it would keep statistics of private data"
                )
        for change in (_opposite, _another, _zero):
            changed = _losses(model, loss, _with_second(x, change, views), _with_second(y, _another, 1), views)
            if not _same(base[[0, 2]], changed[[0, 2]]):
                culprit = _first_difference(model, loss, x, y, change, views)
                raise ExamplesMixError(
                    f"{culprit} mixes examples: another example's input changes an example's loss, so no clip bounds "
                    "what one example does; compute each example's output from that example alone"
                )


def agrees(strategy: Strategy, setup: Setup, x: Any, y: Any, *, tolerance: float) -> bool:
    """Whether the strategy gives the losses, norms and sums that plain autograd gives, example by example.

    Models with randomness (dropout) are compared in evaluation mode.
    """
    x, y = three(x, y, setup.views)
    modes = {layer: layer.training for layer in setup.model.modules()}
    with untouched(setup.model):
        if _is_random(setup, x, y):
            setup.model.eval()
        try:
            expected_losses, expected = fallback.by_loop(setup.model, setup.loss, setup.parameters, x, y, setup.views)
            losses, parts = strategy(x, y)
        finally:
            for layer, training in modes.items():
                layer.training = training
    if not bool(torch.isfinite(expected_losses).all()):
        return True  # nothing can be told from such examples; whatever is not finite will add nothing
    close = torch.allclose(losses.double(), expected_losses.double(), rtol=tolerance, atol=tolerance)
    sizes = [torch.linalg.vector_norm(value.flatten(1).double(), dim=1) for value in expected.values()]
    # A parameter whose gradient is nothing but rounding (a bias before a norm) is measured against the others.
    least = _NEGLIGIBLE * float(torch.stack(sizes).max())
    return close and all(_same_part(parts.get(name), value, tolerance, least) for name, value in expected.items())


def _same_part(part: Measured | None, expected: Tensor, tolerance: float, least: float) -> bool:
    rows = expected.flatten(1).double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    allowed = tolerance * max(float(norms.max()), least)
    if part is None:
        return float(norms.max()) <= allowed
    found = torch.where(part.squares.isnan(), norms, part.squares.sqrt())  # NaN: to be formed alone anyway
    factors = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64, device=rows.device)
    difference = torch.linalg.vector_norm(part.weighted_sum(factors).double().flatten() - factors @ rows)
    return float((found - norms).abs().max()) <= allowed and float(difference) <= allowed


def in_double_precision(setup: Setup, x: Any, y: Any) -> tuple[Setup, Any, Any]:
    """The same in double precision, on a copy of the model."""
    model = copy.deepcopy(setup.model).double()
    parameters: dict[str, Tensor] = {
        name: value for name, value in model.named_parameters() if name in setup.parameters
    }

    def double(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point else leaf

    x, y = three(x, y, setup.views)
    return Setup(model, setup.loss, parameters, setup.views), pytree.tree_map(double, x), pytree.tree_map(double, y)


def _is_random(setup: Setup, x: Any, y: Any) -> bool:
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(batches.losses_of(setup.model, setup.loss, x, y, 3, setup.views))
    return not torch.equal(*found)


def three(x: Any, y: Any, views: int) -> tuple[Any, Any]:
    """Three examples of a batch, the first again if there are fewer."""
    return some(x, y, views, 3)


def some(x: Any, y: Any, views: int, count: int) -> tuple[Any, Any]:
    places = torch.arange(count) % batches.size(y)
    rows = (places[:, None] * views + torch.arange(views)).flatten()
    return batches.select(x, rows), batches.select(y, places)


class untouched:  # noqa: N801
    """Whatever is done inside leaves the model's buffers and the random state as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._fork = torch.random.fork_rng(devices=_devices(model))

    def __enter__(self) -> None:
        self._fork.__enter__()
        self._buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}

    def __exit__(self, *error: Any) -> None:
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._buffers[name])
        self._fork.__exit__(*error)


def _devices(model: nn.Module) -> list[int]:
    found = {parameter.device for parameter in model.parameters()}
    return [device.index for device in found if device.type == "cuda" and device.index is not None]


def _losses(model: nn.Module, loss: Loss, x: Any, y: Any, views: int) -> Tensor:
    torch.manual_seed(0)
    return batches.losses_of(model, loss, x, y, 3, views)


def _same(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left.double(), right.double(), rtol=_TOLERANCE, atol=_TOLERANCE * 1e-3, equal_nan=True)


def _with_second(batch: Any, change: Callable[[Tensor, Tensor], Tensor], views: int) -> Any:
    """The batch with its second example changed."""

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        first, second, third = leaf.split(views)
        return torch.cat([first, change(second, first), third])

    return pytree.tree_map(changed, batch)


def _opposite(own: Tensor, other: Tensor) -> Tensor:
    return 0.3 - 1.7 * own if own.dtype.is_floating_point else other


def _another(own: Tensor, other: Tensor) -> Tensor:
    return other


def _zero(own: Tensor, other: Tensor) -> Tensor:
    return torch.zeros_like(own)


def _first_difference(
    model: nn.Module, loss: Loss, x: Any, y: Any, change: Callable[[Tensor, Tensor], Tensor], views: int
) -> str:
    """The first layer whose output for the other examples depends on the changed one."""
    runs: list[list[tuple[str, Tensor]]] = []
    for inputs, targets in ((x, y), (_with_second(x, change, views), _with_second(y, _another, 1))):
        outputs: list[tuple[str, Tensor]] = []

        def note(name: str, into: list[tuple[str, Tensor]]) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                if isinstance(output, Tensor) and output.ndim and len(output) == 3 * views:
                    into.append(
                        (f"layer {name} ({type(module).__name__})", output.detach().unflatten(0, (3, views))[[0, 2]])
                    )

            return hook

        handles = [layer.register_forward_hook(note(name, outputs)) for name, layer in model.named_modules() if name]
        try:
            _losses(model, loss, inputs, targets, views)
        finally:
            for handle in handles:
                handle.remove()
        runs.append(outputs)
    for (name, before), (_, after) in zip(*runs, strict=False):
        if before.shape != after.shape or not _same(before, after):
            return name
    return f"the {type(model).__name__} model or its loss"
