"""Linear layers, attention and embeddings."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.per_example_gradients import (
    OneRoute,
    OuterProducts,
    PerExampleGradient,
    Vectors,
    WholeGradient,
    at_least_single,
    product,
    squared_norms,
)
from sordino.gradients.per_example_gradients import linear as fast_linear
from sordino.gradients.rules.registry import register_rule
from sordino.gradients.tape import Gradients, Tape
from sordino.gradients.tracked_parameters import NoRuleError, Tracked


@register_rule(nn.Linear)
def linear(tape: Tape, name: str, layer: nn.Linear, x: Tensor) -> Tensor:
    return affine(tape, name, x, layer.weight, layer.bias)


def affine(
    tape: Tape, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False
) -> Tensor:
    """F.linear, recorded; for a weight (inputs, outputs) if `transposed`."""
    dimension = None if isinstance(x, Tracked) else tape.find_dimension(name, tape.site(name), x.shape)
    if dimension is None:  # the same for all examples, but with a gradient for each
        copies = x.copies() if isinstance(x, Tracked) else x.expand(tape.examples, *x.shape)
        return Tracked.common(name, tape.record(_Affine(tape, 0, weight, bias, transposed), copies), tape)
    result: Tensor = tape.record(_Affine(tape, dimension, weight, bias, transposed), x)
    return result


class _Affine:
    """One call of a linear map."""

    def __init__(self, tape: Tape, dimension: int, weight: Tensor, bias: Tensor | None, transposed: bool) -> None:
        self._weight_name, value = tape.parameter(weight)
        assert value is not None
        self._weight, self._transposed = value.T if transposed else value, transposed
        self._bias_name, self._bias = tape.parameter(bias)
        self._examples, self._dimension, self._buffers = tape.examples, dimension, tape.buffers
        self.parameters = tuple(name for name in (self._weight_name, self._bias_name) if name)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return fast_linear(x, self._weight, self._bias), (x,)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        x, found = saved[0], dict[str, PerExampleGradient]()
        g = self._positions(gradient)
        vectors = Vectors(g)
        if self._weight_name:
            a = self._positions(x).to(g.dtype)
            left, right = (Vectors(a), g) if self._transposed else (vectors, a)
            found[self._weight_name] = OuterProducts(left, right, self._buffers, self._weight_name)
        if self._bias_name:
            alone = g.shape[1] == 1  # then the weight's norm needs that of g too
            found[self._bias_name] = (
                WholeGradient(g[:, 0], squares=vectors.squares) if alone else WholeGradient(g.sum(1))
            )
        backward = product(gradient, self._weight.to(gradient.dtype)).to(x.dtype) if needed[0] else None
        return (backward,), found

    def _positions(self, x: Tensor) -> Tensor:
        """(examples, positions, features) in at least single precision."""
        return at_least_single(x.movedim(self._dimension, 0).reshape(self._examples, -1, x.shape[-1]))


@register_rule(nn.MultiheadAttention)
def attention(
    tape: Tape,
    name: str,
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Linear maps, and between them an attention that has no parameters."""
    if query.ndim != 3:
        raise NoRuleError("attention without a batch has no rule")
    projected = _projected(tape, name, layer, query, key, value)
    q, k, v = (x if layer.batch_first else x.transpose(0, 1) for x in projected)
    keys = k.shape[1]
    if layer.bias_k is not None and layer.bias_v is not None:  # each example attends to one more, which is learned
        k = torch.cat([k, layer.bias_k.expand(len(k), 1, -1)], 1)
        v = torch.cat([v, layer.bias_v.expand(len(v), 1, -1)], 1)
    if layer.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    heads = [_heads(x, layer.num_heads) for x in (q, k, v)]
    mask = _mask(key_padding_mask, attn_mask, heads[0], layer.num_heads)
    mask = mask if mask is None else F.pad(mask, (0, k.shape[1] - keys))
    dropout = layer.dropout if layer.training else 0.0
    if need_weights:
        scores = heads[0] @ heads[1].transpose(2, 3) / heads[0].shape[3] ** 0.5
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, dropout) if dropout else weights
        mixed, shown = weights @ heads[2], weights.mean(1) if average_attn_weights else weights
    else:
        mixed, shown = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, dropout), None
    mixed = mixed.transpose(1, 2).flatten(2)
    mixed = mixed if layer.batch_first else mixed.transpose(0, 1)
    return affine(tape, f"{name}.out_proj", mixed, layer.out_proj.weight, layer.out_proj.bias), shown


def _projected(
    tape: Tape, name: str, layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    if layer._qkv_same_embed_dim and query is key and key is value:
        together = affine(tape, f"{name}.in_proj", query, layer.in_proj_weight, layer.in_proj_bias)
        return together.chunk(3, -1)
    # Separate maps of packed weights: their thirds are tracked, and the product is done on copies.
    packed = layer._qkv_same_embed_dim
    weights = (
        layer.in_proj_weight.chunk(3) if packed else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    )
    biases = (None, None, None) if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return tuple(F.linear(*parts) for parts in zip((query, key, value), weights, biases, strict=True))


def _heads(x: Tensor, count: int) -> Tensor:
    """(B, T, E) as (B, heads, T, E/heads)."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def _mask(padding: Tensor | None, attention: Tensor | None, q: Tensor, heads: int) -> Tensor | None:
    """Both masks as one that is added to the scores, or None."""
    total: Tensor | None = None
    for mask in (None if padding is None else padding[:, None, None, :], attention):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -torch.inf)
        if mask.ndim == 3:
            mask = mask.unflatten(0, (-1, heads))
        total = mask if total is None else total + mask
    return total


@register_rule(nn.Embedding)
def embedding(tape: Tape, name: str, layer: nn.Embedding, tokens: Tensor) -> Tensor:
    """An example's gradient has a row for each distinct token of the example."""
    return lookup(tape, name, tokens, layer.weight, layer.padding_idx)


def lookup(tape: Tape, name: str, tokens: Tensor, weight: Tensor, padding: int | None) -> Tensor:
    """F.embedding, recorded."""
    dimension = tape.find_dimension(name, tape.site(name), tokens.shape)
    if dimension is None:  # position indices, for one, are the same for every example
        copies = tokens.expand(tape.examples, *tokens.shape)
        return Tracked.common(name, tape.record(_Embedding(tape, 0, weight, padding), copies), tape)
    result: Tensor = tape.record(_Embedding(tape, dimension, weight, padding), tokens)
    return result


class _Embedding:
    def __init__(self, tape: Tape, dimension: int, weight: Tensor, padding: int | None) -> None:
        name, value = tape.parameter(weight)
        assert name is not None
        assert value is not None
        self.parameters: tuple[str, ...] = (name,)
        self._weight, self._padding = value, padding
        self._examples, self._dimension = tape.examples, dimension

    def forward(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return F.embedding(tokens, self._weight), (tokens,)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        tokens = saved[0].movedim(self._dimension, 0).reshape(self._examples, -1)
        g = at_least_single(gradient.movedim(self._dimension, 0).reshape(self._examples, tokens.shape[1], -1))
        if self._padding is not None:
            g = g * (tokens != self._padding)[..., None]
        return (None,), {self.parameters[0]: _TokenRows(g, tokens, self._weight.shape)}


class _TokenRows(OneRoute):
    """Rows of g (B, T, D), each added to the row of its token (B, T)."""

    def __init__(self, g: Tensor, tokens: Tensor, shape: torch.Size) -> None:
        self._tokens, self._shape = tokens, shape
        # Rows of a repeated token are added to that of its first occurrence.
        first = (tokens[:, :, None] == tokens[:, None, :]).to(torch.uint8).argmax(2)
        self._rows = torch.zeros_like(g).scatter_add_(1, first[..., None].expand_as(g), g)

    def measure(self, route: str) -> "_TokenRows":
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
