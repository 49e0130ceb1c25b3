"""The checkpoint: weights and standing of an unfinished run in one file.

Every iterate is a release that the ledger has paid for, and the rest is computed from iterates: nothing to hide.
But a run repeats steps from it under the same noise, so it must be what the run has written: any other weights would
make a second, unpaid release of that noise. A seal under the run's key holds it to that.
"""

from dataclasses import dataclass

from torch import Tensor

from sordino.runs import Key, Run, RunError, whole_number
from sordino.training.dpsgd import Standing
from sordino.training.optimisers import State, Weights


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to resume from a step."""

    weights: Weights
    standing: Standing
    seal: str | None = None
    """None of one that an older version has written: its steps must not be repeated under the same noise."""

    @classmethod
    def read(cls, run: Run, key: Key | None = None) -> "Checkpoint | None":
        """The run's checkpoint, if it has one; with the key, refused if the run did not write it in this era."""
        if not run.checkpoint.exists():
            return None
        content, facts = run.read_tensors(run.checkpoint) if key is None else key.read_checkpoint(run)
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
        return cls(weights, Standing(whole_number(facts, "done", run), clip, state, average or None), facts.get("seal"))

    def write(self, run: Run, key: Key) -> None:
        standing = self.standing
        content: dict[str, Tensor] = {f"weight.{name}": value for name, value in self.weights.items()}
        for slot, values in standing.state.items():
            content |= {f"state.{slot}.{name}": value for name, value in values.items()}
        content |= {f"average.{name}": value for name, value in (standing.average or {}).items()}
        facts = {"done": standing.done, "l2_clip": float(standing.l2_clip), "state": list(standing.state)}
        key.write_checkpoint(run, content, facts)
