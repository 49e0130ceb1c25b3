"""ResNets for 32×32 images: by default with group norm, which unlike batch norm keeps examples apart (after INS).

INS trains the pre-activation ResNet-v2 on 224×224 images; these are the post-activation blocks and the 3×3 stem that
small images ask for. SI takes the same with batch norm, as `norm`; its "-mod" has no `last_norm` and its "BN-" has a
`score_norm` too.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from sordino.models.fully_connected import in_sequence
from sordino.models.normalisation import Norm, group_norm, no_norm


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with norms beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, last_norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = last_norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.norm1(self.conv1(x)))
        result: Tensor = self.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """A stem, stages of basic blocks (each stage but the first halves the image), the mean over positions, a head."""

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        channels: int = 3,
        classes: int = 10,
        norm: Norm | None = None,
        last_norm: Norm | None = None,
        score_norm: Norm = no_norm,
    ) -> None:
        super().__init__()
        norm = norm or group_norm(32)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), norm(widths[0]), nn.ReLU(inplace=True)
        )
        stages, inputs = [], widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for block in range(count):
                last = stage == len(blocks) - 1 and block == count - 1
                second = (last_norm or norm) if last else norm
                stages.append(BasicBlock(inputs, width, 2 if stage and not block else 1, norm, second))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        self.score_norm = score_norm(classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.stages(self.stem(x))
        scores: Tensor = self.score_norm(self.head(hidden.mean(dim=(2, 3))))
        return scores


def resnet18(
    channels: int = 3,
    classes: int = 10,
    norm: Norm | None = None,
    last_norm: Norm | None = None,
    score_norm: Norm = no_norm,
    width: int = 64,
) -> ResNet:
    """ResNet-18 for 3×32×32 images: 11,173,962 parameters with group norm (after INS), 11,164,362 as in SI."""
    widths = [width * times for times in (1, 2, 4, 8)]
    return ResNet((2, 2, 2, 2), widths, channels, classes, norm, last_norm, score_norm)


class Residual(nn.Module):
    """A skip connection around these layers: their output is added to their input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.layers(x)
        return result


class _Times(nn.Module):
    """Its input times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def _get_name(self) -> str:
        return "Scaled"  # runs are bound to a model's repr, which must not change


def fast_cifar_resnet(
    classes: int = 10, norm: Norm = no_norm, score_norm: Norm = no_norm, width: int = 64
) -> nn.Sequential:
    """SI's Fast-CIFAR-ResNet, which is Page's (github.com/davidcpage/cifar10-fast): 6,568,640 parameters on 3×32×32.

    As there, the head has no bias and its scores are divided by 8.
    """

    def convolved(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm(outputs), nn.ReLU()

    double, fourfold, last = 2 * width, 4 * width, 8 * width
    return in_sequence(
        convolved(3, width),
        (*convolved(width, double), nn.MaxPool2d(2), Residual(*convolved(double, double), *convolved(double, double))),
        (*convolved(double, fourfold), nn.MaxPool2d(2)),
        (*convolved(fourfold, last), nn.MaxPool2d(2), Residual(*convolved(last, last), *convolved(last, last))),
        (nn.MaxPool2d(4), nn.Flatten(), nn.Linear(last, classes, bias=False), _Times(1 / 8), score_norm(classes)),
    )
