"""Linear layers: y = W·a + b at one position or many."""

from typing import Any

from torch import Tensor, nn

from sordino.gradients import products
from sordino.gradients.pieces import OuterSum, Piece, Vectors, Whole
from sordino.gradients.tape import Pieces, Tape


def linear(tape: Tape, name: str, layer: nn.Linear, x: Tensor) -> Tensor:
    return affine(tape, name, x, layer.weight, layer.bias)


def affine(tape: Tape, name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear with taps on the parameters that are to be trained."""
    dimension = tape.dimension(name, x)
    return tape.tap(Affine(tape, dimension, weight, bias), x)


class Affine:
    """One call of a linear map."""

    def __init__(self, tape: Tape, dimension: int, weight: Tensor, bias: Tensor | None) -> None:
        self._weight_name, self._weight = tape.parameter(weight)
        self._bias_name, self._bias = tape.parameter(bias)
        self._examples, self._dimension, self._buffers = tape.examples, dimension, tape.buffers
        self.parameters = tuple(name for name in (self._weight_name, self._bias_name) if name)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        assert self._weight is not None
        return products.linear(x, self._weight, self._bias), (x,)

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Pieces]:
        assert self._weight is not None
        x, pieces = kept[0], dict[str, Piece]()
        g = self._positions(gradient)
        vectors = Vectors(g)
        if self._weight_name:
            a = self._positions(x).to(g.dtype)
            pieces[self._weight_name] = OuterSum(vectors, a, self._buffers, self._weight_name)
        if self._bias_name:
            alone = g.shape[1] == 1  # then the weight's norm needs that of g as well
            pieces[self._bias_name] = Whole(g[:, 0], squares=vectors.squares) if alone else Whole(g.sum(1))
        backward = (gradient @ self._weight.to(gradient.dtype)).to(x.dtype) if needed[0] else None
        return (backward,), pieces

    def _positions(self, x: Tensor) -> Tensor:
        """(examples, positions, features) in at least single precision."""
        x = x.movedim(self._dimension, 0).reshape(self._examples, -1, x.shape[-1])
        return x if x.dtype.itemsize >= 4 else x.float()
