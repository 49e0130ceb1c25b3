"""Memory that is used again: fresh pages from the operating system cost more than what is computed into them."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


class Buffers:
    """Tensors by name, kept from batch to batch; who takes one again overwrites what was in it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self._kept.values())

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self._kept}

    def clear(self) -> None:
        self._kept.clear()

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape with anything in it."""
        key, size = (name, like.dtype, like.device), prod(shape)
        if key not in self._kept or self._kept[key].numel() < size:
            self._kept.pop(key, None)
            self._kept[key] = like.new_empty(size)
        return self._kept[key][:size].view(*shape)

    def take_zeros(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape that was zeros when it was first taken."""
        key = (f"{name} {tuple(shape)}", like.dtype, like.device)
        if key not in self._kept:
            self._kept[key] = like.new_zeros(*shape)
        return self._kept[key]
