"""Multi-head attention: linear maps, and between them an attention that has no parameters."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.rules.affine import affine
from sordino.gradients.tape import Tape
from sordino.gradients.watching import Unruled


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
    if query.ndim != 3 or layer.bias_k is not None or layer.add_zero_attn:
        raise Unruled("attention without a batch, or with added keys, has no rule")
    if layer.batch_first:
        heads = [_heads(x, layer.num_heads) for x in _projected(tape, name, layer, query, key, value)]
    else:
        heads = [_heads(x.transpose(0, 1), layer.num_heads) for x in _projected(tape, name, layer, query, key, value)]
    mask = _mask(key_padding_mask, attn_mask, heads[0], layer.num_heads)
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
    # Separate maps of packed weights: their thirds are watched, and the product is done on copies.
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
