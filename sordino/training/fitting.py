"""`fit`: one function for every way to train. The ledger pays, the plan promises, `fit` runs, the run keeps.

DP-SGD goes block by block: charge the ledger on disk, draw and train the block's steps, write the checkpoint. A killed
process has never drawn more than the ledger says, and loses at most one block of work.
"""

import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.budget import BudgetExceeded, Entry, Event, Ledger, UnsupportedEvent
from sordino.data import Records, as_records
from sordino.gradients import Loss
from sordino.mechanisms import Streams
from sordino.runs import (
    Binding,
    Key,
    Run,
    RunError,
    charging,
    check_drawn,
    digest,
    release_once,
    until_diverged,
    whole_number,
)
from sordino.training import dpsgd
from sordino.training.dpsgd import (
    Steps,
    Trainable,
    Training,
    TrainingState,
    check_finite,
    refuse_single_precision,
)
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import Averaging, State, Weights, as_optimiser
from sordino.training.plan import Plan

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
    that a kill has lost is repeated bit for bit or charged again. The key of the noise is deleted at the end, and also
    if a new plan is refused or the training diverges.

    Parameters
    ----------
    plan : Plan, WeightDistributionPlan, LastIteratePlan, LogisticPlan or LinearPlan.
    model : an nn.Module, which trains from the weights it has; a function that builds one, whose weights then come from
        the run's key; or a LinearClassifier or DenseNetwork. Modules need a `loss`. Under a LogisticPlan or LinearPlan,
        an nn.Linear that gets the weights, or None.
    records : a pair (x, y) of arrays or tensors, a torch Dataset or DataLoader, or Records.
    optimiser : SGD or Adam, or torch's: an optimizer over the module's parameters, or a function that makes one.
    ledger : what pays.
    run : a folder or Run to train in; calling again with the same settings resumes it, or loads the weights if
        it is finished.
    loss : loss(output, target), one number an example (reduction="none").
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
    steps = fitting(
        plan,
        model,
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
    if run is not None:
        (run if isinstance(run, Run) else Run(run)).write_kind("fit")  # unless a command has noted its own
    return fitted


def fitting(
    plan: TrainingPlan, model: Any, records: Any, *, ledger: Ledger, run: Run | str | Path | None = None, **options: Any
) -> Steps[Fitted]:
    """`fit` as steps that wait for their clipped sums: several trainings may then run side by side (`side_by_side`)."""
    ledger.refuse_add_remove()
    where = Run.at(run) if isinstance(run, str | Path) else run
    return plan.train(Job(model, as_records(records), ledger, where, **options))


def as_trainable(model: Any, loss: Loss | None = None) -> Trainable:
    """One of ours as it is; an nn.Module, or a function that builds one, with its loss."""
    if hasattr(model, "clipped_sum"):
        trainable: Trainable = model
        return trainable
    if not isinstance(model, nn.Module) and not callable(model):
        raise ValueError(
            f"a model is an nn.Module, a function that builds one, or one of sordino's, not {type(model).__name__}"
        )
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
    with (_in_memory if job.run is None else _in_folder)(training, job) as begun:
        if isinstance(begun, int):
            return Fitted(model.weights(), begun, getattr(model, "model", model))
        state, streams, total = begun.state, begun.key.streams, begun.total
        job.on_progress(state.done, total)
        while state.done < total:
            # Blocks end at multiples of their length, so that resumed runs cut where an uninterrupted one does.
            last = min(total, (state.done // block + 1) * block)
            charged = job.ledger.entries[begun.number].count
            job.ledger.raise_count(begun.number, max(charged, last + begun.key.lost))
            parameters = model.parameters
            while state.done < last:
                clipped = yield training.draw(state, streams)
                gradient, next_clip = dpsgd.release(clipped, state.l2_clip, plan, streams, state.done)
                training.update(state, parameters, gradient, next_clip)
            check_finite(model.parameters)
            begun.keep()
            job.on_progress(last, total)
        job.on_trained(state)
        if state.average is not None:
            model.load(model.weights() | state.average)
    return Fitted(model.weights(), state.done, getattr(model, "model", model))


class _Begun(NamedTuple):
    """A training under way."""

    key: Key
    number: int
    """Of its entry in the ledger."""
    state: TrainingState
    total: int
    keep: Callable[[], None]
    """Write the checkpoint."""


@contextmanager
def _in_memory(training: Training, job: Job) -> Iterator[_Begun]:
    key = key_in_memory(training, job.ledger, job.seed)
    number = entry_number(job.ledger, key, training.plan, job.what, job.part)
    training.model.initialise(key.streams)
    yield _Begun(key, number, training.start(), training.plan.steps, keep=lambda: None)


@contextmanager
def _in_folder(training: Training, job: Job) -> Iterator[_Begun | int]:
    """From the run's checkpoint if there is one; at the end the weights are kept, and the key is deleted.

    Of a run that is finished, the weights are loaded, and the number of its steps is given.
    """
    run, ledger = job.run, job.ledger
    assert run is not None
    with run.alone(), until_diverged(run):
        ledger.reload()
        if run.model.exists():
            yield load_finished(run, training, ledger, job.seed)
        else:
            known = known_key(run)
            with charging(run, ledger, unpaid=known is not None and ledger.number_of(known.name) is None):
                key, number, state = begin_or_resume(run, training, ledger, known, job.seed, job.what, job.part)

                def keep() -> None:
                    Checkpoint(training.model.weights(), state).write(run, key)

                yield _Begun(key, number, state, training.plan.steps - key.lost, keep)
                write_finished(run, training, key, ledger.entries[number].count, state.done)
        Key.end(run, run.checkpoint)


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
        rows = weights["weights"].reshape(-1, weights["weights"].shape[-1])
        with torch.no_grad():
            job.model.weight.copy_(rows[:, :-1])
            job.model.bias.copy_(rows[:, -1])
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


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to resume from a step: weights and state in one file, sealed under the run's key.

    Every iterate is a release that the ledger has paid for, and the rest is computed from iterates: nothing to hide.
    But a run repeats steps from it under the same noise, so it must be what the run has written: any other weights
    would make a second, unpaid release of that noise.
    """

    weights: Weights
    state: TrainingState
    seal: str | None = None
    """None of one that an older version has written: its steps must not be repeated under the same noise."""
    extra: list[Any] = field(default_factory=list)
    """What else is kept, as JSON: the learning-rate schedulers of a user's own loop."""

    @classmethod
    def read(cls, run: Run, key: Key | None = None) -> "Checkpoint | None":
        """The run's checkpoint, if it has one; with the key, refused if the run did not write it in this era."""
        if not run.checkpoint.exists():
            return None
        content, facts = run.read_tensors(run.checkpoint) if key is None else key.read_checkpoint(run)
        weights: Weights = {}
        average: Weights = {}
        remembered: State = {name: {} for name in facts.get("state", ())}
        for name, value in content.items():
            kind, _, rest = name.partition(".")
            if kind == "state":
                slot, _, rest = rest.partition(".")
                remembered.setdefault(slot, {})[rest] = value
            else:
                {"weight": weights, "average": average}.get(kind, {})[rest] = value
        clip = facts.get("l2_clip")
        if not isinstance(clip, float) or not weights:
            raise RunError(f"{run.checkpoint} cannot be read: it is damaged, or of another version of sordino")
        state = TrainingState(whole_number(facts, "done", run), clip, remembered, average or None)
        return cls(weights, state, facts.get("seal"), facts.get("extra", []))

    def write(self, run: Run, key: Key) -> None:
        state = self.state
        content: dict[str, Tensor] = {f"weight.{name}": value for name, value in self.weights.items()}
        for slot, values in state.optimiser.items():
            content |= {f"state.{slot}.{name}": value for name, value in values.items()}
        content |= {f"average.{name}": value for name, value in (state.average or {}).items()}
        facts = {"done": state.done, "l2_clip": float(state.l2_clip), "state": list(state.optimiser)}
        key.write_checkpoint(run, content, facts | ({"extra": self.extra} if self.extra else {}))


def binding_of(training: Training, seed: int | None) -> Binding:
    """What the key of a training is for."""
    model, records, batch = training.model, training.records, training.plan.sampler.expected_batch_size

    def choose(known: dict[str, Any] | None) -> dict[str, Any]:
        choices = model.choose(records, known, batch)
        if seed is not None or getattr(training.optimiser, "keeps_all_in_its_state", True):
            return choices
        # Another optimizer may not repeat a step from a checkpoint: a token keeps it from being tried.
        return {**choices, "optimiser": secrets.token_hex(8)}

    return Binding(digest(training.facts()), records.fingerprint, seed, choose)


def key_in_memory(training: Training, ledger: Ledger, seed: int | None) -> Key:
    """For a training that nothing is kept of: it is bound to nothing, and no entry of the ledger has its name."""
    key = Key.new(replace(binding_of(training, seed), plan="", fingerprint=lambda secret: ""))
    while key.is_in(ledger):  # the same seed again: a new charge all the same
        key = replace(key, name=digest(key.name)[:16])
    return key


def known_key(run: Run) -> Key | None:
    """The key of an unfinished run; None if it has not started."""
    known = Key.read(run)
    if known is None and run.checkpoint.exists():
        raise RunError(f"{run.private} has no key: without it the run cannot be resumed; start a new one")
    return known


def begin_or_resume(
    run: Run, training: Training, ledger: Ledger, known: Key | None, seed: int | None, what: str | None, part: str
) -> tuple[Key, int, TrainingState]:
    """The run's key, its entry in the ledger and its state, with the model's weights at that step."""
    key, checkpoint = _key_and_checkpoint(run, training, ledger, known, seed)
    if checkpoint is not None:
        training.model.load(checkpoint.weights)
        state = checkpoint.state
    else:
        training.model.initialise(key.streams)
        state = training.start()
        # Kept before the first draw: whatever the model is when the run is resumed, it starts from the same weights.
        Checkpoint(training.model.weights(), state).write(run, key)
    try:
        return key, entry_number(ledger, key, training.plan, what, part), state
    except (BudgetExceeded, UnsupportedEvent):
        if known is None:  # nothing was drawn under the new key: a cheaper plan may have the folder
            Key.end(run, run.checkpoint)
        raise


def _key_and_checkpoint(
    run: Run, training: Training, ledger: Ledger, known: Key | None, seed: int | None
) -> tuple[Key, Checkpoint | None]:
    binding = binding_of(training, seed)
    if known is None:
        key = Key.new(binding)
        entry = _entry_of(ledger, key.name)
        if entry is not None and entry.count:
            raise RunError("the ledger already holds a run with this seed, plan and data: choose another seed")
        key.keep(run)
        return key, None
    checkpoint = Checkpoint.read(run, known)
    entry = _entry_of(ledger, known.name)
    charged = 0 if entry is None else entry.count
    done = checkpoint.state.done if checkpoint else 0
    if charged < done + known.lost:
        raise RunError(
            f"the ledger holds {charged} steps of a run that has trained {done}: it is not this run's ledger, or an "
            "old copy of it; restore the right one"
        )
    # Steps that were drawn from a start that is gone, or cannot be proved the same, may differ if drawn again.
    seal = checkpoint.seal if checkpoint else None
    repeatable = seal is not None or charged == 0 or (checkpoint is not None and seed is not None)
    lost = charged - done
    memoryless = training.plan.sampler.memoryless
    key = known.resumed(run, binding, lost=lost, repeatable=repeatable, memoryless=memoryless, checkpoint=seal or "")
    if not repeatable and lost > known.lost:
        warnings.warn(
            f"{lost - known.lost} of the {charged} steps that are charged cannot be repeated, since the checkpoint "
            f"is missing or has no checksum: the model will have {training.plan.steps - lost} of "
            f"{training.plan.steps} steps",
            stacklevel=2,
        )
    return key, checkpoint


def _entry_of(ledger: Ledger, name: str) -> Entry | None:
    number = ledger.number_of(name)
    return None if number is None else ledger.entries[number]


def entry_number(ledger: Ledger, key: Key, plan: Plan, what: str | None, part: str) -> int:
    """The run's entry in the ledger, opened now if it is not there yet."""
    what = "training" if what is None else what
    return key.reserve(ledger, plan.step_event, plan.steps, what, part, claimed=plan.claimed_step)


def write_finished(run: Run, training: Training, key: Key, charged: int, done: int) -> None:
    run.write_tensors(run.model, training.model.weights(), key.finished_facts(done, charged))


def load_finished(run: Run, training: Training, ledger: Ledger, seed: int | None) -> int:
    """Load the weights of a finished run, if it had the same settings and this ledger paid for them.

    Returns the steps that they hold.
    """
    weights, facts = run.read_tensors(run.model)
    entry = _entry_of(ledger, facts.get("run", "?"))
    if entry is None or entry.reserved != training.plan.event or entry.count < whole_number(facts, "charged", run):
        raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
    binding_of(training, seed).check_finished(run, facts)
    training.model.load(weights)
    return whole_number(facts, "steps", run)
