"""What one use of a parameter adds to each example's gradient, in whatever form costs least.

A piece knows the squared norm of each example's part and, once the clip factors are known, their weighted sum. Parts
that were formed whole are summed from what was measured. Of parts that are never formed (an outer product, a Gram
matrix) the weighted sum rounds anew, so an example whose terms cancel too much is done over, whole.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Protocol

import torch
from torch import Tensor

from sordino.gradients import products
from sordino.gradients.buffers import Buffers

_BLOCK = 1024
_SAFE_SQUARE, _HUGE_SQUARE = 1e-30, 1e20


class Measured:
    """A piece whose norms are known."""

    squares: Tensor
    """Squared norms, (B,) in double precision; NaN where they could not be told well enough."""

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Σ over the examples of factor·gradient."""
        raise NotImplementedError

    def inner(self, weight: Tensor) -> Tensor:
        """⟨gradient, weight⟩ of each example, in double precision."""
        raise NotImplementedError


class Piece(Protocol):
    """A parameter's part of the gradients of B examples."""

    def routes(self) -> Sequence[str]:
        """The ways to get at the norm, the one that is best by rule of thumb first."""

    def signature(self) -> str:
        """The shapes that decide which route is fastest."""

    def measure(self, route: str) -> Measured: ...

    def whole(self) -> Tensor:
        """The gradients themselves, (B, *shape of the parameter)."""


class Whole(Measured):
    """Gradients that were formed, (B, *shape); of a kernel maybe with its channels last."""

    def __init__(self, gradients: Tensor, *, channels_last: bool = False, squares: Tensor | None = None) -> None:
        self._gradients = gradients if gradients.dtype.itemsize >= 4 else gradients.float()
        self._channels_last = channels_last
        self._squares = squares

    def routes(self) -> Sequence[str]:
        return ("whole",)

    def signature(self) -> str:
        return ""

    def measure(self, route: str) -> "Whole":
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
    """Vectors at T positions of B examples, (B, T, D); their Gram matrices are worked out once for all users."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @cached_property
    def gram(self) -> Tensor:
        values = self.values.double()
        return values @ values.transpose(1, 2)

    @cached_property
    def squares(self) -> Tensor:
        return squared_norms(self.values)


class OuterSum:
    """Σ over t of g_t ⊗ a_t for g (B, T, O) and a (B, T, I): any affine map, at T positions."""

    def __init__(self, g: Tensor | Vectors, a: Tensor, buffers: Buffers, name: str) -> None:
        self._vectors = g if isinstance(g, Vectors) else Vectors(g)
        self._g, self._a = self._vectors.values, a
        self._buffers, self._name = buffers, name

    @classmethod
    def joined(cls, pieces: Sequence["OuterSum"]) -> "OuterSum":
        """Several calls of one layer are one call at all their positions."""
        g, a = torch.cat([piece._g for piece in pieces], 1), torch.cat([piece._a for piece in pieces], 1)
        return cls(g, a, pieces[0]._buffers, pieces[0]._name)

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

    def measure(self, route: str) -> Measured:
        if route == "whole":
            return Whole(self.whole()).measure(route)
        return _FactoredSum(self._vectors, self._a, route)

    def whole(self) -> Tensor:
        """In a buffer: to be used up before the next batch, and before another piece of the parameter is formed."""
        whole = self._buffers.take(self._name, (len(self._g), self._g.shape[2], self._a.shape[2]), self._g)
        return torch.bmm(self._g.transpose(1, 2), self._a, out=whole)


class _FactoredSum(Measured):
    def __init__(self, vectors: Vectors, a: Tensor, route: str) -> None:
        self._g, self._a = g, a = vectors.values, a
        if route == "outer":
            left, right = vectors.squares, squared_norms(a)
            self.squares = left * right
            # A small square may have vanished in float32, as those of examples that a network is sure of do. Beside a
            # huge one even the sum may round too far: such an example is done over.
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
        return products.transposed_product(g, self._a.flatten(0, 1))

    def inner(self, weight: Tensor) -> Tensor:
        return ((self._g.double() @ weight.double()) * self._a).flatten(1).sum(1)


def likely(**costs: float) -> Sequence[str]:
    """The routes worth measuring, by their estimated costs: the cheapest, and what may beat it."""
    cheapest = min(costs.values())
    return sorted((route for route in costs if costs[route] <= 2 * cheapest), key=lambda route: costs[route])


def gram_norm(left: Tensor, right: Tensor) -> Tensor:
    """‖Σ_t g_t ⊗ a_t‖² from the double-precision Gram matrices (B, T, T) of g and a.

    Guarantee: where positions cancel so much that rounding could matter at the sixth digit, the square is NaN, and the
    example is done over. The error is at most 2·(n + 2)·u·mass², with mass = Σ_t ‖g_t‖‖a_t‖ (what the norm would be if
    nothing cancelled), n the longest inner product, u = 2⁻⁵³. What is left has a norm of at least mass/70, so that the
    single-precision sum, which rounds anew, rounds by no more than 70 times what an outer product would.
    """
    squares = (left * right).flatten(1).sum(1)
    diagonals = torch.diagonal(left, dim1=1, dim2=2) * torch.diagonal(right, dim1=1, dim2=2)
    mass = diagonals.clamp(min=0).sqrt().sum(1)
    known = squares * _GRAM_TOLERANCE >= _GRAM_ERROR * mass.square()
    # A mass that is no number (an infinite input under a gradient of zero) is not nothing.
    return torch.where(known, squares, torch.where(mass == 0, 0.0, torch.nan))


_GRAM_ERROR = 2.0 * 2**20 * 2**-53
"""Of sums of up to a million terms."""
_GRAM_TOLERANCE = 1e-6


def _double_squares(rows: Tensor) -> Tensor:
    """‖row‖² in double precision throughout, where no square of a single-precision number vanishes."""
    return rows.flatten(1).double().square().sum(1)


def squared_norms(rows: Tensor) -> Tensor:
    """‖row‖² of each row in double precision, at the speed of single precision. Infinity where it overflows."""
    rows = rows.reshape(len(rows), -1)
    return summed_squares(block_norms(rows if rows.dtype.itemsize >= 4 else rows.float()))


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
    """The longest that divides the row; a row of awkward length pays with short blocks, and only with time."""
    return max((length for length in range(1, _BLOCK + 1) if size % length == 0), default=1)
