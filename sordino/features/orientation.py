"""Oriented-gradient histograms: a simple fixed description of an image that looks at no other image.

How strongly edges of each direction occur in each cell of the image, each cell's block normalised (after Dalal &
Triggs 2005). A function of one example alone, with constants fixed in advance, so it costs no privacy.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from sordino.features.feature import Feature

_CHUNK = 1024


@dataclass(frozen=True)
class OrientedGradients(Feature):
    """Images (N,H,W) or (N,H,W,C) in uint8 → float32 vectors, all of the same public norm (blank ones shorter)."""

    cell: int = 4
    directions: int = 8
    norm: float = 10.0
    white: float = 255.0

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        if images.ndim not in (3, 4) or images.dtype != np.uint8:
            raise ValueError(f"expected uint8 images (N,H,W) or (N,H,W,C), not {images.dtype} of shape {images.shape}")
        if min(images.shape[1:3]) < 2 * self.cell:
            raise ValueError(f"images of {images.shape[1]}×{images.shape[2]} are too small for cells of {self.cell}")
        chunks = [self._describe(images[start : start + _CHUNK]) for start in range(0, len(images), _CHUNK)]
        return np.concatenate(chunks) if chunks else np.zeros((0, 0), np.float32)

    def _describe(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        pixels = torch.from_numpy(np.ascontiguousarray(images)).float() / self.white
        grey = pixels.mean(dim=3) if images.ndim == 4 else pixels
        across = functional.pad(grey[:, :, 2:] - grey[:, :, :-2], (1, 1))
        down = functional.pad(grey[:, 2:, :] - grey[:, :-2, :], (0, 0, 1, 1))
        # Signed response to each direction: soft assignment without an arctangent's jump.
        angles = torch.arange(self.directions) * (2 * torch.pi / self.directions)
        response = across[:, None] * angles.cos()[:, None, None] + down[:, None] * angles.sin()[:, None, None]
        cells = functional.avg_pool2d(functional.relu(response), self.cell, stride=self.cell // 2)
        # Contrast is a matter of ink and light: compare each cell with its surroundings only.
        energy = functional.avg_pool2d(cells.square().sum(dim=1, keepdim=True), 3, stride=1, padding=1)
        cells = cells / (energy + 1e-4).sqrt()
        vectors = cells.flatten(1)
        vectors = self.norm * vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-6)
        return np.asarray(vectors.numpy())
