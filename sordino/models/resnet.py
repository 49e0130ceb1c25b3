"""ResNets: SI's with norm and ReLU after each convolution, and INS's ResNet-v2 with both before it.

Group norm, unlike batch norm, keeps examples apart: v2 has it always, the others by default. SI takes batch norm as
`norm`; its "-mod" has no `last_norm` and its "BN-" has a `score_norm` too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from sordino.models.fully_connected import in_sequence
from sordino.models.groups import in_groups
from sordino.models.normalisation import Norm, group_norm, no_norm
from sordino.models.standardised import StandardisedConv2d


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


class PreActivationBlock(nn.Module):
    """Norm and ReLU before each convolution, and a shortcut beside them all.

    Where the number of channels changes the shortcut is a 1×1 convolution after the first ReLU; where only the image
    shrinks, every second position.
    """

    def __init__(self, inputs: int, shapes: Sequence[tuple[int, int, int]], made: "_Made") -> None:
        """`shapes` are the convolutions' channels, kernels and strides."""
        super().__init__()
        self.norm1 = made.norm(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        layers, before, total = OrderedDict[str, nn.Module](), inputs, 1
        for number, (outputs, kernel, stride) in enumerate(shapes, 1):
            if number > 1:
                layers |= {f"norm{number}": made.norm(before), f"relu{number}": nn.ReLU(inplace=True)}
            layers[f"conv{number}"] = made.convolution(before, outputs, kernel, stride)
            before, total = outputs, total * stride
        self.layers = nn.Sequential(layers)
        self.projects = inputs != before
        self.shortcut: nn.Module = nn.Identity() if total == 1 else nn.MaxPool2d(1, total)
        if self.projects:
            self.shortcut = made.convolution(inputs, before, 1, total)

    def forward(self, x: Tensor) -> Tensor:
        first = self.relu1(self.norm1(x))
        result: Tensor = self.layers(first) + self.shortcut(first if self.projects else x)
        return result


@dataclass(frozen=True)
class _Made:
    """What a ResNet-v2's groups of blocks are made of."""

    norm: Norm
    standardised: bool
    bottleneck: bool = False
    late_strides: bool = False

    def convolution(self, inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
        kind = StandardisedConv2d if self.standardised else nn.Conv2d
        layer = kind(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return layer

    def group(self, inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        strides = [1] * blocks
        strides[-1 if self.late_strides else 0] = stride
        return nn.Sequential(
            *(
                PreActivationBlock(outputs if place else inputs, self._shapes(outputs, each), self)
                for place, each in enumerate(strides)
            )
        )

    def _shapes(self, outputs: int, stride: int) -> list[tuple[int, int, int]]:
        if self.bottleneck:
            return [(outputs // 4, 1, 1), (outputs // 4, 3, stride), (outputs, 1, 1)]
        return [(outputs, 3, each) for each in ((1, stride) if self.late_strides else (stride, 1))]

    def network(
        self,
        stem: nn.Module,
        inputs: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        strides: Sequence[int],
        classes: int,
    ) -> nn.Sequential:
        sizes = zip((inputs, *widths[:-1]), widths, blocks, strides, strict=True)
        groups = [self.group(before, after, count, stride) for before, after, count, stride in sizes]
        pool = nn.Sequential(
            OrderedDict(
                norm=self.norm(widths[-1]), relu=nn.ReLU(inplace=True), mean=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten()
            )
        )
        head = nn.Linear(widths[-1], classes)
        nn.init.xavier_normal_(head.weight)
        nn.init.zeros_(head.bias)
        return in_groups(groups, head, stem=stem, pool=pool)


def resnet18_v2(
    channels: int = 3,
    classes: int = 1000,
    *,
    width: int = 64,
    small_images: bool = False,
    standardised: bool = False,
    late_strides: bool = False,
) -> nn.Sequential:
    """INS's ResNet-v2-18: 11,687,720 parameters on 3×224×224 images.

    `width` 8 makes it eight times as narrow. `small_images` has a 3×3 convolution in the place of the stem's 7×7 one
    and its pooling. `standardised` has standardised weights, which INS has not. A group halves the image in its first
    block, as in public weights, or with `late_strides` in its last, as in INS's code: 2.5 times as many products.

    >>> import torch
    >>> resnet18_v2(channels=1, classes=10, width=8, small_images=True)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 10])
    """
    made = _Made(group_norm(32), standardised, late_strides=late_strides)
    widths = [width * times for times in (1, 2, 4, 8)]
    stem = _stem(made, channels, width, small_images)
    return made.network(stem, width, widths, (2, 2, 2, 2), (1, 2, 2, 2), classes)


# The arguments stand again, so that help and editors show them.
def resnet50_v2(
    channels: int = 3,
    classes: int = 1000,
    *,
    width: int = 64,
    small_images: bool = False,
    standardised: bool = False,
    late_strides: bool = False,
) -> nn.Sequential:
    """INS's ResNet-v2-50, of bottleneck blocks: 25,549,352 parameters on 3×224×224 images; the rest as `resnet18_v2`.

    >>> sum(weight.numel() for weight in resnet50_v2().parameters())
    25549352
    """
    made = _Made(group_norm(32), standardised, bottleneck=True, late_strides=late_strides)
    widths = [width * times for times in (4, 8, 16, 32)]
    strides = (2, 2, 2, 1) if late_strides else (1, 2, 2, 2)
    stem = _stem(made, channels, width, small_images)
    return made.network(stem, width, widths, (3, 4, 6, 3), strides, classes)


def wrn_16_4(channels: int = 3, classes: int = 10, *, width: int = 16, standardised: bool = False) -> nn.Sequential:
    """The wide ResNet of De et al. (2022) for CIFAR-10: 2,748,890 parameters on 3×32×32 images, norms of 16 groups.

    Theirs has standardised weights. `width` is that of the first convolution; the groups are 4, 8 and 16 times as wide.

    >>> [name for name, _ in wrn_16_4(width=2).named_children()]
    ['stem', 'group1', 'group2', 'group3', 'pool', 'head']
    """
    made = _Made(group_norm(16), standardised)
    widths = [width * times for times in (4, 8, 16)]
    return made.network(made.convolution(channels, width, 3, 1), width, widths, (2, 2, 2), (1, 2, 2), classes)


def _stem(made: _Made, channels: int, width: int, small_images: bool) -> nn.Sequential:
    """No norm: the first block begins with one. Zeros around the pooling, as INS's code and BiT's weights have them."""
    if small_images:
        return nn.Sequential(OrderedDict(conv=made.convolution(channels, width, 3, 1)))
    conv = made.convolution(channels, width, 7, 2)
    return nn.Sequential(OrderedDict(conv=conv, pad=nn.ZeroPad2d(1), pool=nn.MaxPool2d(3, 2)))
