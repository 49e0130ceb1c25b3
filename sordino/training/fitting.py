"""A private training run from start to finish, or from wherever it was killed.

Block by block: charge the ledger on disk, draw and train the block's steps, write the checkpoint. A killed process has
never drawn more than the ledger says, and loses at most one block of work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sordino.budget import Ledger
from sordino.budget.ledger_content import Entry
from sordino.training import continuity
from sordino.training.continuity import Continuity
from sordino.training.dpsgd import Momentum, Trainee, check_finite, train_steps
from sordino.training.plan import Plan
from sordino.training.run import Run, RunError

BLOCKS = 20

Progress = Callable[[int, int], None]


def fit(
    run: Run,
    plan: Plan,
    trainee: Trainee,
    optimiser: Momentum,
    ledger: Ledger,
    *,
    what: str = "training",
    part: str = "train",
    seed: int | None = None,
    checkpoint_every: int | None = None,
    on_progress: Progress = lambda done, total: None,
) -> int:
    """Train the plan's steps, going on from the run's checkpoint if there is one; returns the steps trained.

    That number is below the plan's only if steps were lost to a change of environment and had to be charged twice. At
    the end the weights are in the run's folder and the key of the noise is deleted; calling again loads the weights.
    """
    if len(trainee.data()[0]) != plan.sampler.n:
        raise RunError(f"the plan is for n={plan.sampler.n} records, the data has {len(trainee.data()[0])}")
    block = max(1, plan.steps // BLOCKS) if checkpoint_every is None else checkpoint_every
    if block < 1:
        raise ValueError(f"checkpoint_every must be at least 1, not {checkpoint_every}")
    with run.alone():
        ledger.reload()
        if run.model.exists():
            done = _load_finished(run, plan, trainee, ledger)
        else:
            bond, velocity, done = _begin_or_resume(run, plan, trainee, optimiser, ledger, seed)
            number = _entry_number(ledger, bond, plan, what, part)
            total = plan.steps - bond.lost
            on_progress(done, total)
            while done < total:
                # Blocks end at multiples of their length, so that resumed runs cut where an uninterrupted one does.
                last = min(total, (done // block + 1) * block)
                ledger.raise_count(number, max(ledger.entries[number].count, last + bond.lost))
                train_steps(plan, trainee, optimiser, velocity, bond.streams, done, last)
                check_finite(trainee.parameters)
                done = last
                _save_checkpoint(run, trainee, velocity, done)
                on_progress(done, total)
            facts = {"steps": done, "run": bond.run, "charged": ledger.entries[number].count}
            run.write_tensors(run.model, trainee.parameters, facts)
        run.checkpoint.unlink(missing_ok=True)
        continuity.end(run)
    return done


def _begin_or_resume(
    run: Run, plan: Plan, trainee: Trainee, optimiser: Momentum, ledger: Ledger, seed: int | None
) -> tuple[Continuity, dict[str, Tensor], int]:
    """The run's bond, the optimiser's velocity and the number of steps done, with the parameters at that step."""
    checkpoint = _Checkpoint.read(run)
    if checkpoint is None and not continuity.exists(run):
        bond = continuity.new(plan, optimiser, trainee, seed)
        entry = _entry_of(ledger, bond.run)
        if entry is not None and entry.count:
            raise RunError("the ledger already holds a run with this seed, plan and data: choose another seed")
        continuity.keep(run, bond)
    else:
        known = continuity.read(run)
        entry = _entry_of(ledger, known.run)
        charged = 0 if entry is None else entry.count
        done = checkpoint.done if checkpoint else 0
        if charged < done + known.lost:
            raise RunError(
                f"the ledger holds {charged} steps of a run that has trained {done}: it is not this run's ledger, or "
                "an old copy of it; restore the right one"
            )
        bond = continuity.resume(run, known, plan, optimiser, trainee, seed, lost=charged - done)
    if checkpoint is None:
        trainee.initialise(bond.streams)
        return bond, optimiser.start(trainee.parameters), 0
    trainee.parameters = checkpoint.parameters
    return bond, checkpoint.velocity, checkpoint.done


def _entry_of(ledger: Ledger, name: str) -> Entry | None:
    return next((entry for entry in ledger.entries if entry.run == name), None)


def _entry_number(ledger: Ledger, bond: Continuity, plan: Plan, what: str, part: str) -> int:
    """The run's entry in the ledger, opened now if it is not there yet."""
    entry = _entry_of(ledger, bond.run)
    if entry is None:
        claimed, seeded = plan.sampler.claimed(plan.noise_multiplier), bond.seed is not None
        return ledger.begin(plan.step_event, plan.steps, what, part, seeded=seeded, claimed=claimed, run=bond.run)
    if (entry.reserved, entry.what, entry.part) != (plan.event, what, part):
        raise RunError(f"the ledger's entry of this run is '{entry.what}' on {entry.part}, not '{what}' on {part}")
    return ledger.entries.index(entry)


def _load_finished(run: Run, plan: Plan, trainee: Trainee, ledger: Ledger) -> int:
    """The weights of a finished run, if this ledger is the one that paid for them."""
    parameters, facts = run.read_tensors(run.model)
    entry = _entry_of(ledger, facts.get("run", "?"))
    if entry is None or entry.reserved != plan.event or entry.count < _whole(facts, "charged", run):
        raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
    trainee.parameters = parameters
    return _whole(facts, "steps", run)


@dataclass(frozen=True)
class _Checkpoint:
    """Every iterate is a release that the ledger has paid for, so checkpoints need no hiding."""

    parameters: dict[str, Tensor]
    velocity: dict[str, Tensor]
    done: int

    @classmethod
    def read(cls, run: Run) -> "_Checkpoint | None":
        if not run.checkpoint.exists():
            return None
        state, facts = run.read_tensors(run.checkpoint)
        parts: dict[str, dict[str, Tensor]] = {"parameter": {}, "velocity": {}}
        for name, value in state.items():
            kind, _, parameter = name.partition(".")
            parts.setdefault(kind, {})[parameter] = value
        return cls(parts["parameter"], parts["velocity"], _whole(facts, "done", run))


def _save_checkpoint(run: Run, trainee: Trainee, velocity: dict[str, Tensor], done: int) -> None:
    state = {f"parameter.{name}": value for name, value in trainee.parameters.items()}
    state |= {f"velocity.{name}": value for name, value in velocity.items()}
    run.write_tensors(run.checkpoint, state, {"done": done})


def _whole(facts: dict[str, Any], name: str, run: Run) -> int:
    if not isinstance(facts.get(name), int):
        raise RunError(f"the weights in {run.folder} are damaged: they do not say how many steps they hold")
    return int(facts[name])
