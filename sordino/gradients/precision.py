"""Norms and clipped sums are computed in full float32, whatever precision the user allows torch elsewhere.

The forward and backward pass may round as they like, as long as an example's numbers do not depend on the rest of the
batch: the gradients are then slightly different, and the clip bounds those. A norm and a clipped sum may not: they must
be of the very same numbers. Torch can be set to multiply float32 with fewer digits (TF32, bfloat16), and on a GPU
convolutions do so by default.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sordino.gradients import batches
from sordino.gradients.batches import Loss
from sordino.gradients.dry_runs import without_side_effects
from sordino.runs import FLOAT32_BACKENDS

_EXACT = ("none", "ieee")


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Norms and sums are never computed in less than single precision."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class _FullPrecision:
    """Settings are global to the process: the first thread to enter changes them, the last to leave restores them."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._before: list[tuple[Any, str]] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Multiply float32 in full; restore the user's settings on leaving."""
        with self._lock:
            if not self._inside:
                values = [(each, each.fp32_precision) for each in FLOAT32_BACKENDS]
                self._before = [(each, value) for each, value in values if value not in _EXACT]
                for each, _ in self._before:
                    each.fp32_precision = "ieee"
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    for each, value in self._before:
                        each.fp32_precision = "none"  # what is set for all of torch, if it came from there
                        if each.fp32_precision != value:
                            each.fp32_precision = value


full_precision = _FullPrecision()


def narrow_operation(model: nn.Module, loss: Loss, x: Any, y: Any, views: int = 1) -> str | None:
    """The first operation, from the model's parameters to the losses, that gives less than double precision.

    It looks at types, not values. What does not depend on a parameter may have any precision.
    """
    rows, seen = batches.flatten_views(x) if views > 1 else x, _Narrow()
    with without_side_effects(model), torch.inference_mode(False), torch.enable_grad(), seen:
        batches.losses_of(model, loss, rows, y, batches.size(y), views)
    return seen.found


class _Narrow(TorchFunctionMode):
    found: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result) if self.found is None else ():
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.dtype not in (torch.float64, torch.complex128):
                self.found = f"`{getattr(func, '__name__', func)}` gives {str(leaf.dtype).removeprefix('torch.')}"
                break
        return result
