"""Several views of an example, whose gradients are averaged before the clip: more signal, no more sensitivity.

A view is made of its own example and of chances that are alike whoever is in the batch. Whatever was drawn for the
others, an example then moves the sum by at most the clip; a mixture of such sums costs no more than each of them. What
makes views of several examples is refused, as far as a trial on a few of them can tell.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from sordino.gradients import ExamplesMixError, batches, keep_random_state

_TRIED = 3
"""Examples that are looked at first to see whether their views mix."""
_EVERY_PAIR = 512

Augment = Callable[[Any, np.random.Generator], Any]
"""augment(rows, generator): for each row its views, (rows, views, …), each row's from that row alone."""


@dataclass(frozen=True)
class Views:
    """So many views of each example, made by `augment`; without it, the example itself."""

    augment: Augment | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.augment is None and self.count != 1:
            raise ValueError(f"{self.count} views need an `augment` that makes them")

    def of(self, x: Any, generator: np.random.Generator) -> Any:
        """The input as the engine takes it: (rows, …) for one view, (rows, views, …) for several."""
        examples = batches.size(x)
        if self.augment is None or examples == 0:
            return x
        seen = self.augment(x, generator)
        for leaf in pytree.tree_leaves(seen):
            if isinstance(leaf, Tensor) and leaf.shape[:2] != (examples, self.count):
                raise ValueError(
                    f"`augment` must give {self.count} views of each of the {examples} rows, as ({examples}, "
                    f"{self.count}, …), not {tuple(leaf.shape)}"
                )
        return batches.flatten_views(seen) if self.count == 1 else seen

    def refuse_mixing(self, x: Any) -> None:
        """Raise if other examples change an example's views, under the same chances: among three, and in the batch.

        In a batch that is not large each example is changed while each other one stays, as in `gradients.mixing`.
        """
        examples = batches.size(x)
        if self.augment is None or examples <= _TRIED:
            return
        few = torch.arange(_TRIED)
        self._refuse_difference(x, few, torch.tensor([_TRIED, *few[1:]]))
        every = torch.arange(examples)
        bits = range((examples - 1).bit_length())
        for bit in bits if examples <= _EVERY_PAIR else (bits[0], bits[-1]):  # a large batch costs time
            for value in (0, 1):
                changed = (every >> bit & 1) == value
                self._refuse_difference(x, every, torch.where(changed, every[~changed][0], every))

    def _refuse_difference(self, x: Any, rows: Tensor, others: Tensor) -> None:
        """Raise if examples that are the same in both batches have different views."""
        seen, stay = [], rows == others
        devices = {leaf.device for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)}
        for chosen in (rows, others):
            with keep_random_state(devices, 0):
                found = self.of(batches.select(x, chosen), np.random.default_rng(0))
            by_example = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]
            seen.append([torch.nan_to_num(leaf[stay.to(leaf.device)]) for leaf in by_example])
        if not all(torch.equal(one, other) for one, other in zip(*seen, strict=True)):
            raise ExamplesMixError(
                "`augment` makes an example's views of other examples too, so that no clip bounds what one of them "
                "does, or draws from elsewhere than its generator or torch: make each row's views of that row and "
                "those alone"
            )


@dataclass(frozen=True)
class Shifts:
    """So many views of each image (rows, channels, height, width), moved by up to `most` pixels, its edge repeated."""

    views: int
    most: int

    def __post_init__(self) -> None:
        if self.views < 1 or self.most < 0:
            raise ValueError(f"views are at least 1 and moves at least 0 pixels, not {self.views} and {self.most}")

    def __call__(self, rows: Tensor, generator: np.random.Generator) -> Tensor:
        height, width = rows.shape[2:]
        framed = functional.pad(rows, [self.most] * 4, mode="replicate")
        moved = framed.unfold(2, height, 1).unfold(3, width, 1)  # every move of every image, as a view of its frame
        moves = generator.integers(0, 2 * self.most + 1, (2, len(rows), self.views))
        down, right = torch.from_numpy(moves).to(rows.device)
        return moved[torch.arange(len(rows), device=rows.device)[:, None], :, down, right]


@dataclass(frozen=True)
class RandomCrops:
    """A random part of each image (rows, channels, height, width), resized to side×side and mirrored half of the time.

    The part has `least_area` of the image or more, evenly distributed, and an aspect of 3:4 to 4:3 (INS, as usual for
    ImageNet). An image is evaluated by its centre, to which it is cut without being resized.
    """

    side: int
    least_area: float = 0.08
    views: int = 1

    def __post_init__(self) -> None:
        if self.side < 1 or self.views < 1 or not 0 < self.least_area <= 1:
            raise ValueError(
                f"crops have a side and views of 1 or more and an area in (0, 1], not {self.side}, {self.views} and "
                f"{self.least_area}"
            )

    def __call__(self, rows: Tensor, generator: np.random.Generator) -> Tensor:
        chances = torch.from_numpy(generator.random((5, len(rows), self.views))).to(rows)
        area = self.least_area + (1 - self.least_area) * chances[0]
        aspect = torch.exp(math.log(4 / 3) * (2 * chances[1] - 1))
        wide, high = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        left, top = (1 - wide) * (2 * chances[2] - 1), (1 - high) * (2 * chances[3] - 1)
        mirrored = torch.where(chances[4] < 0.5, -wide, wide)
        nothing = torch.zeros_like(wide)
        maps = torch.stack([mirrored, nothing, left, nothing, high, top], dim=2).unflatten(2, (2, 3))
        seen = [
            functional.grid_sample(
                rows,
                functional.affine_grid(maps[:, view], [*rows.shape[:2], self.side, self.side], align_corners=False),
                padding_mode="border",
                align_corners=False,
            )
            for view in range(self.views)
        ]
        return torch.stack(seen, dim=1)

    def centre(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The middle side×side pixels of each image."""
        top, left = ((size - self.side) // 2 for size in rows.shape[2:])
        return np.ascontiguousarray(rows[:, :, top : top + self.side, left : left + self.side])
