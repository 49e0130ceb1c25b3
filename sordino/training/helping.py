"""Commands on several processes: torchrun starts the same command in each, one carries it out, and the others help.

Helpers have no program of their own. For each training they are sent the model and their shard of the records.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist
from torch.utils import _pytree as pytree

from sordino.data import ArrayRecords, Records
from sordino.training.distribution import End, ProcessLost, Replicas, Several, join


class Helped(Several):
    """Processes of which the first has a program, and the others help."""

    compares = False

    @contextmanager
    def leading(self, model: Any, records: Any) -> Iterator[None]:
        with self.ending_others():
            check_sendable(model, None if type(records) is ArrayRecords else records)
            self.order(Helped.help)
            for rank in range(1, self.size):
                with self.reached():
                    dist.send_object_list([model, *self._part(records, rank)], dst=rank, group=self.channel)
            yield

    def _part(self, records: Records, rank: int) -> tuple[Records, int]:
        """What a process needs of the records, and how many come before it: of arrays its shard alone."""
        if type(records) is not ArrayRecords or len(records) < self.size:
            return records, 0
        first, last = self.bounds(rank, len(records))
        x, y = pytree.tree_map(lambda leaf: leaf[first:last], (records.x, records.y))
        return ArrayRecords(x, y), first

    def serve(self) -> None:
        """Help with one training after the other."""
        while not isinstance(order := self.received(), End):
            order(self)

    def help(self) -> None:
        """Follow with a model and records that are sent; errors are for the process that leads to show."""
        parts: list[Any] = [None] * 3
        with self.reached():
            dist.recv_object_list(parts, src=0, group=self.channel)
        model, records, before = parts
        self.followed(Replicas(model, self, before), records)

    def done(self) -> None:
        """Nothing is left to help with."""
        with suppress(ProcessLost):
            self.order(End())


def check_sendable(*things: Any) -> None:
    """Refuse, before anything is sent, what has no form outside of this process."""
    try:
        pickle.dumps(things)
    except Exception as problem:
        raise ValueError(f"this training cannot be sent to other processes: run it in one ({problem})") from problem


@contextmanager
def started_by_torchrun() -> Iterator[bool]:
    """Join the processes that torchrun has started, if it has; yields whether this one leads.

    The others help until it is done, and have nothing left to do then.
    """
    if not are_several():
        yield True
        return
    dist.init_process_group("gloo")
    several = Helped()
    join(several)
    try:
        if several.rank:
            several.serve()
            yield False
        else:
            try:
                yield True
            finally:
                several.done()
    finally:
        dist.destroy_process_group()


def are_several() -> bool:
    """Whether torchrun has started this process and others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1
