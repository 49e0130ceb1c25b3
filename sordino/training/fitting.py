"""A private training run from start to finish, or from wherever it was killed.

Block by block: charge the ledger on disk, draw and train the block's steps, write the checkpoint. A killed process has
never drawn more than the ledger says, and loses at most one block of work.
"""

import warnings
from collections.abc import Callable

from sordino.budget import BudgetExceeded, Entry, Ledger, UnsupportedEvent
from sordino.mechanisms import data_tag
from sordino.runs import Binding, Key, Run, RunError, charging, digest, until_diverged, whole_number
from sordino.training.averaging import Averaging
from sordino.training.checkpoint import Checkpoint
from sordino.training.dpsgd import (
    Standing,
    Steps,
    Trainee,
    Training,
    at_once,
    check_finite,
    refuse_single_precision,
    steps_until,
)
from sordino.training.optimisers import Optimiser
from sordino.training.plan import Plan

BLOCKS = 20

Progress = Callable[[int, int], None]


def fitting(
    run: Run,
    plan: Plan,
    trainee: Trainee,
    optimiser: Optimiser,
    ledger: Ledger,
    *,
    averaging: Averaging | None = None,
    what: str = "training",
    part: str = "train",
    seed: int | None = None,
    checkpoint_every: int | None = None,
    on_progress: Progress = lambda done, total: None,
    on_trained: Callable[[Standing], None] = lambda standing: None,
) -> Steps[int]:
    """Train the plan's steps, going on from the run's checkpoint if there is one; returns the steps trained.

    That number is below the plan's only if steps were lost to a change of environment and had to be charged twice. At
    the end the weights (with `averaging`, the averaged ones) are in the model and in the run's folder; calling again
    loads the weights. The key of the noise is deleted at the end, and also if a new plan is refused or the training
    diverges. `on_trained` is told, before that, where the run stands; once more if the run is killed in between.
    """
    if len(trainee.data()[0]) != plan.sampler.n:
        raise RunError(f"the plan is for n={plan.sampler.n} records, the data has {len(trainee.data()[0])}")
    ledger.refuse_add_remove()
    block = max(1, plan.steps // BLOCKS) if checkpoint_every is None else checkpoint_every
    if block < 1:
        raise ValueError(f"checkpoint_every must be at least 1, not {checkpoint_every}")
    training = Training(plan, trainee, optimiser, averaging)
    refuse_single_precision(plan, trainee.weights(), getattr(trainee, "narrow_operation", lambda: None))
    with run.alone(), until_diverged(run):
        ledger.reload()
        if run.model.exists():
            done = _load_finished(run, plan, trainee, ledger)
        else:
            known = Key.read(run)
            if known is None and run.checkpoint.exists():
                raise RunError(f"{run.private} has no key: without it the run cannot be resumed; start a new one")
            unpaid = known is not None and ledger.number_of(known.name) is None
            with charging(run, ledger, unpaid=unpaid):
                key, standing = _begin_or_resume(run, training, ledger, known, seed)
                try:
                    number = _entry_number(ledger, key, plan, what, part)
                except (BudgetExceeded, UnsupportedEvent):
                    if known is None:  # nothing was drawn under the new key: a cheaper plan may have the folder
                        Key.end(run, run.checkpoint)
                    raise
                total = plan.steps - key.lost
                on_progress(standing.done, total)
                while standing.done < total:
                    # Blocks end at multiples of their length, so that resumed runs cut where an uninterrupted one does.
                    last = min(total, (standing.done // block + 1) * block)
                    ledger.raise_count(number, max(ledger.entries[number].count, last + key.lost))
                    yield from steps_until(training, standing, key.streams, last)
                    check_finite(trainee.parameters)
                    Checkpoint(trainee.weights(), standing).write(run, key)
                    on_progress(last, total)
                done = standing.done
                on_trained(standing)
                trainee.load(trainee.weights() | (standing.average or {}))
                facts = {"steps": done, "run": key.name, "charged": ledger.entries[number].count}
                run.write_tensors(run.model, trainee.weights(), facts)
        Key.end(run, run.checkpoint)
    return done


fit = at_once(fitting, "fit")


def _begin_or_resume(
    run: Run, training: Training, ledger: Ledger, known: Key | None, seed: int | None
) -> tuple[Key, Standing]:
    """The run's key and standing, with the model's weights at that step."""
    checkpoint, batch = None, training.plan.sampler.expected_batch_size
    binding = Binding(
        digest(training.facts()),
        lambda secret: data_tag(secret, *training.trainee.data()),
        seed,
        lambda known: training.trainee.choose(known, batch),
    )
    if known is None:
        key = Key.new(binding)
        entry = _entry_of(ledger, key.name)
        if entry is not None and entry.count:
            raise RunError("the ledger already holds a run with this seed, plan and data: choose another seed")
        key.keep(run)
    else:
        checkpoint = Checkpoint.read(run, known)
        entry = _entry_of(ledger, known.name)
        charged = 0 if entry is None else entry.count
        done = checkpoint.standing.done if checkpoint else 0
        if charged < done + known.lost:
            raise RunError(
                f"the ledger holds {charged} steps of a run that has trained {done}: it is not this run's ledger, or "
                "an old copy of it; restore the right one"
            )
        # Steps that were drawn from a start that is gone, or cannot be proved the same, may differ if drawn again.
        seal = checkpoint.seal if checkpoint else None
        repeatable = seal is not None or charged == 0 or (checkpoint is not None and seed is not None)
        lost = charged - done
        key = known.resumed(
            run,
            binding,
            lost=lost,
            repeatable=repeatable,
            memoryless=training.plan.sampler.memoryless,
            checkpoint=seal or "",
        )
        if not repeatable and lost > known.lost:
            warnings.warn(
                f"{lost - known.lost} of the {charged} steps that are charged cannot be repeated, since the checkpoint "
                f"is missing or has no checksum: the model will have {training.plan.steps - lost} of "
                f"{training.plan.steps} steps",
                stacklevel=2,
            )
    if checkpoint is not None:
        training.trainee.load(checkpoint.weights)
        return key, checkpoint.standing
    training.trainee.initialise(key.streams)
    standing = training.start()
    # Kept before the first draw: whatever the model is when the run goes on, it starts from the same weights.
    Checkpoint(training.trainee.weights(), standing).write(run, key)
    return key, standing


def _entry_of(ledger: Ledger, name: str) -> Entry | None:
    number = ledger.number_of(name)
    return None if number is None else ledger.entries[number]


def _entry_number(ledger: Ledger, key: Key, plan: Plan, what: str, part: str) -> int:
    """The run's entry in the ledger, opened now if it is not there yet."""
    number = ledger.number_of(key.name)
    if number is None:
        claimed, seeded = plan.claimed_step, key.seed is not None
        return ledger.begin(plan.step_event, plan.steps, what, part, seeded=seeded, claimed=claimed, run=key.name)
    entry = ledger.entries[number]
    if (entry.reserved, entry.what, entry.part) != (plan.event, what, part):
        raise RunError(f"the ledger's entry of this run is '{entry.what}' on {entry.part}, not '{what}' on {part}")
    return number


def _load_finished(run: Run, plan: Plan, trainee: Trainee, ledger: Ledger) -> int:
    """The weights of a finished run, if this ledger is the one that paid for them."""
    weights, facts = run.read_tensors(run.model)
    entry = _entry_of(ledger, facts.get("run", "?"))
    if entry is None or entry.reserved != plan.event or entry.count < whole_number(facts, "charged", run):
        raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
    trainee.load(weights)
    return whole_number(facts, "steps", run)
