"""Scattering: an image's wavelet moduli, averaged (Bruna & Mallat 2013), as T&B use them.

Convolve with a wavelet, take the modulus, average: edges by scale and direction. The moduli convolved again give the
second order: how edges occur together. The transform is kymatio's, as a few large products of real matrices over a
whole block of images. Moduli are real, so they are analysed into cosines and sines of each side, which takes a quarter
of the work of complex transforms; a wavelet with subsampling is then a small matrix at each frequency (`wavelets.py`
has them), and averages are products with a band matrix.
"""

import math
import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.features.base import Feature
from sordino.features.images import in_parallel
from sordino.features.wavelets import analysis, averaging, bank, coarser, synthesis, wavelet_matrices

_BLOCK_BYTES = 2**23
"""Of the largest intermediate result: a block of images should stay in the processor's cache."""


@dataclass(frozen=True)
class Scattering(Feature):
    """Images (B, C, H, W) → (B, C·K, H/2^J, W/2^J) in float32: K = 1 + L·J, and L²·J·(J−1)/2 more at order 2.

    Guarantee: a function of one image and of constants fixed in advance: it costs no privacy.

    >>> import torch
    >>> Scattering(J=2)(torch.rand(4, 1, 28, 28)).shape
    torch.Size([4, 81, 7, 7])
    """

    J: int = 2
    L: int = 8
    order: int = 2

    def __post_init__(self) -> None:
        if self.J < 1 or self.L < 1 or self.order not in (1, 2):
            raise ValueError(
                f"scattering needs J ≥ 1, L ≥ 1 and order 1 or 2, not J={self.J}, L={self.L}, order={self.order}"
            )

    @property
    def channels(self) -> int:
        pairs = self.J * (self.J - 1) // 2 if self.order == 2 else 0
        return 1 + self.J * self.L + pairs * self.L**2

    def __call__(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or min(images.shape[2:]) < 2**self.J:
            raise ValueError(
                f"expected images (B, C, H, W) of at least {2**self.J}×{2**self.J} pixels, not {tuple(images.shape)}"
            )
        batch, colours, height, width = images.shape
        planes = images.detach().reshape(batch * colours, height, width).float()
        transform = _Transform.of(self, (height, width), images.device)
        out = planes.new_empty(len(planes), self.channels, height >> self.J, width >> self.J)

        def describe(start: int) -> None:
            rows = slice(start, start + transform.block)
            transform(planes[rows], out[rows])

        in_parallel(describe, range(0, len(planes), transform.block))
        return out.view(batch, colours * self.channels, *out.shape[2:])


class _Transform:
    """The matrices of a scattering of images of one shape; all tensors are (height, width, …, images)."""

    def __init__(self, scattering: Scattering, shape: tuple[int, int], device: torch.device) -> None:
        self._J, self._L, self._order = scattering.J, scattering.L, scattering.order
        unit = 2**self._J
        padded = (((shape[0] + unit) // unit + 1) * unit, ((shape[1] + unit) // unit + 1) * unit)
        self._padding = [(into - side, (into - side) // 2) for side, into in zip(shape, padded, strict=True)]
        self._shapes = [(padded[0] >> level, padded[1] >> level) for level in range(self._J)]
        filters = bank(padded, self._J, self._L)

        def real(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)

        self._waves, self._analyses = {}, {}
        for scale in range(self._J):
            for level in range(scale + 1 if self._order == 2 else 1):
                fold = 2 ** (scale - level)
                waves = coarser(filters.waves[scale], level, (1, 2))
                self._waves[scale, level] = real(wavelet_matrices(waves, fold))
                self._analyses[scale, level] = [real(analysis(side, fold)) for side in self._shapes[level]]
        # Down, the cosines of all frequencies come first; across, each frequency's cosine and sine: no copy in between.
        self._syntheses = [
            (real(synthesis(height).transpose(0, 2, 1).reshape(height, -1)), real(synthesis(width).reshape(width, -1)))
            for height, width in self._shapes
        ]
        self._means = [
            tuple(real(averaging(coarser(blur, level, (0,)), unit >> level)) for blur in filters.blurs)
            for level in range(self._J)
        ]
        largest = 8 * padded[0] * padded[1] * self._L * (1 if self._order == 1 else max(1, self._L // 4))
        self.block = max(1, _BLOCK_BYTES // largest)
        self._kept = threading.local()

    @staticmethod
    @lru_cache(maxsize=8)
    def of(scattering: Scattering, shape: tuple[int, int], device: torch.device) -> "_Transform":
        return _Transform(scattering, shape, device)

    def __call__(self, images: Tensor, out: Tensor) -> None:
        """Coefficients in kymatio's order: the mean, each wavelet, and after each first wavelet its coarser ones."""
        x = self._padded(images).permute(1, 2, 0).contiguous()
        out[:, 0] = self._mean(x, 0).permute(2, 0, 1)
        place, second = 1, 1 + self._J * self._L
        for scale in range(self._J):
            moduli = self._moduli(x, scale, 0, order=1)  # (height, width, L, images)
            out[:, place : place + self._L] = self._mean(moduli, scale).permute(3, 2, 0, 1)
            place += self._L
            coarse = self._J - 1 - scale
            if self._order == 2 and coarse:
                pairs = out[:, second : second + coarse * self._L**2].unflatten(1, (self._L, coarse, self._L))
                for step in range(coarse):
                    again = self._moduli(moduli.flatten(2), scale + 1 + step, scale, order=2)
                    again = again.unflatten(3, (self._L, -1))
                    pairs[:, :, step] = self._mean(again, scale + 1 + step).permute(4, 3, 2, 0, 1)
                second += coarse * self._L**2

    def _padded(self, images: Tensor) -> Tensor:
        for dimension, (amount, before) in zip((1, 2), self._padding, strict=True):
            side = images.shape[dimension]
            period = 2 * (side - 1)  # mirrored at both ends, again and again
            places = torch.arange(-before, side + amount - before, device=images.device) % period
            images = images.index_select(dimension, torch.minimum(places, period - places))
        return images

    def _moduli(self, x: Tensor, scale: int, level: int, order: int) -> Tensor:
        """|x * wavelet| at the scale's resolution, (height, width, L, images), of x at the level's."""
        images = x.shape[2]
        height, width = self._shapes[scale]
        parts = 2 * 2 ** (scale - level)  # of a frequency of the result: cosine and sine of all that fold into it
        frequencies = (height // 2 + 1) * (width // 2 + 1)
        memory = partial(self._memory, order, x)
        down, across = self._analyses[scale, level]
        rows = torch.mm(down, x.flatten(1), out=memory("rows", len(down), x[0].numel()))
        spectrum = memory("spectrum", len(down), len(across), images)
        torch.matmul(across, rows.view(len(down), -1, images), out=spectrum)
        gathered = memory("gathered", height // 2 + 1, width // 2 + 1, parts, parts * images)
        gathered.copy_(spectrum.view(height // 2 + 1, parts, width // 2 + 1, -1).transpose(1, 2))
        waves = self._waves[scale, level]
        filtered = memory("filtered", 2, frequencies, waves.shape[2], images)
        for wave, into in zip(waves, filtered, strict=True):
            torch.bmm(wave, gathered.view(frequencies, parts**2, images), out=into)
        down, across = self._syntheses[scale]
        rows = memory("filtered rows", height + 2, width, 2 * self._L * images)
        torch.matmul(across, filtered.view(height + 2, width + 2, -1), out=rows)
        response = torch.mm(down, rows.flatten(1), out=memory("response", height, rows[0].numel()))
        real, imaginary = response.view(height, width, 2, -1).unbind(2)
        moduli = torch.mul(real, real, out=memory("moduli", height, width, self._L * images))
        return moduli.addcmul_(imaginary, imaginary).sqrt_().view(height, width, self._L, images)

    def _memory(self, order: int, like: Tensor, name: str, *shape: int) -> Tensor:
        """The calling thread's own, reused from block to block: fresh pages cost as much as the products.

        The two orders have separate memory, since the second starts from the moduli of the first.
        """
        kept: dict[Any, Tensor] = self._kept.__dict__
        size = math.prod(shape)
        if (name, order) not in kept or kept[name, order].numel() < size:
            kept[name, order] = like.new_empty(size)
        return kept[name, order][:size].view(shape)

    def _mean(self, x: Tensor, level: int) -> Tensor:
        """Averages around every 2^J-th place, without those on the border."""
        down, across = self._means[level]
        rows = (down @ x.reshape(x.shape[0], -1)).view(len(down), x.shape[1], -1)
        return torch.matmul(across, rows).view(len(down), len(across), *x.shape[2:])
