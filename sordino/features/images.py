"""Images → tensors on a public scale, smaller images, and edge histograms; and work on blocks of images in parallel."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sordino.features.base import Feature

_T = TypeVar("_T")
_CHUNK = 1024
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Pixels(Feature):
    """Images (N, H, W) or (N, H, W, C) in uint8 → float32 (N, C, H, W): from [0, white] to [0, 1], then standardised.

    Mean and deviation are public constants, one for each channel or one for all.

    Guarantee: a function of one image: it costs no privacy.
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    white: float = 255.0

    def __call__(self, images: NDArray[np.uint8]) -> Tensor:
        _check_images(images)
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


@dataclass(frozen=True)
class MaxPool(Feature):
    """Images (B, channels, height, width) → the largest value of each square of this size, each channel by itself.

    What is left over at the right and bottom edges is dropped.

    Guarantee: a function of one image: it costs no privacy.
    """

    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")

    def __call__(self, batch: Tensor) -> Tensor:
        if batch.ndim != 4 or min(batch.shape[2:]) < self.size:
            raise ValueError(f"expected images (n, channels, height, width) of at least {self.size} pixels a side")
        return functional.max_pool2d(batch, self.size)


@dataclass(frozen=True)
class OrientedGradients(Feature):
    """Images (N,H,W) or (N,H,W,C) in uint8 → float32 vectors, all of the same public norm (blank ones shorter).

    How strongly edges of each direction occur in each cell of the image, each cell's block normalised (after Dalal &
    Triggs 2005).

    Guarantee: a function of one image and of constants fixed in advance: it costs no privacy.
    """

    cell: int = 4
    directions: int = 8
    norm: float = 10.0
    white: float = 255.0

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        _check_images(images)
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
        # Contrast depends on ink and light: compare each cell with its surroundings only.
        energy = functional.avg_pool2d(cells.square().sum(dim=1, keepdim=True), 3, stride=1, padding=1)
        cells = cells / (energy + 1e-4).sqrt()
        vectors = cells.flatten(1)
        vectors = self.norm * vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-6)
        return np.asarray(vectors.numpy())


def _check_images(images: NDArray[np.uint8]) -> None:
    if images.ndim not in (3, 4) or images.dtype != np.uint8:
        raise ValueError(f"expected uint8 images (N,H,W) or (N,H,W,C), not {images.dtype} of shape {images.shape}")


def in_parallel(work: Callable[[_T], None], blocks: Iterable[_T]) -> None:
    """Do the work for each block, on as many workers as torch has threads, each with one thread.

    Workers never wait for each other, as threads within one small operation do.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        for block in blocks:
            work(block)
        return
    torch.set_num_threads(1)
    try:
        for _ in _workers(threads, os.getpid()).map(work, blocks):
            pass
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _workers(count: int, process: int) -> ThreadPoolExecutor:
    """Kept, since a thread's first product is slow; per process, since a fork has none of its parent's threads."""
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
