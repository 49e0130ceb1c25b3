"""Bringing features to one scale: within an example, or by statistics that are public or privately released."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sordino.features.base import Feature, as_array

_EPSILON = 1e-5
_BLOCK = 200


@dataclass(frozen=True)
class GroupNorm(Feature):
    """Each group of an example's channels (B, K, …) to mean 0 and variance 1.

    Guarantee: a function of one example: it costs no privacy.
    """

    groups: int

    def __call__(self, batch: Tensor) -> Tensor:
        if batch.shape[1] % self.groups:
            raise ValueError(f"{batch.shape[1]} channels cannot be split into {self.groups} groups")
        return functional.group_norm(batch, self.groups, eps=_EPSILON)


@dataclass(frozen=True)
class Standardised(Feature):
    """Channels (B, K, …) by a mean and a variance each, which must be public, or released under DP.

    A variance below `floor` counts as `floor`: a channel whose released variance is smaller is mostly noise.
    """

    mean: tuple[float, ...]
    variance: tuple[float, ...]
    floor: float = 0.0

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.variance) or not self.floor >= 0:
            raise ValueError("give a mean and a variance for each channel, and a floor of at least 0")

    @classmethod
    def of_public(cls, features: NDArray[Any] | Tensor, floor: float = 0.0) -> "Standardised":
        """By the statistics of these features (n, K, …): the caller vouches that the examples are PUBLIC.

        Guarantee: none for the examples given; private ones need `ChannelMoments`. Works in blocks, so that features on
        disk need not fit into memory.

        >>> import numpy as np
        >>> Standardised.of_public(np.array([[1.0, 10.0], [3.0, 10.0]]))
        Standardised(mean=(2.0, 10.0), variance=(1.0, 0.0), floor=0.0)
        """
        if features.ndim < 2 or 0 in features.shape:
            raise ValueError(f"expected features (n, channels, …) that are not empty, not {tuple(features.shape)}")
        count, mean, deviations = 0, np.zeros(features.shape[1]), np.zeros(features.shape[1])
        for start in range(0, len(features), _BLOCK):
            block = _in_double(features[start : start + _BLOCK])
            if not np.isfinite(block).all():
                raise ValueError(f"public features must be finite: see rows {start} to {start + len(block) - 1}")
            over = (0, *range(2, block.ndim))
            new, block_mean = block[:, 0].size, block.mean(over)
            # Merging about each block's own mean (Chan, Golub & LeVeque 1979): squares less squared means would cancel.
            shift = block_mean - mean
            deviations += block.var(over) * new + shift**2 * (count * new / (count + new))
            count += new
            mean += shift * (new / count)
        return cls(tuple(mean.tolist()), tuple((deviations / count).tolist()), floor)

    def __call__(self, batch: Tensor) -> Tensor:
        if batch.shape[1] != len(self.mean):
            raise ValueError(f"the statistics are of {len(self.mean)} channels, but the examples have {batch.shape[1]}")
        shape = (1, -1, *[1] * (batch.ndim - 2))
        mean = torch.tensor(self.mean, dtype=torch.float64)
        variance = torch.tensor(self.variance, dtype=torch.float64).clamp(min=self.floor) + _EPSILON
        scale = (1 / variance.sqrt()).to(batch)
        return (batch - mean.to(batch).view(shape)) * scale.view(shape)


def _in_double(block: NDArray[Any] | Tensor) -> NDArray[np.float64]:
    # NumPy lacks some of torch's types, so a tensor is widened first.
    return as_array(block.double() if isinstance(block, Tensor) else block).astype(np.float64)
