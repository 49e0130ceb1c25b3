"""Trainings that release their last weights alone: until then their state is secret, and kept in RUN/private."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sordino.mechanisms import Streams
from sordino.runs import Binding, Key, digest, release_once, whole_number
from sordino.training.dpsgd import Trainable
from sordino.training.fitting import BLOCKS, Fitted, Job
from sordino.training.optimisers import Weights


@dataclass
class HiddenTraining(ABC):
    """A training under a plan with `event`, `claimed` and `steps`.

    `kind` is the method in what the key is bound to, `what` the ledger's entry unless the caller names it, and `file`
    holds the state in RUN/private.

    Guarantee: the plan's event, charged once and in full before the first step; see `release_once` for runs that were
    stopped. State and key are in RUN/private until the end, then deleted.
    """

    plan: Any
    model: Trainable
    job: Job
    done: int = 0
    kind: ClassVar[str]
    what: ClassVar[str]
    file: ClassVar[str]

    @abstractmethod
    def begin(self, streams: Streams, kept: Weights | None) -> None:
        """Before the first step, or from the state that was kept."""

    @abstractmethod
    def state(self) -> Weights:
        """All that is needed to resume."""

    @abstractmethod
    def advance(self, streams: Streams, last: int) -> None:
        """Take the steps from `done` up to the last, which is left out."""

    @abstractmethod
    def released(self, streams: Streams) -> Weights:
        """The weights after the last step."""

    def fitted(self, expected_batch_size: int) -> Fitted:
        """Train, or resume the run; keep and release the last weights."""
        plan, model, job = self.plan, self.model, self.job
        what = self.what if job.what is None else job.what
        binding = Binding(
            digest([self.kind, plan.to_json(), model.facts(), what, job.part]),
            job.records.fingerprint,
            job.seed,
            lambda known: model.choose(job.records, known, expected_batch_size),
        )
        weights = release_once(
            job.run,
            binding,
            self._train,
            job.ledger,
            event=plan.event,
            what=what,
            part=job.part,
            steps=plan.steps,
            claimed=plan.claimed,
            hidden=self.file,
        )
        model.load(weights)
        return Fitted(weights, plan.steps, getattr(model, "model", model))

    def _train(self, key: Key) -> Weights:
        total = self.plan.steps
        block = max(1, total // BLOCKS)
        self.done, kept = self._kept(key)
        self.begin(key.streams, kept)
        if kept is None:
            # Before the first draw: whatever the model is when the run is resumed, it starts from the same state.
            self._keep(key)
        self.job.on_progress(self.done, total)
        while self.done < total:
            last = min(total, (self.done // block + 1) * block)
            self.advance(key.streams, last)
            self.done = last
            self._keep(key)
            self.job.on_progress(last, total)
        return self.released(key.streams)

    def _kept(self, key: Key) -> tuple[int, Weights | None]:
        run = self.job.run
        if run is not None and (run.private / self.file).exists():
            state, facts = run.read_tensors(run.private / self.file)
            if facts.get("run") == key.name:  # the state of another run is of no use, and is overwritten
                return whole_number(facts, "done", run), state
        return 0, None

    def _keep(self, key: Key) -> None:
        run = self.job.run
        if run is not None:
            run.write_tensors(run.private / self.file, self.state(), {"done": self.done, "run": key.name})
