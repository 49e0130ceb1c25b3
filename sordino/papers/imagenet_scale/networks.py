"""What INS's experiments train here: images in parts, and narrow forms of its networks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino import models
from sordino.data import load
from sordino.features import Pixels, as_array
from sordino.training import USUAL_SCALE

PUBLIC, PRIVATE = "cifar-10, classes 0 to 4", "cifar-10, classes 5 to 9"
"""In the place of Places365 and ImageNet: images of the same kind and other things."""
_HALF = 5
_PARTS = {PUBLIC: range(_HALF), PRIVATE: range(_HALF, 2 * _HALF)}
_EIGHTH = 8
_PASSED = 500


@dataclass(frozen=True)
class ImageParts:
    """Training images, others held out of them to choose settings by, and test images."""

    x: Tensor
    y: NDArray[np.int64]
    held_x: Tensor
    held_y: NDArray[np.int64]
    test_x: Tensor
    test_y: NDArray[np.int64]
    classes: int


@lru_cache(maxsize=3)
def image_parts(dataset: str, records: int, held_out: int, tested: int | None, pooled: bool = False) -> ImageParts:
    """So many training images drawn at random, others held out, and the first test images; classes count from 0.

    `pooled` halves their sides.
    """
    name, classes = dataset.partition(",")[0], _PARTS.get(dataset)
    data, pixels = _loaded(name), Pixels(*USUAL_SCALE[name])

    def of(labels: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.arange(len(labels)) if classes is None else np.flatnonzero(np.isin(labels, classes))

    def taken(split: str, rows: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        part = getattr(data, split)
        images = torch.as_tensor(as_array(pixels(part.x[rows])))
        return functional.avg_pool2d(images, 2) if pooled else images, part.y[rows] - (classes.start if classes else 0)

    order = np.random.default_rng(0).permutation(of(data.train.y))
    x, y = taken("train", np.sort(order[held_out:][:records]))
    held_x, held_y = taken("train", np.sort(order[:held_out]))
    test_x, test_y = taken("test", of(data.test.y)[:tested])
    count = len(classes or data.facts.classes or ())
    return ImageParts(x, y, held_x, held_y, test_x, test_y, count)


_loaded = lru_cache(maxsize=1)(load)


def pooled_cnn(classes: int = 10) -> nn.Sequential:
    """A small network on 28×28 images that are pooled to 14×14 first: 1,898 parameters, a tenth of the time."""
    layers = [nn.AvgPool2d(2), nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.Tanh()]
    layers += [nn.Conv2d(8, 16, 3), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(64, classes)]
    return nn.Sequential(*layers)


def resnet_18(classes: int = 10, width: int = _EIGHTH) -> nn.Sequential:
    return models.resnet18_v2(classes=classes, width=width, small_images=True)


def resnet_50(classes: int = 10, width: int = _EIGHTH) -> nn.Sequential:
    return models.resnet50_v2(classes=classes, width=width, small_images=True)


SIMPLE_VGGS = (
    "32(2)-64(2)-128(2)-128",
    "16(2)-32(2)-64(2)-128",
    "64(2)-128(2)-256(2)-128",
    "32(1)-64(1)-128(1)-128",
    "32(3)-64(3)-128(3)-128",
    "32(2)-128",
    "32(2)-64(2)-128",
)
"""The one that others used, and two others each in channels, layers of a block, and blocks."""


def _simple_vgg(description: str, narrower: int = 1, side: int = 32, classes: int = 10) -> nn.Sequential:
    """With so many times fewer channels and units."""
    narrow = re.sub(r"(\d+)(?=\(|$)", lambda match: str(int(match[1]) // narrower), description)
    return models.simple_vgg(narrow, classes=classes, side=side)


NETWORKS: dict[str, Callable[..., nn.Sequential]] = {
    "pooled CNN": pooled_cnn,
    "CNN": models.mnist_cnn,
    "ResNet-18, 1/8": resnet_18,
    "ResNet-50, 1/8": resnet_50,
    "ResNet-18": partial(resnet_18, width=64),
    "ResNet-50": partial(resnet_50, width=64),
    **{f"simpleVGG-{name}": partial(_simple_vgg, name) for name in SIMPLE_VGGS},
    **{f"simpleVGG-{name}, 1/4": partial(_simple_vgg, name, 4, 16) for name in SIMPLE_VGGS},
}


@torch.no_grad()
def in_pieces(model: nn.Module, x: Tensor) -> Tensor:
    """What the model makes of these images, a few at a time."""
    return torch.cat([model(piece) for piece in x.split(_PASSED)])


def share_right(model: nn.Module, x: Tensor, y: NDArray[np.int64]) -> float:
    """Accuracy in evaluation mode."""
    was, found = model.training, in_pieces(model.eval(), x).argmax(dim=1).numpy()
    model.train(was)
    return float(np.mean(found == y))
