"""Releases that are charged once and in full before anything is drawn, and replayed after a kill."""

from collections.abc import Callable

from torch import Tensor

from sordino.budget import Event, Ledger
from sordino.runs.key import Binding, Key, charged_key, until_diverged
from sordino.runs.run import Run, RunError


def release_once(
    run: Run,
    binding: Binding,
    train: Callable[[Key], dict[str, Tensor]],
    ledger: Ledger,
    *,
    event: Event,
    what: str,
    part: str,
    steps: int,
    claimed: Event | None = None,
    hidden: str,
) -> dict[str, Tensor]:
    """Charge the event, train, keep and return the final weights; calling again loads them.

    Until the end the state of such a training is no release that a ledger has paid for: it is in the file `hidden` of
    RUN/private. The binding's plan must tell `what` and `part`, too.

    Guarantee: that of the event, charged before `train` is called; a run that was stopped has released nothing and
    stays charged. Its state and key are deleted at the end, and also if it diverges. A stopped run is resumed bit for
    bit; with another plan, other data or seed, or in another environment that is refused, and a new run is charged
    anew.
    """
    ledger.refuse_add_remove()
    state = run.private / hidden
    with run.alone(), until_diverged(run, state):
        ledger.reload()
        if run.model.exists():
            weights, facts = run.read_tensors(run.model)
            number = ledger.number_of(facts.get("run", ""))
            entry = None if number is None else ledger.entries[number]
            if entry is None or not entry.count or entry.event != event:
                raise RunError(f"{run.model} was trained under another plan or ledger: what it cost is not in this one")
        else:
            with charged_key(run, ledger, binding) as key:
                ledger.raise_count(key.reserve(ledger, event, 1, what, part, claimed=claimed), 1)
                weights = train(key)
                run.write_tensors(run.model, weights, {"steps": steps, "run": key.name, "charged": 1})
        Key.end(run, state)
    return weights
