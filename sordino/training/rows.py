"""Rows of a map-style Dataset by index, as one batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordino.gradients import batches

Collate = Callable[[list[Any]], Any]


class Rows:
    """Batches (x, y) of a dataset; an empty one has the shapes and types of any other.

    `collate_fn` must make each row of a batch from one item alone: whatever mixes items (mixup, a norm over the batch)
    breaks the guarantee, and only a wrong number of rows can be noticed here.
    """

    def __init__(self, dataset: Dataset[Any], collate_fn: Collate | None, device: torch.device) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ValueError(
                "the dataset must be map-style (with a length and items): Poisson batches are drawn by index"
            )
        self.n = len(dataset)
        if self.n == 0:
            raise ValueError("the dataset is empty")
        self._dataset, self._device = dataset, device
        self._collate = collate_fn or default_collate
        # A subclass may change its items, so only a plain one is read past them.
        self._tensors = dataset.tensors if type(dataset) is TensorDataset and collate_fn is None else None

    def __call__(self, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        if self._tensors is not None:
            places = torch.from_numpy(indices)
            return self._pair(
                [tensor.index_select(0, places.to(tensor.device)) for tensor in self._tensors], len(indices)
            )
        if len(indices):
            return self._pair(self._collate([self._dataset[int(index)] for index in indices]), len(indices))
        x, y = self._pair(self._collate([self._dataset[0]]), 1)
        return batches.select(x, slice(0, 0)), batches.select(y, slice(0, 0))

    def _pair(self, batch: Any, examples: int) -> tuple[Any, Any]:
        batch = batches.plain(batch)
        if isinstance(batch, dict) and len(batch) > 1:  # as Hugging Face's datasets have them
            labels = next((name for name in ("labels", "label") if name in batch), None)
            if labels is not None:
                batch = {name: value for name, value in batch.items() if name != labels}, batch[labels]
        if not isinstance(batch, Sequence) or len(batch) != 2:
            raise ValueError(
                "an item of the dataset must be a pair (input, target), or a dict of inputs with `labels`: give a "
                "collate_fn that returns (x, y)"
            )
        x, y = (pytree.tree_map_only(Tensor, lambda leaf: leaf.to(self._device), part) for part in batch)
        if batches.size(x) != examples or batches.size(y) != examples:
            raise ValueError("the collated batch must have one row for each item that was drawn")
        return x, y
