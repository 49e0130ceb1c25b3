"""The steps of a workflow in one folder: each charged once, drawn from the workflow's secret key, kept when it is done.

A step killed between its charge and its file is drawn again from the same numbers: the same output, which shows nothing
new and is not charged again. For that the key is bound to question and data, and a step to its environment, too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from sordino.budget import BudgetExceeded, Ledger, Planned, Repeated, UnsupportedEvent, partial_of
from sordino.mechanisms import Streams, bound_streams, data_tag, new_secret
from sordino.runs import Run, RunBusy, RunError, charging, environment, until_diverged

if TYPE_CHECKING:
    from sordino.data import Schema, Split

T = TypeVar("T")
Draw = Callable[[Ledger, Streams], T]
"""Given a ledger that only takes notes, for the real one has been charged, and the streams that the step draws from."""

_KEY = "steps.json"


@contextmanager
def keyed_steps(
    run: Run, ledger: Ledger, settings: str, data: Iterable[NDArray[Any]], outcome: Sequence[Path]
) -> Iterator[KeyedSteps]:
    """The steps of a new workflow, or of the unfinished one in the folder; once all of `outcome` exists it is finished.

    `settings` must hold all that the steps depend on besides the data. The key is deleted at the end, if a
    training diverges, or if the first step is refused. If a later one is, the key stays with what was paid for.

    Guarantee: nothing is released here. One key never meets two questions or two sets of data: that is refused.
    """
    ledger.refuse_add_remove()
    with _alone(run), until_diverged(run, run.private / _KEY):
        ledger.reload()
        if _all_exist(outcome):
            _forget(run)
            yield KeyedSteps(run, ledger, None)
            return
        arrays = tuple(data)
        known = _Key.kept(run, settings, arrays)
        unpaid = known is not None and not known.has_paid(ledger)
        with charging(run, ledger, unpaid=unpaid):
            key = known or _Key.new(run, settings, arrays)
            try:
                yield KeyedSteps(run, ledger, key)
            except (BudgetExceeded, UnsupportedEvent):
                if known is None and not key.has_paid(ledger):
                    _forget(run)  # nothing was drawn: a cheaper workflow may have the folder
                raise
        if _all_exist(outcome):
            _forget(run)


@dataclass(frozen=True, eq=False)
class KeyedSteps:
    """What a workflow may do in its folder."""

    run: Run
    ledger: Ledger
    key: _Key | None = field(repr=False)
    """None once the workflow is finished."""

    def values(self, path: Path, charge: Planned, draw: Draw[dict[str, Any]], given: bytes = b"") -> dict[str, Any]:
        """What the step told, as JSON values, from its file if that exists.

        `given` is what else the draw depends on, such as a model.

        Guarantee: the charge's event, on disk before `draw` is called; whatever is killed when, `draw` is only ever
        repeated with the same data, question, environment and numbers, so that all its outputs are one release.
        """
        if not path.exists():
            told, entry = self._drawn(path, charge, draw, given)
            content = {"entry": entry, **told}
            self.run.write_json(self._place(path), {**content, "seal": _digest(content)})
        return self.known(path, charge)

    def known(self, path: Path, charge: Planned) -> dict[str, Any]:
        """What a finished step told."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            whole = content.pop("seal") == _digest(content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino")
        self._check_paid(path, content.pop("entry", None), charge)
        return dict(content)

    def weights(self, path: Path, charge: Planned, draw: Draw[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The same for a step that tells an array of weights.

        Guarantee: that of `values`.
        """
        if not path.exists():
            told, entry = self._drawn(path, charge, draw, b"")
            self.run.write_tensors(path, {"weights": torch.from_numpy(told)}, {"entry": entry})
        tensors, facts = self.run.read_tensors(path)
        if tensors.keys() != {"weights"}:
            raise RunError(f"{path} holds something else than the weights of a step: choose another folder")
        self._check_paid(path, facts.get("entry"), charge)
        return np.asarray(tensors["weights"].numpy(), dtype=np.float64)

    def _drawn(self, path: Path, charge: Planned, draw: Draw[T], given: bytes) -> tuple[T, str]:
        """What is drawn under the step's entry in the ledger, and the entry's name."""
        if self.key is None:
            raise RunError(f"{path} is missing from a finished folder, and its key is deleted: choose another folder")
        entry = self.key.entry(self._place(path), given)
        self._pay(path, entry, charge)
        notes = Ledger(adjacency=self.ledger.terms.adjacency)
        told = draw(notes, self.key.streams(entry))
        if [(each.reserved, each.part) for each in notes.entries] != [(_reserved(charge), charge.part)]:
            raise RuntimeError(f"'{charge.what}' has drawn something else than it was charged for")
        return told, entry

    def _pay(self, path: Path, name: str, charge: Planned) -> None:
        """Charge the step, unless it was before it was killed."""
        self.ledger.reload()
        place, event = self._place(path), _reserved(charge)
        known = [number for number, entry in enumerate(self.ledger.entries) if self._is_of(entry.run, place)]
        if not known:
            known = [self.ledger.begin(event.event, event.count, charge.what, charge.part, run=name)]
        [number] = known
        entry = self.ledger.entries[number]
        if entry.run != name:
            # Rounding may differ there: a repetition would be a second release with the same noise.
            raise RunError(
                f"'{charge.what}' was charged in another environment (versions, threads or processor) or for another "
                "model, and killed before it was kept: go on there, or choose another folder"
            )
        if not _same(entry.reserved, entry.what, entry.part, charge):
            raise RunError(f"the ledger's entry of this step is '{entry.what}' on {entry.part}, not '{charge.what}'")
        if entry.count < entry.committed:
            self.ledger.raise_count(number, entry.committed)

    def _check_paid(self, path: Path, name: Any, charge: Planned) -> None:
        """Refuse what another key has drawn, or another ledger has paid for."""
        if isinstance(name, str) and self._is_of(name, self._place(path)):
            for entry in self.ledger.entries:
                paid = entry.run == name and entry.count == entry.committed
                if paid and _same(entry.reserved, entry.what, entry.part, charge):
                    return
        raise RunError(f"{path} was made under another plan, key or ledger: what it cost is not in this one")

    def _is_of(self, entry: str, place: str) -> bool:
        """Whether an entry is of the step that is kept there; with a key, also of this workflow."""
        return entry.endswith(f" {place}") and (self.key is None or self.key.owns(entry))

    def _place(self, path: Path) -> str:
        return path.relative_to(self.run.folder).as_posix()


@dataclass(frozen=True)
class _Key:
    """The secret of a workflow with all that it is bound to."""

    secret: bytes = field(repr=False)
    bound: str
    """The question and the data."""

    @property
    def name(self) -> str:
        """Public, for the ledger's entries."""
        return self._mac(f"workflow {self.bound}")[:16]

    def entry(self, place: str, given: bytes) -> str:
        """A step's name in the ledger: another one for another key, question, table, environment, model or file."""
        here = json.dumps(environment(), sort_keys=True)
        return f"{self.name} {self._mac(f'here {hashlib.sha256(given).hexdigest()} {here}')[:16]} {place}"

    def owns(self, entry: str) -> bool:
        return entry.startswith(f"{self.name} ")

    def has_paid(self, ledger: Ledger) -> bool:
        """Whether a step of the workflow is in the ledger."""
        return any(self.owns(entry.run) for entry in ledger.entries)

    def streams(self, entry: str) -> Streams:
        """One entry in the ledger, one place in the space of random numbers."""
        return bound_streams(self.secret, {"step": entry, "bound": self.bound}, predictable=False)

    def _mac(self, text: str) -> str:
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    @classmethod
    def new(cls, run: Run, settings: str, data: tuple[NDArray[Any], ...]) -> _Key:
        asked, secret = _digest(settings), new_secret()
        tag = data_tag(secret, *data)
        run.write_private(_KEY, {"secret": secret.hex(), "question": asked, "data": tag})
        return cls(secret, f"{asked} {tag}")

    @classmethod
    def kept(cls, run: Run, settings: str, data: tuple[NDArray[Any], ...]) -> _Key | None:
        """The key of the unfinished workflow in the folder, if there is one."""
        asked, path = _digest(settings), run.private / _KEY
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            secret, known, of_data = bytes.fromhex(content["secret"]), content["question"], content["data"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise RunError(f"the key in {run.private} is damaged: this cannot go on; choose another folder") from None
        if known != asked:
            raise RunError(f"{run.folder} was begun with other settings: going on is refused; choose another folder")
        tag = data_tag(secret, *data)
        if of_data != tag:
            raise RunError(f"{run.folder} was begun with other data: going on is refused; choose another folder")
        return cls(secret, f"{asked} {tag}")


def table_arrays(schema: Schema, *parts: Split) -> Iterator[NDArray[Any]]:
    """All that a schema lets one read of the parts of a table, to bind a key to."""
    import pandas as pd

    for part in parts:
        for column in schema.columns:
            values = part.x[column.name]
            if column.categories is None:
                yield values.to_numpy(np.float64)
            else:
                yield np.asarray(pd.Index(column.categories).get_indexer(pd.Index(values)))
        yield part.y


@contextmanager
def _alone(run: Run) -> Iterator[None]:
    """Hold the folder, by another lock than that of a training in it."""
    try:
        with FileLock(run.private / "steps.lock", timeout=0):
            yield
    except Timeout:
        raise RunBusy(f"another process is at work in {run.folder}: wait for it or stop it") from None


def _all_exist(paths: Sequence[Path]) -> bool:
    return all(path.exists() for path in paths)


def _reserved(charge: Planned) -> Repeated:
    return charge.event if isinstance(charge.event, Repeated) else Repeated(charge.event, 1)


def _same(reserved: object, what: str, part: str, charge: Planned) -> bool:
    return (reserved, what, part) == (_reserved(charge), charge.what, charge.part)


def _forget(run: Run) -> None:
    """Delete the key: nobody can repeat or peel off the noise of a finished workflow."""
    for path in (run.private / _KEY, partial_of(run.private / _KEY)):
        path.unlink(missing_ok=True)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
