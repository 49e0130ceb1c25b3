"""The LeNets of SI, with ReLU; SI's normalisation layers are put between their layers by its own recipe."""

from torch import nn

from sordino.models.dense import dense


def lenet5(classes: int = 10) -> nn.Sequential:
    """SI's LeNet-5 for MNIST: 61,706 parameters on 1×28×28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def lenet_300_100(classes: int = 10) -> nn.Sequential:
    """LeNet-300-100, fully connected: 266,610 parameters on 28×28 images."""
    return dense(784, 300, 100, classes)
