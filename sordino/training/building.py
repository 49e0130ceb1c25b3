"""A model that a function builds: under a seed of its run, with its weights as a dict, and in words."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sordino.mechanisms import Stream, Streams, memory
from sordino.training.optimisers import Weights


def built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What `build()` makes under this seed; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def seed_of(streams: Streams) -> int:
    """The seed under which a run builds its model."""
    return int(streams.generator(Stream.INITIALISATION).integers(2**63))


def tensors(model: nn.Module) -> Weights:
    """Parameters, frozen ones and buffers: frozen random layers are part of the model, too."""
    return {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}


_COPIES = 12
"""Of the trained weights in single precision: sums, noise and their sum in double, the optimiser's and averaged ones,
and a checkpoint as it is written."""


def require_memory(model: nn.Module, what: str) -> None:
    """Refuse a training whose weights memory has no room for, before it is charged."""
    size = sum(value.numel() for value in model.parameters() if value.requires_grad)
    memory.require(4.0 * _COPIES * size, f"to train {what} ({size:,} weights)", "choose a smaller model")


@torch.no_grad()
def load_into(own: Weights, weights: Weights) -> None:
    """Copy weights into a model's own tensors."""
    if {name: value.shape for name, value in own.items()} != {n: value.shape for n, value in weights.items()}:
        raise ValueError("these weights are of another model: names or shapes differ")
    for name, value in own.items():
        value.copy_(weights[name])


def words(thing: Any) -> str:
    """What a model or a function is called, the same in another process."""
    if isinstance(thing, nn.Module):
        return re.sub(r"0x[0-9a-f]+", "", repr(thing))
    name = getattr(thing, "__qualname__", None)
    return f"{thing.__module__}.{name}" if name else re.sub(r"0x[0-9a-f]+", "", repr(thing))
