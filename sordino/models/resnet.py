"""ResNets for 32×32 images with group norm, which unlike batch norm keeps examples apart (after INS).

INS trains the pre-activation ResNet-v2 on 224×224 images; these are the post-activation blocks and the 3×3 stem that
small images ask for.
"""

from collections.abc import Sequence

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with group norm beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.norm1(self.conv1(x)))
        result: Tensor = self.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """A stem, stages of basic blocks (each stage but the first halves the image), the mean over positions, a head."""

    def __init__(
        self, blocks: Sequence[int], widths: Sequence[int], channels: int = 3, classes: int = 10, groups: int = 32
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
            nn.GroupNorm(groups, widths[0]),
            nn.ReLU(inplace=True),
        )
        stages, inputs = [], widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for block in range(count):
                stages.append(BasicBlock(inputs, width, 2 if stage and not block else 1, groups))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.stages(self.stem(x))
        scores: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return scores


def resnet18(channels: int = 3, classes: int = 10, groups: int = 32) -> ResNet:
    """ResNet-18 with group norm (after INS): 11,173,962 parameters on 3×32×32 images."""
    return ResNet((2, 2, 2, 2), (64, 128, 256, 512), channels, classes, groups)
