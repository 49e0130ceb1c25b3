"""Dry runs of a model: a few examples to try it on, and contexts that leave no trace of the try."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import batches

_LARGE, _BLOCK, _SCALES = 1e6, 64, 8


def sample_examples(x: Any, y: Any, views: int, count: int) -> tuple[Any, Any]:
    """`count` examples, all different: finite ones of the batch, with scaled copies where there are too few."""
    usable = _usable(x, batches.size(y), views, count)
    sound = usable if len(usable) else torch.zeros(1, dtype=torch.int64)
    # In the batch's own order, which a model may rely on (sequences sorted by length).
    order = (torch.arange(count) % len(sound)).argsort(stable=True)
    scales = 1 + 0.37 * (order // len(sound) % _SCALES).repeat_interleave(views)

    def scaled(leaf: Tensor) -> Tensor:
        if not leaf.dtype.is_floating_point:
            return leaf
        leaf = leaf if len(usable) else torch.zeros_like(leaf)
        scale = scales.to(leaf).view(-1, *[1] * (leaf.ndim - 1))
        return scale * leaf + (scale - 1)

    x, y = batches.take(x, y, sound[order % len(sound)], views)
    return batches.map_tensors(scaled, x), y


def _usable(x: Any, examples: int, views: int, count: int) -> Tensor:
    """The first indices of examples whose numbers are finite and not huge: others reveal nothing about the model."""
    numbers = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point]
    found: list[int] = []
    for start in range(0, examples, _BLOCK):
        stop = min(start + _BLOCK, examples)
        usable = torch.ones(stop - start, dtype=torch.bool)
        for leaf in numbers:
            usable &= (leaf[start * views : stop * views].abs() < _LARGE).reshape(stop - start, -1).all(1).cpu()
        found += (start + usable.nonzero().flatten()).tolist()
        if len(found) >= count:
            break
    return torch.tensor(found, dtype=torch.int64)


@contextmanager
def keep_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers on leaving, whether they were written to or replaced."""
    before = [(layer, dict(layer._buffers)) for layer in model.modules() if layer._buffers]
    values = [(buffer, buffer.clone()) for _, kept in before for buffer in kept.values() if buffer is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for layer, kept in before:
            layer._buffers.clear()
            layer._buffers.update(kept)


@contextmanager
def keep_random_state(devices: set[torch.device], seed: int | None = None) -> Iterator[None]:
    """Restore the random state of torch, NumPy and Python on leaving; inside, start from the seed if there is one."""
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


@contextmanager
def without_side_effects(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the random state on leaving."""
    devices = {parameter.device for parameter in model.parameters()}
    with keep_random_state(devices), warnings.catch_warnings(), keep_buffers(model):
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # of checkpointed layers
        yield


def seed_all(seed: int) -> None:
    """Seed all generators that a model may draw from: SpecAugment uses NumPy's, layerdrop Python's."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # which would also leave a note, with the stack, for each accelerator that is not there: milliseconds
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
