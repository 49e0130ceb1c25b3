"""Bringing features to one scale: within an example at no cost, or by statistics that are public or privately told."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sordino.features.feature import Feature

_EPSILON = 1e-5


@dataclass(frozen=True)
class GroupNorm(Feature):
    """Each group of an example's channels (B, K, …) to mean 0 and variance 1."""

    groups: int

    def __call__(self, batch: Tensor) -> Tensor:
        if batch.shape[1] % self.groups:
            raise ValueError(f"{batch.shape[1]} channels do not fall into {self.groups} groups")
        return functional.group_norm(batch, self.groups, eps=_EPSILON)


@dataclass(frozen=True)
class Standardised(Feature):
    """Channels (B, K, …) by a mean and a variance each, which must be public, or released under DP.

    A variance is taken for at least `floor`; a channel whose variance was told as below it is mostly noise.
    """

    mean: tuple[float, ...]
    variance: tuple[float, ...]
    floor: float = 0.0

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.variance) or not self.floor >= 0:
            raise ValueError("a mean and a variance for each channel, and a floor of at least 0, are needed")

    def __call__(self, batch: Tensor) -> Tensor:
        if batch.shape[1] != len(self.mean):
            raise ValueError(f"there are statistics of {len(self.mean)} channels, not of {batch.shape[1]}")
        shape = (1, -1, *[1] * (batch.ndim - 2))
        mean = torch.tensor(self.mean, dtype=torch.float64)
        variance = torch.tensor(self.variance, dtype=torch.float64).clamp(min=self.floor) + _EPSILON
        scale = (1 / variance.sqrt()).to(batch)
        return (batch - mean.to(batch).view(shape)) * scale.view(shape)
