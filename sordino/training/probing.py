"""A model is tried before anything is charged, on made-up rows: a refusal or a warning then says nothing of records.

Shapes, dtypes and structure are those of the first record, and are taken as public.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import ClippedGradients, batches
from sordino.gradients.batches import Loss
from sordino.gradients.specimens import Untouched
from sordino.training.augmentation import Augment, refuse_mixing_views, views_of

_MOST_ROWS = 4096
_TRIED = 4
_NOTE = (
    "the model does not run on made-up rows, so it was checked on the first private ones: whether it is refused or "
    "warned of depends on these"
)

RowsAt = Callable[[NDArray[np.int64]], tuple[Any, Any]]
"""The private rows at these places, as a batch (x, y)."""


def prepare(
    clipped: ClippedGradients,
    model: nn.Module,
    loss: Loss,
    rows: RowsAt,
    count: int,
    augment: Augment | None,
    views: int,
) -> None:
    """`ClippedGradients.prepare` on made-up rows like the records, at most `count` of them and no more than 4096 views.

    Numbers are uniform in [0, 1), whole numbers 0 or 1 (bytes of inputs from 0 to 255). Where the model, its loss or
    the augmentation does not take such rows (lengths that must not be 0, say), the first private ones are used instead,
    with a warning: what is refused or warned of then, and nothing else, depends on them.
    """
    count = min(count, max(1, _MOST_ROWS // views))
    x, y = _made_up(rows, count)
    if x is not None and _takes(model, loss, x, y, augment, views):
        _prepare(clipped, x, y, augment, views)
        return
    try:
        _prepare(clipped, *rows(np.arange(count)), augment, views)
    except Exception as problem:
        problem.add_note(_NOTE)
        raise
    warnings.warn(_NOTE, stacklevel=4)


def _prepare(clipped: ClippedGradients, x: Any, y: Any, augment: Augment | None, views: int) -> None:
    seen = views_of(augment, views, x, np.random.default_rng(0))
    refuse_mixing_views(augment, views, x)
    clipped.prepare(seen, y)


def _made_up(rows: RowsAt, count: int) -> tuple[Any, Any]:
    """Rows like the first record; None, twice, if it has something else than tensors."""
    x, y = rows(np.arange(1))
    generator = torch.Generator().manual_seed(0)

    def filled(leaf: Tensor, most_byte: int) -> Tensor:
        shape = (count, *leaf.shape[1:])
        if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
            made = torch.rand(shape, generator=generator)
        else:
            made = torch.randint(most_byte + 1 if leaf.dtype == torch.uint8 else 2, shape, generator=generator)
        return made.to(leaf.device, leaf.dtype)

    if not all(isinstance(leaf, Tensor) and leaf.layout == torch.strided for leaf in pytree.tree_leaves((x, y))):
        return None, None
    return pytree.tree_map(lambda leaf: filled(leaf, 255), x), pytree.tree_map(lambda leaf: filled(leaf, 1), y)


def _takes(model: nn.Module, loss: Loss, x: Any, y: Any, augment: Augment | None, views: int) -> bool:
    """Whether a few of these rows have finite losses."""
    few = slice(0, _TRIED)
    x, y = batches.select(x, few), batches.select(y, few)
    try:
        with Untouched(model), torch.no_grad():
            seen = views_of(augment, views, x, np.random.default_rng(0))
            seen = batches.flatten_views(seen) if views > 1 else seen
            losses = batches.losses_of(model, loss, seen, y, batches.size(y), views)
            return bool(torch.isfinite(losses).all())
    except Exception:  # whatever it is, it does not take them
        return False
