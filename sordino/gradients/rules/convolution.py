"""Convolutions in one, two and three dimensions.

A convolution is a linear map at every output position. An example's gradient is formed whole from its patches, or only
its norm is taken, from Gram matrices of the positions: cheap where there are few positions and many channels.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.per_example_gradients import (
    Buffers,
    MeasuredGradient,
    PerExampleGradient,
    WholeGradient,
    at_least_single,
    block_length,
    block_norms,
    by_example,
    gram_norm,
    likely,
    summed_squares,
)
from sordino.gradients.rules.registry import register_rule
from sordino.gradients.tape import Gradients, Tape
from sordino.gradients.tracked_parameters import NoRuleError

_Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
_MANY_CHANNELS = 4
_PATCH_BYTES = 2**22
"""Patches that are saved at a time: they must stay in the processor's cache."""


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(tape: Tape, name: str, layer: _Conv, x: Tensor) -> Tensor:
    if tape.dimension(name, x) or x.ndim != layer.weight.ndim:
        raise NoRuleError(f"the examples are not in the first dimension of the input of {name}")
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        # Padded beforehand, by autograd: unusual padding need not be fast.
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0,) * (x.ndim - 2)
    return tape.record(_Convolution(tape, x, layer, tuple(int(side) for side in padding)), x)


class _Convolution:
    def __init__(self, tape: Tape, x: Tensor, layer: _Conv, padding: tuple[int, ...]) -> None:
        self._weight_name, self._weight = tape.parameter(layer.weight)
        self._bias_name, self._bias = tape.parameter(layer.bias)
        self._rows, self._buffers = len(x) // tape.examples, tape.buffers
        self._geometry = Geometry(layer.weight.shape, layer.stride, padding, layer.dilation, layer.groups)
        self.parameters = tuple(name for name in (self._weight_name, self._bias_name) if name)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        assert self._weight is not None
        return self._geometry.convolve(x, self._weight, self._bias), (x,)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        assert self._weight is not None
        x, found = saved[0], dict[str, PerExampleGradient]()
        weight, inputs = self._weight.to(gradient.dtype), x.to(gradient.dtype)
        backward = self._geometry.backward(gradient, inputs, weight, (needed[0], False))[0]
        g, a = at_least_single(gradient), at_least_single(inputs)
        if self._weight_name:
            found[self._weight_name] = _Patches(g, a, self._rows, self._geometry, self._buffers, self._weight_name)
        if self._bias_name:
            found[self._bias_name] = WholeGradient(by_example(g.sum(tuple(range(2, g.ndim))), len(g) // self._rows))
        return (None if backward is None else backward.to(x.dtype),), found


class Geometry:
    """How a convolution's kernel moves over its input."""

    def __init__(
        self,
        weight: torch.Size,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.weight, self.groups = weight, groups
        self.stride, self.padding, self.dilation = list(stride), list(padding), list(dilation)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        zeros = [0] * len(self.stride)
        return torch.convolution(x, weight, bias, self.stride, self.padding, self.dilation, False, zeros, self.groups)

    def backward(
        self, g: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the input and of the weight, each if wanted."""
        if not any(wanted):
            return None, None
        zeros, mask = [0] * len(self.stride), [*wanted, False]
        found = torch.ops.aten.convolution_backward(
            g, x, weight, None, self.stride, self.padding, self.dilation, False, zeros, self.groups, mask
        )
        return found[0], found[1]

    def padded(self, x: Tensor) -> Tensor:
        if not any(self.padding):
            return x
        return F.pad(x, [side for amount in reversed(self.padding) for side in (amount, amount)])


class _Patches:
    """Σ over positions of g ⊗ patch, for g (N, O, *out) and x (N, I, *in), N = examples·rows."""

    def __init__(self, g: Tensor, x: Tensor, rows: int, geometry: Geometry, buffers: Buffers, name: str) -> None:
        self._g, self._x, self._rows, self._geometry = g, x, rows, geometry
        self._buffers, self._name = buffers, name

    def routes(self) -> Sequence[str]:
        geometry, rows = self._geometry, self._rows
        if geometry.groups > 1:
            return ("whole",)
        outputs, inputs, *kernel = geometry.weight
        sides = zip(self._x.shape[2:], geometry.padding, strict=True)
        places, positions = rows * prod(side + 2 * pad for side, pad in sides), rows * prod(self._g.shape[2:])
        size = prod(geometry.weight)
        # Products, those in double precision twice; what is moved through memory rather than multiplied counts eight.
        whole = positions * size + 8 * size
        gram = 2 * (places**2 * inputs + positions**2 * outputs) + 8 * positions**2 * prod(kernel) + positions * size
        return likely(whole=whole, gram=gram)

    def signature(self) -> str:
        return "×".join(str(side) for side in (self._rows, *self._x.shape[1:]))

    def measure(self, route: str) -> MeasuredGradient:
        if route == "whole":
            return self._formed().measure(route)
        return _ConvolvedGradient(self._g, self._x, self._rows, self._geometry)

    def whole(self) -> Tensor:
        return self._formed().whole()

    def _formed(self) -> WholeGradient:
        """Patches of all positions times the gradients there: a product an example, a few examples at a time."""
        g, x, geometry, groups = self._g, self._x, self._geometry, self._geometry.groups
        outputs, inputs, *kernel = geometry.weight
        positions, size = prod(g.shape[2:]), inputs * prod(kernel)
        channels_last = x.shape[1] >= _MANY_CHANNELS
        block = min(len(x), max(2, _PATCH_BYTES // (positions * groups * size * x.element_size())))
        frame = _Frame(x, geometry, g.shape[2:], block, channels_last, self._buffers)
        patches = self._buffers.take("patches", frame.shape, x)
        matrices = patches.view(block * groups, *((positions, size) if channels_last else (size, positions)))
        matrices = matrices if channels_last else matrices.transpose(1, 2)
        whole = self._buffers.take(self._name, (len(x), outputs, size), x)
        norms = x.new_empty(len(x), outputs * size // block_length(outputs * size))
        left = _by_position(g).unflatten(1, (groups, -1)).flatten(0, 1).split(block * groups)
        formed = whole.view(len(x) * groups, -1, size).split(block * groups)
        for source, ahead, result, lengths in zip(frame.patches(x), left, formed, norms.split(block), strict=True):
            patches[: len(source)].copy_(source)
            torch.bmm(ahead, matrices[: len(ahead)], out=result)
            block_norms(result.view(len(source), -1), lengths)  # while they are in the cache
        layout = (outputs, *kernel, inputs) if channels_last else geometry.weight
        squares = summed_squares(norms) if self._rows == 1 else None
        gradients = by_example(whole.view(len(x), *layout), len(x) // self._rows)
        return WholeGradient(gradients, channels_last=channels_last, squares=squares)


class _Frame:
    """Blocks of inputs with zeros around, in a layout whose patches are quick to copy.

    Where the kernel moves by strides, the columns that it meets in turn lie together, one phase of the stride after
    another: a patch's row is then copied as it is, not picked out.
    """

    def __init__(
        self, x: Tensor, geometry: Geometry, out: torch.Size, block: int, channels_last: bool, buffers: Buffers
    ) -> None:
        self._geometry, self._last, self._block = geometry, channels_last, block
        _, inputs, *kernel = geometry.weight
        stride, regular = geometry.stride[-1], geometry.dilation[-1] == 1 and kernel[-1] % geometry.stride[-1] == 0
        self._phases = stride if regular and not channels_last else 1
        inner = (*out, *kernel, inputs)
        if not channels_last:
            inner = (inputs, *kernel[:-1], kernel[-1] // self._phases, self._phases, *out)
        self.shape = (block, geometry.groups, *inner)
        """Of a block's patches: (rows, groups, positions, kernel, channels), or channels and kernel first."""
        self._bare = not any(geometry.padding) and self._phases == 1 and self._arranged(x).is_contiguous()
        if not self._bare:
            sides = [side + 2 * pad for side, pad in zip(x.shape[2:], geometry.padding, strict=True)]
            framed = (block, *sides, x.shape[1])
            if not channels_last:
                framed = (block, x.shape[1], *sides[:-1], self._phases, -(-sides[-1] // self._phases))
            # Only its inside is ever written to, so the margin stays zero: the name says where the inside is,
            # since inputs of another width may have a frame of the same shape.
            self._frame = buffers.take_zeros(f"frame {geometry.padding} {sides}", framed, x)

    def patches(self, x: Tensor) -> Iterator[Tensor]:
        """Of block after block: overlapping views of the inputs, each to be used up before the next is taken."""
        if self._bare:
            x = self._arranged(x)
            yield from self._overlapping(x if self._last else x.unsqueeze(-2)).split(self._block)
        else:
            views = self._overlapping(self._frame)
            for rows in self._arranged(x).split(self._block):
                self._fill(rows)
                yield views[: len(rows)]

    def _fill(self, rows: Tensor) -> None:
        sides = rows.shape[1:-1] if self._last else rows.shape[2:]
        within: list[Any] = [slice(pad, pad + side) for side, pad in zip(sides, self._geometry.padding, strict=True)]
        if self._last:
            self._frame[(slice(len(rows)), *within)].copy_(rows)
            return
        pad = self._geometry.padding[-1]
        for phase in range(self._phases):
            first = (phase - pad) % self._phases
            columns, start = rows[..., first :: self._phases], (first + pad) // self._phases
            place = (phase, slice(start, start + columns.shape[-1]))
            self._frame[(slice(len(rows)), slice(None), *within[:-1], *place)].copy_(columns)

    def _arranged(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1) if self._last else x

    def _overlapping(self, framed: Tensor) -> Tensor:
        geometry = self._geometry
        if self._last:
            batch, *steps, channel = framed.stride()
        else:
            batch, channel, *steps, phase, column = framed.stride()
            steps.append(column)
        strides = geometry.stride if self._last else (*geometry.stride[:-1], geometry.stride[-1] // self._phases)
        moves = [step * stride for step, stride in zip(steps, strides, strict=True)]
        inside = [step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)]
        order = (*moves, *inside, channel) if self._last else (channel, *inside, phase, *moves)
        group = geometry.weight[1] * channel
        return framed.as_strided((len(framed), *self.shape[1:]), (batch, group, *order))


class _ConvolvedGradient(MeasuredGradient):
    """A gradient whose norms come from Gram matrices; the sum is the convolution's own weight gradient."""

    def __init__(self, g: Tensor, x: Tensor, rows: int, geometry: Geometry) -> None:
        self._g, self._x, self._rows, self._geometry = g, x, rows, geometry
        self.squares = gram_norm(self._gram_of_gradients(), self._gram_of_patches())

    def _gram_of_gradients(self) -> Tensor:
        g = self._g.double().unflatten(0, (-1, self._rows)).transpose(1, 2).flatten(2)
        return g.transpose(1, 2) @ g

    def _gram_of_patches(self) -> Tensor:
        """Patches overlap: their Gram matrix is a sum, over places in the kernel, of blocks of that of the input."""
        geometry, rows = self._geometry, self._rows
        x = geometry.padded(self._x)
        sides, out = x.shape[2:], self._g.shape[2:]
        x = x.double().unflatten(0, (-1, rows)).transpose(1, 2).flatten(2)
        products = (x.transpose(1, 2) @ x).view(-1, rows, *sides, rows, *sides)
        total: Tensor | None = None
        for place in product(*(range(side) for side in geometry.weight[2:])):
            moves = zip(place, out, geometry.stride, geometry.dilation, strict=True)
            block = tuple(slice(at * gap, at * gap + (length - 1) * step + 1, step) for at, length, step, gap in moves)
            part = products[(slice(None), slice(None), *block, slice(None), *block)]
            total = part.clone(memory_format=torch.contiguous_format) if total is None else total.add_(part)
        assert total is not None
        return total.view(total.shape[0], rows * prod(out), rows * prod(out))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        factors = factors.to(self._g.dtype).repeat_interleave(self._rows)
        g = self._g * factors.view(-1, *[1] * (self._g.ndim - 1))
        found = self._geometry.backward(g, self._x, self._x.new_empty(self._geometry.weight), (False, True))[1]
        assert found is not None
        return found

    def inner(self, weight: Tensor) -> Tensor:
        y = self._geometry.convolve(self._x, weight.to(self._x.dtype), None).double()
        return (y * self._g).flatten(1).sum(1).view(-1, self._rows).sum(1)


def _by_position(g: Tensor) -> Tensor:
    """(N, O, *out) as (N, O, positions), without a copy in either layout."""
    if g.is_contiguous():
        return g.flatten(2)
    return g.movedim(1, -1).flatten(1, -2).transpose(1, 2)
