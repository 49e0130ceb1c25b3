"""Vision transformers, with the layers and the initial weights of timm's and DeiT's."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.models.groups import in_groups

_GROUPS = 4
_EPSILON = 1e-6
_DEVIATION = 0.02


class PatchTokens(nn.Module):
    """An image as tokens: one that is learned, and one for each patch; each has a learned position added."""

    def __init__(self, channels: int, width: int, side: int, patch: int) -> None:
        super().__init__()
        self.side = side
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(_DEVIATION * torch.randn(1, 1 + (side // patch) ** 2, width))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (self.side, self.side):
            raise ValueError(f"this network takes images of {self.side}×{self.side}, not {x.shape[2]}×{x.shape[3]}")
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat((self.class_token.expand(len(x), -1, -1), patches), 1) + self.positions


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return result


class EncoderBlock(nn.Module):
    """Attention and a network of two layers, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.attn = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        layers = OrderedDict(fc1=nn.Linear(width, 4 * width), act=nn.GELU(), fc2=nn.Linear(4 * width, width))
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class _FirstToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def vit_tiny(
    channels: int = 3,
    classes: int = 1000,
    *,
    side: int = 224,
    patch: int = 16,
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
) -> nn.Sequential:
    """ViT-Tiny without dropout: 5,717,416 parameters on 3×224×224 images in patches of 16.

    Its four groups are each a quarter of the encoder's blocks; the stem is the patches' tokens.

    >>> sum(weight.numel() for weight in vit_tiny(1, 10, side=28, patch=7).parameters())
    5353738
    """
    if side % patch or depth % _GROUPS or width % heads:
        raise ValueError(
            f"patches of {patch} must fill a side of {side}, {heads} heads a width of {width}, and {_GROUPS} groups a "
            f"depth of {depth}: choose numbers that divide"
        )
    groups = [nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth // _GROUPS))) for _ in range(_GROUPS)]
    pool = nn.Sequential(OrderedDict(first=_FirstToken(), norm=nn.LayerNorm(width, eps=_EPSILON)))
    stem = PatchTokens(channels, width, side, patch)
    model = in_groups(groups, nn.Linear(width, classes), stem=stem, pool=pool)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=_DEVIATION)
            nn.init.zeros_(layer.bias)
    return model
