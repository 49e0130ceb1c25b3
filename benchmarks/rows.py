"""What is measured: a model and a batch a row, and the clipped sum that every contender must give on it."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.vision import depthwise_network, vision_transformer
from sordino import models

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Row:
    """A model with its batch; `goal` is the ratio to non-private SGD that we hold ourselves to, where there is one."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_size: int
    classes: int = 10
    goal: float | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build()

    def batch(self, size: int) -> Batch:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(size, *self.shape, generator=generator)
        return inputs, torch.randint(0, self.classes, (size,), generator=generator)


def ins_mnist_cnn() -> nn.Sequential:
    """The MNIST network of INS's Table 1, which is the tutorial's of TF-Privacy: ReLU in the place of T&B's tanh."""
    return nn.Sequential(*(nn.ReLU() if isinstance(layer, nn.Tanh) else layer for layer in models.mnist_cnn()))


def ins_cifar_cnn() -> nn.Sequential:
    """The CIFAR-10 network of INS's Table 1: convolutions of 32, 64, 64 and 128 channels with average pooling."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


ROWS = {
    "mnist-cnn": Row("MNIST CNN", models.mnist_cnn, (1, 28, 28), 512, goal=1.3),
    "cifar-cnn": Row("CIFAR CNN", models.cifar_cnn, (3, 32, 32), 256, goal=1.5),
    "linear": Row("linear 3969×10", lambda: models.linear(3969), (3969,), 4096, goal=1.1),
    "mnist-scatter-cnn": Row("MNIST scatter-CNN", models.mnist_scatter_cnn, (81, 7, 7), 512),
    "cifar-scatter-cnn": Row("CIFAR scatter-CNN", models.cifar_scatter_cnn, (243, 8, 8), 512),
    "lenet-5": Row("LeNet-5", models.lenet5, (1, 28, 28), 512),
    "bilstm": Row("BiLSTM, 20 word vectors", models.BiLSTMClassifier, (20, 100), 300, classes=4),
    "resnet-18": Row("ResNet-18, group norm", models.resnet18, (3, 32, 32), 64, goal=1.5),
    "resnet-18-64": Row("ResNet-18, group norm, 64×64", models.resnet18, (3, 64, 64), 16, goal=1.5),
    "depthwise": Row("depthwise network, 64×64", depthwise_network, (3, 64, 64), 32, goal=1.5),
    "vit": Row("vision transformer, 64×64", vision_transformer, (3, 64, 64), 32, goal=1.3),
    "fcn": Row("FCN 784-1024-512-64-10", lambda: models.dense(784, 1024, 512, 64, 10), (784,), 1024, goal=1.3),
    "ins-mnist": Row("INS Table 1, MNIST", ins_mnist_cnn, (1, 28, 28), 250),
    "ins-cifar": Row("INS Table 1, CIFAR-10", ins_cifar_cnn, (3, 32, 32), 2000),
    "small-fcn": Row("FCN 64-128-10", lambda: models.dense(64, 128, 10), (64,), 100),
}


@dataclass(frozen=True)
class Reference:
    """Clipped sums by a loop over examples in double precision, at a clip that half of the examples exceed."""

    l2_clip: float
    sums: dict[str, Tensor]

    def deviation(self, sums: dict[str, Tensor]) -> float:
        """The largest relative error of a parameter's sum, small parameters held to a thousandth of the whole."""
        if sums.keys() != self.sums.keys():
            raise ValueError(f"sums of other parameters: {sorted(sums.keys() ^ self.sums.keys())}")
        whole = torch.sqrt(torch.stack([exact.square().sum() for exact in self.sums.values()]).sum())
        errors = [
            torch.linalg.vector_norm(sums[name].double() - exact)
            / torch.maximum(torch.linalg.vector_norm(exact), 1e-3 * whole)
            for name, exact in self.sums.items()
        ]
        return float(torch.stack(errors).max())


def smooth(model: nn.Module) -> nn.Module:
    """The model with Tanh in place of ReLU, for comparing gradients.

    One of ResNet-18's half a million ReLUs lies so near zero that rounding alone decides its slope, and no two float32
    programs agree on its gradient.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Tanh())
    return model


def reference(model: nn.Module, batch: Batch) -> Reference:
    model = deepcopy(model).double()
    parameters = dict(model.named_parameters())
    gradients = []
    for x, y in zip(*batch, strict=True):
        loss = functional.cross_entropy(model(x[None].double()), y[None])
        gradients.append(torch.autograd.grad(loss, list(parameters.values())))
    norms = [torch.sqrt(torch.stack([part.square().sum() for part in parts]).sum()) for parts in gradients]
    clip = float(torch.stack(norms).median())
    totals = [torch.zeros_like(value) for value in parameters.values()]
    for parts, norm in zip(gradients, norms, strict=True):
        for total, part in zip(totals, parts, strict=True):
            total += part * min(1.0, clip / float(norm))
    return Reference(clip, dict(zip(parameters, totals, strict=True)))
