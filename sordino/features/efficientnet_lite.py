"""EfficientNet-Lite (Liu 2020, after Tan & Le 2019): inverted bottlenecks without squeeze-and-excitation, ReLU6.

`EfficientNetLite` is the network as published; `Folded` is the same function, several times as fast on a processor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

STEM, WIDTH, CLASSES = 32, 1280, 1000
_STAGES = (
    # blocks, kernel, stride, expansion, channels
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)
_EPSILON = 1e-3


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow's "SAME": an odd margin is larger below and to the right."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        margins: list[int] = []
        for side in (x.shape[3], x.shape[2]):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            margins += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, margins) if any(margins) else x)


def _unit(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, capped: bool = True
) -> nn.Module:
    layers = [SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False), nn.BatchNorm2d(outputs, _EPSILON)]
    return nn.Sequential(*layers, *[nn.ReLU6(inplace=True)] * capped)


class Block(nn.Module):
    """Widen, filter each channel, narrow; with a shortcut where the shape stays the same."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.units = nn.Sequential(
            *[_unit(inputs, inner)] * (expansion > 1),
            _unit(inner, inner, kernel, stride, groups=inner),
            _unit(inner, outputs, capped=False),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.units(x)
        return y + x if self.shortcut else y


class EfficientNetLite(nn.Module):
    """Images (B, 3, H, W) → scores of ImageNet's classes; `features` are the means of the layer before."""

    def __init__(self, wider: float = 1.0, deeper: float = 1.0) -> None:
        super().__init__()
        self.stem = _unit(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for stage, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES):
            outputs = _rounded(channels * wider)
            count = repeats if stage in (0, len(_STAGES) - 1) else ceil(repeats * deeper)
            for place in range(count):
                blocks.append(Block(inputs, outputs, kernel, 1 if place else stride, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = _unit(inputs, WIDTH)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        planes: Tensor = self.head(self.blocks(self.stem(x)))
        return planes.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x))
        return scores

    def load_published(self, state: Mapping[str, Tensor]) -> None:
        """Load weights under the names of the packages that carry them; the layers have the same order."""
        own = list(self.state_dict())
        if [name.rpartition(".")[2] for name in own] != [name.rpartition(".")[2] for name in state]:
            raise ValueError("these weights belong to another network")
        self.load_state_dict(dict(zip(own, state.values(), strict=True)))


def _rounded(channels: float) -> int:
    """To the nearest multiple of 8, unless that loses more than a tenth."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


@dataclass(frozen=True)
class _Convolution:
    """A convolution with its batch norm folded in, and its activation: with oneDNN in one pass over memory."""

    weight: Tensor
    bias: Tensor
    stride: int
    padding: int
    groups: int
    capped: bool

    def __call__(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if not self.weight.is_mkldnn:
            y = functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, 1, self.groups)
            y = y.clamp_(0, 6) if self.capped else y
            return y if shortcut is None else y + shortcut
        where = (self.weight, self.bias, [self.padding] * 2, [self.stride] * 2, [1, 1], self.groups)
        fused = torch.ops.mkldnn._convolution_pointwise
        found: Tensor
        if shortcut is not None:
            found = fused.binary(x, shortcut, *where, "add", 1.0, None, [], None)
        elif self.capped:
            found = fused(x, *where, "hardtanh", [0.0, 6.0], "")
        else:
            found = fused(x, *where, "none", [], "")
        return found


class Folded:
    """The features of a network in evaluation mode, without gradients, for images of one size turned by 180°.

    Turned, TensorFlow's odd padding is above and to the left, where a convolution's ordinary padding puts it: no image
    need be copied into a frame. The mean over the image is the same either way.
    """

    def __init__(self, network: EfficientNetLite, side: int, block: int) -> None:
        parts: list[tuple[Iterable[nn.Module], bool]] = [([network.stem], False)]
        parts += [(part.units, part.shortcut) for part in network.blocks if isinstance(part, Block)]
        parts.append(([network.head], False))
        self._parts: list[tuple[list[_Convolution], bool]] = []
        for units, shortcut in parts:
            convolutions = []
            for unit in units:
                convolutions.append(_folded(unit, (block, side)))
                side = -(-side // convolutions[-1].stride)
            self._parts.append((convolutions, shortcut))

    def __call__(self, images: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)
        for convolutions, shortcut in self._parts:
            y = x
            for convolution in convolutions[:-1]:
                y = convolution(y)
            x = convolutions[-1](y, x if shortcut else None)
        return x.mean((2, 3))


def _folded(unit: nn.Module, size: tuple[int, int]) -> _Convolution:
    convolution, norm, *rest = unit.children()
    assert isinstance(convolution, nn.Conv2d)
    state = {name: value.double() for name, value in norm.state_dict().items()}
    scale = state["weight"] / (state["running_var"] + _EPSILON).sqrt()
    weight = (convolution.weight.detach().double() * scale[:, None, None, None]).float().flip(2, 3)
    bias = (state["bias"] - state["running_mean"] * scale).float()
    stride, padding, groups = convolution.stride[0], convolution.kernel_size[0] // 2, convolution.groups
    if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
        shape = [size[0], convolution.in_channels, size[1], size[1]]
        weight = torch.ops.mkldnn._reorder_convolution_weight(
            weight.contiguous(), [padding] * 2, [stride] * 2, [1, 1], groups, shape
        )
    else:
        weight = weight.contiguous(memory_format=torch.channels_last)
    return _Convolution(weight, bias, stride, padding, groups, capped=bool(rest))
