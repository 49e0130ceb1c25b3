"""The LeNets of SI, with ReLU, and with a normalisation after each layer but the scores: plain, LN- and BN-LeNet."""

from torch import nn

from sordino.models.normalisation import Norm, no_norm


def lenet5(classes: int = 10, norm: Norm = no_norm) -> nn.Sequential:
    """SI's LeNet-5 for MNIST: 61,706 parameters on 1×28×28 images; norms stand before the pooling, as in its code."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), norm(6), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), norm(16), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), norm(120)),
        *(nn.Linear(120, 84), nn.ReLU(), norm(84), nn.Linear(84, classes)),
    )


def lenet_300_100(classes: int = 10, norm: Norm = no_norm) -> nn.Sequential:
    """LeNet-300-100, fully connected: 266,610 parameters on 28×28 images."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), norm(300)),
        *(nn.Linear(300, 100), nn.ReLU(), norm(100), nn.Linear(100, classes)),
    )
