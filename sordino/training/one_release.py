"""Training of which nothing is told but the end: charged once, in full, before its first step; all else stays hidden.

Its state is no release that a ledger has paid for, so it lives in RUN/private until the end and is then deleted. A
stopped run may go on bit for bit, which shows nothing new, or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sordino.budget import BudgetExceeded, Event, Ledger, UnsupportedEvent
from sordino.mechanisms import data_tag
from sordino.runs import Binding, Key, Run, RunError, charging, digest, until_diverged
from sordino.training.optimisers import Weights


def _nothing_to_choose(known: dict[str, Any] | None) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class OneRelease:
    """What is to be done, what it costs, and what it is bound to."""

    facts: list[Any]
    """All that must be the same for a stopped run to go on."""
    data: tuple[NDArray[Any], ...]
    steps: int
    event: Event
    claimed: Event | None
    hidden: str
    """The file in RUN/private that holds its state."""
    choose: Callable[[dict[str, Any] | None], dict[str, Any]] = _nothing_to_choose
    """Settles all that decides how sums are rounded, as known from before if that can be (`Trainee.choose`)."""


def release_once(
    run: Run,
    training: OneRelease,
    train: Callable[[Key], Weights],
    ledger: Ledger,
    *,
    what: str,
    part: str,
    seed: int | None,
) -> Weights:
    """Charge, train, keep and return the final weights; calling again loads them.

    Guarantee: that of the training's event, charged before `train` is called; a run that was stopped has told nothing
    and stays charged. Its state and key are deleted at the end, and also if it diverges. With another plan, other data
    or seed, or in another going on is refused, and a new run is charged anew.
    """
    ledger.refuse_add_remove()
    hidden = run.private / training.hidden
    with run.alone(), until_diverged(run, hidden):
        ledger.reload()
        if run.model.exists():
            weights, facts = run.read_tensors(run.model)
            number = ledger.number_of(facts.get("run", ""))
            entry = None if number is None else ledger.entries[number]
            if entry is None or not entry.count or entry.event != training.event:
                raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
        else:
            known = Key.read(run)
            unpaid = known is not None and ledger.number_of(known.name) is None
            with charging(run, ledger, unpaid=unpaid):
                key = _key(run, training, ledger, known, [what, part], seed)
                number = ledger.number_of(key.name)
                if number is None:
                    seeded, claimed = seed is not None, training.claimed
                    try:
                        number = ledger.begin(
                            training.event, 1, what, part, seeded=seeded, claimed=claimed, run=key.name
                        )
                    except (BudgetExceeded, UnsupportedEvent):
                        if known is None:  # nothing was drawn under the new key: a cheaper plan may have the folder
                            Key.end(run)
                        raise
                ledger.raise_count(number, 1)
                weights = train(key)
                run.write_tensors(run.model, weights, {"steps": training.steps, "run": key.name, "charged": 1})
        Key.end(run, hidden)
    return weights


def _key(run: Run, training: OneRelease, ledger: Ledger, known: Key | None, words: list[str], seed: int | None) -> Key:
    """The key of a new run, kept before anything is drawn, or that of the stopped one if it can be repeated."""
    facts = digest([*training.facts, *words])
    binding = Binding(facts, lambda secret: data_tag(secret, *training.data), seed, training.choose)
    if known is None:
        key = Key.new(binding)
        number = ledger.number_of(key.name)
        if number is not None and ledger.entries[number].count:
            raise RunError("the ledger already holds a run with this seed, plan and data: choose another seed")
        key.keep(run)
        return key
    known.refuse_other(run, binding)
    known.refuse_other_environment(run, binding)
    return known
