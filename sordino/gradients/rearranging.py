"""Finding models that move rows from one example's place to another's.

The layer rules take it that a row belongs to the same example all the way through. A model that sorts its batch, or
picks rows by a mask, breaks that without mixing anything: its gradients must be formed example by example.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PICKING = {
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_scatter",
    "masked_scatter_",
}
_ALONG = {"index_select": 1, "gather": 1, "flip": 1, "roll": 2, "sort": 1, "argsort": 1, "topk": 2}
_INDEXED = {"index", "index_put", "index_put_", "_unsafe_index"}


class InPlace(TorchDispatchMode):
    """Notes operations that take the rows of a batch in another order, or only some of them."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()
        self._rows = rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].ndim and len(args[0]) % self._rows == 0:
            moves = name in _PICKING or (name in _INDEXED and _moves_rows(args)) or _along_rows(name, args, kwargs)
            self.found |= {name} if moves else set()
        return func(*args, **kwargs)


def _moves_rows(args: Any) -> bool:
    """Whether an indexing takes rows otherwise than in their order."""
    if not args[1] or args[1][0] is None:
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    rows = args[1][0]
    if rows.dtype == torch.bool or len(args[0]) != rows.shape[0]:
        return True
    in_order = torch.arange(len(rows), device=rows.device).view(-1, *[1] * (rows.ndim - 1))
    return not bool((rows == in_order).all())


def _along_rows(name: str, args: Any, kwargs: Any) -> bool:
    place = _ALONG.get(name)
    if place is None:
        return False
    along = kwargs.get("dim", kwargs.get("dims", args[place] if len(args) > place else -1))
    return any(dimension in (0, -args[0].ndim) for dimension in (along if isinstance(along, list | tuple) else [along]))
