"""The papers' architectures as plain modules, a file a family.

As they are built by default none of them lets one example see another; with batch norm (SI) they do, and say so.
"""

from sordino.models.convnets import (
    cifar_cnn,
    cifar_scatter_cnn,
    cifar_small_cnn,
    lsr_cnn,
    lsr_small_cnn,
    mnist_cnn,
    mnist_scatter_cnn,
    tf_tutorial_cnn,
)
from sordino.models.dense import dense, linear
from sordino.models.frozen import train_last
from sordino.models.lenet import lenet5, lenet_300_100
from sordino.models.normalisation import BatchNorm, Norm, group_norm, layer_norm, no_norm
from sordino.models.paw import average_lenet5, paw_cnn, paw_rnn, rwt_cnn
from sordino.models.public_images import AmongPublic, BesidePublic
from sordino.models.recurrent import BiLSTMClassifier
from sordino.models.resnet import ResNet, fast_cifar_resnet, resnet18
from sordino.models.transformer import TransformerClassifier
from sordino.models.vgg import vgg16

__all__ = [
    "AmongPublic",
    "BatchNorm",
    "BesidePublic",
    "BiLSTMClassifier",
    "Norm",
    "ResNet",
    "TransformerClassifier",
    "average_lenet5",
    "cifar_cnn",
    "cifar_scatter_cnn",
    "cifar_small_cnn",
    "dense",
    "fast_cifar_resnet",
    "group_norm",
    "layer_norm",
    "lenet5",
    "lenet_300_100",
    "linear",
    "lsr_cnn",
    "lsr_small_cnn",
    "mnist_cnn",
    "mnist_scatter_cnn",
    "no_norm",
    "paw_cnn",
    "paw_rnn",
    "resnet18",
    "rwt_cnn",
    "tf_tutorial_cnn",
    "train_last",
    "vgg16",
]
