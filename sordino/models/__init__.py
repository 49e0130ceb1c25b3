"""The papers' architectures as plain modules, a file a family; none of them lets one example see another."""

from sordino.models.convnets import (
    cifar_cnn,
    cifar_scatter_cnn,
    cifar_small_cnn,
    lsr_cnn,
    lsr_small_cnn,
    mnist_cnn,
    mnist_scatter_cnn,
)
from sordino.models.dense import dense, linear
from sordino.models.lenet import lenet5, lenet_300_100
from sordino.models.recurrent import BiLSTMClassifier
from sordino.models.resnet import ResNet, resnet18
from sordino.models.transformer import TransformerClassifier

__all__ = [
    "BiLSTMClassifier",
    "ResNet",
    "TransformerClassifier",
    "cifar_cnn",
    "cifar_scatter_cnn",
    "cifar_small_cnn",
    "dense",
    "lenet5",
    "lenet_300_100",
    "linear",
    "lsr_cnn",
    "lsr_small_cnn",
    "mnist_cnn",
    "mnist_scatter_cnn",
    "resnet18",
]
