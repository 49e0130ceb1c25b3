"""What is trained on features: a linear classifier in closed form, or a network by the clipped-gradient engine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino.training.dpsgd import Trainee
from sordino.training.linear import LinearClassifier, predict
from sordino.training.module import ModuleTrainee
from sordino.training.optimisers import Weights

_BLOCK = 1000


class Head(Protocol):
    def trainee(self, x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> Trainee: ...

    def scores(self, weights: Weights, x: NDArray[np.float32], classes: int) -> Tensor:
        """Of each class for each example; ValueError if the weights are not such a model's."""


@dataclass(frozen=True)
class LinearHead:
    """Multinomial logistic regression on the features as one vector."""

    def trainee(self, x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> Trainee:
        return LinearClassifier(x.reshape(len(x), -1), y, classes)

    def scores(self, weights: Weights, x: NDArray[np.float32], classes: int) -> Tensor:
        width = x[:1].size
        if {name: tuple(value.shape) for name, value in weights.items()} != {
            "weight": (classes, width),
            "bias": (classes,),
        }:
            raise ValueError(f"not the weights of a linear model from {width} numbers to {classes} classes")
        return predict(weights, torch.from_numpy(x.reshape(len(x), -1)))


@dataclass(frozen=True)
class NetworkHead:
    """The network that `build(classes)` makes, with cross-entropy."""

    build: Callable[[int], nn.Module]

    def __repr__(self) -> str:
        return f"NetworkHead({getattr(self.build, '__name__', self.build)})"  # not its address, which changes

    def trainee(self, x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> Trainee:
        return ModuleTrainee(partial(self.build, classes), cross_entropy, x, y)

    @torch.no_grad()
    def scores(self, weights: Weights, x: NDArray[np.float32], classes: int) -> Tensor:
        model = self.build(classes).eval()
        try:
            model.load_state_dict(weights)
        except RuntimeError:
            raise ValueError(f"not the weights of {self.build.__name__}") from None
        return torch.cat([model(torch.from_numpy(x[start : start + _BLOCK])) for start in range(0, len(x), _BLOCK)])


def cross_entropy(scores: Tensor, labels: Any) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")
