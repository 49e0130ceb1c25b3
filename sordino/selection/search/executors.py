"""Where trials run: in this process, in several, or on a Ray cluster. None of them ever touches the ledger.

Tasks are taken from their iterator as there is room: the search charges a trial when it is taken, so what is charged
is begun, or next. A trial that was cut off goes on from its own folder.
"""

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Protocol

import torch

from sordino.selection.search.candidates import Material, Task, Trial, shared_network, train_candidate, trying
from sordino.training.run import RunError
from sordino.training.side_by_side import side_by_side

Work = Callable[[Iterable[Task]], Iterator[Trial]]
"""Runs tasks and gives their trials as they finish, in whatever order."""


class Executor(Protocol):
    def at_work(self, material: Material) -> AbstractContextManager[Work]:
        """Ready for tasks on these records until the context ends."""


@dataclass(frozen=True)
class InProcess:
    """In this process: trials of one small dense network that follow each other side by side, others one by one."""

    most: int = 8
    """Side by side, each with its weights in memory."""

    @contextmanager
    def at_work(self, material: Material) -> Iterator[Work]:
        yield lambda tasks: self._finished(material, tasks)

    def _finished(self, material: Material, tasks: Iterable[Task]) -> Iterator[Trial]:
        # A search that is replayed gives the same tasks, finished or not, and so the same companies.
        for network, alike in groupby(tasks, lambda task: shared_network(task, material)):
            while together := list(islice(alike, 1 if network is None else self.most)):
                yield from side_by_side(
                    [trying(task, material, (place, len(together))) for place, task in enumerate(together)]
                )


@dataclass(frozen=True)
class Processes:
    """Several processes on this machine, which share its cores.

    They are started afresh, so a script that uses them does its work under `if __name__ == "__main__"`.
    """

    workers: int

    def __post_init__(self) -> None:
        if type(self.workers) is not int or self.workers < 1:
            raise ValueError(f"the number of workers must be a whole number of at least 1, not {self.workers!r}")

    @contextmanager
    def at_work(self, material: Material) -> Iterator[Work]:
        threads = max(1, torch.get_num_threads() // self.workers)
        pool = ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("spawn"),  # a fork would inherit torch's locks, held or not
            initializer=_begin,
            initargs=(material, threads),
        )
        with pool:
            yield lambda tasks: self._finished(pool, tasks)

    def _finished(self, pool: ProcessPoolExecutor, tasks: Iterable[Task]) -> Iterator[Trial]:
        try:
            waiting: set[Future[Trial]] = set()
            for task in tasks:
                waiting.add(pool.submit(_train, task))
                if len(waiting) == self.workers:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BrokenProcessPool:
            raise RunError("a worker died amid a trial (out of memory?): start the search again to go on") from None


@dataclass(frozen=True)
class OnRay:
    """The machines of a Ray cluster, or with the address "local" a Ray of this machine's own.

    All of them must see the search's folder under the same path: trials and their keys are kept there.
    """

    address: str

    @contextmanager
    def at_work(self, material: Material) -> Iterator[Work]:
        try:
            import ray
        except ImportError:
            raise ValueError("Ray is not installed: pip install 'sordino[ray]', or leave out --ray") from None
        ours = not ray.is_initialized()
        if ours:
            try:
                ray.init(self.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as problem:
                raise ValueError(f"no Ray cluster answers at {self.address!r}: {problem}") from None
        try:
            shared, remote = ray.put(material), ray.remote(_train_remotely)
            most = max(1, int(ray.cluster_resources().get("CPU", 1)))
            yield lambda tasks: _finished_on_ray(ray, remote, shared, most, tasks)
        finally:
            if ours:
                ray.shutdown()


def _finished_on_ray(ray: Any, remote: Any, shared: Any, most: int, tasks: Iterable[Task]) -> Iterator[Trial]:
    waiting: list[Any] = []
    for task in tasks:
        waiting.append(remote.remote(task, shared))
        if len(waiting) == most:
            [done], waiting = ray.wait(waiting)
            yield _result_of(ray, done)
    while waiting:
        [done], waiting = ray.wait(waiting)
        yield _result_of(ray, done)


def _result_of(ray: Any, done: Any) -> Trial:
    try:
        trial: Trial = ray.get(done)
    except ray.exceptions.RayTaskError as problem:
        raise problem.cause from None
    except ray.exceptions.RayError as problem:
        raise RunError(f"a trial was lost on the cluster ({problem}): start the search again to go on") from None
    return trial


def _train_remotely(task: Task, material: Material) -> Trial:
    if not task.folder.parent.is_dir():
        raise RunError(
            f"a machine of the cluster does not see {task.folder.parent}: give a folder that all of them share"
        )
    return train_candidate(task, material)


_given: list[Material] = []
"""What a worker process was given when it began: sent once, not with every task."""


def _begin(material: Material, threads: int) -> None:
    torch.set_num_threads(threads)
    _given[:] = [material]
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _train(task: Task) -> Trial:
    return train_candidate(task, _given[0])


def _end_with_parent(parent: int) -> None:
    """A worker whose search was killed would hold its trial while the search wants to go on with it."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
