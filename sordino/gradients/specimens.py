"""A few examples of a batch to try a model on, and a way to leave no trace of it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import batches

_LARGE, _LOOKED_AT = 1e6, 64


def specimens(x: Any, y: Any, views: int, count: int) -> tuple[Any, Any]:
    """So many examples, all different: of finite ones, with scaled copies of them where there are too few."""
    usable = _usable(x, batches.size(y), views, count)
    sound = usable if len(usable) else torch.zeros(1, dtype=torch.int64)
    places = sound[torch.arange(count) % len(sound)]
    rows = (places[:, None] * views + torch.arange(views)).flatten()
    scales = 1 + 0.37 * (torch.arange(count) // len(sound)).repeat_interleave(views)

    def altered(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return leaf
        leaf = leaf if len(usable) else torch.zeros_like(leaf)
        scale = scales.to(leaf).view(-1, *[1] * (leaf.ndim - 1))
        return scale * leaf + (scale - 1)

    return pytree.tree_map(altered, batches.select(x, rows)), batches.select(y, places)


def in_order(x: Any, y: Any, views: int, order: list[int]) -> tuple[Any, Any]:
    """The same examples in another order."""
    places = torch.tensor(order)
    rows = (places[:, None] * views + torch.arange(views)).flatten()
    return batches.select(x, rows), batches.select(y, places)


def _usable(x: Any, examples: int, views: int, count: int) -> Tensor:
    """The first places of examples whose numbers are finite and not huge: others tell nothing of the model."""
    numbers = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point]
    found: list[int] = []
    for start in range(0, examples, _LOOKED_AT):
        stop = min(start + _LOOKED_AT, examples)
        usable = torch.ones(stop - start, dtype=torch.bool)
        for leaf in numbers:
            usable &= (leaf[start * views : stop * views].abs() < _LARGE).reshape(stop - start, -1).all(1).cpu()
        found += (start + usable.nonzero().flatten()).tolist()
        if len(found) >= count:
            break
    return torch.tensor(found, dtype=torch.int64)


class Untouched:
    """Whatever is done inside leaves the model's buffers and the random state as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        devices = {parameter.device for parameter in model.parameters()}
        self._fork = torch.random.fork_rng(
            devices=[device.index for device in devices if device.type == "cuda" and device.index is not None]
        )

    def __enter__(self) -> None:
        self._fork.__enter__()
        self._buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}

    def __exit__(self, *error: Any) -> None:
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._buffers[name])
        self._fork.__exit__(*error)
