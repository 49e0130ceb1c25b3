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
        x, mean, deviation = saved
        gradient = gradient.contiguous(memory_format=_format(x))
        backward = None
        if needed[0]:
            assert self._weight is not None
            arguments = (gradient, x, mean, deviation, self._weight.to(x.dtype), *self._sizes(x))
            backward = torch.ops.aten.native_group_norm_backward(*arguments, [True, False, False])[0]
        g, inputs = at_least_single(gradient), at_least_single(x)
        shift, products = _over_positions(g), _over_positions(g * inputs)
        channels = x.shape[1] // self._groups
        mean, deviation = (
            value.to(g.dtype).view(len(x), self._groups).repeat_interleave(channels, 1) for value in (mean, deviation)
        )
        return (backward,), self._parameter_gradients((products - mean * shift) * deviation, shift)

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
        normal = (inputs - mean) * deviation
        return (backward,), self._parameter_gradients(self._rows(g * normal), self._rows(g))

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
