"""The VGG networks of SI for 32×32 images."""

from torch import nn

from sordino.models.normalisation import Norm, no_norm

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Of VGG-16: times the width, and how many convolutions before each pooling."""


def vgg16(
    classes: int = 10,
    norm: Norm = no_norm,
    last_norm: Norm | None = None,
    score_norm: Norm = no_norm,
    width: int = 64,
) -> nn.Sequential:
    """VGG-16 with one dense layer: 14,719,818 parameters on 3×32×32 images.

    SI's has a batch norm as `norm`, between convolution and ReLU; its "-mod" has no `last_norm`, and its "BN-" has a
    `score_norm` too. Thirteen convolutions, as the name says and as the authors' code has them; their Table 7 lists the
    sixteen of VGG-19.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for stage, (times, count) in enumerate(_STAGES):
        for place in range(count):
            last = (stage, place) == (len(_STAGES) - 1, count - 1)
            outputs = width * times
            normalised = (last_norm or norm) if last else norm
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), normalised(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes), score_norm(classes))
