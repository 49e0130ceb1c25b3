"""The checkpoint: weights and standing of an unfinished run in one file.

Every iterate is a release that the ledger has paid for, and the rest is computed from iterates: nothing to hide.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sordino.training.dpsgd import Standing
from sordino.training.optimisers import State, Weights
from sordino.training.run import Run, RunError


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on from a step."""

    weights: Weights
    standing: Standing

    @classmethod
    def read(cls, run: Run) -> "Checkpoint | None":
        if not run.checkpoint.exists():
            return None
        content, facts = run.read_tensors(run.checkpoint)
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
        return cls(weights, Standing(whole(facts, "done", run), clip, state, average or None))

    def write(self, run: Run) -> None:
        standing = self.standing
        content: dict[str, Tensor] = {f"weight.{name}": value for name, value in self.weights.items()}
        for slot, values in standing.state.items():
            content |= {f"state.{slot}.{name}": value for name, value in values.items()}
        content |= {f"average.{name}": value for name, value in (standing.average or {}).items()}
        facts = {"done": standing.done, "l2_clip": float(standing.l2_clip), "state": list(standing.state)}
        run.write_tensors(run.checkpoint, content, facts)


def whole(facts: dict[str, Any], name: str, run: Run) -> int:
    """A count that a file of weights must hold."""
    if not isinstance(facts.get(name), int):
        raise RunError(f"the weights in {run.folder} are damaged: they do not say how many steps they hold")
    return int(facts[name])
