"""Max pooling: images made smaller by the largest value of each square, within one image and so at no cost."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from sordino.features.feature import Feature


@dataclass(frozen=True)
class MaxPool(Feature):
    """Images (B, channels, height, width) → the largest value of each square of this size, each channel by itself.

    What is left over at the right and bottom edges is dropped.
    """

    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"squares are at least 1 wide, not {self.size}")

    def __call__(self, batch: Tensor) -> Tensor:
        if batch.ndim != 4 or min(batch.shape[2:]) < self.size:
            raise ValueError(f"expected images (n, channels, height, width) of at least {self.size} pixels a side")
        return functional.max_pool2d(batch, self.size)
