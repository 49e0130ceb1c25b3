"""A few examples of a batch to try a model on, and a way to leave no trace of it."""

import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import batches

_LARGE, _LOOKED_AT, _SCALES = 1e6, 64, 8


def specimens(x: Any, y: Any, views: int, count: int) -> tuple[Any, Any]:
    """So many examples, all different: of finite ones, with scaled copies of them where there are too few."""
    usable = _usable(x, batches.size(y), views, count)
    sound = usable if len(usable) else torch.zeros(1, dtype=torch.int64)
    # In the batch's own order, which a model may rely on (sequences sorted by length).
    order = (torch.arange(count) % len(sound)).argsort(stable=True)
    places = sound[order % len(sound)]
    rows = (places[:, None] * views + torch.arange(views)).flatten()
    scales = 1 + 0.37 * (order // len(sound) % _SCALES).repeat_interleave(views)

    def altered(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return leaf
        leaf = leaf if len(usable) else torch.zeros_like(leaf)
        scale = scales.to(leaf).view(-1, *[1] * (leaf.ndim - 1))
        return scale * leaf + (scale - 1)

    return pytree.tree_map(altered, batches.select(x, rows)), batches.select(y, places)


def in_order(x: Any, y: Any, views: int, order: list[int]) -> tuple[Any, Any]:
    """The same examples in another order."""
    places = torch.tensor(order)
    rows = (places[:, None] * views + torch.arange(views)).flatten()
    return batches.select(x, rows), batches.select(y, places)


def _usable(x: Any, examples: int, views: int, count: int) -> Tensor:
    """The first places of examples whose numbers are finite and not huge: others tell nothing of the model."""
    numbers = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point]
    found: list[int] = []
    for start in range(0, examples, _LOOKED_AT):
        stop = min(start + _LOOKED_AT, examples)
        usable = torch.ones(stop - start, dtype=torch.bool)
        for leaf in numbers:
            usable &= (leaf[start * views : stop * views].abs() < _LARGE).reshape(stop - start, -1).all(1).cpu()
        found += (start + usable.nonzero().flatten()).tolist()
        if len(found) >= count:
            break
    return torch.tensor(found, dtype=torch.int64)


class Held:
    """Whatever is done inside leaves the model's buffers as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._before = [(layer, dict(layer._buffers)) for layer in self._model.modules() if layer._buffers]
        self._values = [
            (buffer, buffer.clone()) for _, kept in self._before for buffer in kept.values() if buffer is not None
        ]

    def __exit__(self, *error: Any) -> None:
        with torch.no_grad():
            for buffer, value in self._values:
                buffer.copy_(value)
        for layer, kept in self._before:  # one that was assigned, not written to, is another tensor now
            layer._buffers.clear()
            layer._buffers.update(kept)


class Untouched(Held):
    """Whatever is done inside leaves the model's buffers and the random state as they were."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._devices = {parameter.device for parameter in model.parameters()}

    def __enter__(self) -> None:
        self._around = ExitStack()
        self._around.enter_context(same_chances(self._devices))
        self._around.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # a checkpoint in a mere try
        super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._around.close()


@contextmanager
def same_chances(devices: set[torch.device], seed: int | None = None) -> Iterator[None]:
    """Leave the random state of torch, NumPy and Python as it was; inside, start from the seed if there is one."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    cuda = [device.index for device in devices if device.type == "cuda" and device.index is not None]
    try:
        with torch.random.fork_rng(devices=cuda):
            if seed is not None:
                seed_all(seed)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def seed_all(seed: int) -> None:
    """Seed all generators that a model may draw from: SpecAugment takes NumPy's, layerdrop Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
