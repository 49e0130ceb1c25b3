"""The networks of SI's Tables 4 to 6, each with what it is trained on and how its batch norm sees the examples."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from sordino import models
from sordino.features import Central, Feature, Pixels, WordVectors
from sordino.papers.weight_distributions.company import company
from sordino.papers.weight_distributions.noise_trials import CIFAR, WORD
from sordino.training import MixingTrainee, ModuleTrainee, cross_entropy


@dataclass(frozen=True)
class Network:
    """Built from a norm and a width; with batch norm, in the company of public images in one way or the other."""

    dataset: str
    features: Feature
    build: Callable[[models.Norm, int], nn.Module]
    norm: models.Norm = models.no_norm
    company: type[models.AmongPublic] | None = None
    """Decides about batch norm, and then `norm` is its own."""

    @property
    def mixes(self) -> bool:
        """Whether examples see each other in training: then there is no privacy."""
        return self.company is models.BesidePublic

    def module(self, width: int) -> nn.Module:
        if self.company is None:
            return self.build(self.norm, width)
        public = company(self.dataset, self.features)
        return self.company(lambda norm: self.build(norm, width), public)

    def trainee(self, width: int, x: object, y: object) -> ModuleTrainee:
        kind = MixingTrainee if self.mixes else ModuleTrainee
        return kind(lambda: self.module(width), cross_entropy, x, y)


def _lenet(norm: models.Norm, width: int) -> nn.Module:
    return models.lenet5(norm=norm)


def _tutorial(norm: models.Norm, width: int) -> nn.Module:
    return models.tf_tutorial_cnn(norm=norm)


def _resnet(norm: models.Norm, width: int) -> nn.Module:
    return models.resnet18(norm=norm, width=width)


def _vgg(norm: models.Norm, width: int) -> nn.Module:
    return models.vgg16(norm=norm, width=width)


def _fast(norm: models.Norm, width: int) -> nn.Module:
    return models.fast_cifar_resnet(norm=norm, width=width)


def _news(norm: models.Norm, width: int) -> nn.Module:
    return models.BiLSTMClassifier(WORD, score_norm=norm)


AS_WRITTEN, APART = " by Algorithm 2", " with each example apart"
"""Batch norm over the batch and the public images, as SI has it; and over each example and the public images."""


def _both(name: str, network: Network) -> dict[str, Network]:
    ways = {AS_WRITTEN: models.BesidePublic, APART: models.AmongPublic}
    return {
        f"{name}{way}": Network(network.dataset, network.features, network.build, company=kind)
        for way, kind in ways.items()
    }


NETWORKS = {
    "LeNet-5": Network("mnist", Pixels(), _lenet),
    "LN-LeNet-5": Network("mnist", Pixels(), _lenet, models.layer_norm),
    **_both("BN-LeNet-5", Network("mnist", Pixels(), _lenet)),
    "TF-tutorial": Network("cifar-10", CIFAR >> Central(24), _tutorial),
    **_both("ResNet-18", Network("cifar-10", CIFAR, _resnet)),
    **_both("VGG-16", Network("cifar-10", CIFAR, _vgg)),
    **_both("Fast-CIFAR-ResNet", Network("cifar-10", CIFAR, _fast)),
    "BiLSTM-DL": Network("ag-news", WordVectors(20), _news),
    "LN-BiLSTM-DL": Network("ag-news", WordVectors(20), _news, models.layer_norm),
}
