"""The key of a run's noise: a secret, bound to what it is for, charged once, replayed after a kill.

A key is bound to a plan, to data and to an environment. Where all agree, a step that a kill has lost is repeated bit
for bit, releases nothing new and is not charged again. In another environment, or with other rules and chunks for the
gradients, rounding may differ, and a repeated step would be a second release with the same noise. Another plan or other
data are refused.
"""

import hashlib
import hmac
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.budget import Ledger, partial_of, versions
from sordino.mechanisms import GENERATOR, Streams, bound_streams, new_secret, secret_from_seed
from sordino.runs.run import Run, RunError

_FILE, _DIVERGED = "key.json", "diverged.json"
_CPU: Any = torch.backends.mkldnn  # torch declares no types for these
_GPU: Any = torch.backends.cudnn
FLOAT32_BACKENDS: tuple[Any, ...] = (
    *(_CPU.matmul, _CPU.conv, _CPU.rnn),
    *(torch.backends.cuda.matmul, _GPU.conv, _GPU.rnn),
)
"""Whatever torch may compute in fewer digits than float32 has."""


class Diverged(ValueError):  # noqa: N818
    """The parameters are no longer finite numbers."""


def _nothing_to_choose(known: dict[str, Any] | None) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Binding:
    """What a key is for: all that must be the same for a stopped run to be resumed with it."""

    plan: str
    """A digest of all that the draws depend on besides the data: plan, model, optimiser."""
    fingerprint: Callable[[bytes], str]
    """Of the data, under the secret it is given."""
    seed: int | None = None
    """For tests and experiments: it replaces the secret by one that anyone can compute."""
    choose: Callable[[dict[str, Any] | None], dict[str, Any]] = _nothing_to_choose
    """Settles all that decides how sums are rounded, as it was before if that is possible (`Trainee.choose`)."""


def digest(facts: object) -> str:
    """Of public facts that are JSON values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Key:
    """The secret of a run with all that it is bound to; `lost` counts charged steps that no model contains."""

    secret: str = field(repr=False)
    name: str
    """Public, for the run's entry in the ledger."""
    seed: int | None
    plan: str
    data: str
    environment: dict[str, Any]
    choices: dict[str, Any]
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
        name = hmac.new(secret, f"run {binding.plan} {data}".encode(), hashlib.sha256).hexdigest()[:16]
        return cls(secret.hex(), name, binding.seed, binding.plan, data, environment(), binding.choose(None))

    @classmethod
    def read(cls, run: Run) -> "Key | None":
        """The key of the unfinished run in the folder, if it has one."""
        try:
            content = json.loads((run.private / _FILE).read_text())
            return cls(name=content.pop("run"), **content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(f"the key in {run.private} is damaged: the run cannot be resumed; start a new one") from None

    def keep(self, run: Run) -> None:
        content = asdict(self)
        run.write_private(_FILE, {"run": content.pop("name"), **content})

    @staticmethod
    def end(run: Run, *hidden: Path) -> None:
        """Delete the run's key, and what else is hidden: nobody can repeat or subtract the noise of an ended run."""
        for path in (run.private / _FILE, *hidden):
            path.unlink(missing_ok=True)
            partial_of(path).unlink(missing_ok=True)

    @cached_property
    def streams(self) -> Streams:
        """Of this process: a forked child may not draw from them.

        Where a seed is given nothing is secret, and the same numbers are drawn wherever, and however, it is run.
        """
        here = () if self.seed is not None else ("environment", "choices")
        facts = {name: getattr(self, name) for name in ("plan", "data", *here, "era", "lost")}
        return bound_streams(bytes.fromhex(self.secret), facts, predictable=self.seed is not None)

    def write_checkpoint(self, run: Run, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Sealed under the key: other weights would make a second, unpaid release of the same noise."""
        run.write_tensors(run.checkpoint, tensors, facts | {"era": self.era}, self._seal_key)

    def read_checkpoint(self, run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts, refused if the run did not write them in this era.

        Within an era any of the run's checkpoints will do: steps from it are repeated bit for bit. The facts of one
        that an older version has written have no seal: its steps must not be repeated under the same noise.
        """
        tensors, facts = run.read_tensors(run.checkpoint, self._seal_key)
        seal = facts.get("seal")
        if seal is not None and facts.get("era") != self.era and seal != self.began_from:
            raise RunError(
                f"{run.checkpoint} is an old copy, from before the run changed its environment: restore the last one"
            )
        return tensors, facts

    @property
    def _seal_key(self) -> bytes:
        text = f"checkpoints of {self.name}"
        return hmac.new(bytes.fromhex(self.secret), text.encode(), hashlib.sha256).digest()

    def refuse_other(self, run: Run, binding: Binding) -> None:
        """Refuse to resume with another plan, seed or other data."""
        if (self.plan, self.seed) != (binding.plan, binding.seed):
            raise RunError(
                f"{run.folder} was started with another plan, optimiser, model, purpose or seed: resuming it is refused"
            )
        if self.data != binding.fingerprint(bytes.fromhex(self.secret)):
            raise RunError(f"{run.folder} was started with other data: resuming it is refused")

    def refuse_other_environment(self, run: Run, binding: Binding) -> None:
        """Refuse where numbers may be rounded otherwise than when the key was made."""
        here = environment()
        if self.environment != here or self.choices != binding.choose(self.choices):
            raise RunError(
                f"{run.folder} was started in another environment (versions, threads, processor or rules): resume it "
                "in that environment, or start a new run, which is charged anew"
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
