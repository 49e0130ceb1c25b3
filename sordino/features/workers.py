"""Blocks of images side by side, each on one thread."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

_T = TypeVar("_T")


def side_by_side(work: Callable[[_T], None], blocks: Iterable[_T]) -> None:
    """Do the work for each block, by as many workers as torch has threads.

    Apart they never wait for each other, as threads within one small operation do.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        for block in blocks:
            work(block)
        return
    torch.set_num_threads(1)
    try:
        for _ in _workers(threads, os.getpid()).map(work, blocks):
            pass
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _workers(count: int, process: int) -> ThreadPoolExecutor:
    """Kept, since a thread's first product is slow; a process that was forked has none of its parent's."""
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
