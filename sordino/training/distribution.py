"""Training on several processes of torch.distributed, on one machine or on many: all compute, and one of them leads.

The process of rank 0 leads: it alone has the run's folder, the ledger and the secret. It charges, draws each step's
records, adds the noise and keeps checkpoints, as it would alone. Every process has the model, and sums the clipped
gradients of those drawn records that are in its shard. The others wait for orders, which are functions that every
process calls at the same place.
"""

import atexit
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from sordino.data import Records, array_fingerprint
from sordino.gradients import keep_random_state
from sordino.mechanisms import Streams
from sordino.runs import RunError, digest, environment
from sordino.training.dpsgd import ClippedSum, Trainable, together
from sordino.training.optimisers import Weights

T = TypeVar("T")
_PATIENCE = timedelta(days=1)
"""How long an order may take to come. A process that ends is noticed at once: the system closes its connections."""
_COMPARED = 64
"""How many records all processes must have alike."""


class ProcessLost(RunError):  # noqa: N818
    """Another process has stopped, and this one cannot continue without it."""


class ProcessFailed(RunError):  # noqa: N818
    """A process has met an error where all had to come to something."""


class OneProcess:
    """A training in one process, which has no other to agree with."""

    rank, size = 0, 1
    follow: Callable[..., Any]
    """Of one that another process leads."""

    def leading(self, model: Any, records: Any) -> AbstractContextManager[None]:
        """The others follow meanwhile, and an error ends their work too."""
        return nullcontext()

    def end(self, result: Callable[[], Any]) -> None:
        """The others stop following, with this result."""

    def replicas(self, model: Trainable) -> Trainable:
        """The model in all processes as one."""
        return model

    def first(self, action: Callable[[], T]) -> T:
        """Done by the process that leads; what it returns, in every process."""
        return action()

    def seeds(self, generator: np.random.Generator) -> list[int] | None:
        """For what each process draws at random; None where the generator itself will do."""
        return None

    def shard(self, indices: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Those of these records, out of n, that this process computes."""
        return indices

    def summed(self, own: Callable[[], ClippedSum]) -> ClippedSum:
        """The sum of all processes' own, in the one that leads."""
        return own()

    def released(self, own: ClippedSum, release: Callable[[], tuple[Weights, float]]) -> tuple[Weights, float]:
        """What the process that leads releases, the noisy gradient and the next clip, in every process."""
        return release()


class Several(OneProcess):
    """The processes of torch's default group.

    Guarantee: that of one process, at the same ε. The records of a step are drawn once, from the run's secret, so they
    are the same however many processes there are; each is in one shard. Sums are added up in the precision they have,
    single at least. Their noise is drawn once, in full, by the process that leads, so nothing with less of it is in any
    weights. The secret does not leave that process. But what the group's network carries is private (drawn indices,
    sums without noise, an example's shard): it must be trusted or encrypted, and all processes must be trusted alike.
    """

    compares = True
    """Whether every process has all records."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._world: Any = dist.group.WORLD
        # Whatever the default group's backend is: orders are not tensors on a device.
        self.channel: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._sums: Any = dist.new_group(backend="gloo")

    def leading(self, model: Any, records: Any) -> AbstractContextManager[None]:
        return self.ending_others()

    def end(self, result: Callable[[], Any]) -> None:
        self.order(End(result()))

    def replicas(self, model: Trainable) -> Trainable:
        return Replicas(model, self)

    def first(self, action: Callable[[], T]) -> T:
        if self.rank:
            found: T = self.follow()
            return found
        with self.ending_others():
            value = action()
        self.order(End(value))
        return value

    def follow(self, model: Any = None, records: Any = None) -> Any:
        """Do as the process that leads says; returns what it ends with, or raises its error."""
        end = self.followed(Replicas(model, self), records)
        if end.problem is not None:
            raise end.problem
        return end.result

    def leave(self) -> None:
        """Close the groups of these processes, unless that is done, and forget them.

        Threads of theirs end with the last reference; one that outlives the program aborts it.
        """
        if dist.is_initialized() and dist.group.WORLD is self._world:
            dist.destroy_process_group(self.channel)
            dist.destroy_process_group(self._sums)
        _JOINED.clear()
        self._world = self.channel = self._sums = None

    def seeds(self, generator: np.random.Generator) -> list[int]:
        return [int(seed) for seed in generator.integers(2**63, size=self.size)]

    def shard(self, indices: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        first, last = self.bounds(self.rank, n)
        return indices[(indices >= first) & (indices < last)]

    def summed(self, own: Callable[[], ClippedSum]) -> ClippedSum:
        computed: list[ClippedSum] = []

        def norms() -> Tensor:
            computed.append(own())
            return computed[0].norms.cpu()

        found = self.gathered(norms)
        [mine] = computed
        sums = dict(mine.sums)
        for names in together(sums):
            flat = torch.cat([mine.sums[name].flatten() for name in names])
            with self.reached():
                dist.reduce(flat, dst=0, group=self._group_of(flat))
            for name, part in zip(names, flat.split([mine.sums[name].numel() for name in names]), strict=True):
                sums[name] = part.view(mine.sums[name].shape)
        return ClippedSum(sums, torch.cat(found).to(mine.norms.device)) if self.rank == 0 else mine

    def released(self, own: ClippedSum, release: Callable[[], tuple[Weights, float]]) -> tuple[Weights, float]:
        gradient = own.sums
        if self.rank:
            next_clip = self.follow()
        else:
            with self.ending_others():
                gradient, next_clip = release()
            self.order(End(next_clip))
        self.share(gradient)
        return gradient, next_clip

    @torch.no_grad()
    def share(self, tensors: Weights) -> None:
        """Give the tensors of every process the numbers that they have in the one that leads."""
        for names in together(tensors):
            flat = torch.cat([tensors[name].detach().flatten() for name in names])
            with self.reached():
                # As bytes: some backends do not know every type.
                dist.broadcast(flat.view(torch.uint8), src=0, group=self._group_of(flat))
            for name, part in zip(names, flat.split([tensors[name].numel() for name in names]), strict=True):
                if self.rank:
                    tensors[name].detach().copy_(part.view(tensors[name].shape))

    def gathered(self, compute: Callable[[], T]) -> list[T]:
        """What every process computes, in every process; an error in one of them is raised in all."""
        value, problem, words = None, None, None
        try:
            value = compute()
        except Exception as reason:
            problem, words = reason, f"{type(reason).__name__}: {reason}"
        found: list[Any] = [None] * self.size
        with self.reached():
            dist.all_gather_object(found, (value, words), group=self._sums)
        if problem is not None and self.rank == 0:
            raise problem
        for rank, (_, other) in enumerate(found):
            if other is not None:
                raise ProcessFailed(f"process {rank} has failed ({other})") from problem
        return [each for each, _ in found]

    def ordered(self, order: Callable[..., T], *where: Any) -> T:
        """Carried out by every process."""
        self.order(order)
        return order(*where)

    def order(self, order: Any) -> None:
        with self.reached():
            dist.broadcast_object_list([order], src=0, group=self.channel)

    def received(self) -> Any:
        received: list[Any] = [None]
        with self.reached():
            dist.broadcast_object_list(received, src=0, group=self.channel)
        return received[0]

    def followed(self, replicas: "Replicas", records: Any) -> "End":
        while not isinstance(order := self.received(), End):
            with suppress(ProcessFailed):  # the process that leads knows, and ends it
                order(replicas, records)
        return order

    @contextmanager
    def ending_others(self) -> Iterator[None]:
        try:
            yield
        except BaseException as problem:
            with suppress(ProcessLost):
                self.order(End(problem=_sendable(problem)))
            raise

    @contextmanager
    def reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:
            raise ProcessLost(
                f"process {self.rank} of {self.size} has lost another, whose own output says why: start all of them "
                "again with the same command; a run with a folder resumes"
            ) from problem

    def _group_of(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self._sums if tensor.device.type == "cpu" else None

    def bounds(self, rank: int, n: int) -> tuple[int, int]:
        return rank * n // self.size, (rank + 1) * n // self.size


@dataclass(frozen=True)
class End:
    """The last order of those who follow."""

    result: Any = None
    problem: Exception | None = None


def _sendable(problem: BaseException) -> Exception:
    """The error as it is, if it can be, else its words."""
    try:
        if isinstance(problem, Exception):
            same: Exception = pickle.loads(pickle.dumps(problem))
            return same
    except Exception:  # an error of any kind may refuse either
        pass
    return RunError(f"the process of rank 0 has stopped ({type(problem).__name__}): {problem}")


class Replicas:
    """A model of which every process has its own, as the process that leads trains it."""

    def __init__(self, own: Any, several: Several, before: int = 0) -> None:
        self._own, self._several, self._before = own, several, before
        self._alike = False

    @property
    def model(self) -> Any:
        return getattr(self._own, "model", self._own)

    @property
    def examples_mix(self) -> bool:
        if getattr(self._own, "examples_mix", False):
            raise ValueError("a model that mixes examples sees only its own shard's: train it in one process")
        return False

    @property
    def parameters(self) -> Weights:
        found: Weights = self._own.parameters
        return found

    def weights(self) -> Weights:
        found: Weights = self._own.weights()
        return found

    def load(self, weights: Weights) -> None:
        self._own.load(weights)

    def initialise(self, streams: Streams) -> None:
        self._own.initialise(streams)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._own.facts()
        return found

    def narrow_operation(self, records: Records) -> str | None:
        found: str | None = getattr(self._own, "narrow_operation", lambda records: None)(records)
        return found

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """The same in every process, and where each of them runs.

        Guarantee: the run's key is bound to all of it. With other processes, or in another number of them, sums may
        round differently: a lost step then gets fresh noise and is charged again, as in any other environment.
        """
        share = -(-expected_batch_size // self._several.size)
        mine = self._own.choose(records, known, share)
        order = partial(Replicas.agreed, mine=mine, share=share, key=secrets.token_bytes(16))
        return self._several.ordered(order, self, records)

    def agreed(self, records: Records, *, mine: dict[str, Any], share: int, key: bytes) -> dict[str, Any]:
        """Choose alike, and compare."""
        several = self._several

        def own() -> tuple[dict[str, Any], str]:
            chosen = mine if several.rank == 0 else self._own.choose(records, mine, share)
            found = {"model": digest(self.facts()), "way to compute gradients": chosen.get("engine")}
            return found | ({"records": _fingerprint(records, key)} if several.compares else {}), digest(environment())

        found = several.gathered(own)
        for rank, (other, _) in enumerate(found):
            for what, value in found[0][0].items():
                if other[what] != value:
                    raise ProcessFailed(
                        f"process {rank} has another {what} than process 0: give all processes the same model, loss "
                        "and records, in the same order"
                    )
        return {**mine, "processes": [where for _, where in found]}

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator
    ) -> ClippedSum:
        order = partial(
            Replicas.summed,
            indices=indices,
            n=len(records),
            l2_clip=l2_clip,
            seeds=self._several.seeds(augmentation),
            everything=not self._alike,  # frozen weights stay alike, once they are
        )
        self._alike = True
        return self._several.ordered(order, self, records)

    def summed(
        self,
        records: Records,
        *,
        indices: NDArray[np.int64],
        n: int,
        l2_clip: float,
        seeds: list[int],
        everything: bool,
    ) -> ClippedSum:
        """Σ over the processes of the clipped sums of their shards, under the weights of the one that leads."""
        several = self._several
        several.share(self.weights() if everything else self.parameters)
        own = several.shard(indices, n) - self._before
        generator = np.random.default_rng(seeds[several.rank])
        return several.summed(lambda: self._own.clipped_sum(records, own, l2_clip, generator))


def _fingerprint(records: Records, key: bytes) -> str:
    """Of how many there are, and of some of them: enough to notice other data, or another order."""
    some = np.unique(np.linspace(0, len(records) - 1, _COMPARED).astype(np.int64))
    with keep_random_state(set(), 0):
        return array_fingerprint(key, (len(records), *records.batch(some)))


def unwrapped(model: Any) -> Any:
    """The module inside of DistributedDataParallel, which would average gradients that are summed already."""
    return model.module if isinstance(model, DistributedDataParallel) else model


_JOINED: dict[Any, Several] = {}


def processes() -> OneProcess:
    """Those of torch's default group, if this program has one, else this process alone."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return OneProcess()
    if dist.group.WORLD not in _JOINED:
        join(Several())
    return _JOINED[dist.group.WORLD]


def join(several: Several) -> None:
    """Of now these are the processes of torch's default group."""
    _JOINED.clear()
    _JOINED[dist.group.WORLD] = several
    atexit.register(several.leave)
