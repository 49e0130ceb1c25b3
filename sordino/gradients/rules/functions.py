"""Functions of torch in which a model uses its parameters itself, without a layer: products and lookups.

Layers that are not torch's own (GPT-2's linear maps, the positions of BART and OPT) come down to these.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.rules.linear import affine, lookup
from sordino.gradients.tape import Tape
from sordino.gradients.tracked_parameters import Tracked, register_function


@register_function("linear")
def linear(tape: Tape, site: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return affine(tape, site, x, weight, bias) if _are_plain(weight, bias) else NotImplemented


@register_function("matmul", "__matmul__", "mm")
def matmul(tape: Tape, site: str, x: Tensor, weight: Tensor) -> Any:
    if not _are_plain(weight) or not isinstance(weight, Tracked) or weight.ndim != 2 or x.ndim < 2:
        return NotImplemented
    return affine(tape, site, x, weight, transposed=True)


@register_function("addmm")
def addmm(tape: Tape, site: str, bias: Tensor, x: Tensor, weight: Tensor, **scales: Any) -> Any:
    if scales or bias.ndim != 1 or isinstance(x, Tracked) or not _are_plain(weight, bias):
        return NotImplemented
    return affine(tape, site, x, weight, bias, transposed=True)


@register_function("embedding")
def embedding(
    tape: Tape, site: str, tokens: Tensor, weight: Tensor, padding_idx: int | None = None, *rest: Any, **options: Any
) -> Any:
    if isinstance(tokens, Tracked) or not isinstance(weight, Tracked):
        return NotImplemented
    padding = None if padding_idx is None else padding_idx % len(weight)
    if not weight.derived:
        return lookup(tape, site, tokens, weight, padding)
    if tape.find_dimension(site, site, tokens.shape) != 0:
        return NotImplemented
    each = tokens.reshape(tape.examples, -1)
    rows = weight.copies()[torch.arange(len(each), device=each.device)[:, None], each].view(*tokens.shape, -1)
    return rows if padding is None else torch.where((tokens == padding)[..., None], rows.detach(), rows)


@register_function("__getitem__")
def rows(tape: Tape, site: str, weight: Tensor, places: Any) -> Any:
    indices = isinstance(places, Tensor) and not isinstance(places, Tracked) and places.dtype == torch.int64
    if not indices or weight.ndim != 2 or not _are_plain(weight):
        return NotImplemented
    return lookup(tape, site, places, weight, None)


@register_function("rms_norm")
def rms_norm(
    tape: Tape, site: str, x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    if weight is None or isinstance(x, Tracked):
        return NotImplemented
    return Tracked.__torch_function__(torch.mul, (Tracked,), (F.rms_norm(x, shape, eps=eps), weight))


def _are_plain(*values: Tensor | None) -> bool:
    """Whether none of them is computed from parameters."""
    return not any(isinstance(value, Tracked) and value.derived for value in values)
