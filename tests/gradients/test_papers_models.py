"""Every model of the papers gives the naive loop's sums and norms."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sordino import models
from sordino.gradients import ClippedGradients, ExamplesMixError

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
    "resnet": (lambda: models.ResNet((1, 1), (8, 16), norm=models.group_norm(4)), (3, 8, 8), DOUBLE),
    "LN-lenet5": (lambda: models.lenet5(norm=models.layer_norm), (1, 28, 28), DOUBLE),
    "LN-lenet_300_100": (lambda: models.lenet_300_100(norm=models.layer_norm), (1, 28, 28), DOUBLE),
    "LN-resnet": (lambda: models.ResNet((1, 1), (8, 16), norm=models.layer_norm), (3, 8, 8), DOUBLE),
    "LN-vgg16": (lambda: models.vgg16(norm=models.layer_norm, width=2), (3, 32, 32), DOUBLE),
    "fast_cifar_resnet": (lambda: models.fast_cifar_resnet(norm=models.layer_norm, width=2), (3, 32, 32), DOUBLE),
    "tf_tutorial_cnn": (lambda: models.tf_tutorial_cnn(side=8), (3, 8, 8), DOUBLE),
    "LN-tf_tutorial_cnn": (lambda: models.tf_tutorial_cnn(norm=models.layer_norm, side=8), (3, 8, 8), DOUBLE),
    "LN-bilstm": (lambda: models.BiLSTMClassifier(20, 8, score_norm=models.layer_norm), (7, 20), DOUBLE),
    "bilstm": (lambda: models.BiLSTMClassifier(20, 8), (7, 20), BOTH),
}


@pytest.mark.parametrize("name", IMAGES)
def test_models(name: str) -> None:
    build, shape, dtypes = IMAGES[name]
    torch.manual_seed(0)
    check(build(), torch.randn(4, *shape), torch.randint(0, 4, (4,)), loss=CROSS_ENTROPY, dtypes=dtypes)


NORMED: dict[str, tuple[Callable[[models.Norm], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda norm: models.lenet5(norm=norm), (1, 28, 28)),
    "lenet_300_100": (lambda norm: models.lenet_300_100(norm=norm), (1, 28, 28)),
    "resnet": (lambda norm: models.ResNet((1, 1), (4, 8), norm=norm, score_norm=norm), (3, 8, 8)),
    "vgg16": (lambda norm: models.vgg16(norm=norm, width=2), (3, 32, 32)),
    "tf_tutorial_cnn": (lambda norm: models.tf_tutorial_cnn(norm=norm, side=8), (3, 8, 8)),
    "bilstm": (lambda norm: models.BiLSTMClassifier(20, 8, score_norm=norm), (7, 20)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NORMED)
def test_batch_norm_is_refused(name: str, training: bool) -> None:
    """In evaluation mode too: without running statistics examples mix there as well."""
    build, shape = NORMED[name]
    torch.manual_seed(0)
    clipped = ClippedGradients(build(models.BatchNorm).train(training), CROSS_ENTROPY)
    with pytest.raises(ExamplesMixError, match=r"BatchNorm.* mixes examples"):
        clipped(torch.randn(4, *shape), torch.randint(0, 4, (4,)))


@pytest.mark.parametrize("name", [name for name in NORMED if name != "bilstm"])
def test_batch_norm_among_public_images(name: str) -> None:
    """By the layer rules, with several rows for each example."""
    build, shape = NORMED[name]
    torch.manual_seed(0)
    model = models.AmongPublic(build, torch.randn(3, *shape))
    clipped = check(
        *(model, torch.randn(4, *shape), torch.randint(0, 4, (4,))),
        loss=CROSS_ENTROPY,
        dtypes=DOUBLE,
        physical_batch=4,
    )
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"


def test_algorithm_2_is_refused_in_training_and_taken_at_test() -> None:
    torch.manual_seed(0)
    model = models.BesidePublic(NORMED["lenet5"][0], torch.randn(3, 1, 28, 28))
    x, y = torch.randn(4, 1, 28, 28), torch.randint(0, 10, (4,))
    with pytest.raises(ExamplesMixError, match="SharedBatchNorm in training mode"):
        ClippedGradients(model, CROSS_ENTROPY)(x, y)
    check(model.eval(), x, y, loss=CROSS_ENTROPY, dtypes=DOUBLE, physical_batch=4)


def test_resnet18() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))
    check(models.resnet18(), x, y, loss=CROSS_ENTROPY, dtypes=DOUBLE, physical_batch=2)


def test_models_on_tokens() -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 30, (4, 9)), torch.randint(0, 4, (4,))
    check(models.BiLSTMClassifier(8, 6, vocabulary=30), x, y, loss=CROSS_ENTROPY)
    check(models.TransformerClassifier(30, 12, width=8, heads=2), x, y, loss=CROSS_ENTROPY, dtypes=DOUBLE)
