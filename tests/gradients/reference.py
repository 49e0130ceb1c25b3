"""Clipped sums as they are defined: one example after another by plain autograd, and comparisons with them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients import Automatic, Clipped, ClippedGradients, Clipping, Flat, PerLayer
from sordino.gradients.tuning import Choices

Loss = Callable[[Any, Any], Tensor]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().flatten(1).sum(1)


def select(batch: Any, rows: Any) -> Any:
    """These examples of a tensor, or of a tuple or dict of tensors."""
    if isinstance(batch, tuple):
        return tuple(select(leaf, rows) for leaf in batch)
    if isinstance(batch, dict):
        return {name: select(leaf, rows) for name, leaf in batch.items()}
    return batch[rows] if isinstance(batch, Tensor) else batch


def run(model: nn.Module, x: Any) -> Any:
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def gradients(
    model: nn.Module, loss: Loss, x: Any, y: Any, examples: int, views: int = 1, penalty: float = 0.0
) -> list[dict[str, Tensor]]:
    """Each example's gradient in double precision, by parameter name."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = []
    for place in range(examples):
        target = select(y, slice(place, place + 1))
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in trained.items()}
        for view in range(views):
            row = select(x, slice(place, place + 1))
            row = row if views == 1 else select(row, (slice(None), view))
            own = torch.autograd.grad(
                loss(run(model, row), target).sum(), list(trained.values()), allow_unused=True, materialize_grads=True
            )
            for name, value in zip(trained, own, strict=True):
                total[name] += value.to_dense().double() / views
        found.append({name: value + penalty * trained[name].detach().double() for name, value in total.items()})
    return found


def length(vectors: dict[str, Tensor]) -> float:
    return float(torch.cat([value.double().flatten() for value in vectors.values()]).norm())


def clip(one: dict[str, Tensor], l2_clip: float, clipping: Clipping) -> dict[str, Tensor]:
    if isinstance(clipping, Flat):
        factor = min(1.0, l2_clip / max(length(one), 1e-300))
        return {name: factor * value for name, value in one.items()}
    if isinstance(clipping, Automatic):
        factor = l2_clip / (length(one) + clipping.stability)
        return {name: factor * value for name, value in one.items()}
    assert isinstance(clipping, PerLayer)
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in one))
    shares = clipping.shares or dict.fromkeys(layers, 1.0)
    scale = l2_clip / sum(share**2 for share in shares.values()) ** 0.5
    clipped: dict[str, Tensor] = {}
    for layer in layers:
        part = {name: value for name, value in one.items() if name.rpartition(".")[0] == layer}
        clipped |= clip(part, scale * shares[layer], Flat())
    return {name: clipped[name] for name in one}


def difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return length({name: left[name].double() - right[name].double() for name in right})


def close(
    found: Clipped, each: list[dict[str, Tensor]], l2_clip: float, tolerance: float, clipping: Clipping | None = None
) -> None:
    """Sums and norms are those of these gradients."""
    clipped = [clip(one, l2_clip, clipping or Flat()) for one in each]
    assert list(found.sums) == list(each[0])
    for name in each[0]:
        expected = torch.stack([one[name] for one in clipped])
        scale = max(
            float(expected.sum(0).norm()), float(expected.reshape(len(each), -1).norm(dim=1).max()), 0.1 * l2_clip
        )
        assert found.sums[name].shape == expected.shape[1:], name
        assert float((found.sums[name].double() - expected.sum(0)).norm()) <= tolerance * scale, name
    norms = torch.tensor([length(one) for one in each], dtype=torch.float64)
    assert found.norms.shape == norms.shape
    assert torch.allclose(found.norms.double(), norms, rtol=tolerance, atol=tolerance * float(norms.max()) * 1e-3)


def check(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    loss: Loss = squared_error,
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32),
    routes: str | None = None,
    views: int = 1,
    **options: Any,
) -> ClippedGradients:
    """The engine agrees with the naive loop in both precisions, at a clip that half of the examples reach."""
    for dtype in dtypes:
        built = copy.deepcopy(model).to(dtype)
        inputs = cast(x, dtype)
        if y is None:
            with torch.no_grad():
                output = run(built, inputs if views == 1 else select(inputs, (slice(None), 0)))
            targets: Any = torch.randn_like(output)
        else:
            targets = cast(y, dtype)
        examples = len(targets)
        each = gradients(built, loss, inputs, targets, examples, views, options.get("l2_penalty", 0.0))
        l2_clip = sorted(length(one) for one in each)[examples // 2] or 1.0
        clipped = ClippedGradients(built, loss, l2_clip, views=views, **options)
        if routes:
            clipped.choices = forced(ClippedGradients(built, loss, l2_clip), inputs, targets, routes)
        found = clipped(inputs, targets)
        close(found, each, l2_clip, TOLERANCE[dtype], options.get("clipping"))
        assert all(value.dtype == dtype for value in found.sums.values())
    return clipped


def forced(clipped: ClippedGradients, x: Any, y: Any, route: str) -> Choices:
    """Choices by which every layer that has several routes takes this one."""
    clipped.prepare(x, y)
    assert clipped.choices is not None
    assert clipped.choices.routes, "no layer of this model has several routes"
    return replace(clipped.choices, routes=dict.fromkeys(clipped.choices.routes, route))


def cast(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, tuple):
        return tuple(cast(leaf, dtype) for leaf in batch)
    if isinstance(batch, dict):
        return {name: cast(leaf, dtype) for name, leaf in batch.items()}
    return batch.to(dtype) if isinstance(batch, Tensor) and batch.is_floating_point() else batch


class Applied(nn.Module):
    """A layer in a model of one's own making: `forward(layer, *inputs)`."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, *inputs: Any) -> Any:
        return self._forward(self.layer, *inputs)
