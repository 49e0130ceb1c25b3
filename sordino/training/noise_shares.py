"""How much of a step's noise is accounted: the noise that is added, beside the noise that sampling brings unasked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino import models
from sordino.data import load
from sordino.features import Pixels
from sordino.gradients import ClippedGradients, Loss
from sordino.training.heads import cross_entropy

_EXAMPLES, _BATCH = 1000, 25


@dataclass(frozen=True)
class GradientSize:
    """What sampling noise depends on: how long clipped gradients are, and how many coordinates get added noise."""

    parameters: int
    mean_square: float = 1.0
    """Mean of the squared norms of clipped gradients, in units of the clip: at most 1, whatever the data."""
    known_from: str = "assumed to be the clip, where sampling noise is largest"
    """How the norms are known, in words that follow them."""

    def __post_init__(self) -> None:
        if type(self.parameters) is not int or self.parameters < 1:
            raise ValueError(f"the number of parameters must be a whole number of at least 1, not {self.parameters!r}")
        if not 0 <= self.mean_square <= 1:
            raise ValueError(f"the mean square of clipped norms lies in [0, 1], not {self.mean_square!r}")


def gradient_size(model: nn.Module, loss: Loss, x: Any, y: Any, l2_clip: float, known_from: str) -> GradientSize:
    """Of a model at its present weights on public or synthetic examples; the loss gives one number an example.

    Guarantee: none. Norms of gradients tell about the examples, so x and y must not be private.
    """
    norms = ClippedGradients(model, loss)(x, y, l2_clip=l2_clip).norms
    mean_square = float((norms / l2_clip).clamp(max=1).square().mean())
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return GradientSize(trained, mean_square, known_from)


def gradient_size_on(dataset: str, l2_clip: float) -> GradientSize:
    """Of LSR's network for such images on a named dataset, which is public, after a short training on others of it.

    Guarantee: none: it trains and measures without noise.
    """
    data = load(dataset)
    networks = {(28, 28): models.lsr_cnn, (32, 32, 3): models.cifar_cnn}
    if data.facts.kind != "image" or data.facts.shape not in networks or len(data.train) < 2 * _EXAMPLES:
        raise ValueError(
            f"gradients are measured on {2 * _EXAMPLES:,} training images of 28×28 or 32×32×3, and {dataset} does not "
            "have so many here; use mnist-5k"
        )
    rows = np.random.default_rng(0).permutation(len(data.train))[: 2 * _EXAMPLES]
    x, y = Pixels((0.5,), (0.5,))(data.train.x[rows]), torch.from_numpy(data.train.y[rows])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = networks[data.facts.shape](len(data.facts.classes or ()))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for start in range(0, _EXAMPLES, _BATCH):
        optimiser.zero_grad()
        cross_entropy(model(x[start : start + _BATCH]), y[start : start + _BATCH]).mean().backward()
        optimiser.step()
    words = f"measured on {_EXAMPLES:,} images of {dataset} (taken as public, not charged) after a short training there"
    return gradient_size(model, cross_entropy, x[_EXAMPLES:], y[_EXAMPLES:], l2_clip, words)


def accounted_share(size: GradientSize, n: int, sample_rate: float, noise_multiplier: float) -> float:
    """The share of added noise in the variance of a step's noisy sum, over all coordinates.

    In units of the clip, added noise has the variance d·σ². A Poisson draw takes each record with probability q by
    itself, so its sum has the variance q(1−q)·Σ‖gᵢ‖² = q(1−q)·n·mean_square: nothing at q=1, and never above
    q(1−q)·n, since clipped gradients are no longer than 1.
    """
    added = size.parameters * noise_multiplier**2
    sampling = sample_rate * (1 - sample_rate) * n * size.mean_square
    return added / (added + sampling)
