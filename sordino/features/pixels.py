"""Images as they are stored → tensors of planes on a public scale."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.features.feature import Feature

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Pixels(Feature):
    """Images (N, H, W) or (N, H, W, C) in uint8 → float32 (N, C, H, W): from [0, white] to [0, 1], then standardised.

    Mean and deviation are public constants, one for each channel or one for all.
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    white: float = 255.0

    def __call__(self, images: NDArray[np.uint8]) -> Tensor:
        if images.ndim not in (3, 4) or images.dtype != np.uint8:
            raise ValueError(f"expected uint8 images (N,H,W) or (N,H,W,C), not {images.dtype} of shape {images.shape}")
        pixels = torch.from_numpy(np.ascontiguousarray(images))
        planes = pixels[:, None] if images.ndim == 3 else pixels.permute(0, 3, 1, 2)
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (self.mean, self.deviation))
        return (planes.float().contiguous() / self.white - mean) / deviation


@dataclass(frozen=True)
class Central(Feature):
    """Planes (N, C, H, W) → their central side×side pixels.

    Guarantee: a function of one image: it costs no privacy.
    """

    side: int

    def __call__(self, planes: Tensor) -> Tensor:
        height, width = planes.shape[-2:]
        if not 1 <= self.side <= min(height, width):
            raise ValueError(f"images of {height}×{width} have no central {self.side}×{self.side} pixels")
        top, left = (height - self.side) // 2, (width - self.side) // 2
        return planes[..., top : top + self.side, left : left + self.side].contiguous()
