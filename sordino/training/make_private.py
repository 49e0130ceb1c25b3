"""`make_private`: a user's model, optimizer and data become a private loop, or resume the one in their folder."""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from sordino.budget import Ledger
from sordino.data import dataset_records
from sordino.gradients import Clipping, Loss, keep_random_state
from sordino.runs import Run, RunError, kind_of
from sordino.training.augmentation import Augment
from sordino.training.distribution import processes, unwrapped
from sordino.training.dpsgd import Training, refuse_single_precision
from sordino.training.fitting import refuse_forgetful
from sordino.training.modules import TrainableModule, require_memory
from sordino.training.optimisers import TorchOptimiser, check_parameters
from sordino.training.plan import Plan, QuantileClip
from sordino.training.private_loop import PrivateLoop
from sordino.training.scheduler_states import scheduler_states
from sordino.training.sharding import trained, whole_module


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
) -> PrivateLoop:
    """Private training in the user's own loop: `for x, y in private.batches(): private.step(x, y)`.

    The noise is the least that keeps all planned steps within the target; with a `ledger`, within what it has left.
    Where torch.distributed has several processes, all of them call it; a batch is then a process's share of the draw.

    Parameters
    ----------
    model, optimizer : as in any torch loop; the optimizer is over the model's parameters.
    loss : loss(output, target), one number an example (reduction="none"). A record on which it or the model raises,
        such as one with a label that is no class, adds nothing to a step: an error would reveal it.
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
    parameters = trained(model)
    trainable = TrainableModule(
        whole_module(model),
        loss,
        clipping=clipping,
        l2_penalty=l2_penalty,
        augment=augment,
        views=views,
        physical_batch=physical_batch,
    )
    optimiser = TorchOptimiser(lambda parameters: optimizer)
    check_parameters(optimizer, parameters.values(), model.parameters())
    require_memory(model, "the model")  # before anything makes a copy of it
    optimiser.check(parameters, model.parameters())
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
        training = Training(place.plan, trainable, records, optimiser)
        private = PrivateLoop(training, trainable, model, ledger, None, schedulers)
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
        private = PrivateLoop(training, trainable, model, ledger, where, schedulers)
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
