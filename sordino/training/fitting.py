"""`fit`: one function for every way to train. The ledger pays, the plan promises, `fit` runs, the run keeps.

DP-SGD goes block by block: charge the ledger on disk, draw and train the block's steps, write the checkpoint. A killed
process has never drawn more than the ledger says, and loses at most one block of work.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.budget import Event, Ledger
from sordino.data import Records, as_records
from sordino.gradients import Loss
from sordino.mechanisms import Streams
from sordino.runs import Binding, Key, Purpose, Run, check_drawn, digest, release_once
from sordino.training import dpsgd
from sordino.training.distribution import processes, unwrapped
from sordino.training.dpsgd import Steps, Trainable, Training, refuse_single_precision
from sordino.training.modules import TrainableModule, load_linear
from sordino.training.optimisers import Averaging, Weights, as_optimiser
from sordino.training.plan import Plan, plan_from_json
from sordino.training.resuming import begin
from sordino.training.sharding import is_sharded

BLOCKS = 20

Progress = Callable[[int, int], None]
"""Is called with the steps done and the steps in all."""


class TrainingPlan(Protocol):
    """What every plan offers: its privacy event, the ε of that, itself as JSON, and how it trains."""

    @property
    def event(self) -> Event: ...

    def epsilon(self, delta: float, adjacency: str = "zero-out") -> float: ...

    def to_json(self) -> dict[str, Any]: ...

    def train(self, job: "Job") -> "Steps[Fitted]": ...


@dataclass(frozen=True)
class Job:
    """What `fit` was asked for, besides the plan."""

    model: Any
    records: Records
    ledger: Ledger
    run: Run | None = None
    optimiser: Any = None
    loss: Loss | None = None
    averaging: Averaging | None = None
    what: str | None = None
    part: str = "train"
    seed: int | None = None
    checkpoint_every: int | None = None
    on_progress: Progress = lambda done, total: None
    on_trained: Callable[[Any], None] = lambda state: None

    @property
    def trainable(self) -> Trainable:
        return as_trainable(self.model, self.loss)


@dataclass(frozen=True)
class Fitted:
    """What a training released."""

    weights: Weights
    steps: int
    """Below the plan's only if steps were lost to a change of environment and had to be charged twice."""
    model: Any
    """The model with these weights: an nn.Module where one was given or built."""


def fit(
    plan: TrainingPlan,
    model: Any,
    records: Any,
    *,
    optimiser: Any = None,
    ledger: Ledger,
    run: Run | str | Path | None = None,
    loss: Loss | None = None,
    averaging: Averaging | None = None,
    what: str | None = None,
    part: str = "train",
    seed: int | None = None,
    checkpoint_every: int | None = None,
    on_progress: Progress = lambda done, total: None,
    on_trained: Callable[[Any], None] = lambda state: None,
) -> Fitted:
    """Train a model on private records under a plan, in memory or in a run folder that survives a kill.

    Guarantee: the plan's event, charged to the ledger before the records it pays for are read. In a run folder a step
    that a kill has lost is repeated bit for bit or charged again: one that would sum other gradients, because the loss
    computes something else now, is refused before it is released. The key of the noise is deleted at the end, and also
    if a new plan is refused or the training diverges. Where torch.distributed has several processes, all of them call
    it, and it is that of `distribution.Several`.

    Parameters
    ----------
    plan : Plan, WeightDistributionPlan, LastIteratePlan, LogisticPlan or LinearPlan.
    model : an nn.Module, which trains from the weights it has; a function that builds one, whose weights then come from
        the run's key; or a LinearClassifier or DenseNetwork. Modules need a `loss`. Under a LogisticPlan or LinearPlan,
        an nn.Linear that gets the weights, or None.
    records : a pair (x, y) of arrays or tensors, a torch Dataset or DataLoader, or Records.
    optimiser : SGD or Adam, or torch's: an optimizer over the module's parameters, or a function that makes one.
    ledger : what pays; with a `run`, one that is kept in a file.
    run : a folder or Run to train in; calling again with the same settings resumes it, or loads the weights if
        it is finished.
    loss : loss(output, target), one number an example (reduction="none"). A record on which it or the model raises,
        such as one with a label that is no class, adds nothing to a step: an error would reveal it.
    averaging : release a running average of the weights in place of the last ones.
    what, part : words for the ledger's entry: what is done, on which part of the data.
    seed : for experiments: anyone can then compute the noise, and the statement says that it voids privacy.
    checkpoint_every : steps that are charged and kept together; a twentieth of the plan by default.
    on_progress : called with the steps done and in all, after each block.
    on_trained : called with the state of the training before the key is deleted; again if the run is killed then.

    >>> import numpy as np
    >>> from sordino.budget import Ledger
    >>> from sordino.training import SGD, LinearClassifier
    >>> from sordino.data import PoissonSampler
    >>> x, y = np.eye(4, dtype=np.float32).repeat(8, 0), np.arange(4).repeat(8)
    >>> plan = Plan(PoissonSampler(32, 8), l2_clip=1.0, noise_multiplier=1.0, steps=5)
    >>> fitted = fit(plan, LinearClassifier(4, 4), (x, y), optimiser=SGD(0.5), ledger=Ledger(20.0, 1e-3))
    >>> fitted.steps, fitted.weights["weight"].shape
    (5, torch.Size([4, 4]))
    """
    several = processes()
    if several.size > 1:
        model = _for_several(plan, model, loss)
        records = as_records(records)
        if several.rank:
            weights, done, kept = several.follow(model, records)
            model.load(weights)
            ledger.mirror(kept)
            return Fitted(weights, done, getattr(model, "model", model))
    with several.leading(model, records):
        if run is not None:
            run = Run.at(run) if isinstance(run, str | Path) else run
            ledger.refuse_add_remove()
            refuse_forgetful(ledger, run)
            with run.alone():  # another process may be at work there, and the description is its
                plan = _plan_of(run, plan)
        steps = fitting(
            plan,
            several.replicas(model),
            records,
            optimiser=optimiser,
            ledger=ledger,
            run=run,
            loss=loss,
            averaging=averaging,
            what=what,
            part=part,
            seed=seed,
            checkpoint_every=checkpoint_every,
            on_progress=on_progress,
            on_trained=on_trained,
        )
        with closing(steps):
            clipped: Any = None
            while True:
                try:
                    clipped = steps.send(clipped).found()
                except StopIteration as end:
                    fitted: Fitted = end.value
                    break
    several.end(
        lambda: ({name: value.cpu() for name, value in fitted.weights.items()}, fitted.steps, ledger.document())
    )
    return fitted


def fitting(
    plan: TrainingPlan, model: Any, records: Any, *, ledger: Ledger, run: Run | str | Path | None = None, **options: Any
) -> Steps[Fitted]:
    """`fit` as steps that wait for their clipped sums: several trainings may then run side by side (`side_by_side`)."""
    ledger.refuse_add_remove()
    where = Run.at(run) if isinstance(run, str | Path) else run
    return plan.train(Job(model, as_records(records), ledger, where, **options))


def _for_several(plan: TrainingPlan, model: Any, loss: Loss | None) -> Trainable:
    """The model, if several processes may train it under this plan."""
    if not isinstance(plan, Plan):
        raise ValueError("several processes train by DP-SGD, under a Plan; all else trains in one process")
    return as_trainable(model, loss)


def _plan_of(run: Run, plan: TrainingPlan) -> TrainingPlan:
    """The plan that the run has started with, if this is the same but for the last digits of its noise.

    A program that is run again on another processor calibrates to other last digits, and it is still the same run. The
    noise is that of the ledger's entry, to the bit.
    """
    if run.started:
        known = run.read_description()
        begun = known.get("plan")
        if known.get("kind") != "fit" or begun is None:
            return plan
        if _same_but_for_rounding(begun, plan.to_json()):
            same: TrainingPlan = plan_from_json(begun)
            return same
        if any(path.exists() for path in (run.model, run.checkpoint, Purpose.RUN.file(run))):
            return plan  # which the key refuses
    if not (run.model.exists() or run.checkpoint.exists()):
        run.write_description({"kind": "fit", "plan": plan.to_json()})
    return plan


def _same_but_for_rounding(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_but_for_rounding(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def refuse_forgetful(ledger: Ledger, run: Run) -> None:
    """A kill would lose a ledger in memory: the folder could not be resumed, and what it holds would be unpaid."""
    if ledger.path is None:
        raise ValueError(
            f"a run folder needs a ledger that survives a kill: Ledger(epsilon, delta, path={str(run.ledger)!r})"
        )


def as_trainable(model: Any, loss: Loss | None = None) -> Trainable:
    """One of ours as it is; an nn.Module, or a function that builds one, with its loss."""
    model = unwrapped(model)
    if hasattr(model, "clipped_sum"):
        trainable: Trainable = model
        return trainable
    if not isinstance(model, nn.Module) and not callable(model):
        raise ValueError(
            f"a model is an nn.Module, a function that builds one, or one of sordino's, not {type(model).__name__}"
        )
    if isinstance(model, nn.Module) and is_sharded(model):
        raise ValueError("fit trains whole modules: pass one that fully_shard has cut to make_private")
    if loss is None:
        raise ValueError('a module needs a loss with one number an example: loss=nn.CrossEntropyLoss(reduction="none")')
    return TrainableModule(model, loss)


def train_by_gradients(plan: Plan, job: Job) -> Steps[Fitted]:
    """DP-SGD: the plan's steps, from the run's checkpoint if there is one."""
    model = job.trainable
    training = Training(plan, model, job.records, as_optimiser(job.optimiser, model.parameters), job.averaging)
    block = max(1, plan.steps // BLOCKS) if job.checkpoint_every is None else job.checkpoint_every
    if block < 1:
        raise ValueError(f"checkpoint_every must be at least 1, not {job.checkpoint_every}")
    refuse_single_precision(plan, model, job.records)
    with ExitStack() as stack:
        if job.run is not None:
            stack.enter_context(job.run.alone())
        begun = begin(training, job.ledger, job.run, job.seed, job.what, job.part, stack)
        if isinstance(begun, int):
            return Fitted(model.weights(), begun, getattr(model, "model", model))
        state, streams, total = begun.state, begun.key.streams, begun.total
        job.on_progress(state.done, total)
        while state.done < total:
            # Blocks end at multiples of their length, so that resumed runs cut where an uninterrupted one does.
            last = min(total, (state.done // block + 1) * block)
            begun.charge(last)
            parameters = model.parameters
            while state.done < last:
                clipped = yield training.draw(state, streams)
                begun.admit(clipped)
                gradient, next_clip = dpsgd.release(clipped, state.l2_clip, plan, streams, state.done)
                training.update(state, parameters, gradient, next_clip)
            begun.keep()
            job.on_progress(last, total)
        job.on_trained(state)
        if state.average is not None:
            model.load(model.weights() | state.average)
        begun.finish()
    return Fitted(model.weights(), state.done, getattr(model, "model", model))


def train_in_one_release(
    plan: TrainingPlan,
    job: Job,
    what: str,
    solve: Callable[[Ledger, Streams, str], NDArray[np.float64]],
) -> Fitted:
    """A fit in closed form or by a solver: charged once, and repeated bit for bit if it is killed before it is kept.

    `solve(ledger, streams, what)` charges the ledger that it is given, which only takes notes: the job's has paid.
    """
    what = what if job.what is None else job.what
    binding = Binding(digest([what, plan.to_json(), job.part]), job.records.fingerprint, job.seed)

    def train(key: Key) -> Weights:
        notes = Ledger(adjacency=job.ledger.terms.adjacency)
        solved = solve(notes, key.streams, what)
        check_drawn(notes, plan.event, what, job.part)
        return {"weights": torch.from_numpy(np.ascontiguousarray(solved))}

    weights = release_once(job.run, binding, train, job.ledger, event=plan.event, what=what, part=job.part, steps=1)
    if isinstance(job.model, nn.Linear):
        load_linear(job.model, weights["weights"])
    return Fitted(weights, 1, job.model)


def check_linear(model: Any, features: int, outputs: int) -> None:
    """Refuse, before the charge, what cannot take the weights of a regression."""
    if model is None:
        return
    wanted = f"nn.Linear({features}, {outputs}), which gets the weights, or None"
    if not isinstance(model, nn.Linear):
        raise ValueError(f"the model of a regression is {wanted}; not {type(model).__name__}")
    if model.weight.shape != (outputs, features) or model.bias is None:
        raise ValueError(f"the model of this regression is {wanted}; not {model}")
