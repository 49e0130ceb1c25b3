"""Convolutions with standardised weights (Qiao et al. 2019), and the rule for their per-example gradients."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.gradients import register_rule

_EPSILON = 1e-8


class StandardisedConv2d(nn.Conv2d):
    """A convolution by its weights less their mean, over their deviation, for each output channel by itself.

    Its outputs grow with the number of inputs, as in BiT's networks: a norm belongs after it.

    >>> layer = StandardisedConv2d(3, 8, 5)
    >>> bool(layer.standardise(layer.weight).mean((1, 2, 3)).abs().max() < 1e-6)
    True
    """

    def __init__(
        self, inputs: int, outputs: int, kernel_size: int, *, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> None:
        super().__init__(inputs, outputs, kernel_size, stride, padding, bias=bias)
        if self.weight[0].numel() < 2:
            raise ValueError("a kernel of one weight is zero once it is standardised: use a plain convolution")

    @staticmethod
    def standardise(weight: Tensor) -> Tensor:
        variance, mean = torch.var_mean(weight, (1, 2, 3), correction=0, keepdim=True)
        return (weight - mean) * torch.rsqrt(variance + _EPSILON)

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self._conv_forward(input, self.standardise(self.weight), self.bias)
        return result


@register_rule(StandardisedConv2d)
def standardised_convolution(tape: Any, name: str, layer: StandardisedConv2d, x: Tensor) -> Tensor:
    """Gradients by the standardised weights w, from patches of n inputs, and by the weights v that these are made of.

    For one output channel, w = (v − mean v)·s with s = 1/√(var v + ε), so a gradient g by w becomes
    s·(g − mean g − w·⟨g, w⟩/n) by v. Less their mean, the patches give s·(g − mean g) at once.
    """
    padding = tuple(int(side) for side in layer.padding)

    def gradients(g: Tensor) -> Mapping[str, Tensor]:
        g = g.to(torch.promote_types(g.dtype, torch.float32))
        weight = layer.weight.to(g.dtype)
        scale = torch.rsqrt(weight.var((1, 2, 3), correction=0) + _EPSILON)
        along, slopes = layer.standardise(weight).flatten(1), g.flatten(2) * scale[:, None]
        formed = g.new_empty(len(x), *along.shape)
        for image, slope, own in zip(
            x.to(g.dtype).split(1), slopes, formed, strict=True
        ):  # one at a time: in the cache
            patches = functional.unfold(image, layer.kernel_size, padding=padding, stride=layer.stride)[0]
            torch.mm(slope, patches.sub_(patches.mean(0)).T, out=own)
            own.addcmul_(along, torch.linalg.vecdot(own, along)[:, None], value=-1 / along.shape[1])
        found = {"weight": formed.view(len(x), *weight.shape)}
        return found if layer.bias is None else found | {"bias": g.sum((2, 3))}

    result: Tensor = tape.run_layer(name, layer, x, gradients=gradients)
    return result
