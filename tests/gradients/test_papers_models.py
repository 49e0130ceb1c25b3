"""Every model of the papers gives the naive loop's sums and norms."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sordino import models

from .reference import check

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
DOUBLE = (torch.float64,)
BOTH = (torch.float64, torch.float32)
IMAGES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[torch.dtype, ...]]] = {
    "mnist_cnn": (models.mnist_cnn, (1, 28, 28), BOTH),
    "mnist_scatter_cnn": (models.mnist_scatter_cnn, (81, 7, 7), BOTH),
    "cifar_cnn": (models.cifar_cnn, (3, 32, 32), DOUBLE),
    "cifar_small_cnn": (models.cifar_small_cnn, (3, 32, 32), BOTH),
    "cifar_scatter_cnn": (models.cifar_scatter_cnn, (243, 8, 8), BOTH),
    "lsr_cnn": (models.lsr_cnn, (1, 28, 28), BOTH),
    # Rounding alone may turn a rectified unit on or off: in double precision that hardly happens.
    "lenet5": (models.lenet5, (1, 28, 28), DOUBLE),
    "lenet_300_100": (models.lenet_300_100, (1, 28, 28), DOUBLE),
    "linear": (lambda: models.linear(3969), (81, 7, 7), BOTH),
    "dense": (lambda: models.dense(784, 64, 32, 10), (1, 28, 28), DOUBLE),
    "resnet": (lambda: models.ResNet((1, 1), (8, 16), groups=4), (3, 8, 8), DOUBLE),
    "bilstm": (lambda: models.BiLSTMClassifier(20, 8), (7, 20), BOTH),
}


@pytest.mark.parametrize("name", IMAGES)
def test_models(name: str) -> None:
    build, shape, dtypes = IMAGES[name]
    torch.manual_seed(0)
    check(build(), torch.randn(4, *shape), torch.randint(0, 4, (4,)), loss=CROSS_ENTROPY, dtypes=dtypes)


def test_resnet18() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))
    check(models.resnet18(), x, y, loss=CROSS_ENTROPY, dtypes=DOUBLE, physical_batch=2)


def test_models_on_tokens() -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 30, (4, 9)), torch.randint(0, 4, (4,))
    check(models.BiLSTMClassifier(8, 6, vocabulary=30), x, y, loss=CROSS_ENTROPY)
    check(models.TransformerClassifier(30, 12, width=8, heads=2), x, y, loss=CROSS_ENTROPY, dtypes=DOUBLE)
