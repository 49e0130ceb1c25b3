"""A user's own loop, private: Poisson batches, and a torch optimizer that steps on their noisy, clipped gradients."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.budget import Cost, Ledger
from sordino.mechanisms import Stream, Streams
from sordino.runs import Run, RunError
from sordino.training import dpsgd
from sordino.training.distribution import processes
from sordino.training.dpsgd import ClippedSum, Training, TrainingState
from sordino.training.fitting import BLOCKS
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import Weights, check_parameters
from sordino.training.plan import Plan
from sordino.training.resuming import OtherSums, Underway, begin
from sordino.training.scheduler_states import read_state, scheduler_states
from sordino.training.sharding import cut_as, gather, gathered, spread, trained


class LoopError(ValueError):
    """A loop that does something other than one step on each batch it draws."""


class PrivateLoop:
    """Batches, steps and ε of one planned training; made by `make_private`.

    Guarantee: each batch is a Poisson draw, charged before it is made, and its step is one of the plan's step events:
    `step` takes the very batch that was drawn last, once, unchanged. Whatever else is done with a batch (a printed
    loss, an accuracy) is outside of it. The key of the noise belongs to this object in this process: a loop is not
    copied or pickled, and a forked child may not step. A batch is gathered whole (the engine cuts it into physical
    batches); for logical batches beyond memory use `fit`, which gathers them piece by piece.

    A ledger on disk is charged a block of steps at a time, a twentieth of the plan or what `batches(steps)` asks for.
    In a run folder each block begins with a checkpoint, and a loop that was killed repeats the steps since: under the
    same weights with the same noise, which releases nothing new. Should the program then do something else, so that a
    step would sum other gradients, the step is refused and the charged steps are lost, but not the run. Without a
    folder, a loop that is left or killed amid a block has paid for the rest of that block too.
    """

    def __init__(
        self,
        training: Training,
        model: TrainableModule,
        own: nn.Module,
        ledger: Ledger,
        run: Run | None,
        schedulers: Sequence[Any],
    ) -> None:
        self.ledger, self.run = ledger, run
        self._training, self._schedulers, self._several = training, schedulers, processes()
        self._model: TrainableModule = model
        self._optimizer: Any = training.optimiser
        self._own, self._trained = own, _trainable(own)
        self._one_at_a_time = Lock()
        self._waiting: list[tuple[int, int]] | None = None
        self._batch: Any = None
        self._seeds: list[int] | None = None
        self._total = self._charged = 0
        self._state: TrainingState | None = None
        self._begun: Underway | None = None
        self._open: Any = None
        self._over = False
        self._is_kept = run is not None

    def _begin(self, what: str, part: str, seed: int | None, stack: ExitStack) -> None:
        """Get a key and an entry in the ledger: a model that cannot be trained privately is refused before the
        charge."""
        begun = begin(self._training, self.ledger, self.run, seed, what, part, stack)
        if isinstance(begun, int):
            self._state, self._total = TrainingState(begun, self.plan.l2_clip, {}, None), begun
            self._over = True
            spread(self._model.parameters, self._parameters)
            return
        self._begun, self._state, self._total, self._charged = begun, begun.state, begun.total, begun.charged
        in_memory = self.run is None and self.ledger.path is None
        self._block = 1 if in_memory else max(1, self.plan.steps // BLOCKS)
        if self.run is None:
            return
        spread(self._model.parameters, self._parameters)
        self._optimizer.over(self._parameters, self._state.optimiser)
        if len(begun.extra) != len(self._schedulers) and self._charged:  # else there is nothing to set back
            raise RunError(
                f"{self.run.folder} was started with {len(begun.extra)} schedulers, not {len(self._schedulers)}: pass "
                "the same in `schedulers=`"
            )
        self._set_back(begun.extra)

    def _set_back(self, states: Sequence[Any]) -> None:
        for scheduler, state in zip(self._schedulers, states, strict=False):
            scheduler.load_state_dict(read_state(state))

    def _place(self) -> "Place":
        """Where the process that leads begins, for the others."""
        weights = {name: value.cpu() for name, value in self._model.weights().items()}
        extra = () if self._begun is None else self._begun.extra
        known = self._state_now, self._total, self._charged, self._over, self._is_kept
        return Place(self.plan, self.ledger.document(), weights, extra, known)

    def _join(self, place: "Place") -> None:
        """Take part in a training that another process leads."""
        self.ledger.mirror(place.ledger)
        self._model.load(place.weights)
        spread(self._model.parameters, self._parameters)
        self._state, self._total, self._charged, self._over, self._is_kept = place.known
        if not self._over:
            self._optimizer.over(self._parameters, self._state.optimiser)
            self._set_back(place.extra)

    @property
    def _parameters(self) -> Weights:
        """What the optimizer holds: shards, if the user has cut the model."""
        return trained(self._own)

    @property
    def plan(self) -> Plan:
        return self._training.plan

    @property
    def l2_clip(self) -> float:
        """The clip of the next step."""
        return self._state_now.l2_clip

    @property
    def drawn(self) -> int:
        """How many batches are drawn, those before a kill included."""
        return self._state_now.done + (self._waiting is not None)

    @property
    def _state_now(self) -> TrainingState:
        if self._state is None:
            raise LoopError("a loop is made by make_private, which gives it its entry in the ledger")
        return self._state

    @property
    def _steps(self) -> int:
        """All that can be drawn: the plan's, except those lost to a change of environment."""
        return self._total

    @property
    def _underway(self) -> Underway:
        if self._begun is None:
            then = "starts and charges a new training" if self.run is None else "resumes its run"
            raise LoopError(f"the loop is closed: call make_private again, which {then}")
        return self._begun

    def _streams(self) -> Streams:
        streams = self._underway.key.streams
        streams.check_process()
        return streams

    def batches(self, steps: int | None = None) -> Iterator[tuple[Any, Any]]:
        """The plan's batches from where the loop is, or at most so many of them; some may be empty.

        A loop whose run is finished has none left; one that was closed before raises LoopError.
        """
        if not (self._over or self._several.rank):
            self._streams()
        if self.drawn == self._steps and not self._over:
            raise LoopError(f"all {self._steps} planned steps are drawn: a longer training needs its own plan")
        last = self._steps if steps is None else min(self._steps, self.drawn + steps)
        while self.drawn < last:
            with self._one_at_a_time:
                batch = self._draw(last)
            yield batch

    def step(self, x: Any, y: Any) -> None:
        """Clip, sum, add noise, put the noisy mean into each parameter's grad, and step the optimizer."""
        with self._one_at_a_time:
            self._step(x, y)

    def _step(self, x: Any, y: Any) -> None:
        state = self._state_now
        module, parameters = self._own, self._parameters
        if self._waiting is None:
            raise LoopError("no batch is waiting: call step once for each batch that batches() gives")
        if _identity(x, y) != self._waiting:
            raise LoopError(
                "step takes the batch that batches() gave last, itself and unchanged: augment by `augment=`"
            )
        if _trainable(module) != self._trained:
            raise LoopError("the model's trainable parameters have changed since make_private: freeze them before it")
        optimizer = self._optimizer.over(parameters, state.optimiser)
        check_parameters(optimizer, parameters.values(), module.parameters())
        self._model.refuse_changes()
        found = self._several.summed(
            lambda: self._model.clipped_sum_of(x, y, state.l2_clip, self._augmentation(state.done))
        )
        gradient, next_clip = self._several.released(found, partial(self._released, found))
        self._waiting = self._batch = None
        for parameter in module.parameters():
            parameter.grad = None  # one that somebody left on a frozen parameter would move it, without clip or noise
        shards = {name: cut_as(value, parameters[name]) for name, value in gradient.items()}
        self._training.update(state, parameters, shards, next_clip)
        gather(parameters, self._model.parameters)
        if self._is_kept and state.done == self._steps:
            self._several.first(lambda: self._underway.finish())
            self._over = True
            self.close()

    def _released(self, found: ClippedSum) -> tuple[Weights, float]:
        self._admit(found)
        # From here on something is released, and the batch is used up whatever happens.
        self._waiting = self._batch = None
        return dpsgd.release(found, self._state_now.l2_clip, self.plan, self._streams(), self._state_now.done)

    def _admit(self, found: ClippedSum) -> None:
        """The step must not repeat a lost one with other sums; if it is new, that is on disk before its release."""
        begun = self._underway
        try:
            begun.admit(found)
        except OtherSums as problem:
            self.close()
            raise LoopError(f"{problem}. Pass schedulers in `schedulers=`, and call make_private again") from None
        if begun.log is not None:
            begun.log.sync()  # the program that called may show the weights of each step

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise LoopError(
            "a private loop is not copied or pickled: two of them would add the same noise; call make_private again"
        )

    def cost(self, delta: float | None = None) -> Cost:
        """ε of all that the ledger has charged so far, with the accountant that gave it (PLD, for a planned ledger)."""
        return self.ledger.cost(delta)

    def epsilon(self, delta: float | None = None) -> float:
        """ε of all that the ledger has charged so far, this loop's batches included."""
        return self.cost(delta).epsilon

    def close(self) -> None:
        """Leave the run folder to others; it is resumed from its last checkpoint."""
        self._begun = None
        if self._open is not None:
            self._open()

    def _draw(self, last: int) -> tuple[Any, Any]:
        state, records = self._state_now, self._training.records
        step = state.done
        if self._waiting is not None:
            raise LoopError("call step(x, y) on the last batch before drawing the next")
        self._model.refuse_changes()
        if self._is_kept and step == self._charged:  # schedulers have changed its learning rate since the last step
            self._optimizer.export(self._parameters, state.optimiser)
            state.optimiser.update(gathered(state.optimiser))
        indices, self._seeds, self._charged, ledger = self._several.first(partial(self._paid_draw, last))
        if self._several.rank:
            self.ledger.mirror(ledger)
        own = self._several.shard(indices, len(records))
        x, y = self._model.gathered(records, own, self._augmentation(step))
        # Held here, so that its identity cannot pass to another object.
        self._waiting, self._batch = _identity(x, y), (x, y)
        return x, y

    def _paid_draw(self, last: int) -> tuple[NDArray[np.int64], list[int] | None, int, dict[str, Any]]:
        """The next step's records, seeds for all processes, up to which step is charged, and the ledger that is."""
        state, streams = self._state_now, self._streams()
        if state.done == self._charged:
            if self.run is not None:  # before a block is charged: all that is needed to repeat its steps
                self._underway.keep(scheduler_states(self._schedulers))
            # Blocks end at multiples of their length: batches asked for in small portions cost no more than at once.
            self._charged = min(last, (state.done // self._block + 1) * self._block)
            self._underway.charge(self._charged)
        seeds = self._several.seeds(streams.generator(Stream.AUGMENTATION, state.done))
        ledger = {} if self._several.size == 1 else self.ledger.document()
        return self.plan.sampler.draw(streams, state.done), seeds, self._charged, ledger

    def _augmentation(self, step: int) -> np.random.Generator:
        """What this process draws at random in its shard of a step."""
        if self._seeds is None:
            return self._streams().generator(Stream.AUGMENTATION, step)
        return np.random.default_rng(self._seeds[self._several.rank])


@dataclass(frozen=True)
class Place:
    """Where a loop begins, as one process tells the others."""

    plan: Plan
    ledger: dict[str, Any]
    weights: Weights
    extra: Sequence[Any]
    known: tuple[TrainingState, int, int, bool, bool]
    """State, steps in all and charged, whether it is over, and whether it is kept in a folder."""


def _trainable(model: nn.Module) -> list[int]:
    return [id(value) for value in model.parameters() if value.requires_grad]


def _identity(x: Any, y: Any) -> list[tuple[int, int]]:
    """Which tensors a batch consists of, and how often each was written to."""
    leaves = pytree.tree_leaves((x, y))
    return [(id(leaf), leaf._version if isinstance(leaf, Tensor) else 0) for leaf in leaves]
