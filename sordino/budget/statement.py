"""The privacy statement: what was spent on which records, by which accountants, and what it does not cover."""

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import ROUND_CEILING, Context
from importlib import metadata
from typing import TYPE_CHECKING, Any

import sordino
from sordino.budget.accountant import cost
from sordino.budget.events import Repeated, UnsupportedEvent, to_json

if TYPE_CHECKING:
    from sordino.budget.entries import Entry
    from sordino.budget.ledger import Ledger

ADJACENCY_IN_WORDS = {
    "zero-out": "two datasets are neighbours if one record of one is replaced by an empty record (n is public)",
    "add-remove": "two datasets are neighbours if one has one record more",
    "replace-one": "two datasets are neighbours if one record differs (n is public)",
}
NOT_COVERED = (
    "what was done to the data before this ledger was opened, or by programs that do not write to it",
    "what draws from the same ledger after this was written: `sordino ledger` shows the current state",
    "an older copy of this ledger, spent from on another computer or by another user, or after the registry of ledgers "
    "in the user's state folder was deleted: elsewhere such a copy is refused",
    "a person with several records: ε is per record",
    "timing and memory",
    "the finite precision of noise that is drawn and added in floating point: that of training's steps, unless a note "
    "says that they are exact, and of convex objectives; statistics, tables and scores are drawn exactly, on a grid",
    "anyone who can read the run's private folder while it trains, resumes several copies of an unfinished run, or "
    "restores its folder from before a change of environment beside a ledger that was spent from since",
    "what the data shows about groups: privacy of a record does not hide what a population shares",
)
_PACKAGES = ("dp-accounting", "mpmath", "numpy", "randomgen", "scipy", "torch")


def statement(
    ledger: "Ledger",
    *,
    unit: str = "one record",
    tuning: str = "tuning that read the data is listed above; any other is not counted",
    notes: Iterable[str] = (),
) -> dict[str, Any]:
    """The statement as plain JSON values; `as_text` formats it as a page."""
    entries = ledger.entries
    delta = ledger.terms.target_delta
    spent = ledger.cost(delta) if delta is not None else None
    # A planned run may have stopped early because of what it saw: then only the announced ε is certain.
    headline = ledger.cost(delta, reserved=True) if delta is not None and entries else spent
    if headline and ledger.adaptive and ledger.terms.target_epsilon is not None:
        # Likewise a filter guarantees the bound that was fixed in advance, not the sum so far.
        headline = replace(headline, epsilon=ledger.terms.target_epsilon)
    return {
        "unit": unit,
        "adjacency": ledger.terms.adjacency,
        "adjacency_in_words": ADJACENCY_IN_WORDS[ledger.terms.adjacency],
        "epsilon": headline and finite(headline.epsilon),
        "delta": delta,
        "accountant": headline and headline.accountant,
        "epsilon_pld": headline and finite(headline.pld),
        "epsilon_rdp": headline and finite(headline.rdp),
        "epsilon_drawn": spent and finite(spent.epsilon),
        "target_epsilon": ledger.terms.target_epsilon,
        "bound": not (ledger.adaptive and ledger.terms.target_epsilon is None),
        "keeping": _keeping(ledger),
        "samplers": sorted({name for entry in entries for name in _entry_samplers(entry)}),
        "tuning": tuning,
        "seeded": any(entry.seeded for entry in entries),
        "entries": [_entry(entry, ledger) for entry in entries],
        "versions": versions(),
        "not_covered": list(NOT_COVERED),
        "notes": list(notes),
    }


def as_text(document: Mapping[str, Any]) -> str:
    """The statement as a page of text."""
    lines = ["PRIVACY STATEMENT", ""]
    if document["delta"] is None:
        lines.append("No δ was fixed, so no ε can be stated here; ask the ledger for epsilon(delta).")
    elif document["seeded"]:
        lines.append(
            "NOTHING HERE IS PRIVATE: noise came from a key fixed by the user, and can be predicted. With secret noise "
            f"it would be ε={printed(document['epsilon'])} at δ={document['delta']:g} for {document['unit']}."
        )
    elif document["bound"]:
        lines.append(
            f"Everything below, together, is (ε={printed(document['epsilon'])}, δ={document['delta']:g})-"
            f"differentially private for {document['unit']}."
        )
    else:
        lines.append(
            f"What was drawn so far sums to ε={printed(document['epsilon'])} at δ={document['delta']:g} for "
            f"{document['unit']}: a running total, not a guarantee, since events were chosen along the way and no "
            "target was fixed in advance."
        )
    if document["delta"] is not None:
        both = f"PLD {printed(document['epsilon_pld'])}, RDP {printed(document['epsilon_rdp'])}"
        lines.append(f"Accountant: {document['accountant']} ({both}). {document['keeping']}")
        if document["epsilon_drawn"] != document["epsilon"]:
            lines.append(
                f"Drawn so far: ε={printed(document['epsilon_drawn'])}. That smaller figure holds only if neither the "
                "choice of events nor the stop depended on anything they showed."
            )
    lines += [f"Adjacency: {document['adjacency']}: {document['adjacency_in_words']}.", "", "What read the data:"]
    lines += [f"  {_entry_line(entry)}" for entry in document["entries"]] or ["  nothing"]
    seeded = "YES: it can be predicted, so nothing here is private" if document["seeded"] else "no"
    lines += [
        "",
        f"Sampling: {'; '.join(document['samplers']) or 'none'}",
        f"Tuning: {document['tuning']}",
        f"Noise from a key fixed by the user: {seeded}",
        "Software: " + ", ".join(f"{name} {version}" for name, version in document["versions"].items()),
        *(f"Note: {note}" for note in document["notes"]),
        "",
        "Not covered:",
        *(f"  - {item}" for item in document["not_covered"]),
    ]
    return "\n".join(lines) + "\n"


def versions() -> dict[str, str]:
    """The software that a figure depends on."""
    found = {"sordino": sordino.__version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in _PACKAGES}


def _keeping(ledger: "Ledger") -> str:
    if not ledger.adaptive:
        return "Planned: every parameter was fixed before the first output."
    order = ledger.terms.filter_order
    words = f"Adaptive: events were chosen along the way and summed by a Rényi filter of order {order:g}"
    if ledger.terms.target_epsilon is None:
        return f"{words}; no target was fixed, so this is a running total and not a bound announced in advance."
    return f"{words}, which guarantees the target; the PLD figure would hold had the events been planned."


def _entry(entry: "Entry", ledger: "Ledger") -> dict[str, Any]:
    document = {
        "what": entry.what,
        "part": entry.part,
        "event": to_json(entry.event),
        "in_words": entry.event.describe(),
        "count": entry.count,
        "committed": entry.committed,
        "when": entry.when,
        "planned": entry.planned,
        "seeded": entry.seeded,
        "claimed_epsilon": None,
    }
    if entry.claimed is not None and ledger.terms.target_delta is not None:
        try:
            claim = cost(Repeated(entry.claimed, entry.count), ledger.terms.target_delta, ledger.terms.adjacency)
            document["claimed_epsilon"] = finite(claim.epsilon)
        except UnsupportedEvent:
            pass
    return document


def _entry_line(entry: Mapping[str, Any]) -> str:
    of = f" of {entry['committed']:,}" if entry["committed"] != entry["count"] else ""
    repeats = f"{entry['count']:,}{of} × " if entry["committed"] != 1 else ""
    claimed = entry["claimed_epsilon"]
    claim = "" if claimed is None else f" (claimed elsewhere and not sound: ε={printed(claimed)}, by PLD)"
    return f"{entry['what']} [{entry['part']}]: {repeats}{entry['in_words']}, {entry['when']}{claim}"


def _entry_samplers(entry: "Entry") -> set[str]:
    """If the price of a whole run no longer shows how it sampled, the claim for its steps does."""
    return entry.event.samplings() or (set() if entry.claimed is None else entry.claimed.samplings())


def finite(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "infinity" if value == float("inf") else value


def printed(epsilon: float | str | None, digits: int = 4) -> str:
    """ε in so many digits, rounded up: rounding down would promise too much."""
    if epsilon is None:
        return "n/a"
    if epsilon in ("infinity", math.inf):
        return "∞"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(float(epsilon))
    return f"{float(rounded):.{digits}g}"
