"""Several views of an example, whose gradients are averaged before the clip: more signal, no more sensitivity."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from sordino.gradients import batches

Augment = Callable[[Any, np.random.Generator], Any]
"""augment(rows, generator): for each row its views, (rows, views, …), each row's from that row alone."""


def check_views(augment: Augment | None, views: int) -> None:
    if augment is None and views != 1:
        raise ValueError(f"{views} views need an `augment` that makes them")


def views_of(augment: Augment | None, views: int, x: Any, generator: np.random.Generator) -> Any:
    """The input as the engine takes it: (rows, …) for one view, (rows, views, …) for several."""
    examples = batches.size(x)
    if augment is None or examples == 0:
        return x
    seen = augment(x, generator)
    for leaf in pytree.tree_leaves(seen):
        if isinstance(leaf, Tensor) and leaf.shape[:2] != (examples, views):
            raise ValueError(
                f"`augment` must give {views} views of each of the {examples} rows, as ({examples}, {views}, …), not "
                f"{tuple(leaf.shape)}"
            )
    return batches.flatten_views(seen) if views == 1 else seen
