"""Fully connected networks (PAW, SI), linear models on features (T&B), and training only the last layers (PAW)."""

from collections.abc import Iterable
from itertools import chain, pairwise

from torch import nn

from sordino.models.normalisation import Norm, no_norm


def in_sequence(*blocks: Iterable[nn.Module]) -> nn.Sequential:
    """The layers of all blocks, one after the other."""
    return nn.Sequential(*chain.from_iterable(blocks))


def dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A network with these widths, from the flattened input to the classes, activations between its layers (PAW)."""
    if len(widths) < 2:
        raise ValueError(f"a network needs the widths of its input and its output, not only {widths}")
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def linear(inputs: int, classes: int = 10) -> nn.Sequential:
    """Multinomial logistic regression (T&B: 39,700 parameters on 3,969 features, 155,530 on 15,552)."""
    return dense(inputs, classes)


def lenet_300_100(classes: int = 10, norm: Norm = no_norm) -> nn.Sequential:
    """SI's LeNet-300-100: 266,610 parameters on 28×28 images."""
    return in_sequence(
        (nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), norm(300)),
        (nn.Linear(300, 100), nn.ReLU(), norm(100), nn.Linear(100, classes)),
    )


def train_last(model: nn.Sequential, layers: int = 2) -> nn.Sequential:
    """Freeze all but the last dense layers at their random weights (PAW's random weights training).

    Noise then falls on fewer weights, and the outputs of the frozen layers never change: they can be computed once for
    each example.
    """
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not 1 <= layers <= len(found):
        raise ValueError(f"the last {layers} of {len(found)} dense layers cannot be trained")
    model.requires_grad_(False)
    for module in found[-layers:]:
        module.requires_grad_(True)
    return model
