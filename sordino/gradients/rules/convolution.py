"""Convolutions in one, two and three dimensions.

A convolution is a linear map at every output position. An example's gradient is formed whole from its patches, or only
its norm is taken, from Gram matrices of the positions: cheap where there are few positions and many channels.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.buffers import Buffers
from sordino.gradients.pieces import Measured, Piece, Whole, gram_norm, likely, squared_norms
from sordino.gradients.tape import Pieces, Tape
from sordino.gradients.watching import Unruled

_Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
_MANY_CHANNELS = 4
_PATCH_BYTES = 2**22
"""Patches that are kept at a time: they must stay in the processor's cache."""


def convolution(tape: Tape, name: str, layer: _Conv, x: Tensor) -> Tensor:
    if tape.dimension(name, x) or x.ndim != layer.weight.ndim:
        raise Unruled(f"the examples are not first in the input of {name}")
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        # Padded beforehand, by autograd: what is unusual need not be fast.
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0,) * (x.ndim - 2)
    return tape.tap(_Convolution(tape, x, layer, tuple(int(side) for side in padding)), x)


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

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Pieces]:
        assert self._weight is not None
        x, pieces = kept[0], dict[str, Piece]()
        weight, inputs = self._weight.to(gradient.dtype), x.to(gradient.dtype)
        backward = self._geometry.backward(gradient, inputs, weight, (needed[0], False))[0]
        g, a = (value if value.dtype.itemsize >= 4 else value.float() for value in (gradient, inputs))
        if self._weight_name:
            pieces[self._weight_name] = _Patches(g, a, self._rows, self._geometry, self._buffers, self._weight_name)
        if self._bias_name:
            pieces[self._bias_name] = Whole(_by_example(g.sum(tuple(range(2, g.ndim))), self._rows))
        return (None if backward is None else backward.to(x.dtype),), pieces


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

    def measure(self, route: str) -> Measured:
        if route == "whole":
            return self._formed().measure(route)
        return _ConvolvedSum(self._g, self._x, self._rows, self._geometry)

    def whole(self) -> Tensor:
        return self._formed().whole()

    def _formed(self) -> Whole:
        """Patches of all positions times the gradients there: a product an example, a few examples at a time."""
        g, x, geometry = self._g, self._x, self._geometry
        (outputs, inputs, *kernel), groups, out = geometry.weight, geometry.groups, g.shape[2:]
        channels_last = x.shape[1] >= _MANY_CHANNELS
        patch_bytes = prod(out) * groups * inputs * prod(kernel) * x.element_size()
        block = min(len(x), max(2, _PATCH_BYTES // patch_bytes))
        frame = _Frame(x, geometry, block, channels_last, self._buffers)
        patches = self._buffers.take("patches", frame.patches_shape(block, out), x)
        shape = (len(x), groups, outputs // groups, inputs * prod(kernel))
        whole = self._buffers.take(self._name, shape, x)
        squares = x.new_empty(len(x), dtype=torch.float64) if self._rows == 1 else None
        by_position = _by_position(g)
        for start in range(0, len(x), block):
            rows = slice(start, start + block)
            count = len(x[rows])
            patches[:count].copy_(frame.patches(x[rows], out))
            matrices = patches[:count].view(count * groups, *frame.matrix_shape(out))
            matrices = matrices if channels_last else matrices.transpose(1, 2)
            left = by_position[rows].unflatten(1, (groups, -1)).flatten(0, 1)
            torch.bmm(left, matrices, out=whole[rows].flatten(0, 1))
            if squares is not None:  # while they are in the cache
                squares[rows] = squared_norms(whole[rows])
        layout = (outputs, *kernel, inputs) if channels_last else geometry.weight
        return Whole(_by_example(whole.view(len(x), *layout), self._rows), channels_last=channels_last, squares=squares)


class _Frame:
    """A block of inputs with zeros around, in a layout whose patches are quick to copy."""

    def __init__(self, x: Tensor, geometry: Geometry, block: int, channels_last: bool, buffers: Buffers) -> None:
        self._geometry, self._last = geometry, channels_last
        sides = [side + 2 * pad for side, pad in zip(x.shape[2:], geometry.padding, strict=True)]
        within: list[Any] = [slice(pad, pad + side) for side, pad in zip(x.shape[2:], geometry.padding, strict=True)]
        shape = (block, *sides, x.shape[1]) if channels_last else (block, x.shape[1], *sides)
        # Only its inside is ever written to, so what is around stays zero.
        self._frame = buffers.take_zeros(f"frame {geometry.padding}", shape, x)
        self._inner = self._frame[(slice(None), *within)] if channels_last else self._frame[(..., *within)]

    def patches_shape(self, block: int, out: Sequence[int]) -> tuple[int, ...]:
        _, inputs, *kernel = self._geometry.weight
        if self._last:
            return block, self._geometry.groups, *out, *kernel, inputs
        return block, self._geometry.groups, inputs, *kernel, *out

    def matrix_shape(self, out: Sequence[int]) -> tuple[int, int]:
        size = prod(self._geometry.weight[1:])
        return (prod(out), size) if self._last else (size, prod(out))

    def patches(self, x: Tensor, out: Sequence[int]) -> Tensor:
        """Overlapping views of the inputs: (rows, groups, positions, kernel, channels), or channels first."""
        inputs_last = x.movedim(1, -1)
        if not any(self._geometry.padding) and (inputs_last if self._last else x).is_contiguous():
            frame = inputs_last if self._last else x
        else:
            frame = self._frame
            self._inner[: len(x)].copy_(inputs_last if self._last else x)
        if self._last:
            batch, *steps, channel = frame.stride()
        else:
            batch, channel, *steps = frame.stride()
        geometry, inputs = self._geometry, self._geometry.weight[1]
        moves = [step * stride for step, stride in zip(steps, geometry.stride, strict=True)]
        inside = [step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)]
        order = (*moves, *inside, channel) if self._last else (channel, *inside, *moves)
        return frame.as_strided(self.patches_shape(len(x), out), (batch, inputs * channel, *order))


class _ConvolvedSum(Measured):
    """A convolution's part whose norm came from Gram matrices; the sum is the convolution's own weight gradient."""

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
        factors = (
            factors.to(self._g.dtype).repeat_interleave(self._rows) if self._rows > 1 else factors.to(self._g.dtype)
        )
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


def _by_example(per_row: Tensor, rows: int) -> Tensor:
    return per_row if rows == 1 else per_row.unflatten(0, (-1, rows)).sum(1)
