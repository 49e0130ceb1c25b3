"""Layer, group, instance and (in evaluation mode) batch norms: a scale and a shift after each example's normalisation.

The gradient of scale and shift is a sum over positions, small enough to be saved for each example.
"""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.per_example_gradients import WholeGradient, at_least_single, by_example
from sordino.gradients.rules.registry import register_rule
from sordino.gradients.tape import Gradients, Tape
from sordino.gradients.tracked_parameters import NoRuleError

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


@register_rule(nn.GroupNorm)
def group_norm(tape: Tape, name: str, layer: nn.GroupNorm, x: Tensor) -> Tensor:
    use = _GroupNorm(tape, name, x, layer.weight, layer.bias, layer.num_groups, layer.eps)
    return tape.record(use, x)


@register_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(tape: Tape, name: str, layer: _InstanceNorm, x: Tensor) -> Tensor:
    if layer.training or layer.running_mean is None:
        use = _GroupNorm(tape, name, x, layer.weight, layer.bias, layer.num_features, layer.eps)
        return tape.record(use, x)
    return _with_fixed_statistics(tape, name, layer, x)


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(tape: Tape, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
    """In evaluation mode only: in training mode examples mix, and the model is refused."""
    return _with_fixed_statistics(tape, name, layer, x)


@register_rule(nn.LayerNorm)
def layer_norm(tape: Tape, name: str, layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return tape.record(_LayerNorm(tape, name, x, layer), x)


def _with_fixed_statistics(tape: Tape, name: str, layer: _BatchNorm | _InstanceNorm, x: Tensor) -> Tensor:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    normal = F.batch_norm(x, layer.running_mean, layer.running_var, None, None, False, 0.0, layer.eps)
    return tape.record(_Scaled(tape, name, x, layer.weight, layer.bias), normal)


class _ScaleAndShift:
    """What the norms share: names and plain values of scale and shift, and which rows are whose."""

    def __init__(self, tape: Tape, name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._weight_name, self._weight = tape.parameter(weight)
        self._bias_name, self._bias = tape.parameter(bias)
        self._examples, self._dimension = tape.examples, tape.dimension(name, x)
        if self._dimension and not isinstance(self, _LayerNorm):
            raise NoRuleError(f"the examples are not in the first dimension of the input of {name}")
        self.parameters = tuple(name for name in (self._weight_name, self._bias_name) if name)

    def _parameter_gradients(self, scale: Tensor, shift: Tensor) -> Gradients:
        """From gradients of each row, (N, features)."""
        found = zip((self._weight_name, self._bias_name), (scale, shift), strict=True)
        return {name: WholeGradient(by_example(rows, self._examples)) for name, rows in found if name}


class _GroupNorm(_ScaleAndShift):
    def __init__(
        self, tape: Tape, name: str, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, eps: float
    ) -> None:
        super().__init__(tape, name, x, weight, bias)
        self._groups, self._eps = groups, eps

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = x if x.is_contiguous(memory_format=_format(x)) else x.contiguous()
        weight, bias = (None if value is None else value.to(x.dtype) for value in (self._weight, self._bias))
        y, mean, deviation = torch.native_group_norm(x, weight, bias, *self._sizes(x), self._eps)
        return y, (x, mean, deviation)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        x, g = saved[0], at_least_single(gradient.contiguous(memory_format=_format(saved[0])))
        inputs, mean, deviation = (value.to(g.dtype) for value in saved)
        weight = g.new_ones(x.shape[1]) if self._weight is None else self._weight.to(g.dtype)
        differentiate = self._together if inputs.is_contiguous() else self._with_channels_last
        backward, scale, shift = differentiate(g, inputs, mean, deviation, weight, needed[0])
        return (None if backward is None else backward.to(x.dtype),), self._parameter_gradients(scale, shift)

    def _together(
        self, g: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor, needed: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """As one example, of which every example is some groups: torch then gives a scale and a shift for each."""
        rows, channels, positions, groups = self._sizes(x)
        g, x_together = (value.reshape(1, rows * channels, positions) for value in (g, x))
        backward, scale, shift = torch.ops.aten.native_group_norm_backward(
            g,
            x_together,
            mean.view(1, -1),
            deviation.view(1, -1),
            weight.repeat(rows),
            1,
            rows * channels,
            positions,
            rows * groups,
            [needed, True, True],
        )
        return backward.view(x.shape) if needed else None, scale.view(rows, -1), shift.view(rows, -1)

    def _with_channels_last(
        self, g: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor, needed: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """From sums over positions, each element by element: torch takes several times as long in this layout."""
        rows, channels, positions, groups = self._sizes(x)
        products = g * x
        shift, sums = _over_positions(g), _over_positions(products)
        grouped = [value.view(rows, groups, -1) for value in (shift, sums)]
        mean, deviation, weight = mean.unsqueeze(2), deviation.unsqueeze(2), weight.view(1, groups, -1)
        scale = ((grouped[1] - mean * grouped[0]) * deviation).view(rows, -1)
        if not needed:
            return None, scale, shift
        means = [(value * weight).sum(2, keepdim=True) * (groups / (channels * positions)) for value in grouped]
        slope = (means[0] * mean - means[1]) * deviation**3
        level = -slope * mean - means[0] * deviation
        slope, level, steep = (
            value.expand(-1, -1, channels // groups).reshape(rows, channels, 1, 1)
            for value in (slope, level, deviation * weight)
        )
        backward = torch.addcmul(level, x, slope, out=products)  # in memory that is there
        return backward.addcmul_(g, steep), scale, shift

    def _sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        return len(x), x.shape[1], prod(x.shape[2:]), self._groups


class _LayerNorm(_ScaleAndShift):
    def __init__(self, tape: Tape, name: str, x: Tensor, layer: nn.LayerNorm) -> None:
        super().__init__(tape, name, x, layer.weight, layer.bias)
        self._shape, self._eps = list(layer.normalized_shape), layer.eps

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = (None if value is None else value.to(x.dtype) for value in (self._weight, self._bias))
        y, mean, deviation = torch.native_layer_norm(x, self._shape, weight, bias, self._eps)
        return y, (x, mean, deviation)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        x, mean, deviation = saved
        backward = None
        if needed[0]:
            assert self._weight is not None
            arguments = (gradient, x, self._shape, mean, deviation, self._weight.to(x.dtype), None)
            backward = torch.ops.aten.native_layer_norm_backward(*arguments, [True, False, False])[0]
        g, inputs = at_least_single(gradient), at_least_single(x)
        products = (inputs - mean).mul_(deviation).mul_(g)
        return (backward,), self._parameter_gradients(self._rows(products), self._rows(g))

    def _rows(self, x: Tensor) -> Tensor:
        return x.movedim(self._dimension, 0).reshape(self._examples, -1, *self._shape).sum(1)


class _Scaled(_ScaleAndShift):
    """Scale and shift of each channel, the statistics being fixed."""

    def forward(self, normal: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = normal if self._weight is None else normal * self._along_channels(self._weight, normal)
        return y if self._bias is None else y + self._along_channels(self._bias, normal), (normal,)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        g, normal = at_least_single(gradient), at_least_single(saved[0])
        backward = None
        if needed[0]:
            backward = gradient if self._weight is None else gradient * self._along_channels(self._weight, gradient)
        return (backward,), self._parameter_gradients(_over_positions(g * normal), _over_positions(g))

    @staticmethod
    def _along_channels(value: Tensor, x: Tensor) -> Tensor:
        return value.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2))


def _over_positions(x: Tensor) -> Tensor:
    """The sum over all but rows and channels."""
    return x if x.ndim == 2 else x.sum(tuple(range(2, x.ndim)))


def _format(x: Tensor) -> torch.memory_format:
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format
