"""The networks of SI's tables, what they are trained on, and the public images that batch norm sees beside it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import models
from sordino.data import Split, load
from sordino.features import Central, Feature, Pixels, WordVectors
from sordino.training import MixingModule, TrainableModule, cross_entropy

WORD = 50
CIFAR = Pixels((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
"""By the usual public constants."""
Examples = tuple[Tensor, NDArray[np.int64]]
loaded = lru_cache(maxsize=2)(load)


def examples_of(features: Feature, split: Split, count: int | None) -> Examples:
    """The first records of a part, as the network sees them."""
    return torch.as_tensor(features(split.x[:count])), split.y[:count]


_PUBLIC = {"mnist": "kmnist", "cifar-10": "cifar-100"}


def public_images(dataset: str, features: Feature, count: int = 30) -> Tensor:
    """The public images that SI normalises this dataset's with, described as the private ones are.

    SI takes KMNIST's training images; where only its test images are at hand, those.
    """
    if dataset not in _PUBLIC:
        raise ValueError(f"SI has no public images beside {dataset}; it has them beside {' and '.join(_PUBLIC)}")
    public = load(_PUBLIC[dataset])
    images = (public.train if len(public.train) else public.test).x
    if not 1 <= count <= len(images):
        raise ValueError(f"from 1 to {len(images)} public images can be taken, not {count}")
    return torch.as_tensor(features(images[:count]))


@dataclass(frozen=True)
class NormedNetwork:
    """A network, built from a norm and a width, and what it is trained on."""

    dataset: str
    features: Feature
    build: Callable[[models.Norm, int], nn.Module]
    norm: models.Norm = models.no_norm
    among: type[models.AmongPublic] | None = None
    """How its batch norm sees public images beside the private ones, if it has one; then `norm` does not count."""

    @property
    def mixes(self) -> bool:
        """Whether examples see each other in training: then there is no privacy."""
        return self.among is models.BesidePublic

    def module(self, width: int) -> nn.Module:
        if self.among is None:
            return self.build(self.norm, width)
        public = public_images(self.dataset, self.features)
        return self.among(lambda norm: self.build(norm, width), public)

    def trainable(self, width: int) -> TrainableModule:
        return (MixingModule if self.mixes else TrainableModule)(lambda: self.module(width), cross_entropy)


def _mnist(build: Callable[..., nn.Module], norm: models.Norm = models.no_norm) -> NormedNetwork:
    return NormedNetwork("mnist", Pixels(), lambda norm, width: build(norm=norm), norm)


def _cifar(build: Callable[..., nn.Module], **norms: Any) -> NormedNetwork:
    return NormedNetwork(
        "cifar-10", CIFAR, lambda norm, width: build(norm=norm, width=width, **norms), models.BatchNorm
    )


def _news(norm: models.Norm) -> NormedNetwork:
    build = models.BiLSTMClassifier
    return NormedNetwork("ag-news", WordVectors(20), lambda norm, width: build(WORD, score_norm=norm), norm)


AS_WRITTEN, APART = " by Algorithm 2", " with each example apart"
"""Batch norm over the batch and the public images, as SI has it; and over each example and the public images."""
_BATCH_NORMALISED = {
    "BN-LeNet-5": _mnist(models.lenet5),
    "ResNet-18": _cifar(models.resnet18),
    "VGG-16": _cifar(models.vgg16),
    "Fast-CIFAR-ResNet": _cifar(models.fast_cifar_resnet),
}
NETWORKS = {
    "LeNet-300-100": _mnist(models.lenet_300_100),
    "BN-LeNet-300-100": _mnist(models.lenet_300_100, models.BatchNorm),
    "LN-LeNet-300-100": _mnist(models.lenet_300_100, models.layer_norm),
    "LeNet-5": _mnist(models.lenet5),
    "BN-LeNet-5": _mnist(models.lenet5, models.BatchNorm),
    "LN-LeNet-5": _mnist(models.lenet5, models.layer_norm),
    "ResNet-18": _cifar(models.resnet18),
    "ResNet-18-mod": _cifar(models.resnet18, last_norm=models.no_norm),
    "BN-ResNet-18": _cifar(models.resnet18, score_norm=models.BatchNorm),
    "VGG-16": _cifar(models.vgg16),
    "VGG-16-mod": _cifar(models.vgg16, last_norm=models.no_norm),
    "BN-VGG-16": _cifar(models.vgg16, score_norm=models.BatchNorm),
    "TF-tutorial": NormedNetwork(
        "cifar-10", CIFAR >> Central(24), lambda norm, width: models.tf_tutorial_cnn(norm=norm)
    ),
    "BiLSTM-DL": _news(models.no_norm),
    "LN-BiLSTM-DL": _news(models.layer_norm),
    **{
        f"{name}{way}": replace(network, among=kind)
        for name, network in _BATCH_NORMALISED.items()
        for way, kind in {AS_WRITTEN: models.BesidePublic, APART: models.AmongPublic}.items()
    },
}
