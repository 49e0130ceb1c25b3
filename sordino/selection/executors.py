"""Where trials run: in this process, in several, or on a Ray cluster. None of them ever touches the ledger.

Tasks are taken from their iterator as there is room: the search charges a trial when it is taken, so what is charged
is begun, or next. A trial that was interrupted resumes from its own folder.
"""

import ipaddress
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from sordino.runs import RunError
from sordino.selection.trials import FinishedTrial, TrialData, TrialTask, run_trial, shared_network, trial_steps
from sordino.training import Steps, side_by_side

Work = Callable[[Iterable[TrialTask]], Iterator[FinishedTrial]]
"""Runs tasks and yields their trials as they finish, in any order."""


class Executor(Protocol):
    def at_work(self, data: TrialData) -> AbstractContextManager[Work]:
        """Ready for tasks on these records until the context ends."""


@dataclass(frozen=True)
class InProcess:
    """In this process: consecutive trials of one small dense network side by side, others one by one."""

    most: int = 8
    """Trials side by side, each with its weights in memory."""

    @contextmanager
    def at_work(self, data: TrialData) -> Iterator[Work]:
        yield lambda tasks: chain.from_iterable(map(side_by_side, self._batches(data, tasks)))

    def _batches(self, data: TrialData, tasks: Iterable[TrialTask]) -> Iterator[list[Steps[FinishedTrial]]]:
        # A replayed search gives the same tasks, finished or not, and so the same batches.
        for network, alike in groupby(tasks, lambda task: shared_network(task, data)):
            while batch := list(islice(alike, 1 if network is None else self.most)):
                yield [trial_steps(task, data, (place, len(batch))) for place, task in enumerate(batch)]


@dataclass(frozen=True)
class Processes:
    """Several processes on this machine, which share its cores.

    They are spawned, not forked, so a script that uses them does its work under `if __name__ == "__main__"`.
    """

    workers: int

    def __post_init__(self) -> None:
        if type(self.workers) is not int or self.workers < 1:
            raise ValueError(f"the number of workers must be a whole number of at least 1, not {self.workers!r}")

    @contextmanager
    def at_work(self, data: TrialData) -> Iterator[Work]:
        threads = max(1, torch.get_num_threads() // self.workers)
        context = multiprocessing.get_context("spawn")  # a fork would inherit torch's locks, held or not
        watched, held = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_begin, initargs=(data, threads, watched)
        )
        with watched, held:
            try:
                yield lambda tasks: self._finished(pool, tasks)
            except BaseException:
                held.close()  # stops them during their trials, which resume from their folders
                pool.shutdown(cancel_futures=True)
                raise
            pool.shutdown()

    def _finished(self, pool: ProcessPoolExecutor, tasks: Iterable[TrialTask]) -> Iterator[FinishedTrial]:
        try:
            waiting: set[Future[FinishedTrial]] = set()
            for task in tasks:
                with _interrupts_held():
                    waiting.add(pool.submit(_train, task))
                if len(waiting) == self.workers:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BrokenProcessPool:
            raise RunError("a worker died during a trial (out of memory?): rerun the search to resume it") from None


@dataclass(frozen=True)
class OnRay:
    """The machines of a Ray cluster, or with the address "local" a Ray on this machine.

    All of them must see the search's folder under the same path: trials and their keys are kept there. Records and keys
    go through Ray, so anyone who may submit work to the cluster can read them. A local one answers this machine only,
    asks for a token, and keeps its files in a folder of this user.
    """

    address: str

    @contextmanager
    def at_work(self, data: TrialData) -> Iterator[Work]:
        if self.address == "local":
            # Read when Ray is imported: without the first it listens on all interfaces, on Linux.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            import ray
        except ImportError:
            raise ValueError("Ray is not installed: pip install 'sordino[ray]', or leave out --ray") from None
        with ExitStack() as stack:
            if not ray.is_initialized():
                stack.enter_context(self._started(ray))
            shared, remote = ray.put(data), ray.remote(_train_remotely)
            most = max(1, int(ray.cluster_resources().get("CPU", 1)))
            yield lambda tasks: _finished_on_ray(ray, remote, shared, most, tasks)

    @contextmanager
    def _started(self, ray: Any) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="sordino-", dir=_short_folder(), ignore_cleanup_errors=True) as folder:
            # Ray opens its own folder to everybody; the one around it stays this user's.
            kept = {"_temp_dir": f"{folder}/ray"} if self.address == "local" else {}
            try:
                ray.init(
                    self.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **kept
                )
            except (ConnectionError, ValueError, RuntimeError) as problem:
                raise ValueError(f"no Ray cluster answers at {self.address!r}: {problem}") from None
            try:
                if self.address == "local" and not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
                    raise ValueError(
                        "Ray would answer other machines: do not import it before the search, or set "
                        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before it is imported"
                    )
                yield
            finally:
                ray.shutdown()


def _short_folder() -> str | None:
    """For Ray's sockets, whose paths must be short."""
    return "/tmp" if Path("/tmp").is_dir() else None


def _finished_on_ray(
    ray: Any, remote: Any, shared: Any, most: int, tasks: Iterable[TrialTask]
) -> Iterator[FinishedTrial]:
    waiting: list[Any] = []
    for task in tasks:
        waiting.append(remote.remote(task, shared))
        if len(waiting) == most:
            [done], waiting = ray.wait(waiting)
            yield _result_of(ray, done)
    while waiting:
        [done], waiting = ray.wait(waiting)
        yield _result_of(ray, done)


def _result_of(ray: Any, done: Any) -> FinishedTrial:
    try:
        trial: FinishedTrial = ray.get(done)
    except ray.exceptions.RayTaskError as problem:
        raise problem.cause from None
    except ray.exceptions.RayError as problem:
        raise RunError(f"a trial was lost on the cluster ({problem}): rerun the search to resume it") from None
    return trial


def _train_remotely(task: TrialTask, data: TrialData) -> FinishedTrial:
    if not task.folder.parent.is_dir():
        raise RunError(
            f"a machine of the cluster does not see {task.folder.parent}: give a folder that all of them share"
        )
    return run_trial(task, data)


_given: list[TrialData] = []
"""The records of a worker process: sent once when it starts, not with every task."""


def _begin(data: TrialData, threads: int, watched: Connection) -> None:
    _end_if(watched.poll(0))  # the search was killed while this process was still importing
    threading.Thread(target=lambda: _end_if(watched.poll(None)), daemon=True).start()
    torch.set_num_threads(threads)
    _given[:] = [data]


def _train(task: TrialTask) -> FinishedTrial:
    return run_trial(task, _given[0])


def _end_if(over: bool) -> None:
    """A search that ends, however it ends, closes its end of the pipe; nothing is ever sent through it.

    A worker left behind would hold private records, and the trial that the search wants to resume.
    """
    if over:
        os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal: workers started here leave it to the search."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
