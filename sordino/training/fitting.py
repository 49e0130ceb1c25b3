"""A private training run from start to finish, or from wherever it was killed.

Block by block: charge the ledger on disk, draw and train the block's steps, write the checkpoint. A killed process has
never drawn more than the ledger says, and loses at most one block of work.
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from sordino.budget import Ledger
from sordino.training import continuity
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
    with run.alone():
        if not run.model.exists():
            done = _fit(run, plan, trainee, optimiser, ledger, what, part, seed, checkpoint_every, on_progress)
            run.write_tensors(run.model, trainee.parameters, {"steps": str(done)})
        run.checkpoint.unlink(missing_ok=True)
        continuity.end(run)
    trainee.parameters, facts = run.read_tensors(run.model)
    return _steps(facts, "steps", run.model)


def _fit(
    run: Run,
    plan: Plan,
    trainee: Trainee,
    optimiser: Momentum,
    ledger: Ledger,
    what: str,
    part: str,
    seed: int | None,
    checkpoint_every: int | None,
    on_progress: Progress,
) -> int:
    number = _entry_number(ledger, plan, what, part)
    charged = 0 if number is None else ledger.entries[number].count
    velocity, done = _restore(run, trainee, optimiser)
    if charged == 0 and not continuity.exists(run):
        bond = continuity.start(run, plan, optimiser, trainee, seed)
    else:
        bond = continuity.resume(run, plan, optimiser, trainee, seed, charged=charged, done=done)
    if number is None:
        claimed = plan.sampler.claimed(plan.noise_multiplier)
        number = ledger.begin(plan.step_event, plan.steps, what, part, seeded=seed is not None, claimed=claimed)
    if done == 0 and not trainee.parameters:
        trainee.initialise(bond.streams)
        velocity = optimiser.start(trainee.parameters)

    total = plan.steps - bond.lost
    block = checkpoint_every or max(1, plan.steps // BLOCKS)
    on_progress(done, total)
    while done < total:
        # Blocks end at multiples of their length, so that resumed runs cut where an uninterrupted one does.
        last = min(total, (done // block + 1) * block)
        ledger.raise_count(number, max(charged, last + bond.lost))
        for _ in train_steps(plan, trainee, optimiser, velocity, bond.streams, done, last):
            pass
        check_finite(trainee.parameters)
        done = last
        _save(run, trainee, velocity, done)
        on_progress(done, total)
    return done


def _entry_number(ledger: Ledger, plan: Plan, what: str, part: str) -> int | None:
    """The entry that an interrupted run of this plan has opened."""
    for number, entry in enumerate(ledger.entries):
        if (entry.reserved, entry.what, entry.part) == (plan.event, what, part):
            return number
    return None


def _save(run: Run, trainee: Trainee, velocity: dict[str, Tensor], done: int) -> None:
    # Every iterate is a release that the ledger has paid for, so checkpoints need no hiding.
    state = {f"parameter.{name}": value for name, value in trainee.parameters.items()}
    state |= {f"velocity.{name}": value for name, value in velocity.items()}
    run.write_tensors(run.checkpoint, state, {"done": str(done)})


def _restore(run: Run, trainee: Trainee, optimiser: Momentum) -> tuple[dict[str, Tensor], int]:
    if not run.checkpoint.exists():
        return {}, 0
    state, facts = run.read_tensors(run.checkpoint)
    velocity: dict[str, Tensor] = {}
    for name, value in state.items():
        kind, _, parameter = name.partition(".")
        (trainee.parameters if kind == "parameter" else velocity)[parameter] = value
    return velocity, _steps(facts, "done", run.checkpoint)


def _steps(facts: dict[str, str], name: str, path: Path) -> int:
    try:
        return int(facts[name])
    except (KeyError, ValueError):
        raise RunError(f"{path} is damaged: it does not say how many steps it holds") from None
