"""Per-example gradients of one parameter, in whatever form costs least.

Each knows the squared norm of every example's gradient and, once the clip factors are known, their weighted sum.
Gradients that were formed are summed from what was measured. Of those that never are (outer products, Gram matrices)
the weighted sum rounds again, so an example whose terms cancel too much is computed again, formed.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from math import prod
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 1024
_SAFE_SQUARE, _HUGE_SQUARE = 1e-30, 1e20
_THIN = 32
_MANY = 2**21
"""Multiplications, for which a call of oneDNN is worth its own cost."""


class MeasuredGradient:
    """A gradient whose norms are known."""

    squares: Tensor
    """Squared norms, (B,) in double precision; NaN where rounding leaves too few digits."""

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Σ over the examples of factor·gradient."""
        raise NotImplementedError

    def inner(self, weight: Tensor) -> Tensor:
        """⟨gradient, weight⟩ of each example, in double precision."""
        raise NotImplementedError


class PerExampleGradient(Protocol):
    """A parameter's gradients for B examples, not yet measured."""

    def routes(self) -> Sequence[str]:
        """The ways to compute the norms, the likely fastest first."""

    def signature(self) -> str:
        """The shapes that decide which route is fastest."""

    def measure(self, route: str) -> MeasuredGradient: ...

    def whole(self) -> Tensor:
        """The gradients themselves, (B, *shape of the parameter)."""


class Buffers:
    """Named tensors reused from batch to batch: fresh memory pages cost more than what is computed into them.

    Taking a buffer again overwrites what was in it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self._kept.values())

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self._kept}

    def clear(self) -> None:
        self._kept.clear()

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape with arbitrary content."""
        key, size = (name, like.dtype, like.device), prod(shape)
        if key not in self._kept or self._kept[key].numel() < size:
            self._kept.pop(key, None)
            self._kept[key] = like.new_empty(size)
        return self._kept[key][:size].view(*shape)

    def keep(self, name: str, value: Tensor) -> None:
        """Hold a tensor that was made elsewhere, so that its memory counts as others' does."""
        self._kept[name, value.dtype, value.device] = value.flatten()

    def take_zeros(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape that held zeros when it was first taken."""
        key = (f"{name} {tuple(shape)}", like.dtype, like.device)
        if key not in self._kept:
            self._kept[key] = like.new_zeros(*shape)
        return self._kept[key]


class OneRoute(MeasuredGradient):
    """A gradient whose norms are computed in one way only."""

    def routes(self) -> Sequence[str]:
        return ("whole",)

    def signature(self) -> str:
        return ""


class WholeGradient(OneRoute):
    """Gradients that were formed, (B, *shape); those of a kernel may have their channels last."""

    def __init__(self, gradients: Tensor, *, channels_last: bool = False, squares: Tensor | None = None) -> None:
        self._gradients = at_least_single(gradients)
        self._channels_last = channels_last
        self._squares = squares

    def measure(self, route: str) -> "WholeGradient":
        self.squares = squared_norms(self._gradients) if self._squares is None else self._squares
        return self

    def whole(self) -> Tensor:
        return self._gradients.movedim(-1, 2) if self._channels_last else self._gradients

    def weighted_sum(self, factors: Tensor) -> Tensor:
        rows = self._gradients.reshape(len(self._gradients), -1)
        total = (factors.to(rows.dtype) @ rows).view(self._gradients.shape[1:])
        return total.movedim(-1, 1) if self._channels_last else total

    def inner(self, weight: Tensor) -> Tensor:
        return self.whole().reshape(len(self._gradients), -1).double() @ weight.double().flatten()


class Vectors:
    """Vectors at T positions of B examples, (B, T, D); their Gram matrices are computed once and shared."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @cached_property
    def gram(self) -> Tensor:
        values = self.values.double()
        return values @ values.transpose(1, 2)

    @cached_property
    def squares(self) -> Tensor:
        return squared_norms(self.values)


class OuterProducts:
    """Σ over t of g_t ⊗ a_t for g (B, T, O) and a (B, T, I): the weight of an affine map that is applied T times.

    The norm and the weighted sum are computed from g and a where that is faster than forming the gradients.
    """

    def __init__(self, g: Tensor | Vectors, a: Tensor, buffers: Buffers | None = None, name: str = "") -> None:
        self._vectors = g if isinstance(g, Vectors) else Vectors(g)
        self._g, self._a = self._vectors.values, a
        self._buffers, self._name = buffers or Buffers(), name

    @classmethod
    def joined(cls, gradients: Sequence["OuterProducts"]) -> "OuterProducts":
        """Several calls of one layer, as one call at all their positions."""
        g = torch.cat([each._g for each in gradients], 1)
        a = torch.cat([each._a for each in gradients], 1)
        return cls(g, a, gradients[0]._buffers, gradients[0]._name)

    def routes(self) -> Sequence[str]:
        positions, outputs, inputs = *self._g.shape[1:], self._a.shape[2]
        if positions == 1:
            return ("outer",)
        # In double precision a Gram matrix costs twice its number of products.
        size = outputs * inputs
        gram = 2 * positions**2 * (outputs + inputs) + positions * size
        return likely(whole=positions * size + 8 * size, gram=gram)

    def signature(self) -> str:
        return f"{self._g.shape[1]}×{self._g.shape[2]}×{self._a.shape[2]}"

    def measure(self, route: str) -> MeasuredGradient:
        if route == "whole":
            return WholeGradient(self.whole()).measure(route)
        return _FactoredGradient(self._vectors, self._a, route)

    def whole(self) -> Tensor:
        """In a buffer: to be used before the next batch, and before another gradient of the parameter is formed."""
        whole = self._buffers.take(self._name, (len(self._g), self._g.shape[2], self._a.shape[2]), self._g)
        return torch.bmm(self._g.transpose(1, 2), self._a, out=whole)


class _FactoredGradient(MeasuredGradient):
    def __init__(self, vectors: Vectors, a: Tensor, route: str) -> None:
        self._g, self._a = g, a = vectors.values, a
        if route == "outer":
            left, right = vectors.squares, squared_norms(a)
            self.squares = left * right
            # A small square may have underflowed in float32, as it does where a network is sure of an example. Beside
            # a huge one even the sum may round too far: such an example is computed again.
            vanishing = torch.minimum(left, right) < _SAFE_SQUARE
            if bool(vanishing.any()):
                zero = (g == 0).flatten(1).all(1) | (a == 0).flatten(1).all(1)
                huge = (torch.maximum(left, right) > _HUGE_SQUARE) & ~zero
                exact = torch.where(huge, torch.nan, _double_squares(g) * _double_squares(a))
                self.squares = torch.where(vanishing, exact, self.squares)
        else:
            self.squares = gram_norm(vectors.gram, Vectors(a).gram)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        g = (self._g * factors.to(self._g.dtype)[:, None, None]).flatten(0, 1)
        return transposed_product(g, self._a.flatten(0, 1))

    def inner(self, weight: Tensor) -> Tensor:
        return ((self._g.double() @ weight.double()) * self._a).flatten(1).sum(1)


def likely(**costs: float) -> Sequence[str]:
    """The routes worth timing, by their estimated costs: the cheapest, and those that may beat it."""
    cheapest = min(costs.values())
    return sorted((route for route in costs if costs[route] <= 2 * cheapest), key=lambda route: costs[route])


def gram_norm(left: Tensor, right: Tensor) -> Tensor:
    """‖Σ_t g_t ⊗ a_t‖² from the double-precision Gram matrices (B, T, T) of g and a.

    Guarantee: where positions cancel so much that rounding could matter at the sixth digit, the square is NaN, and the
    example is computed again. The error is at most 2·(n + 2)·u·mass², with mass = Σ_t ‖g_t‖‖a_t‖ (the norm if nothing
    cancelled), n the longest inner product, u = 2⁻⁵³. What is left has a norm of at least mass/70, so that the
    single-precision sum, which rounds again, rounds by no more than 70 times what an outer product would.
    """
    squares = (left * right).flatten(1).sum(1)
    diagonals = torch.diagonal(left, dim1=1, dim2=2) * torch.diagonal(right, dim1=1, dim2=2)
    mass = diagonals.clamp(min=0).sqrt().sum(1)
    known = squares * _GRAM_TOLERANCE >= _GRAM_ERROR * mass.square()
    # A mass that is NaN (an infinite input under a gradient of zero) is not zero.
    return torch.where(known, squares, torch.where(mass == 0, 0.0, torch.nan))


_GRAM_ERROR = 2.0 * 2**20 * 2**-53
"""For sums of up to a million terms."""
_GRAM_TOLERANCE = 1e-6


def _double_squares(rows: Tensor) -> Tensor:
    """‖row‖² in double precision throughout, where no square of a single-precision number underflows."""
    return rows.flatten(1).double().square().sum(1)


def squared_norms(rows: Tensor) -> Tensor:
    """‖row‖² of each row in double precision, at the speed of single precision. Infinity where it overflows."""
    rows = rows.reshape(len(rows), -1)
    return summed_squares(block_norms(at_least_single(rows)))


def block_norms(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Norms of a row's blocks, (rows, blocks): a long single-precision sum loses what is small beside it."""
    blocks = rows.view(len(rows), -1, block_length(rows.shape[1])) if rows.numel() else rows[:, None]
    return torch.linalg.vector_norm(blocks, dim=2, out=out)


def summed_squares(norms: Tensor) -> Tensor:
    """Σ over a row's blocks of their squared norms, in double precision."""
    squares = norms.double().square_()
    return squares[:, 0] if squares.shape[1] == 1 else squares.sum(1)


@cache
def block_length(size: int) -> int:
    """The longest that divides the row: a row of awkward length has short blocks, which costs only time."""
    return max((length for length in range(1, _BLOCK + 1) if size % length == 0), default=1)


def at_least_single(x: Tensor) -> Tensor:
    """The tensor in single precision or better: half-precision values are widened before they are summed."""
    return x if x.dtype.itemsize >= 4 else x.float()


def by_example(rows: Tensor, examples: int) -> Tensor:
    """(N, …) summed over each example's rows, which lie together."""
    return rows if len(rows) == examples else rows.unflatten(0, (examples, -1)).sum(1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, by the library that is likely faster."""
    if (len(weight) <= _THIN or x.numel() * len(weight) >= _MANY) and _suits_onednn(x, weight):
        return _onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix."""
    if x.numel() * matrix.shape[1] >= _MANY and _suits_onednn(x, matrix):
        return _onednn_linear(x, matrix.T)
    return x @ matrix


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right for left (n, a), right (n, b)."""
    thin = left.shape[1] <= _THIN < right.shape[1]
    if (thin or left.numel() * right.shape[1] >= _MANY) and _suits_onednn(left, right):
        return _onednn_linear(left.T.contiguous(), right.T)
    return left.T @ right


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """oneDNN reads a wide operand about twice as fast as BLAS does, and computes as much faster on many processors."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _suits_onednn(*operands: Tensor) -> bool:
    return (
        bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
        and all(operand.dtype == torch.float32 and operand.device.type == "cpu" for operand in operands)
        and not torch.is_autocast_enabled("cpu")
    )
