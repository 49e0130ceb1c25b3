"""Blocks of images side by side, each on one thread."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
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
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, blocks):
                pass
    finally:
        torch.set_num_threads(threads)
