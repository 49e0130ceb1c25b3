"""Sordino trains models on private data under differential privacy and proves what it spent."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["audit", "make_private"]


def __getattr__(name: str) -> Any:
    # Looked up when asked for: accounting must not wait for torch.
    if name == "make_private":
        return import_module("sordino.training").make_private
    if name == "audit":
        return import_module("sordino.audit")  # a room that can be called
    raise AttributeError(f"module 'sordino' has no attribute {name!r}")
