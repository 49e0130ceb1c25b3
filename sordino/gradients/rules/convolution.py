"""Convolutions in one, two and three dimensions.

A convolution is a linear map at every output position. An example's gradient is formed whole: from its patches, by
the convolution's own weight gradient of that example alone, or of all examples as groups of channels. Or only its norm
is taken, from Gram matrices of the positions: cheap where there are few positions and many channels.
"""

from collections.abc import Iterator, Sequence
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
_CALL = 3e6
"""Products that take as long as a call of a convolution takes for itself."""
_MOST_IN_GROUPS = 150_000
"""The largest kernel of a group for which a convolution of many groups may be fast."""


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
            found[self._weight_name] = Patches(g, a, self._rows, self._geometry, self._buffers, self._weight_name)
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

    def weight_gradient(self, g: Tensor, x: Tensor) -> Tensor:
        """Summed over all rows. Of the weight only shape and layout count: in another layout it would be copied."""
        last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        weight = torch.empty(self.weight, dtype=x.dtype, device=x.device, memory_format=layout)
        found = self.backward(g, x, weight, (False, True))[1]
        assert found is not None
        return found

    def reached(self, axis: int, place: int, side: int, out: int) -> tuple[slice, slice]:
        """The outputs for which this place of the kernel lies within the input, and the inputs it lies on."""
        stride, shift = self.stride[axis], place * self.dilation[axis] - self.padding[axis]
        first, stop = max(0, -(shift // stride)), min(out, (side - 1 - shift) // stride + 1)
        start, count = first * stride + shift, max(0, stop - first)
        return slice(first, first + count), slice(start, start + count * stride, stride)


class Patches:
    """Σ over positions of g ⊗ patch, for g (N, O, *out) and x (N, I, *in), N = examples·rows."""

    def __init__(self, g: Tensor, x: Tensor, rows: int, geometry: Geometry, buffers: Buffers, name: str) -> None:
        self._g, self._x, self._rows, self._geometry = g, x, rows, geometry
        self._buffers, self._name = buffers, name

    def routes(self) -> Sequence[str]:
        geometry, rows = self._geometry, self._rows
        outputs, inputs, *kernel = geometry.weight
        places, positions = rows * prod(self._x.shape[2:]), rows * prod(self._g.shape[2:])
        size = prod(geometry.weight)
        # Products, those in double precision twice; what is moved through memory rather than multiplied counts eight.
        products, moved = positions * size, 8 * size
        costs: dict[str, float] = {"each": products + moved + _CALL}
        if size <= _MOST_IN_GROUPS * geometry.groups:
            costs["grouped"] = products + moved
        if geometry.groups == 1:
            costs["whole"] = 2 * products + moved
            gram = 2 * (places**2 * inputs + positions**2 * outputs) + 8 * positions**2 * sum(kernel)
            costs["gram"] = gram + products
        return likely(**costs)

    def signature(self) -> str:
        return "×".join(str(side) for side in (self._rows, *self._x.shape[1:]))

    def measure(self, route: str) -> MeasuredGradient:
        if route == "gram":
            return _ConvolvedGradient(self._g, self._x, self._rows, self._geometry)
        forms = {"each": self._one_by_one, "grouped": self._in_groups, "whole": self._from_patches}
        return forms[route]().measure(route)

    def whole(self) -> Tensor:
        return self._from_patches().whole()

    def _one_by_one(self) -> WholeGradient:
        """The convolution's own weight gradient, example after example."""
        outputs, inputs, *kernel = self._geometry.weight
        whole: Tensor | None = None
        for place, (g, x) in enumerate(zip(self._g.split(self._rows), self._x.split(self._rows), strict=True)):
            found = self._geometry.weight_gradient(g, x)
            if whole is None:
                channels_last = not found.is_contiguous()
                layout = (outputs, *kernel, inputs) if channels_last else self._geometry.weight
                whole = self._buffers.take(self._name, (len(self._g) // self._rows, *layout), x)
            whole[place] = found.movedim(1, -1) if channels_last else found
        assert whole is not None
        return WholeGradient(whole, channels_last=channels_last)

    def _in_groups(self) -> WholeGradient:
        """The weight gradient of one convolution, of which each example is a group of channels."""
        g, x, geometry = self._g, self._x, self._geometry
        outputs, inputs, *kernel = geometry.weight
        wide = Geometry(
            torch.Size((len(x) * outputs, inputs, *kernel)),
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            len(x) * geometry.groups,
        )
        together = (value.reshape(1, -1, *value.shape[2:]) for value in (g, x))
        found = wide.weight_gradient(*together).contiguous()
        self._buffers.keep(self._name, found)
        return WholeGradient(by_example(found.view(len(x), *geometry.weight), len(x) // self._rows))

    def _from_patches(self) -> WholeGradient:
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
        """Patches overlap: their Gram matrix sums shifted blocks of that of the input, in one dimension after another.

        What lies outside the input is zero, and left out.
        """
        geometry, rows, out = self._geometry, self._rows, self._g.shape[2:]
        sides = self._x.shape[2:]
        x = self._x.unflatten(0, (-1, rows)).transpose(1, 2).flatten(2).double()
        total = (x.transpose(1, 2) @ x).view(-1, rows, *sides, rows, *sides)
        for axis in reversed(range(len(sides))):
            left, right = 2 + axis, 3 + len(sides) + axis
            shape = [*total.shape]
            shape[left] = shape[right] = out[axis]
            summed = total.new_zeros(shape)
            for place in range(geometry.weight[2 + axis]):
                into, source = geometry.reached(axis, place, sides[axis], out[axis])
                goal = summed[_block(left, into)][_block(right, into)]
                goal += total[_block(left, source)][_block(right, source)]
            total = summed
        return total.view(total.shape[0], rows * prod(out), rows * prod(out))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        factors = factors.to(self._g.dtype).repeat_interleave(self._rows)
        g = self._g * factors.view(-1, *[1] * (self._g.ndim - 1))
        return self._geometry.weight_gradient(g, self._x)

    def inner(self, weight: Tensor) -> Tensor:
        y = self._geometry.convolve(self._x, weight.to(self._x.dtype), None).double()
        return (y * self._g).flatten(1).sum(1).view(-1, self._rows).sum(1)


def _block(axis: int, block: slice) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, block)


def _by_position(g: Tensor) -> Tensor:
    """(N, O, *out) as (N, O, positions), without a copy in either layout."""
    if g.is_contiguous():
        return g.flatten(2)
    return g.movedim(1, -1).flatten(1, -2).transpose(1, 2)
