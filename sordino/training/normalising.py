"""Private normalisation within a run: its statistics are released once, charged, and kept with the model."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.budget import Event, Ledger, Planned, composed
from sordino.features import Standardised, without_warning
from sordino.mechanisms import ChannelMoments, ThresholdQuantiles, data_tag
from sordino.runs import Binding, Key, Purpose, Run, RunError, charged_key

Sums = tuple[NDArray[np.float64], NDArray[np.float64]]
Moments = ChannelMoments | ThresholdQuantiles
WHAT, THRESHOLDS = "normalisation", "thresholds of the normalisation"
_BLOCK = 1000


def planned(moments: Moments | None) -> list[tuple[Event, str, str]]:
    """What a normalisation will spend, to be announced before anything is released."""
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
            sums = _channel_means(features)
            binding = Binding(
                repr(moments), lambda secret: data_tag(secret, *sums), seed, purpose=Purpose.NORMALISATION
            )
            with charged_key(run, ledger, binding) as key:
                _release(run, moments, sums, ledger, key)
        Key.end(run, purpose=Purpose.NORMALISATION)
        return read(run)


def _release(run: Run, moments: Moments, sums: Sums, ledger: Ledger, key: Key) -> None:
    means, squares = sums
    bound = {"secret": key.secret, "moments": key.plan, "data": key.data, "environment": key.environment}
    if isinstance(moments, ThresholdQuantiles):
        entry = f"{key.name} thresholds"
        paid = ledger.number_of(entry) is not None
        if not paid:
            ledger.announce_all(Planned(*item) for item in planned(moments))
        streams = key.streams_for(bound | {"for": THRESHOLDS})
        moments = moments.release(means, squares, ledger, THRESHOLDS, streams=streams, run=entry, paid=paid)
    paid = ledger.number_of(key.name) is not None
    mean, variance = moments.release(
        means, squares, ledger, WHAT, streams=key.streams_for(bound), run=key.name, paid=paid
    )
    released = {"mean": torch.from_numpy(mean), "variance": torch.from_numpy(variance)}
    facts = {"floor": moments.noise_of_mean_square(len(means)), "run": key.name}
    run.write_tensors(run.normalisation, released, facts)


def _check_paid(run: Run, moments: Moments, ledger: Ledger) -> None:
    """Refuse statistics that this ledger has not paid for.

    Those of earlier versions name no run, and neither do the entries that paid for them.
    """
    name = run.read_tensors(run.normalisation)[1].get("run", "")
    event = moments.moments_event if isinstance(moments, ThresholdQuantiles) else moments.event
    if not any((entry.run, entry.event, entry.what) == (name, event, WHAT) for entry in ledger.entries):
        raise RunError(f"{run.normalisation} was released under another plan or ledger: its cost is not in this one")


def read(run: Run) -> Standardised:
    """The statistics that the run has released."""
    released, facts = run.read_tensors(run.normalisation)
    if set(released) != {"mean", "variance"} or not isinstance(facts.get("floor"), float):
        raise RunError(f"{run.normalisation} does not hold the statistics of a normalisation")
    return Standardised(tuple(released["mean"].tolist()), tuple(released["variance"].tolist()), facts["floor"])


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
def _channel_means(features: NDArray[np.floating]) -> Sums:
    """Of each example and channel, the mean and the mean square over its places."""
    means, squares = (np.empty(features.shape[:2]) for _ in range(2))
    for rows in _blocks(len(features)):
        block = np.asarray(features[rows], dtype=np.float32).reshape(*means[rows].shape, -1)
        means[rows], squares[rows] = block.mean(2), np.square(block).mean(2)
    return means, squares


def _blocks(n: int) -> Iterable[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, n, _BLOCK))
