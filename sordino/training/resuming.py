"""A gradient training under way: its key, its entry in the ledger, and in a run folder what it is resumed from."""

import secrets
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sordino.budget import BudgetExceeded, Entry, Ledger, UnsupportedEvent
from sordino.runs import Binding, Key, Run, RunError, charging, digest, until_diverged, whole_number
from sordino.training.dpsgd import ClippedSum, Training, TrainingState, check_finite
from sordino.training.optimisers import State, Weights
from sordino.training.step_log import StepLog, step_log_file


class OtherSums(RunError):  # noqa: N818
    """A repeated step that would release something else under the same noise."""


@dataclass(frozen=True)
class Underway:
    """A training that has its key and its entry in the ledger; without a run, all of it stays in memory."""

    training: Training
    ledger: Ledger
    run: Run | None
    key: Key
    number: int
    """The number of its entry in the ledger."""
    state: TrainingState
    extra: Sequence[Any] = ()
    """What else was in the checkpoint that it resumes from."""
    log: StepLog | None = None

    @property
    def total(self) -> int:
        """All steps that can be drawn: the plan's, except those that are charged but in no model."""
        return self.training.plan.steps - self.key.lost

    @property
    def charged(self) -> int:
        """Up to which step the ledger has paid."""
        return self.ledger.entries[self.number].count - self.key.lost

    def charge(self, last: int) -> None:
        """Pay up to this step, before any of them is drawn."""
        self.ledger.raise_count(self.number, max(self.charged, last) + self.key.lost)

    def admit(self, clipped: ClippedSum) -> None:
        """Before the release of the next step: refuse one that was drawn before a kill and summed something else then.

        Guarantee: one step's noise meets one sum, whatever loss, model or augmentation a repetition comes with. After a
        refusal the run is resumed from its checkpoint with fresh noise, and the steps since are lost.
        """
        plan, step, clip = self.training.plan, self.state.done, self.state.l2_clip
        norms = {} if plan.quantile_clip is None else {"norms": clipped.norms}
        # All that a release is computed from, besides the clip, the plan and the key.
        shown = norms | {f"sum of {name}": value for name, value in clipped.sums.items()}
        if self.run is None or self.log is None or self.log.admits(step, clip, shown):
            return
        problem = (
            f"step {step} sums other gradients than before the run was stopped, and its noise must not be used again: "
            "a program that is run again must do the same, with the same loss, model, augmentation and learning rates"
        )
        if not plan.sampler.memoryless:
            raise OtherSums(f"{problem}. Resume {self.run.folder} with what it was started with, or use another folder")
        kept = Checkpoint.read(self.run, self.key)
        lost = self.ledger.entries[self.number].count - (0 if kept is None else kept.state.done)
        self.key.resumed(
            self.run,
            binding_of(self.training, self.key.seed),
            lost=lost,
            repeatable=False,
            memoryless=True,
            checkpoint="" if kept is None else kept.seal or "",
        )
        self.log.clear()
        raise OtherSums(
            f"{problem}. If the change is meant, run it once more: it continues from the last checkpoint, with {lost} "
            "charged steps lost in all"
        )

    def keep(self, extra: Sequence[Any] = ()) -> None:
        """Write the checkpoint; parameters that are not finite end the run."""
        self._check_finite()
        if self.run is not None:
            Checkpoint(self.training.model.weights(), self.state, extra=list(extra)).write(self.run, self.key)
        if self.log is not None:
            self.log.clear()

    def finish(self) -> None:
        """Keep the weights, and delete the key."""
        self._check_finite()
        if self.run is not None:
            facts = self.key.finished_facts(self.state.done, self.ledger.entries[self.number].count)
            self.run.write_tensors(self.run.model, self.training.model.weights(), facts)
            _end(self.run)

    def _check_finite(self) -> None:
        with ExitStack() as stack:
            if self.run is not None:
                stack.enter_context(until_diverged(self.run, step_log_file(self.run)))
            check_finite(self.training.model.parameters)


def begin(
    training: Training,
    ledger: Ledger,
    run: Run | None,
    seed: int | None,
    what: str | None,
    part: str,
    stack: ExitStack,
) -> Underway | int:
    """A new training, or the unfinished one in the run's folder with the model's weights at its checkpoint.

    Of a run that is finished, the weights are loaded, and the number of its steps is given. `stack` is open as long as
    the training may charge; the caller holds the run alone.
    """
    if run is None:
        key = _key_in_memory(training, ledger, seed)
        number = _entry_number(ledger, key, training, what, part)
        training.model.initialise(key.streams)
        return Underway(training, ledger, None, key, number, training.start())
    with until_diverged(run, step_log_file(run)):
        ledger.reload()
    if run.model.exists():
        done = _load_finished(run, training, ledger, seed)
        _end(run)  # a kill may have come between the model and this
        return done
    known = Key.read(run)
    if known is None and run.checkpoint.exists():
        raise RunError(f"{run.private} has no key: without it the run cannot be resumed; start a new one")
    stack.enter_context(charging(run, ledger, unpaid=known is not None and ledger.number_of(known.name) is None))
    key, checkpoint = _key_and_checkpoint(run, training, ledger, known, seed)
    if checkpoint is None:
        training.model.initialise(key.streams)
        # Kept before the first draw: whatever the model is when the run is resumed, it starts from the same weights.
        checkpoint = Checkpoint(training.model.weights(), training.start())
        checkpoint.write(run, key)
    else:
        training.model.load(checkpoint.weights)
    try:
        number = _entry_number(ledger, key, training, what, part)
    except (BudgetExceeded, UnsupportedEvent):
        if known is None:  # nothing was drawn under the new key: a cheaper plan may have the folder
            _end(run)
        raise
    log = None
    if seed is None:  # else nothing is secret, and an experiment repeats its steps however they come out
        log = StepLog(run, key)
        stack.callback(log.sync)
    return Underway(training, ledger, run, key, number, checkpoint.state, checkpoint.extra, log)


def _end(run: Run) -> None:
    Key.end(run, run.checkpoint, step_log_file(run))


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


def _key_in_memory(training: Training, ledger: Ledger, seed: int | None) -> Key:
    """For a training that nothing is kept of: it is bound to nothing, and no entry of the ledger has its name."""
    key = Key.new(replace(binding_of(training, seed), plan="", fingerprint=lambda secret: ""))
    while key.is_in(ledger):  # the same seed again: a new charge all the same
        key = replace(key, name=digest(key.name)[:16])
    return key


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


def _entry_number(ledger: Ledger, key: Key, training: Training, what: str | None, part: str) -> int:
    """The run's entry in the ledger, opened now if it is not there yet."""
    plan, what = training.plan, "training" if what is None else what
    return key.reserve(ledger, plan.step_event, plan.steps, what, part, claimed=plan.claimed_step)


def _load_finished(run: Run, training: Training, ledger: Ledger, seed: int | None) -> int:
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
