"""Embeddings: an example's gradient has a row for each different token of the example."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.pieces import Measured, squared_norms
from sordino.gradients.tape import Pieces, Tape


def embedding(tape: Tape, name: str, layer: nn.Embedding, tokens: Tensor) -> Tensor:
    if tape.place(name, tape.site(f"{name}?"), tokens.shape) is None:  # the same for every example, as positions are
        return F.embedding(tokens, layer.weight, layer.padding_idx)
    return tape.tap(_Embedding(tape, name, layer, tokens), tokens)


class _Embedding:
    def __init__(self, tape: Tape, name: str, layer: nn.Embedding, tokens: Tensor) -> None:
        weight_name, weight = tape.parameter(layer.weight)
        assert weight_name is not None
        assert weight is not None
        self.parameters: tuple[str, ...] = (weight_name,)
        self._weight, self._padding = weight, layer.padding_idx
        self._examples, self._dimension = tape.examples, tape.dimension(name, tokens)

    def forward(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return F.embedding(tokens, self._weight), (tokens,)

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Pieces]:
        tokens = kept[0].movedim(self._dimension, 0).reshape(self._examples, -1)
        g = gradient.movedim(self._dimension, 0).reshape(self._examples, tokens.shape[1], -1)
        g = g if g.dtype.itemsize >= 4 else g.float()
        if self._padding is not None:
            g = g * (tokens != self._padding)[..., None]
        return (None,), {self.parameters[0]: _Rows(g, tokens, self._weight.shape)}


class _Rows(Measured):
    """Rows of g (B, T, D) added at the places that tokens (B, T) say."""

    def __init__(self, g: Tensor, tokens: Tensor, shape: torch.Size) -> None:
        self._tokens, self._shape = tokens, shape
        # Rows of a token that comes again are added to those where it came first.
        first = (tokens[:, :, None] == tokens[:, None, :]).to(torch.uint8).argmax(2)
        self._rows = torch.zeros_like(g).scatter_add_(1, first[..., None].expand_as(g), g)

    def routes(self) -> Sequence[str]:
        return ("rows",)

    def signature(self) -> str:
        return ""

    def measure(self, route: str) -> "_Rows":
        self.squares = squared_norms(self._rows)
        return self

    def whole(self) -> Tensor:
        examples = torch.arange(len(self._tokens), device=self._tokens.device)[:, None].expand_as(self._tokens)
        whole = self._rows.new_zeros(len(self._tokens), *self._shape)
        return whole.index_put_((examples, self._tokens), self._rows, accumulate=True)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        rows = self._rows * factors.to(self._rows.dtype)[:, None, None]
        return rows.new_zeros(self._shape).index_add_(0, self._tokens.flatten(), rows.flatten(0, 1))

    def inner(self, weight: Tensor) -> Tensor:
        return (self._rows.double() * weight[self._tokens]).flatten(1).sum(1)
