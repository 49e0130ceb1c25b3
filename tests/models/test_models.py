"""Every model has its paper's parameter count and shapes, and no example sees another."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sordino import models

Build = Callable[[], nn.Module]
CASES: dict[str, tuple[Build, tuple[int, ...], int, int]] = {
    "mnist_cnn": (models.mnist_cnn, (1, 28, 28), 10, 26_010),
    "mnist_scatter_cnn": (models.mnist_scatter_cnn, (81, 7, 7), 10, 33_066),
    "cifar_cnn": (models.cifar_cnn, (3, 32, 32), 10, 550_570),
    "cifar_small_cnn": (models.cifar_small_cnn, (3, 32, 32), 10, 167_642),
    "cifar_scatter_cnn": (models.cifar_scatter_cnn, (243, 8, 8), 10, 187_210),
    "lsr_cnn": (models.lsr_cnn, (1, 28, 28), 10, 25_386),
    "lsr_small_cnn": (models.lsr_small_cnn, (1, 28, 28), 10, 11_330),
    "lenet5": (models.lenet5, (1, 28, 28), 10, 61_706),
    "lenet_300_100": (models.lenet_300_100, (1, 28, 28), 10, 266_610),
    "resnet18": (models.resnet18, (3, 32, 32), 10, 11_173_962),
    "linear_mnist": (lambda: models.linear(3969), (81, 7, 7), 10, 39_700),
    "linear_cifar": (lambda: models.linear(15552), (243, 8, 8), 10, 155_530),
    "dense": (lambda: models.dense(784, 1024, 512, 64, 10), (1, 28, 28), 10, 1_362_122),
    "bilstm": (models.BiLSTMClassifier, (20, 100), 4, 34_564),
}


def check(model: nn.Module, inputs: Tensor, classes: int) -> None:
    """Scores of the right shape, a gradient for every parameter, and none from one example's scores to another's."""
    scores = model(inputs)
    assert scores.shape == (len(inputs), classes)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    changed = inputs.clone()
    changed[0] = changed[1]
    assert torch.allclose(model(changed)[1:], scores[1:], atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_counts_and_shapes(name: str) -> None:
    build, shape, classes, count = CASES[name]
    torch.manual_seed(0)
    model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    check(model, torch.randn(3, *shape), classes)


def test_models_on_tokens() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (3, 12))
    check(models.BiLSTMClassifier(16, 8, vocabulary=50), tokens, 4)
    check(models.TransformerClassifier(50, 20, width=16, heads=2), tokens, 4)


def test_dropout_and_groups_are_parameters() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (3, 12))
    model = models.TransformerClassifier(50, 12, width=16, heads=2, dropout=0.5)
    assert not torch.equal(model(tokens), model(tokens))
    assert models.resnet18(groups=8).stem[1].num_groups == 8


def test_a_network_of_one_width_is_refused() -> None:
    with pytest.raises(ValueError, match="input and its output"):
        models.dense(784)
