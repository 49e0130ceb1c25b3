"""What ties a run to its key: same plan, same data, same environment, or no repeated step.

Where all agree, a lost step is repeated bit for bit and shows nothing new, so it is not charged again. In another
environment rounding may differ, and a repeated step would be a second release with the same noise: lost steps then
get fresh randomness and are charged again, out of the plan's own steps. Other plans or data are refused.
"""

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sordino.budget.ledger_file import partial_of
from sordino.budget.statement import versions
from sordino.mechanisms.streams import Streams, bound_streams, data_tag, new_secret, secret_from_seed
from sordino.training.dpsgd import Momentum, Trainee
from sordino.training.plan import Plan
from sordino.training.run import Run, RunError

_FILE = "key.json"


@dataclass(frozen=True)
class Continuity:
    """The secret of a run with all that it is bound to; `lost` counts charged steps that no model contains."""

    secret: str
    seed: int | None
    plan: str
    data: str
    environment: dict[str, Any]
    era: int
    lost: int

    @property
    def streams(self) -> Streams:
        facts = {key: value for key, value in asdict(self).items() if key not in ("secret", "seed")}
        return bound_streams(bytes.fromhex(self.secret), facts)


def start(run: Run, plan: Plan, optimiser: Momentum, trainee: Trainee, seed: int | None) -> Continuity:
    """A new secret, on disk before anything is drawn with it; from a seed only for tests and experiments."""
    secret = new_secret() if seed is None else secret_from_seed(seed)
    tag = data_tag(secret, *trainee.data())
    continuity = Continuity(secret.hex(), seed, _digest(plan, optimiser), tag, environment(), era=0, lost=0)
    run.write_private(_FILE, asdict(continuity))
    return continuity


def resume(
    run: Run, plan: Plan, optimiser: Momentum, trainee: Trainee, seed: int | None, *, charged: int, done: int
) -> Continuity:
    """The secret of an unfinished run, if it may go on: `charged` steps are in the ledger, `done` in the checkpoint."""
    before = _read(run)
    if before.plan != _digest(plan, optimiser) or before.seed != seed:
        raise RunError(f"{run.folder} was started with another plan, optimiser or seed: resuming it is refused")
    if before.data != data_tag(bytes.fromhex(before.secret), *trainee.data()):
        raise RunError(f"{run.folder} was started with other data: resuming it is refused")
    if before.environment == environment():
        return before
    # The era keeps a return to an earlier environment from meeting its old noise again.
    now = Continuity(before.secret, seed, before.plan, before.data, environment(), before.era + 1, lost=charged - done)
    run.write_private(_FILE, asdict(now))
    return now


def exists(run: Run) -> bool:
    return (run.private / _FILE).is_file()


def end(run: Run) -> None:
    """Delete the key: nobody can repeat or peel off the noise of a finished run."""
    for path in (run.private / _FILE, partial_of(run.private / _FILE)):
        path.unlink(missing_ok=True)


def environment() -> dict[str, Any]:
    """Whatever may change the rounding of a step."""
    return {
        "versions": versions(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
    }


def _read(run: Run) -> Continuity:
    try:
        return Continuity(**json.loads((run.private / _FILE).read_text()))
    except FileNotFoundError:
        raise RunError(f"{run.private} has no key: without it the run cannot go on; start a new one") from None
    except (OSError, ValueError, TypeError):
        raise RunError(f"the key in {run.private} is damaged: the run cannot go on; start a new one") from None


def _digest(plan: Plan, optimiser: Momentum) -> str:
    text = json.dumps([plan.to_json(), optimiser.to_json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
