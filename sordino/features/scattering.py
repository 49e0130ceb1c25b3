"""Scattering: an image's wavelet moduli, averaged (Bruna & Mallat 2013), as T&B use them.

Convolve with a wavelet, take the modulus, average: edges by scale and direction. The moduli convolved again give the
second order: how edges go together. A function of one example alone, with constants fixed in advance, so it costs no
privacy. The transform is kymatio's, as a few large matrix products over a whole block of images: Fourier transforms are
products with the transform's matrix, filters with subsampling are small products at each frequency, and averages are
products with a band matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from sordino.features.feature import Feature
from sordino.features.wavelets import bank, coarser

_BLOCK_BYTES = 2**24
"""Of the largest intermediate result: a block of images should stay in the processor's cache."""
_LARGEST_MATRIX = 80
"""Sides beyond this are transformed by FFT."""


@dataclass(frozen=True)
class Scattering(Feature):
    """Images (B, C, H, W) → (B, C·K, H/2^J, W/2^J) in float32: K = 1 + L·J, and L²·J·(J−1)/2 more at order 2."""

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

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or min(images.shape[2:]) < 2**self.J:
            raise ValueError(
                f"expected images (B, C, H, W) of at least {2**self.J}×{2**self.J} pixels, not {tuple(images.shape)}"
            )
        batch, colours, height, width = images.shape
        planes = images.reshape(batch * colours, height, width).float()
        transform = _Transform.of(self, (height, width), images.device)
        out = planes.new_empty(len(planes), self.channels, height >> self.J, width >> self.J)
        for part, into in zip(planes.split(transform.block), out.split(transform.block), strict=True):
            transform(part, into)
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

        # waves[j, level]: at each frequency of the result at scale j, a matrix from its aliases at the level.
        self._waves = {
            (scale, level): real(_by_frequency(coarser(filters.waves[scale], level, (1, 2)), 2 ** (scale - level)))
            for scale in range(self._J)
            for level in range(scale + 1)
            if level == 0 or self._order == 2
        }
        self._means = [
            tuple(real(_averaging(coarser(blur, level, (0,)), unit >> level)) for blur in filters.blurs)
            for level in range(self._J)
        ]
        sides = {side for sides in self._shapes for side in sides if side <= _LARGEST_MATRIX}
        forward = {side: torch.from_numpy(np.fft.fft(np.eye(side)).astype(np.complex64)).to(device) for side in sides}
        self._forward = forward
        self._inverse = {side: matrix.conj().resolve_conj() / side for side, matrix in forward.items()}
        largest = 8 * self._L * padded[0] * padded[1] * (1 if self._order == 1 else max(1, self._L // 4))
        self.block = max(1, _BLOCK_BYTES // largest)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(scattering: Scattering, shape: tuple[int, int], device: torch.device) -> "_Transform":
        return _Transform(scattering, shape, device)

    def __call__(self, images: Tensor, out: Tensor) -> None:
        """Coefficients in kymatio's order: the mean, each wavelet, and after each first wavelet its coarser ones."""
        x = self._padded(images).permute(1, 2, 0).contiguous()
        out[:, 0] = self._mean(x, 0).permute(2, 0, 1)
        spectrum = self._transform(x)
        place, second = 1, 1 + self._J * self._L
        for scale in range(self._J):
            moduli = self._moduli(spectrum, scale, 0)  # (height, width, L, images)
            out[:, place : place + self._L] = self._mean(moduli, scale).permute(3, 2, 0, 1)
            place += self._L
            coarse = self._J - 1 - scale
            if self._order == 2 and coarse:
                first = self._transform(moduli.flatten(2))
                pairs = out[:, second : second + coarse * self._L**2].unflatten(1, (self._L, coarse, self._L))
                for step in range(coarse):
                    again = self._moduli(first, scale + 1 + step, scale).unflatten(3, (self._L, -1))
                    pairs[:, :, step] = self._mean(again, scale + 1 + step).permute(4, 3, 2, 0, 1)
                second += coarse * self._L**2

    def _padded(self, images: Tensor) -> Tensor:
        for dimension, (amount, before) in zip((1, 2), self._padding, strict=True):
            side = images.shape[dimension]
            period = 2 * (side - 1)  # mirrored at both ends, again and again
            places = torch.arange(-before, side + amount - before, device=images.device) % period
            images = images.index_select(dimension, torch.minimum(places, period - places))
        return images

    def _moduli(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """|image * wavelet| at the scale's resolution, (height, width, L, images), from a spectrum at the level's."""
        fold = 2 ** (scale - level)
        height, width = self._shapes[scale]
        columns = torch.view_as_real(spectrum).flatten(2)
        if fold > 1:
            columns = columns.view(fold, height, fold, width, -1).permute(1, 3, 0, 2, 4)
        columns = columns.reshape(height * width, fold**2, -1)
        filtered = torch.bmm(self._waves[scale, level], columns)
        result = torch.view_as_complex(filtered.view(height, width, self._L, -1, 2))
        return self._back(result).abs()

    def _transform(self, x: Tensor) -> Tensor:
        """The two-dimensional Fourier transform of (height, width, images)."""
        return self._products(x.to(torch.complex64), self._forward, torch.fft.fft2)

    def _back(self, spectrum: Tensor) -> Tensor:
        return self._products(spectrum, self._inverse, torch.fft.ifft2)

    def _products(self, x: Tensor, matrices: dict[int, Tensor], otherwise: Callable[..., Tensor]) -> Tensor:
        height, width = x.shape[:2]
        if height not in matrices or width not in matrices:
            return otherwise(x, dim=(0, 1))
        down = (matrices[height] @ x.reshape(height, -1)).view(height, width, -1)
        return torch.matmul(matrices[width], down).view(x.shape)

    def _mean(self, x: Tensor, level: int) -> Tensor:
        """Averages around every 2^J-th place, without those on the border."""
        down, across = self._means[level]
        rows = (down @ x.reshape(x.shape[0], -1)).view(len(down), x.shape[1], -1)
        return torch.matmul(across, rows).view(len(down), len(across), *x.shape[2:])


def _by_frequency(waves: np.ndarray, fold: int) -> np.ndarray:
    """(L, height, width) → (frequencies, L, aliases): subsampling averages frequencies that become the same."""
    directions, height, width = waves.shape
    folded = waves.reshape(directions, fold, height // fold, fold, width // fold)
    return folded.transpose(2, 4, 0, 1, 3).reshape(-1, directions, fold**2) / fold**2


def _averaging(blur: np.ndarray, step: int) -> np.ndarray:
    """The matrix of a circular convolution with the blur, at every step-th place but the first and the last."""
    circular = np.fft.ifft(np.fft.fft(np.eye(len(blur)), axis=0) * blur[:, None], axis=0).real
    return circular[::step][1:-1]
