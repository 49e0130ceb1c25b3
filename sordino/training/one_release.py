"""Training of which nothing is told but the end: charged once, in full, before its first step; all else stays hidden.

Its state is no release that a ledger has paid for, so it lives in RUN/private until the end and is then deleted. A
stopped run may go on bit for bit, which shows nothing new, or not at all.
"""

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sordino.budget import BudgetExceeded, Event, Ledger, UnsupportedEvent
from sordino.mechanisms import data_tag, new_secret, secret_from_seed
from sordino.training import continuity
from sordino.training.continuity import Continuity
from sordino.training.optimisers import Weights
from sordino.training.run import Run, RunError


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
    train: Callable[[Continuity], Weights],
    ledger: Ledger,
    *,
    what: str,
    part: str,
    seed: int | None,
) -> Weights:
    """Charge, train, keep and return the final weights; calling again loads them.

    Guarantee: that of the training's event, charged before `train` is called; a run that was stopped has told nothing
    and stays charged. Its state and key are deleted at the end, and also if it diverges. With another plan, other data
    or seed, or in another environment, going on is refused, and a new run is charged anew.
    """
    ledger.refuse_add_remove()
    hidden = run.private / training.hidden
    with run.alone(), continuity.until_diverged(run, hidden):
        ledger.reload()
        if run.model.exists():
            weights, facts = run.read_tensors(run.model)
            number = ledger.number_of(facts.get("run", ""))
            entry = None if number is None else ledger.entries[number]
            if entry is None or not entry.count or entry.event != training.event:
                raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
        else:
            known = continuity.read(run) if continuity.exists(run) else None
            unpaid = known is not None and ledger.number_of(known.run) is None
            with continuity.charging(run, ledger, unpaid=unpaid):
                bond = _bond(run, training, ledger, known, [what, part], seed)
                number = ledger.number_of(bond.run)
                if number is None:
                    seeded, claimed = seed is not None, training.claimed
                    try:
                        number = ledger.begin(
                            training.event, 1, what, part, seeded=seeded, claimed=claimed, run=bond.run
                        )
                    except (BudgetExceeded, UnsupportedEvent):
                        if known is None:  # nothing was drawn under the new key: a cheaper plan may have the folder
                            continuity.end(run)
                        raise
                ledger.raise_count(number, 1)
                weights = train(bond)
                run.write_tensors(run.model, weights, {"steps": training.steps, "run": bond.run, "charged": 1})
        continuity.end(run, hidden)
    return weights


def _bond(
    run: Run, training: OneRelease, ledger: Ledger, known: Continuity | None, words: list[str], seed: int | None
) -> Continuity:
    """The bond of a new run, kept before anything is drawn, or that of the stopped one if it can be repeated."""
    secret = bytes.fromhex(known.secret) if known else new_secret() if seed is None else secret_from_seed(seed)
    digest = hashlib.sha256(json.dumps([*training.facts, *words], sort_keys=True).encode()).hexdigest()
    tag = data_tag(secret, *training.data)
    name = hmac.new(secret, f"run {digest} {tag}".encode(), hashlib.sha256).hexdigest()[:16]
    if known is not None and (known.plan, known.seed, known.data) != (digest, seed, tag):
        thing = "other data" if (known.plan, known.seed) == (digest, seed) else "another plan, model, purpose or seed"
        raise RunError(f"{run.folder} was started with {thing}: resuming it is refused")
    here = continuity.environment()
    choices = training.choose(known.choices if known is not None and known.environment == here else None)
    bond = Continuity(secret.hex(), name, seed, digest, tag, here, choices, era=0, lost=0)
    if known is None:
        number = ledger.number_of(name)
        if number is not None and ledger.entries[number].count:
            raise RunError("the ledger already holds a run with this seed, plan and data: choose another seed")
        continuity.keep(run, bond)
    elif known != bond:
        raise RunError(
            f"{run.folder} was started in another environment (versions, threads, processor or rules): go on in that "
            "environment, or start a new run, which is charged anew"
        )
    return bond
