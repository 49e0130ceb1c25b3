"""For those who keep their own loop: a torch optimizer that steps on noisy, clipped gradients of Poisson batches."""

import copy
from collections.abc import Iterator
from threading import Lock
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset

from sordino.budget import Cost, Ledger
from sordino.gradients import ClippedGradients, Clipping, Loss, narrow_operation
from sordino.mechanisms import Stream, Streams, secret_from_seed
from sordino.training import probing
from sordino.training.augmentation import Augment, check_views, views_of
from sordino.training.building import require_memory, tensors
from sordino.training.dpsgd import ClippedSum, refuse_single_precision, release
from sordino.training.plan import Plan
from sordino.training.quantile_clip import QuantileClip
from sordino.training.rows import Collate, Rows

_BLOCKS = 20
"""In which the steps of a plan are charged to a ledger on disk."""


class LoopError(ValueError):
    """A loop that does something other than one step on each batch it draws."""


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    dataset: Dataset[Any],
    *,
    expected_batch_size: int,
    epochs: float,
    l2_clip: float,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    ledger: Ledger | None = None,
    quantile_clip: QuantileClip | None = None,
    clipping: Clipping | None = None,
    l2_penalty: float = 0.0,
    augment: Augment | None = None,
    views: int = 1,
    physical_batch: int | None = None,
    collate_fn: Collate | None = None,
    what: str = "training",
    part: str = "train",
    seed: int | None = None,
    exact: bool = False,
) -> "PrivateLoop":
    """Private training in the user's own loop: `for x, y in private.batches(): private.step(x, y)`.

    `loss(output, target)` gives one number an example (reduction="none"). The noise is the least that keeps all
    planned steps within the target; with a `ledger`, within what it has left. A `seed` is for tests: it voids privacy.
    With `exact` (a model and inputs in double precision) noise is drawn exactly, on a public grid: see `Plan`.
    """
    check_views(augment, views)
    clipped = ClippedGradients(
        *(model, loss, l2_clip), clipping=clipping, l2_penalty=l2_penalty, views=views, physical_batch=physical_batch
    )
    _check_optimizer(model, optimizer)
    require_memory(model, "the model")  # before anything makes a copy of it
    _rehearse(optimizer)
    rows = Rows(dataset, collate_fn, next(iter(model.parameters())).device)
    plan = Plan.calibrated(
        n=rows.n,
        expected_batch_size=expected_batch_size,
        epochs=epochs,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        l2_clip=l2_clip,
        ledger=ledger,
        quantile_clip=quantile_clip,
        exact=exact,
    )
    if ledger is None:
        ledger = Ledger(target_epsilon, target_delta, planned=[(plan.event, what, part)])
    streams = Streams.fresh() if seed is None else Streams(secret_from_seed(seed))
    private = PrivateLoop(model, optimizer, clipped, rows, plan, ledger, streams, augment, views)
    private._prepare(loss)  # a model that cannot be trained privately is refused before anything is charged
    private._number = ledger.begin(plan.step_event, plan.steps, what, part, seeded=streams.predictable)
    return private


class PrivateLoop:
    """Batches, steps and ε of one planned training; made by `make_private`.

    Guarantee: each batch is a Poisson draw, charged before it is made, and its step is one of the plan's step events:
    `step` wants the very batch that was drawn last, once, unchanged. Whatever else is done with a batch (a printed
    loss, an accuracy) is outside of it. The key of the noise belongs to this object in this process: a loop is not
    copied or pickled, a forked child may not step, and a loop that is killed cannot be resumed (`sordino.training.fit`
    can). A batch is gathered whole (the engine cuts it into physical batches); for logical batches beyond memory use
    `fit` too, which gathers them piece by piece.

    A ledger on disk is charged a block of steps at a time, a twentieth of the plan or what `batches(steps)` asks for:
    a loop that is left or killed amid a block has paid for the rest of that block too.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        clipped: ClippedGradients,
        rows: Rows,
        plan: Plan,
        ledger: Ledger,
        streams: Streams,
        augment: Augment | None,
        views: int,
    ) -> None:
        self.plan, self.ledger, self.l2_clip, self.drawn = plan, ledger, plan.l2_clip, 0
        self._model, self._optimizer, self._clipped, self._rows = model, optimizer, clipped, rows
        self._streams, self._augment, self._views = streams, augment, views
        self._trained = _trainable(model)
        self._number: int | None = None
        self._charged = 0
        self._block = 1 if ledger.path is None else max(1, plan.steps // _BLOCKS)
        self._one_at_a_time = Lock()
        self._waiting: list[tuple[int, int]] | None = None
        self._batch: Any = None

    def batches(self, steps: int | None = None) -> Iterator[tuple[Any, Any]]:
        """The plan's batches from where the loop stands, or at most so many of them; some may be empty."""
        if self.drawn == self.plan.steps:
            raise LoopError(f"all {self.plan.steps} planned steps are drawn: a longer training needs a plan of its own")
        last = self.plan.steps if steps is None else min(self.plan.steps, self.drawn + steps)
        while self.drawn < last:
            with self._one_at_a_time:
                batch = self._draw(last)
            yield batch

    def step(self, x: Any, y: Any) -> None:
        """Clip, sum, add noise, put the noisy mean into each parameter's grad, and step the optimizer."""
        with self._one_at_a_time:
            self._step(x, y)

    def _step(self, x: Any, y: Any) -> None:
        self._streams.check_process()
        if self._waiting is None:
            raise LoopError("there is no batch to step on: each batch that batches() gives is stepped on once")
        if _identity(x, y) != self._waiting:
            raise LoopError(
                "step takes the batch that batches() gave last, itself and unchanged: augment by `augment=`"
            )
        if _trainable(self._model) != self._trained:
            raise LoopError("the model's trainable parameters have changed since make_private: freeze them before it")
        _check_optimizer(self._model, self._optimizer)
        self._clipped.refuse_changes()
        step = self.drawn - 1
        found = self._sum(x, y, step)
        # From here on something is shown, and the batch is used up whatever happens.
        self._waiting = self._batch = None
        mean, self.l2_clip = release(found, self.l2_clip, self.plan, self._streams, step)
        for name, parameter in self._model.named_parameters():
            # A gradient that somebody left on a frozen parameter would move it, without clip or noise.
            parameter.grad = mean[name].to(parameter.dtype) if parameter.requires_grad else None
        self._optimizer.step()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise LoopError(
            "a private loop is not copied or pickled: two of them would add the same noise; call make_private anew"
        )

    def cost(self, delta: float | None = None) -> Cost:
        """ε of all that the ledger has charged so far, with the accountant that gave it (PLD, for a planned ledger)."""
        return self.ledger.cost(delta)

    def epsilon(self, delta: float | None = None) -> float:
        """ε of all that the ledger has charged so far, this loop's batches included."""
        return self.cost(delta).epsilon

    def _draw(self, last: int) -> tuple[Any, Any]:
        self._streams.check_process()
        if self._waiting is not None:
            raise LoopError("call step(x, y) on the last batch before drawing the next")
        if self._number is None:
            raise LoopError("a loop is made by make_private, which gives it its entry in the ledger")
        self._clipped.refuse_changes()
        if self.drawn == self._charged:
            # Blocks end at multiples of their length: batches asked for in small portions cost no more than at once.
            charged = min(last, (self.drawn // self._block + 1) * self._block)
            self.ledger.raise_count(self._number, charged)
            self._charged = charged
        self.drawn += 1
        x, y = self._rows(self.plan.sampler.draw(self._streams, self.drawn - 1))
        # Held here, so that its identity cannot pass to another object.
        self._waiting, self._batch = _identity(x, y), (x, y)
        return x, y

    def _sum(self, x: Any, y: Any, step: int) -> ClippedSum:
        seen = views_of(self._augment, self._views, x, self._streams.generator(Stream.AUGMENTATION, step))
        found = self._clipped(seen, y, l2_clip=self.l2_clip)
        return ClippedSum(found.sums, found.norms)

    def _prepare(self, loss: Loss) -> None:
        refuse_single_precision(self.plan, tensors(self._model), lambda: self._narrow_operation(loss))
        count = min(self._rows.n, self.plan.sampler.expected_batch_size)
        probing.prepare(self._clipped, self._model, loss, self._rows, count, augment=self._augment, views=self._views)
        self._rows(np.arange(0))  # an empty draw, too, must be collated

    def _narrow_operation(self, loss: Loss) -> str | None:
        x, y = self._rows(np.arange(min(2, self._rows.n)))
        seen = views_of(self._augment, self._views, x, np.random.default_rng(0))
        return narrow_operation(self._model, loss, seen, y, self._views)


def _check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise LoopError("LBFGS looks at the data several times a step: use an optimizer that needs one gradient")
    held = {id(value) for value in _held(optimizer)}
    missing = set(_trainable(model)) - held
    foreign = held - {id(value) for value in model.parameters()}
    if missing or foreign:
        raise LoopError(
            "the optimizer must hold exactly the parameters that the model trains (it lacks "
            f"{len(missing)} and holds {len(foreign)} of others): make it from model.parameters()"
        )


def _rehearse(optimizer: Optimizer) -> None:
    """Step a copy of the optimizer on gradients of zero: what it cannot do is known before anything is charged."""
    try:
        twin = copy.deepcopy(optimizer)  # with copies of its parameters, without its hooks
    except (TypeError, RuntimeError, AttributeError):  # one that cannot be copied cannot be tried
        return
    for value in _held(twin):
        value.grad = torch.zeros_like(value) if value.requires_grad else None
    try:
        twin.step()
    except AttributeError:  # torch copies param_groups and state only: an optimizer that keeps more cannot be tried
        pass
    except Exception as reason:
        why = str(reason).partition("\n")[0]
        raise LoopError(
            f"{type(optimizer).__name__} cannot step on the noisy gradient, one dense tensor for each parameter: {why}"
        ) from reason


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [value for group in optimizer.param_groups for value in group["params"]]


def _trainable(model: nn.Module) -> list[int]:
    return [id(value) for value in model.parameters() if value.requires_grad]


def _identity(x: Any, y: Any) -> list[tuple[int, int]]:
    """Which tensors a batch consists of, and how often each was written to."""
    leaves = pytree.tree_leaves((x, y))
    return [(id(leaf), leaf._version if isinstance(leaf, Tensor) else 0) for leaf in leaves]
