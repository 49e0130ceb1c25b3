"""Private normalisation within a run: its statistics are released once, charged, and kept with the model."""

import hashlib
import hmac
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.budget import BudgetExceeded, Event, Ledger, Planned, UnsupportedEvent, composed, partial_of
from sordino.features import Standardised, without_warning
from sordino.mechanisms import ChannelMoments, ThresholdQuantiles, bound_streams, data_tag, new_secret, secret_from_seed
from sordino.runs import Run, RunError, charging, environment

Moments = ChannelMoments | ThresholdQuantiles
WHAT, THRESHOLDS = "normalisation", "thresholds of the normalisation"
_KEY = "normalisation.json"
_BLOCK = 1000


def planned(moments: Moments | None) -> list[tuple[Event, str, str]]:
    """What a normalisation will spend, to be announced before anything is told."""
    if moments is None:
        return []
    if isinstance(moments, ThresholdQuantiles):
        return [(moments.event, THRESHOLDS, "train"), (moments.moments_event, WHAT, "train")]
    return [(moments.event, WHAT, "train")]


def spent_before(moments: Moments | None) -> Event | None:
    """The same as one event, for calibrating what comes after it."""
    events = [event for event, *_ in planned(moments)]
    return composed(events) if events else None


def statistics(
    run: Run, moments: Moments, features: NDArray[np.floating], ledger: Ledger, seed: int | None
) -> Standardised:
    """The run's statistics: those that it released before it was interrupted, or fresh ones.

    Guarantee: the mechanisms' (`ChannelMoments`, `ThresholdQuantiles`), charged under the name of this run: entries of
    other runs pay for nothing here. Nothing is released twice, since what was released is kept. Thresholds and moments
    are refused together, before either is charged.
    """
    ledger.refuse_add_remove()
    with run.alone():
        ledger.reload()
        if run.normalisation.exists():
            _check_paid(run, moments, ledger)
        else:
            known = _kept_bond(run)
            unpaid = known is not None and not _is_charged(ledger, known)
            with charging(run, ledger, unpaid=unpaid):
                _release(run, moments, features, ledger, known, seed)
        _forget(run)
        return read(run)


def _release(
    run: Run,
    moments: Moments,
    features: NDArray[np.floating],
    ledger: Ledger,
    known: dict[str, Any] | None,
    seed: int | None,
) -> None:
    sums, seeded = _channel_means(features), seed is not None
    bond = _bond_of_run(run, moments, sums, ledger, known, seed)
    secret, name = bytes.fromhex(bond["secret"]), _name(bond)
    try:
        if isinstance(moments, ThresholdQuantiles):
            own = _thresholds_of(name)
            paid = ledger.number_of(own) is not None
            if not paid:
                ledger.announce_all(Planned(*item) for item in planned(moments))
            streams = bound_streams(secret, bond | {"for": THRESHOLDS}, predictable=seeded)
            moments = moments.release(*sums, ledger, THRESHOLDS, streams=streams, run=own, paid=paid)
        streams = bound_streams(secret, bond, predictable=seeded)
        paid = ledger.number_of(name) is not None
        mean, variance = moments.release(*sums, ledger, WHAT, streams=streams, run=name, paid=paid)
    except (BudgetExceeded, UnsupportedEvent):
        if known != bond | {"seed": seed} and not _is_charged(ledger, bond):
            _forget(run)  # nothing was drawn under the new key
        raise
    told = {"mean": torch.from_numpy(mean), "variance": torch.from_numpy(variance)}
    facts = {"floor": moments.noise_of_mean_square(len(features)), "run": name}
    run.write_tensors(run.normalisation, told, facts)


def _bond_of_run(
    run: Run,
    moments: Moments,
    sums: tuple[NDArray[np.float64], ...],
    ledger: Ledger,
    known: dict[str, Any] | None,
    seed: int | None,
) -> dict[str, Any]:
    """What the noise of the statistics follows from, under a key that is kept until they are.

    A run that was killed in between repeats them bit for bit, which shows nothing new, or not at all.
    """
    if known is not None:
        bond = _bond(bytes.fromhex(known["secret"]), moments, sums)
        if bond | {"seed": seed} == known:
            return bond
        if _is_charged(ledger, known):
            raise RunError(
                f"the run in {run.folder} was stopped between paying for its statistics and keeping them, with other "
                "data or another seed, or in another environment: begin a new run"
            )
    # Without a key, or with one under which nothing was drawn, all is drawn from a new key, and charged.
    bond = _bond(new_secret() if seed is None else secret_from_seed(seed), moments, sums)
    if seed is not None and _is_charged(ledger, bond):
        raise RunError("the ledger already holds a normalisation with this seed and data: choose another seed")
    run.write_private(_KEY, bond | {"seed": seed})
    return bond


def _is_charged(ledger: Ledger, bond: dict[str, Any]) -> bool:
    name = _name(bond)
    return any(ledger.number_of(own) is not None for own in (name, _thresholds_of(name)))


def _kept_bond(run: Run) -> dict[str, Any] | None:
    try:
        kept = dict(json.loads((run.private / _KEY).read_text()))
        if len(bytes.fromhex(kept["secret"])) and all(isinstance(kept[name], str) for name in ("moments", "data")):
            return kept
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _bond(secret: bytes, moments: Moments, sums: tuple[NDArray[np.float64], ...]) -> dict[str, Any]:
    return {
        "secret": secret.hex(),
        "moments": repr(moments),
        "data": data_tag(secret, *sums),
        "environment": environment(),
    }


def _name(bond: dict[str, Any]) -> str:
    """Public, for the run's entries in the ledger."""
    text = f"normalisation {bond['moments']} {bond['data']}"
    return hmac.new(bytes.fromhex(bond["secret"]), text.encode(), hashlib.sha256).hexdigest()[:16]


def _thresholds_of(name: str) -> str:
    return f"{name} thresholds"


def _check_paid(run: Run, moments: Moments, ledger: Ledger) -> None:
    """Refuse statistics that this ledger has not paid for.

    Those of earlier versions name no run, and neither do the entries that paid for them.
    """
    name = run.read_tensors(run.normalisation)[1].get("run", "")
    event = moments.moments_event if isinstance(moments, ThresholdQuantiles) else moments.event
    if not any((entry.run, entry.event, entry.what) == (name, event, WHAT) for entry in ledger.entries):
        raise RunError(f"{run.normalisation} was released under another plan or ledger: its cost is not in this one")


def _forget(run: Run) -> None:
    for path in (run.private / _KEY, partial_of(run.private / _KEY)):
        path.unlink(missing_ok=True)


def read(run: Run) -> Standardised:
    told, facts = run.read_tensors(run.normalisation)
    if set(told) != {"mean", "variance"} or not isinstance(facts.get("floor"), float):
        raise RunError(f"{run.normalisation} does not hold the statistics of a normalisation")
    return Standardised(tuple(told["mean"].tolist()), tuple(told["variance"].tolist()), facts["floor"])


@without_warning
def standardised(normalisation: Standardised | None, features: NDArray[np.floating]) -> NDArray[np.float32]:
    """All examples' features on the scale of the statistics."""
    if normalisation is None:
        return np.array(features, dtype=np.float32)  # in memory: a step picks its rows from all over
    out = np.empty(features.shape, np.float32)
    for rows in _blocks(len(features)):
        out[rows] = normalisation(torch.from_numpy(np.array(features[rows], dtype=np.float32))).numpy()
    return out


@without_warning
def _channel_means(features: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each example and channel, the mean and the mean square over its places."""
    means, squares = (np.empty(features.shape[:2]) for _ in range(2))
    for rows in _blocks(len(features)):
        block = np.asarray(features[rows], dtype=np.float32).reshape(*means[rows].shape, -1)
        means[rows], squares[rows] = block.mean(2), np.square(block).mean(2)
    return means, squares


def _blocks(n: int) -> Iterable[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, n, _BLOCK))
