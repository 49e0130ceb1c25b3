"""Sums that bound what an example does are taken in float32 as it is, whatever the user allows torch to shorten.

Passes forward and back may round as they like: that makes other gradients of each example, and the clip bounds those. A
clipped sum may not: it must add up the very numbers whose norm was taken. Torch can be told to multiply float32 in
fewer digits (TF32, bfloat16), and on a GPU convolutions do so unless told otherwise.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_CPU: Any = torch.backends.mkldnn  # torch declares no types for these
_GPU: Any = torch.backends.cudnn
_BACKENDS: tuple[Any, ...] = (_CPU.matmul, _CPU.conv, torch.backends.cuda.matmul, _GPU.conv)
_EXACT = ("none", "ieee")


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Norms and sums are never taken in less than single precision."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def settings() -> list[str]:
    """What torch may shorten now: it decides how a pass rounds."""
    return [str(each.fp32_precision) for each in _BACKENDS]


@contextmanager
def unshortened() -> Iterator[None]:
    """Products of float32 in all its digits; the user's settings after that."""
    shortened = [(each, each.fp32_precision) for each in _BACKENDS if each.fp32_precision not in _EXACT]
    try:
        for each, _ in shortened:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, before in shortened:
            each.fp32_precision = before
