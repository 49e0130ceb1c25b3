"""The checkpoint: weights and standing of an unfinished run in one file.

Every iterate is a release that the ledger has paid for, and the rest is computed from iterates: nothing to hide.
But a run repeats steps from it under the same noise, so it must be what the run has written: any other weights would
make a second, unpaid release of that noise. A seal under the run's key holds it to that.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sordino.training.continuity import Continuity
from sordino.training.dpsgd import Standing
from sordino.training.optimisers import State, Weights
from sordino.training.run import Run, RunError


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to resume from a step."""

    weights: Weights
    standing: Standing
    seal: str | None = None
    """None of one that an older version has written: its steps must not be repeated under the same noise."""

    @classmethod
    def read(cls, run: Run, bond: Continuity | None = None) -> "Checkpoint | None":
        """The run's checkpoint, if it has one; with the bond, refused if the run did not write it in this era.

        Within an era any of the run's checkpoints will do: steps from it are repeated bit for bit.
        """
        if not run.checkpoint.exists():
            return None
        content, facts = run.read_tensors(run.checkpoint, None if bond is None else _key(bond))
        seal = facts.get("seal")
        if bond is not None and seal is not None and facts.get("era") != bond.era and seal != bond.began_from:
            raise RunError(
                f"{run.checkpoint} is an old copy, from before the run changed its environment: restore the last one"
            )
        weights: Weights = {}
        average: Weights = {}
        state: State = {name: {} for name in facts.get("state", ())}
        for name, value in content.items():
            kind, _, rest = name.partition(".")
            if kind == "state":
                slot, _, rest = rest.partition(".")
                state.setdefault(slot, {})[rest] = value
            else:
                {"weight": weights, "average": average}.get(kind, {})[rest] = value
        clip = facts.get("l2_clip")
        if not isinstance(clip, float) or not weights:
            raise RunError(f"{run.checkpoint} cannot be read: it is damaged, or of another version of sordino")
        return cls(weights, Standing(whole(facts, "done", run), clip, state, average or None), seal)

    def write(self, run: Run, bond: Continuity) -> None:
        standing = self.standing
        content: dict[str, Tensor] = {f"weight.{name}": value for name, value in self.weights.items()}
        for slot, values in standing.state.items():
            content |= {f"state.{slot}.{name}": value for name, value in values.items()}
        content |= {f"average.{name}": value for name, value in (standing.average or {}).items()}
        facts = {"done": standing.done, "l2_clip": float(standing.l2_clip), "state": list(standing.state)}
        run.write_tensors(run.checkpoint, content, facts | {"era": bond.era}, _key(bond))


def _key(bond: Continuity) -> bytes:
    return hmac.new(bytes.fromhex(bond.secret), f"checkpoints of {bond.run}".encode(), hashlib.sha256).digest()


def whole(facts: dict[str, Any], name: str, run: Run) -> int:
    """A count that a file of weights must hold."""
    if not isinstance(facts.get(name), int):
        raise RunError(f"the weights in {run.folder} are damaged: they do not say how many steps they hold")
    return int(facts[name])
