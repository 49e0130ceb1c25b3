"""Releases that are charged once and in full before anything is drawn, and replayed after a kill.

`release_once` is a training that releases its end alone; `workflow_steps` are the steps of a workflow in one folder,
each with its own charge and its own file.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.budget import Event, Ledger, Planned, Repeated
from sordino.mechanisms import Streams, data_tag
from sordino.runs.key import Binding, Key, Purpose, charged_key, digest, environment, until_diverged
from sordino.runs.run import Run, RunError

T = TypeVar("T")
Draw = Callable[[Ledger, Streams], T]
"""Called with a ledger that only takes notes, since the real one has been charged, and the streams to draw from."""


def release_once(
    run: Run | None,
    binding: Binding,
    train: Callable[[Key], dict[str, Tensor]],
    ledger: Ledger,
    *,
    event: Event,
    what: str,
    part: str,
    steps: int,
    claimed: Event | None = None,
    hidden: str | None = None,
) -> dict[str, Tensor]:
    """Charge the event, train, keep and return the final weights; calling again loads them.

    Without a run all stays in memory. Until the end the state of such a training is no release that a ledger has paid
    for: it is in the file `hidden` of RUN/private, if there is any. The binding's plan must hold `what` and `part`.

    Guarantee: that of the event, charged before `train` is called; a run that was stopped has released nothing and
    stays charged. Its state and key are deleted at the end, and also if it diverges. A stopped run is resumed bit for
    bit; with another plan, other data or seed, or in another environment that is refused, and a new run is charged
    anew. A finished run is loaded for the same plan and seed alone.
    """
    ledger.refuse_add_remove()
    if run is None:
        key = Key.new(binding)
        ledger.raise_count(key.reserve(ledger, event, 1, what, part, claimed=claimed), 1)
        return train(key)
    state = [] if hidden is None else [run.private / hidden]
    with run.alone(), until_diverged(run, *state):
        ledger.reload()
        if run.model.exists():
            weights, facts = run.read_tensors(run.model)
            number = ledger.number_of(facts.get("run", ""))
            entry = None if number is None else ledger.entries[number]
            if entry is None or not entry.count or entry.event != event:
                raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
            binding.check_finished(run, facts)
        else:
            with charged_key(run, ledger, binding) as key:
                ledger.raise_count(key.reserve(ledger, event, 1, what, part, claimed=claimed), 1)
                weights = train(key)
                run.write_tensors(run.model, weights, key.finished_facts(steps, charged=1))
        Key.end(run, *state)
    return weights


@contextmanager
def workflow_steps(
    run: Run, ledger: Ledger, settings: str, data: Iterable[NDArray[Any]], outcome: Sequence[Path]
) -> Iterator["WorkflowSteps"]:
    """The steps of a new workflow, or of the unfinished one in the folder; once all of `outcome` exists it is finished.

    `settings` must hold all that the steps depend on besides the data. The key is deleted at the end, if a
    training diverges, or if the first step is refused. If a later one is, the key stays with what was paid for.

    Guarantee: nothing is released here. One key never meets two settings or two sets of data: that is refused.
    """
    ledger.refuse_add_remove()
    with run.alone("steps.lock"), until_diverged(run, Purpose.WORKFLOW.file(run)):
        ledger.reload()
        if all(path.exists() for path in outcome):
            Key.end(run, purpose=Purpose.WORKFLOW)
            yield WorkflowSteps(run, ledger, None)
            return
        arrays = tuple(data)
        # A finished step may have been drawn in another environment: it is in the names of the steps' entries.
        binding = Binding(digest(settings), lambda key: data_tag(key, *arrays), purpose=Purpose.WORKFLOW, anywhere=True)
        with charged_key(run, ledger, binding) as key:
            yield WorkflowSteps(run, ledger, key)
        if all(path.exists() for path in outcome):
            Key.end(run, purpose=Purpose.WORKFLOW)


@dataclass(frozen=True, eq=False)
class WorkflowSteps:
    """What a workflow may do in its folder.

    A step killed between its charge and its file is drawn again from the same numbers: the same output, which releases
    nothing new and is not charged again.
    """

    run: Run
    ledger: Ledger
    key: Key | None = field(repr=False)
    """None once the workflow is finished."""

    def values(self, path: Path, charge: Planned, draw: Draw[dict[str, Any]], given: bytes = b"") -> dict[str, Any]:
        """What the step released, as JSON values, from its file if that exists.

        `given` is what else the draw depends on, such as a model.

        Guarantee: the charge's event, on disk before `draw` is called; whatever is killed when, `draw` is only ever
        repeated with the same data, settings, environment and numbers, so that all its outputs are one release.
        """
        if not path.exists():
            released, entry = self._drawn(path, charge, draw, given)
            self.run.write_sealed(self._place(path), {"entry": entry, **released})
        return self.known(path, charge)

    def known(self, path: Path, charge: Planned) -> dict[str, Any]:
        """What a finished step released."""
        content = self.run.read_sealed(self._place(path))
        self._check_paid(path, content.pop("entry", None), charge)
        return content

    def weights(self, path: Path, charge: Planned, draw: Draw[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The same for a step that releases an array of weights.

        Guarantee: that of `values`.
        """
        if not path.exists():
            released, entry = self._drawn(path, charge, draw, b"")
            self.run.write_tensors(path, {"weights": torch.from_numpy(released)}, {"entry": entry})
        tensors, facts = self.run.read_tensors(path)
        if tensors.keys() != {"weights"}:
            raise RunError(f"{path} holds something else than the weights of a step: choose another folder")
        self._check_paid(path, facts.get("entry"), charge)
        return np.asarray(tensors["weights"].numpy(), dtype=np.float64)

    def _drawn(self, path: Path, charge: Planned, draw: Draw[T], given: bytes) -> tuple[T, str]:
        """What is drawn under the step's entry in the ledger, and the entry's name."""
        if self.key is None:
            raise RunError(f"{path} is missing from a finished folder, and its key is deleted: choose another folder")
        # Another name for another key, settings, table, environment, model or file.
        text = f"here {hashlib.sha256(given).hexdigest()} {json.dumps(environment(), sort_keys=True)}"
        entry = f"{self.key.name} {self.key.mac(text).hex()[:16]} {self._place(path)}"
        self._pay(path, self.key, entry, charge)
        notes = Ledger(adjacency=self.ledger.terms.adjacency)
        # One entry in the ledger, one place in the space of random numbers.
        streams = self.key.streams_for({"step": entry, "bound": f"{self.key.plan} {self.key.data}"})
        released = draw(notes, streams)
        check_drawn(notes, charge.event, charge.what, charge.part)
        return released, entry

    def _pay(self, path: Path, key: Key, name: str, charge: Planned) -> None:
        """Charge the step, unless it was before it was killed."""
        self.ledger.reload()
        if any(self._is_of(entry.run, path) and entry.run != name for entry in self.ledger.entries):
            # Rounding may differ there: a repetition would be a second release with the same noise.
            raise RunError(
                f"'{charge.what}' was charged in another environment (versions, threads or processor) or for another "
                "model, and killed before it was kept: resume it there, or choose another folder"
            )
        event = _reserved(charge.event)
        number = key.reserve(self.ledger, event.event, event.count, charge.what, charge.part, entry=name)
        self.ledger.raise_count(number, event.count)

    def _check_paid(self, path: Path, name: Any, charge: Planned) -> None:
        """Refuse what another key has drawn, or another ledger has paid for."""
        if isinstance(name, str) and self._is_of(name, path):
            asked = (_reserved(charge.event), charge.what, charge.part)
            for entry in self.ledger.entries:
                paid = entry.run == name and entry.count == entry.committed
                if paid and (entry.reserved, entry.what, entry.part) == asked:
                    return
        raise RunError(f"{path} was made under another plan, key or ledger: what it cost is not in this one")

    def _is_of(self, entry: str, path: Path) -> bool:
        """Whether an entry is of the step that is kept there; with a key, also of this workflow."""
        return entry.endswith(f" {self._place(path)}") and (self.key is None or self.key.owns(entry))

    def _place(self, path: Path) -> str:
        return path.relative_to(self.run.folder).as_posix()


def check_drawn(notes: Ledger, event: Event, what: str, part: str) -> None:
    """Refuse a draw that has noted anything else than the event that was charged for it."""
    if [(each.reserved, each.part) for each in notes.entries] != [(_reserved(event), part)]:
        raise RuntimeError(f"'{what}' has drawn something else than it was charged for")


def _reserved(event: Event) -> Repeated:
    return event if isinstance(event, Repeated) else Repeated(event, 1)
