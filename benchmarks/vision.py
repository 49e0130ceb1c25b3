"""Two networks for images that people fine-tune, in small: a vision transformer and one of depthwise convolutions."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.models.fully_connected import in_sequence


class Block(nn.Module):
    """Attention and two linear maps, each after a layer norm and beside what it is given (Dosovitskiy et al. 2021)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.mix(mixed)
        result: Tensor = x + self.dense(self.norm2(x))
        return result


class VisionTransformer(nn.Module):
    """Patches of an image, with a token for its class."""

    def __init__(self, side: int, patch: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        scores: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return scores


def vision_transformer() -> VisionTransformer:
    """ViT-Tiny's widths on 64×64 images in 8×8 patches, six blocks deep."""
    return VisionTransformer(side=64, patch=8, width=192, heads=3, depth=6, classes=10)


class Inverted(nn.Module):
    """To many channels, a depthwise convolution, and back to few (Sandler et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int, times: int = 6) -> None:
        super().__init__()
        wide = times * inputs
        self.layers = in_sequence(
            (nn.Conv2d(inputs, wide, 1, bias=False), nn.GroupNorm(8, wide), nn.ReLU6()),
            (nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.GroupNorm(8, wide), nn.ReLU6()),
            (nn.Conv2d(wide, outputs, 1, bias=False), nn.GroupNorm(8, outputs)),
        )
        self.beside = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return x + result if self.beside else result


def depthwise_network() -> nn.Sequential:
    """MobileNetV2's blocks with group norm, one of each width and two where it does not change."""
    shapes = [(16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 1), (96, 160, 2)]
    return in_sequence(
        (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU6()),
        tuple(Inverted(*shape) for shape in shapes),
        (nn.Conv2d(160, 640, 1, bias=False), nn.GroupNorm(8, 640), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)),
        (nn.Flatten(), nn.Linear(640, 10)),
    )
