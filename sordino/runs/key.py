"""The key of a run's noise: a secret, bound to what it is for, charged once, replayed after a kill.

A key is bound to a plan, to data and to an environment. Where all agree, what a kill has lost is drawn again bit for
bit, which releases nothing new and is not charged again. In another environment, or with other rules and chunks for the
gradients, rounding may differ, and a repetition would be a second release with the same noise. Another plan or other
data are refused.
"""

import hashlib
import hmac
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.budget import BudgetExceeded, Event, Ledger, Repeated, UnsupportedEvent, partial_of, versions
from sordino.mechanisms import GENERATOR, Streams, bound_streams, new_secret, secret_from_seed
from sordino.runs.run import Run, RunError

_DIVERGED = "diverged.json"
_CPU: Any = torch.backends.mkldnn  # torch declares no types for these
_GPU: Any = torch.backends.cudnn
FLOAT32_BACKENDS: tuple[Any, ...] = (
    *(_CPU.matmul, _CPU.conv, _CPU.rnn),
    *(torch.backends.cuda.matmul, _GPU.conv, _GPU.rnn),
)
"""Whatever torch may compute in fewer digits than float32 has."""


class Purpose(StrEnum):
    """What a key is for: each purpose has its own file in RUN/private and its own names in the ledger."""

    RUN = "run"
    NORMALISATION = "normalisation"
    SCORE = "score"
    WORKFLOW = "workflow"
    SEARCH = "search"

    def file(self, run: Run) -> Path:
        return run.private / {Purpose.RUN: "key.json", Purpose.WORKFLOW: "steps.json"}.get(self, f"{self}.json")


class Diverged(ValueError):  # noqa: N818
    """The parameters are no longer finite numbers."""


def _nothing_to_choose(known: dict[str, Any] | None) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Binding:
    """What a key is for: all that must be the same for a stopped run to be resumed with it."""

    plan: str
    """Or its digest: all that the draws depend on besides the data, such as model and optimiser."""
    fingerprint: Callable[[bytes], str]
    """The keyed fingerprint of the data, under a given secret."""
    seed: int | None = None
    """For tests and experiments: it replaces the secret by one that anyone can compute."""
    choose: Callable[[dict[str, Any] | None], dict[str, Any]] = _nothing_to_choose
    """Settles all that decides how sums are rounded, as it was before if that is possible (`Trainable.choose`)."""
    purpose: Purpose = Purpose.RUN
    anywhere: bool = False
    """Whether any environment will do that turns a key into the same noise."""

    def check_finished(self, run: Run, facts: dict[str, Any]) -> None:
        """Refuse the weights of a finished run that had other settings; version 0.1 did not note which."""
        if facts.get("settings", _settings(self.plan, self.seed)) != _settings(self.plan, self.seed):
            raise RunError(
                f"{run.folder} holds a finished run with other settings (another plan, optimiser, loss, model, purpose "
                "or seed): ask for the same, or use another folder, which is charged anew"
            )

    def environment(self) -> dict[str, Any]:
        return {"generator": GENERATOR} if self.anywhere else environment()


def _settings(plan: str, seed: int | None) -> str:
    """Public, for the file of the weights."""
    return digest([plan, seed])


def digest(facts: object) -> str:
    """SHA-256 of public facts, given as JSON values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Key:
    """A secret with all that it is bound to; `lost` counts charged steps that no model contains."""

    secret: str = field(repr=False)
    name: str
    """Public, for entries in the ledger: other plans and data have other names, also under the same seed."""
    seed: int | None
    plan: str
    data: str
    environment: dict[str, Any]
    choices: dict[str, Any] = field(default_factory=dict)
    """The rules and chunks by which the model's gradients are computed."""
    era: int = 0
    lost: int = 0
    began_from: str = ""
    """The seal of the checkpoint with which the era began, until the era has one of its own."""

    @classmethod
    def new(cls, binding: Binding) -> "Key":
        """With a new secret; to be kept before anything is drawn."""
        secret = new_secret() if binding.seed is None else secret_from_seed(binding.seed)
        data = binding.fingerprint(secret)
        name = _name(secret, binding.purpose, binding.plan, data)
        here = binding.environment()
        return cls(secret.hex(), name, binding.seed, binding.plan, data, here, binding.choose(None))

    def finished_facts(self, steps: int, charged: int) -> dict[str, Any]:
        """What is kept with the weights of a finished run: how it was paid for, and with which settings it was made."""
        return {"steps": steps, "run": self.name, "charged": charged, "settings": _settings(self.plan, self.seed)}

    @classmethod
    def read(cls, run: Run, purpose: Purpose = Purpose.RUN) -> "Key | None":
        """The key of what is unfinished in the folder, if there is one."""
        try:
            content = json.loads(purpose.file(run).read_text(encoding="utf-8"))
            secret = bytes.fromhex(content["secret"])
            if "run" in content:
                return cls(name=content.pop("run"), **content)
            # As versions before 0.2 wrote it.
            plan, data = content["moments" if "moments" in content else "question"], content["data"]
            generator = content.get("generator", GENERATOR if purpose is Purpose.WORKFLOW else None)
            here = content.get("environment", {"generator": generator})
            return cls(secret.hex(), _name(secret, purpose, plan, data), content.get("seed"), plan, data, here)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(
                f"the key in {run.private} is damaged: what it was for cannot be resumed; use another folder"
            ) from None

    def keep(self, run: Run, purpose: Purpose = Purpose.RUN) -> None:
        content = asdict(self)
        run.write_private(purpose.file(run).name, {"run": content.pop("name"), **content})

    @staticmethod
    def end(run: Run, *hidden: Path, purpose: Purpose = Purpose.RUN) -> None:
        """Delete the key, and what else is hidden: nobody can repeat or subtract the noise of what has ended."""
        for path in (purpose.file(run), *hidden):
            path.unlink(missing_ok=True)
            partial_of(path).unlink(missing_ok=True)

    @cached_property
    def streams(self) -> Streams:
        """Of this process: a forked child may not draw from them.

        Where a seed is given nothing is secret, and the same numbers are drawn wherever, and however, it is run.
        """
        here = () if self.seed is not None else ("environment", "choices")
        return self.streams_for({name: getattr(self, name) for name in ("plan", "data", *here, "era", "lost")})

    def streams_for(self, facts: dict[str, Any]) -> Streams:
        """Other facts, other numbers."""
        return bound_streams(bytes.fromhex(self.secret), facts, predictable=self.seed is not None)

    def mac(self, text: str) -> bytes:
        return hmac.new(bytes.fromhex(self.secret), text.encode(), hashlib.sha256).digest()

    def is_in(self, ledger: Ledger) -> bool:
        """Whether the ledger has an entry of this key: one of its name, or of its name and more."""
        return any(self.owns(entry.run) for entry in ledger.entries)

    def owns(self, entry: str) -> bool:
        return entry.partition(" ")[0] == self.name

    def reserve(
        self,
        ledger: Ledger,
        event: Event,
        count: int,
        what: str,
        part: str,
        *,
        claimed: Event | None = None,
        entry: str | None = None,
    ) -> int:
        """The number of the key's entry in the ledger, which is opened now if a kill has not left it there.

        `entry` is its name where the key has several.
        """
        name = self.name if entry is None else entry
        number = ledger.number_of(name)
        if number is None:
            seeded = self.seed is not None
            return ledger.begin(event, count, what, part, seeded=seeded, claimed=claimed, run=name)
        known = ledger.entries[number]
        if (known.reserved, known.what, known.part) != (Repeated(event, count), what, part):
            raise RunError(f"the ledger's entry for this is '{known.what}' on {known.part}, not '{what}' on {part}")
        return number

    def write_checkpoint(self, run: Run, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Sealed under the key: other weights would make a second, unpaid release of the same noise."""
        run.write_tensors(run.checkpoint, tensors, facts | {"era": self.era}, self.mac(f"checkpoints of {self.name}"))

    def read_checkpoint(self, run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts, refused if the run did not write them in this era.

        Within an era any of the run's checkpoints will do: steps from it are repeated bit for bit. The facts of one
        that an older version has written have no seal: its steps must not be repeated under the same noise.
        """
        tensors, facts = run.read_tensors(run.checkpoint, self.mac(f"checkpoints of {self.name}"))
        seal = facts.get("seal")
        if seal is not None and facts.get("era") != self.era and seal != self.began_from:
            raise RunError(
                f"{run.checkpoint} is an old copy, from before the run changed its environment: restore the last one"
            )
        return tensors, facts

    def refuse_other(self, run: Run, binding: Binding) -> None:
        """Refuse to resume with another plan or seed, or with other data."""
        if (self.plan, self.seed) != (binding.plan, binding.seed):
            raise RunError(
                f"{run.folder} was started with other settings (another plan, optimiser, model, purpose or seed): "
                "resuming it is refused; use another folder"
            )
        if self.data != binding.fingerprint(bytes.fromhex(self.secret)):
            raise RunError(f"{run.folder} was started with other data: resuming it is refused; use another folder")

    def refuse_other_environment(self, run: Run, binding: Binding) -> None:
        """Refuse where numbers may be drawn or rounded otherwise than when the key was made."""
        if self.environment != binding.environment() or self.choices != binding.choose(self.choices):
            raise RunError(
                f"{run.folder} was started in another environment (versions, threads, processor or rules): resume it "
                "in that environment, or start a new run, which is charged again"
            )

    def resumed(
        self, run: Run, binding: Binding, *, lost: int, repeatable: bool, memoryless: bool, checkpoint: str = ""
    ) -> "Key":
        """The key with which an unfinished training is resumed; `lost` steps are charged but not in its checkpoint.

        In another environment, or where steps are not `repeatable`, lost steps get fresh randomness and are charged
        again, out of the plan's own steps; that needs a sampler that is `memoryless`. `checkpoint` is the seal of the
        one that the training is resumed from.
        """
        self.refuse_other(run, binding)
        here = environment()
        choices = binding.choose(self.choices if self.environment == here else None)
        if repeatable and self.environment == here and self.choices == choices:
            return self
        if not memoryless:
            raise RunError(
                f"{run.folder} was started in another environment (sordino or other versions, threads, processor, "
                "rules), and its batches belong to an epoch's one order: resume it in that environment, or start a new "
                "run"
            )
        # The era keeps a return to an earlier environment from meeting its old noise again.
        now = replace(self, environment=here, choices=choices, era=self.era + 1, lost=lost, began_from=checkpoint)
        now.keep(run)
        return now


@contextmanager
def charged_key(run: Run, ledger: Ledger | None, binding: Binding, *, drawn: bool = False) -> Iterator[Key]:
    """The key of a new run, kept before anything is drawn, or that of a stopped run if it can be replayed.

    A key under which nothing was drawn is replaced if it does not fit, and deleted if what is charged under it is
    refused; a key that has paid stays. Without a ledger nothing is charged. `drawn` says that something was drawn under
    a key in the folder, whatever the ledger holds.

    Guarantee: nothing is released here. One key never meets two plans, two sets of data, two environments or, where a
    mark in the folder says which one has paid, two ledgers: that is refused.
    """
    if ledger is not None:
        ledger.reload()
    known = Key.read(run, binding.purpose)
    paid = known is not None and ledger is not None and known.is_in(ledger)
    with nullcontext() if ledger is None else charging(run, ledger, unpaid=known is not None and not paid):
        key = _fitting(run, known, binding, replaceable=not (paid or drawn)) or Key.new(binding)
        if key is not known:
            if ledger is not None and key.is_in(ledger):
                raise RunError(
                    f"the ledger already holds a {binding.purpose} with this seed, plan and data: choose another seed"
                )
            key.keep(run, binding.purpose)
        try:
            yield key
        except (BudgetExceeded, UnsupportedEvent):
            if key is not known and ledger is not None and not key.is_in(ledger):
                Key.end(run, purpose=binding.purpose)  # something cheaper may have the folder
            raise


def _fitting(run: Run, known: Key | None, binding: Binding, *, replaceable: bool) -> Key | None:
    """The known key if it is bound to the same; None, or refused, if not."""
    if known is not None:
        try:
            known.refuse_other(run, binding)
            known.refuse_other_environment(run, binding)
        except RunError:
            if not replaceable:
                raise
            return None
    return known


@contextmanager
def charging(run: Run, ledger: Ledger, *, unpaid: bool) -> Iterator[None]:
    """While a run charges a ledger, the folder notes how far the ledger has come: an older copy of it is refused.

    `unpaid` says that the folder has a key under which this ledger holds no entry. Either the run was killed before it
    paid, or its mark shows that it has paid from another ledger: then only that ledger is accepted. A new key is kept
    only in here, so that a mark beside a key is never that of an earlier run.
    """
    mark = run.private.resolve() / "ledger.mark.json"
    if unpaid and ledger.is_other_than(mark):
        raise RunError(f"this ledger has not paid for the run in {run.folder}: pass the ledger it was started with")
    with ledger.marking(mark):
        yield


@contextmanager
def until_diverged(run: Run, *hidden: Path) -> Iterator[None]:
    """A run that diverges has ended: its key is deleted, and calling again raises the same error.

    Guarantee: this releases nothing new: that parameters are not finite is computed from what the ledger has paid for.
    Any other error, a kill or an interrupt leaves the key, and the run can be resumed.
    """
    if (run.folder / _DIVERGED).exists():
        Key.end(run, *hidden)
        raise Diverged(f"the training in {run.folder} diverged: lower the learning rate, and use another folder")
    try:
        yield
    except Diverged as problem:
        run.write_json(_DIVERGED, {"diverged": str(problem)})
        Key.end(run, *hidden)
        raise


def _name(secret: bytes, purpose: Purpose, plan: str, data: str) -> str:
    return hmac.new(secret, f"{purpose} {plan} {data}".encode(), hashlib.sha256).hexdigest()[:16]


def environment() -> dict[str, Any]:
    """Whatever may change the numbers of a step, or their rounding."""
    prefixes = ("OMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "ATEN_")
    return {
        "versions": versions(),
        "generator": GENERATOR,
        "machine": platform.machine(),
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)},
        "precision": [str(each.fp32_precision) for each in FLOAT32_BACKENDS],
        "mkldnn": str(torch.backends.mkldnn.enabled),
        "device": "cpu",
    }


def _processor() -> list[str]:
    """Its capability as torch sees it, and its model: kernels are chosen by both."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    kinds = ("model name", "flags", "stepping")
    first = dict(reversed([line.split(":", 1) for line in lines if line.startswith(kinds) and ":" in line]))
    return [torch.backends.cpu.get_cpu_capability(), digest(sorted(first.items()))]
