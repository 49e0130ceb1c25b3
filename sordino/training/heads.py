"""What is trained on features: a linear classifier in closed form, or a network by the clipped-gradient engine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino.data import ArrayRecords, Records
from sordino.features import StoredImages
from sordino.training.augmentation import RandomCrops, Shifts
from sordino.training.dpsgd import Trainable
from sordino.training.linear import LinearClassifier, linear_scores
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import Weights

_BLOCK = 1000


class Head(Protocol):
    streams: ClassVar[bool]
    """Whether the model takes its records batch by batch, and not all at once."""

    def model(self, width: int, classes: int, *, double: bool = False) -> Trainable:
        """For examples of so many numbers; with `double`, all in double precision, as an exact plan needs it."""

    def records(self, x: Any, y: NDArray[np.int64], *, double: bool = False) -> Records:
        """Features and labels as the model takes them."""

    def scores(self, weights: Weights, x: NDArray[np.float32], classes: int) -> Tensor:
        """Of each class for each example; ValueError if the weights are not such a model's."""


@dataclass(frozen=True)
class LinearHead:
    """Multinomial logistic regression on the features as one vector."""

    streams: ClassVar[bool] = False

    def model(self, width: int, classes: int, *, double: bool = False) -> Trainable:
        return LinearClassifier(width, classes, double=double)

    def records(self, x: NDArray[np.float32], y: NDArray[np.int64], *, double: bool = False) -> ArrayRecords:
        return ArrayRecords(x.reshape(len(x), -1).astype(_precision(double), copy=False), y)

    def scores(self, weights: Weights, x: NDArray[np.float32], classes: int) -> Tensor:
        width = x[:1].size
        if {name: tuple(value.shape) for name, value in weights.items()} != {
            "weight": (classes, width),
            "bias": (classes,),
        }:
            raise ValueError(f"not the weights of a linear model from {width} numbers to {classes} classes")
        single = {name: value.float() for name, value in weights.items()}
        return linear_scores(single, torch.from_numpy(x.reshape(len(x), -1)))


@dataclass(frozen=True)
class NetworkHead:
    """The network that `build(classes)` makes, with cross-entropy."""

    streams: ClassVar[bool] = True

    build: Callable[[int], nn.Module]
    input_scale: float = 1.0
    """What features are multiplied by: noise in the first layer's weights then matters that much less."""
    orthogonal: bool = False
    """Whether all layers but the last start orthogonal and without biases: under noise a network keeps much of its
    start, and random weights start well or badly by chance."""
    shifts: Shifts | None = None
    """Moved views of each image in training, whose gradients are averaged before the clip."""
    crops: RandomCrops | None = None
    """Random parts of each image in training; it is evaluated by its centre."""
    l2_penalty: float = 0.0
    """This times half of the squared weights is part of each example's loss, and of what is clipped."""
    begin: Callable[[nn.Module], object] | None = None
    """Gives the network the public weights that it starts from."""

    def __repr__(self) -> str:
        name = getattr(self.build, "__name__", self.build)  # not its address, which changes
        scale = "" if self.input_scale == 1 else f", input_scale={self.input_scale}"
        shifts = "" if self.shifts is None else f", {self.shifts}"
        crops = "" if self.crops is None else f", {self.crops}"
        penalty = f", l2_penalty={self.l2_penalty}" if self.l2_penalty else ""
        return f"NetworkHead({name}{scale}{', orthogonal' if self.orthogonal else ''}{shifts}{crops}{penalty})"

    def model(self, width: int, classes: int, *, double: bool = False) -> Trainable:
        augment = self.crops or self.shifts
        views = 1 if augment is None else augment.views
        start = partial(self._start, classes, double)
        return TrainableModule(start, cross_entropy, augment=augment, views=views, l2_penalty=self.l2_penalty)

    def records(self, x: Any, y: NDArray[np.int64], *, double: bool = False) -> Records:
        if isinstance(x, StoredImages):
            return _Streamed(x, self.input_scale, _precision(double))
        return ArrayRecords(self._scaled(x).astype(_precision(double), copy=False), y)

    def _start(self, classes: int, double: bool) -> nn.Module:
        model = self.build(classes)
        if self.begin is not None:
            self.begin(model)
        model = model.to(torch.float64 if double else torch.float32)
        if self.orthogonal:
            layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
            for layer in layers:
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            for layer in layers[:-1]:
                nn.init.orthogonal_(layer.weight)
        return model

    def _scaled(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return _scaled(x, self.input_scale)

    @torch.no_grad()
    def scores(self, weights: Weights, x: NDArray[np.float32], classes: int) -> Tensor:
        model = self.build(classes).eval()
        try:
            model.load_state_dict(weights)
        except RuntimeError:
            raise ValueError(f"not the weights of {self.build.__name__}") from None
        seen = x if self.crops is None else self.crops.centre(x)
        return torch.cat(
            [model(torch.from_numpy(self._scaled(seen[at : at + _BLOCK]))) for at in range(0, len(seen), _BLOCK)]
        )


@dataclass(frozen=True)
class _Streamed:
    """Images that are read as they are drawn, on a network's scale."""

    images: StoredImages
    scale: float
    precision: type[np.floating]

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x, y = self.images.batch(indices)
        return torch.from_numpy(_scaled(x.numpy(), self.scale).astype(self.precision, copy=False)), y

    def fingerprint(self, key: bytes) -> str:
        return self.images.fingerprint(key)


def _scaled(x: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    return x if scale == 1 else x * np.float32(scale)


def _precision(double: bool) -> type[np.floating]:
    return np.float64 if double else np.float32


def cross_entropy(scores: Tensor, labels: Any) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")
