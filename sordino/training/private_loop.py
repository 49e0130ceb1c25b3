"""Private training in a user's own loop: a torch optimizer that steps on noisy, clipped gradients of Poisson
batches."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from sordino.budget import Cost, Ledger
from sordino.data import dataset_records
from sordino.gradients import Clipping, Loss, keep_random_state
from sordino.mechanisms import Stream, Streams
from sordino.runs import Run, RunError, kind_of
from sordino.training import dpsgd
from sordino.training.augmentation import Augment
from sordino.training.distribution import processes, unwrapped
from sordino.training.dpsgd import ClippedSum, Training, TrainingState, refuse_single_precision
from sordino.training.fitting import BLOCKS, refuse_forgetful
from sordino.training.modules import TrainableModule, require_memory
from sordino.training.optimisers import TorchOptimiser, Weights, check_parameters
from sordino.training.plan import Plan, QuantileClip
from sordino.training.resuming import OtherSums, Underway, begin
from sordino.training.scheduler_states import read_state, scheduler_states


class LoopError(ValueError):
    """A loop that does something other than one step on each batch it draws."""


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    data: Any,
    *,
    epochs: float,
    l2_clip: float,
    expected_batch_size: int | None = None,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    ledger: Ledger | None = None,
    run: Run | str | Path | None = None,
    schedulers: Sequence[Any] = (),
    quantile_clip: QuantileClip | None = None,
    clipping: Clipping | None = None,
    l2_penalty: float = 0.0,
    augment: Augment | None = None,
    views: int = 1,
    physical_batch: int | None = None,
    collate_fn: Any = None,
    what: str = "training",
    part: str = "train",
    seed: int | None = None,
    exact: bool = False,
) -> "PrivateLoop":
    """Private training in the user's own loop: `for x, y in private.batches(): private.step(x, y)`.

    The noise is the least that keeps all planned steps within the target; with a `ledger`, within what it has left.

    Parameters
    ----------
    model, optimizer : as in any torch loop; the optimizer is over the model's parameters.
    loss : loss(output, target), one number an example (reduction="none").
    data : a torch Dataset of pairs or of dicts with `labels`; a DataLoader, whose dataset and collate_fn are used and
        whose batch_size is the default of expected_batch_size; a pair (x, y) of arrays; or Records.
    epochs : how often each record is drawn on average, in all.
    l2_clip : the bound on the norm of each example's gradient.
    expected_batch_size : the mean size of the Poisson batches.
    target_epsilon, target_delta : the budget of this loop, unless a `ledger` sets it.
    ledger : the ledger to charge, in a file if there is a `run`; without one, a new one, kept in the run folder.
    run : a folder or Run. A loop that was killed resumes when the same program runs again: model, optimizer and
        schedulers are set back to the last checkpoint, and the steps since are repeated bit for bit.
    schedulers : learning-rate schedulers (anything with a state_dict of numbers and texts), kept in the checkpoint.
    quantile_clip : a QuantileClip, which adapts the clip to a private quantile of the norms.
    clipping : `Flat` (the default), `Automatic` or `PerLayer`.
    l2_penalty : adds l2_penalty·w to each example's gradient before the clip.
    augment : augment(batch, generator) returns the inputs with random changes, each example's by itself.
    views : how many augmented views of an example its gradient is averaged over.
    physical_batch : how many examples pass the model at a time; by default what is timed to be fastest.
    collate_fn : makes a batch (x, y) of a Dataset's items, in place of torch's.
    what, part : words for the ledger's entry: what is done, on which part of the data.
    seed : for experiments: anyone can then compute the noise, and the statement says that it voids privacy.
    exact : draw the noise exactly, on a public grid; needs a model and inputs in double precision (see `Plan`).

    >>> import torch
    >>> model = nn.Linear(4, 2)
    >>> data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.zeros(40, dtype=torch.long))
    >>> private = make_private(
    ...     model, torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss(reduction="none"), data,
    ...     expected_batch_size=10, epochs=0.5, l2_clip=1.0, target_epsilon=8.0, target_delta=1e-3,
    ... )
    >>> for x, y in private.batches():
    ...     private.step(x, y)
    >>> private.drawn, private.epsilon() <= 8
    (2, True)
    """
    if isinstance(data, DataLoader) and expected_batch_size is None:
        expected_batch_size = data.batch_size
    if expected_batch_size is None:
        raise ValueError("give expected_batch_size, or a DataLoader that has a batch_size")
    several, model = processes(), unwrapped(model)
    trainable = TrainableModule(
        model,
        loss,
        clipping=clipping,
        l2_penalty=l2_penalty,
        augment=augment,
        views=views,
        physical_batch=physical_batch,
    )
    optimiser = TorchOptimiser(lambda parameters: optimizer)
    check_parameters(optimizer, trainable.parameters.values(), model.parameters())
    require_memory(model, "the model")  # before anything makes a copy of it
    optimiser.check(trainable.parameters, model.parameters())
    records = dataset_records(data, collate_fn)
    request = {
        "n": len(records),
        "expected_batch_size": expected_batch_size,
        "epochs": epochs,
        "target_epsilon": target_epsilon,
        "target_delta": target_delta,
        "l2_clip": l2_clip,
        "quantile_clip": quantile_clip,
        "exact": exact,
    }
    if several.rank:
        place = several.follow(trainable, records)
        ledger = Ledger() if ledger is None else ledger
        private = PrivateLoop(Training(place.plan, trainable, records, optimiser), trainable, ledger, None, schedulers)
        private._join(place)
        return private
    with ExitStack() as stack, several.leading(trainable, records):
        where = Run.at(run) if isinstance(run, str | Path) else run
        if where is not None:
            scheduler_states(schedulers)  # refuses what no checkpoint can hold
            stack.enter_context(where.alone())
            if ledger is not None:
                refuse_forgetful(ledger, where)
        plan = _plan(where, request, ledger)
        if ledger is None:
            path = None if where is None else where.ledger
            ledger = Ledger(target_epsilon, target_delta, path=path, planned=[(plan.event, what, part)])
        ledger.refuse_add_remove()
        training = Training(plan, several.replicas(trainable), records, optimiser)
        refuse_single_precision(plan, trainable, records)
        with keep_random_state(set()):
            records.batch(np.arange(0))  # an empty draw, too, must be collated
        private = PrivateLoop(training, trainable, ledger, where, schedulers)
        private._begin(what, part, seed, stack)
        if private._begun is not None:  # of a finished run nothing is left to hold
            private._open = weakref.finalize(private, stack.pop_all().close)
        several.end(private._place)
    return private


def _plan(run: Run | None, request: dict[str, Any], ledger: Ledger | None) -> Plan:
    """The least noise for what was asked; a run that has started keeps its plan."""
    clip = request["quantile_clip"]
    asked = request | {"quantile_clip": None if clip is None else clip.to_json()}
    if run is not None and (run.started or run.model.exists() or run.checkpoint.exists()):
        kind = kind_of(run.folder)
        if kind.name != "private loop":
            raise RunError(f"{run.folder} was created by `{kind.command}`: choose another folder")
        known = run.read_description()
        changed = [
            f"{name}={known['request'].get(name)!r}, not {value!r}"
            for name, value in asked.items()
            if known["request"].get(name) != value
        ]
        if changed:
            raise RunError(
                f"{run.folder} was started with {'; '.join(changed)}: choose another folder, or ask for the same"
            )
        return Plan.from_json(known["plan"])
    plan = Plan.calibrated(**request, ledger=ledger)
    if run is not None:
        run.write_description({"kind": "private loop", "request": asked, "plan": plan.to_json()})
    return plan


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
        self, training: Training, model: TrainableModule, ledger: Ledger, run: Run | None, schedulers: Sequence[Any]
    ) -> None:
        self.ledger, self.run = ledger, run
        self._training, self._schedulers, self._several = training, schedulers, processes()
        self._model: TrainableModule = model
        self._optimizer: Any = training.optimiser
        self._trained = _trainable(self._model.model)
        self._one_at_a_time = Lock()
        self._waiting: list[tuple[int, int]] | None = None
        self._batch: Any = None
        self._seeds: list[int] | None = None
        self._total = 0
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
            return
        self._begun, self._state, self._total, self._charged = begun, begun.state, begun.total, begun.charged
        in_memory = self.run is None and self.ledger.path is None
        self._block = 1 if in_memory else max(1, self.plan.steps // BLOCKS)
        if self.run is None:
            return
        self._optimizer.over(self._model.parameters, self._state.optimiser)
        if len(begun.extra) != len(self._schedulers) and self._charged:  # else there is nothing to set back
            raise RunError(
                f"{self.run.folder} was started with {len(begun.extra)} schedulers, not {len(self._schedulers)}: pass "
                "the same in `schedulers=`"
            )
        self._set_back(begun.extra)

    def _set_back(self, states: Sequence[Any]) -> None:
        for scheduler, state in zip(self._schedulers, states, strict=False):
            scheduler.load_state_dict(read_state(state))

    def _place(self) -> "_Place":
        """Where the process that leads begins, for the others."""
        weights = {name: value.cpu() for name, value in self._model.weights().items()}
        extra = () if self._begun is None else self._begun.extra
        return _Place(
            self.plan, self.ledger.document(), weights, self._state_now, self._total, self._over, extra, self._is_kept
        )

    def _join(self, place: "_Place") -> None:
        """Take part in a training that another process leads."""
        self.ledger.mirror(place.ledger)
        self._model.load(place.weights)
        self._state, self._total = place.state, place.total
        self._over, self._is_kept = place.over, place.is_kept
        if not self._over:
            self._optimizer.over(self._model.parameters, self._state.optimiser)
            self._set_back(place.extra)

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
        module, parameters = self._model.model, self._model.parameters
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
        self._training.update(state, parameters, gradient, next_clip)
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
        step, records = self._state_now.done, self._training.records
        if self._waiting is not None:
            raise LoopError("call step(x, y) on the last batch before drawing the next")
        self._model.refuse_changes()
        indices, self._seeds, ledger = self._several.first(partial(self._paid_draw, last))
        if self._several.rank:
            self.ledger.mirror(ledger)
        own = self._several.shard(indices, len(records))
        x, y = self._model.gathered(records, own, self._augmentation(step))
        # Held here, so that its identity cannot pass to another object.
        self._waiting, self._batch = _identity(x, y), (x, y)
        return x, y

    def _paid_draw(self, last: int) -> tuple[NDArray[np.int64], list[int] | None, dict[str, Any]]:
        """The next step's records, what other processes draw their augmentation from, and the ledger that has paid."""
        state, streams = self._state_now, self._streams()
        if state.done == self._charged:
            if self.run is not None:  # before a block is charged: all that is needed to repeat its steps
                self._optimizer.export(self._model.parameters, state.optimiser)  # schedulers change its learning rate
                self._underway.keep(scheduler_states(self._schedulers))
            # Blocks end at multiples of their length: batches asked for in small portions cost no more than at once.
            self._charged = min(last, (state.done // self._block + 1) * self._block)
            self._underway.charge(self._charged)
        seeds = self._several.seeds(streams.generator(Stream.AUGMENTATION, state.done))
        ledger = {} if self._several.size == 1 else self.ledger.document()
        return self.plan.sampler.draw(streams, state.done), seeds, ledger

    def _augmentation(self, step: int) -> np.random.Generator:
        """What this process draws at random in its shard of a step."""
        if self._seeds is None:
            return self._streams().generator(Stream.AUGMENTATION, step)
        return np.random.default_rng(self._seeds[self._several.rank])


@dataclass(frozen=True)
class _Place:
    """Where a loop begins, as one process tells the others."""

    plan: Plan
    ledger: dict[str, Any]
    weights: Weights
    state: TrainingState
    total: int
    over: bool
    extra: Sequence[Any]
    is_kept: bool


def _trainable(model: nn.Module) -> list[int]:
    return [id(value) for value in model.parameters() if value.requires_grad]


def _identity(x: Any, y: Any) -> list[tuple[int, int]]:
    """Which tensors a batch consists of, and how often each was written to."""
    leaves = pytree.tree_leaves((x, y))
    return [(id(leaf), leaf._version if isinstance(leaf, Tensor) else 0) for leaf in leaves]
