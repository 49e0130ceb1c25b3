"""What ties a run to its key: same plan, same data, same environment, or no repeated step.

Where all agree, a lost step is repeated bit for bit and shows nothing new, so it is not charged again. In another
environment, or with other rules and chunks for the gradients, rounding may differ, and a repeated step would be a
second release with the same noise: lost steps then get fresh randomness and are charged again, out of the plan's own
steps. Other plans or data are refused.
"""

import hashlib
import hmac
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sordino.budget import Ledger, partial_of, versions
from sordino.gradients import precision
from sordino.mechanisms import GENERATOR, Streams, bound_streams, data_tag, new_secret, secret_from_seed
from sordino.training.dpsgd import Diverged, Training
from sordino.training.run import Run, RunError

_FILE, _DIVERGED = "key.json", "diverged.json"


@dataclass(frozen=True)
class Continuity:
    """The secret of a run with all that it is bound to; `lost` counts charged steps that no model contains."""

    secret: str = field(repr=False)
    run: str
    """A public name, for the run's entry in the ledger."""
    seed: int | None
    plan: str
    data: str
    environment: dict[str, Any]
    choices: dict[str, Any]
    """The rules and chunks by which the model's gradients are computed."""
    era: int
    lost: int
    began_from: str = ""
    """The seal of the checkpoint with which the era began, until the era has one of its own."""

    @cached_property
    def streams(self) -> Streams:
        """Of this process: a forked child may not draw from them.

        Where a seed is given nothing is secret, and the same numbers are drawn wherever, and however, it is run.
        """
        here = () if self.seed is not None else ("environment", "choices")
        facts = {name: getattr(self, name) for name in ("plan", "data", *here, "era", "lost")}
        return bound_streams(bytes.fromhex(self.secret), facts, predictable=self.seed is not None)


def new(training: Training, seed: int | None) -> Continuity:
    """A bond with a new secret, to be kept before anything is drawn; from a seed only for tests and experiments."""
    secret = new_secret() if seed is None else secret_from_seed(seed)
    digest, tag = _digest(training), data_tag(secret, *training.trainee.data())
    name = hmac.new(secret, f"run {digest} {tag}".encode(), hashlib.sha256).hexdigest()[:16]
    choices = training.trainee.choose(None, training.plan.sampler.expected_batch_size)
    return Continuity(secret.hex(), name, seed, digest, tag, environment(), choices, era=0, lost=0)


def keep(run: Run, bond: Continuity) -> None:
    run.write_private(_FILE, asdict(bond))


def resume(
    run: Run,
    before: Continuity,
    training: Training,
    seed: int | None,
    *,
    lost: int,
    repeatable: bool,
    checkpoint: str = "",
) -> Continuity:
    """The bond under which an unfinished run may go on; `lost` steps are charged but not in its checkpoint.

    `checkpoint` is the seal of the one that it goes on from.
    """
    if before.plan != _digest(training) or before.seed != seed:
        raise RunError(f"{run.folder} was started with another plan, optimiser, model or seed: resuming it is refused")
    if before.data != data_tag(bytes.fromhex(before.secret), *training.trainee.data()):
        raise RunError(f"{run.folder} was started with other data: resuming it is refused")
    here, sampler = environment(), training.plan.sampler
    known = before.choices if before.environment == here else None
    choices = training.trainee.choose(known, sampler.expected_batch_size)
    if repeatable and before.environment == here and before.choices == choices:
        return before
    if not sampler.memoryless:
        raise RunError(
            f"{run.folder} was started in another environment (sordino or other versions, threads, processor, rules), "
            "and its batches belong to an epoch's one order: resume it in that environment, or start a new run"
        )
    # The era keeps a return to an earlier environment from meeting its old noise again.
    now = replace(before, environment=here, choices=choices, era=before.era + 1, lost=lost, began_from=checkpoint)
    keep(run, now)
    return now


def read(run: Run) -> Continuity:
    """The bond of an unfinished run."""
    try:
        return Continuity(**json.loads((run.private / _FILE).read_text()))
    except FileNotFoundError:
        raise RunError(f"{run.private} has no key: without it the run cannot go on; start a new one") from None
    except (OSError, ValueError, TypeError, RecursionError):
        raise RunError(f"the key in {run.private} is damaged: the run cannot go on; start a new one") from None


def exists(run: Run) -> bool:
    return (run.private / _FILE).is_file()


def end(run: Run, *hidden: Path) -> None:
    """Delete the key, and what else is hidden: nobody can repeat or peel off the noise of a run that has ended."""
    for path in (run.private / _FILE, *hidden):
        path.unlink(missing_ok=True)
        partial_of(path).unlink(missing_ok=True)


@contextmanager
def charging(run: Run, ledger: Ledger, *, unpaid: bool) -> Iterator[None]:
    """While a run charges a ledger, the folder notes how far the ledger has come: an older copy of it is refused.

    `unpaid` says that the folder has a key under which this ledger holds no entry. Either the run was killed before it
    paid, or it has paid from another ledger, which its mark then tells: that run is left to the ledger that paid. A new
    key is kept only in here, so that a mark beside a key is never that of an earlier run.
    """
    mark = run.private.resolve() / "ledger.mark.json"
    if unpaid and ledger.is_other_than(mark):
        raise RunError(f"this ledger has not paid for the run in {run.folder}: pass the ledger it was started with")
    with ledger.marking(mark):
        yield


@contextmanager
def until_diverged(run: Run, *hidden: Path) -> Iterator[None]:
    """A run that diverges has ended: that is kept, since its key is deleted, and calling again says the same.

    Guarantee: it shows nothing new: that parameters are not finite is computed from what the ledger has paid for. Any
    other error, a kill or an interrupt leaves the key, and the run can be resumed.
    """
    if (run.folder / _DIVERGED).exists():
        end(run, *hidden)
        raise Diverged(f"the training in {run.folder} diverged: lower the learning rate, and use another folder")
    try:
        yield
    except Diverged as problem:
        run.write_json(_DIVERGED, {"diverged": str(problem)})
        end(run, *hidden)
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
        "precision": precision.settings(),
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
    known = hashlib.sha256(json.dumps(sorted(first.items())).encode()).hexdigest()
    return [torch.backends.cpu.get_cpu_capability(), known]


def _digest(training: Training) -> str:
    return hashlib.sha256(json.dumps(training.facts(), sort_keys=True).encode()).hexdigest()
