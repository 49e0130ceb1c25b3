"""Private normalisation within a run: its statistics are told once, charged, and kept with the model."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.budget import Event, Ledger
from sordino.budget.events import composed
from sordino.features.normalisation import Standardised
from sordino.mechanisms.moments import ChannelMoments
from sordino.mechanisms.streams import bound_streams, data_tag, new_secret, secret_from_seed
from sordino.mechanisms.thresholds import ThresholdQuantiles
from sordino.training.continuity import environment
from sordino.training.run import Run, RunError

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
    """The run's statistics: those that it told before it was interrupted, or fresh ones.

    Guarantee: the mechanisms' (`ChannelMoments`, `ThresholdQuantiles`); nothing is told twice, since what was told is
    kept.
    """
    with run.alone():
        ledger.reload()
        if not run.normalisation.exists():
            sums, paid = _channel_means(features), {entry.what for entry in ledger.entries} & {WHAT, THRESHOLDS}
            secret = _secret(run, moments, sums, seed, bool(paid))
            bond, seeded = _bond(secret, moments, sums), seed is not None
            if isinstance(moments, ThresholdQuantiles):
                streams = bound_streams(secret, bond | {"for": THRESHOLDS})
                once = THRESHOLDS in paid
                moments = moments.release(*sums, ledger, THRESHOLDS, streams=streams, seeded=seeded, paid=once)
            streams = bound_streams(secret, bond)
            mean, variance = moments.release(*sums, ledger, WHAT, streams=streams, seeded=seeded, paid=WHAT in paid)
            told = {"mean": torch.from_numpy(mean), "variance": torch.from_numpy(variance)}
            run.write_tensors(run.normalisation, told, {"floor": moments.noise_of_mean_square(len(features))})
        (run.private / _KEY).unlink(missing_ok=True)
        return read(run)


def _secret(run: Run, moments: Moments, sums: tuple[NDArray[np.float64], ...], seed: int | None, paid: bool) -> bytes:
    """Of the noise of the statistics, under a key that is kept until they are.

    A run that was killed in between repeats them bit for bit, which shows nothing new, or not at all.
    """
    if paid:
        secret = _kept_secret(run, moments, sums)
        if secret is None:
            raise RunError(
                f"the run in {run.folder} was stopped between paying for its statistics and keeping them, with other "
                "data or in another environment: begin a new run"
            )
        return secret
    secret = new_secret() if seed is None else secret_from_seed(seed)
    run.write_private(_KEY, _bond(secret, moments, sums))
    return secret


def _kept_secret(run: Run, moments: Moments, sums: tuple[NDArray[np.float64], ...]) -> bytes | None:
    """The key of a release that was paid for, if all that it is bound to is as it was."""
    try:
        kept = json.loads((run.private / _KEY).read_text())
        secret = bytes.fromhex(kept["secret"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return secret if kept == _bond(secret, moments, sums) else None


def _bond(secret: bytes, moments: Moments, sums: tuple[NDArray[np.float64], ...]) -> dict[str, Any]:
    return {
        "secret": secret.hex(),
        "moments": repr(moments),
        "data": data_tag(secret, *sums),
        "environment": environment(),
    }


def read(run: Run) -> Standardised:
    told, facts = run.read_tensors(run.normalisation)
    if set(told) != {"mean", "variance"} or not isinstance(facts.get("floor"), float):
        raise RunError(f"{run.normalisation} does not hold the statistics of a normalisation")
    return Standardised(tuple(told["mean"].tolist()), tuple(told["variance"].tolist()), facts["floor"])


def standardised(normalisation: Standardised | None, features: NDArray[np.floating]) -> NDArray[np.float32]:
    """All examples' features on the scale of the statistics."""
    if normalisation is None:
        return np.array(features, dtype=np.float32)  # in memory: a step picks its rows from all over
    out = np.empty(features.shape, np.float32)
    for rows in _blocks(len(features)):
        out[rows] = normalisation(torch.from_numpy(np.array(features[rows], dtype=np.float32))).numpy()
    return out


def _channel_means(features: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each example and channel, the mean and the mean square over its places."""
    means, squares = (np.empty(features.shape[:2]) for _ in range(2))
    for rows in _blocks(len(features)):
        block = np.asarray(features[rows], dtype=np.float32).reshape(*means[rows].shape, -1)
        means[rows], squares[rows] = block.mean(2), np.square(block).mean(2)
    return means, squares


def _blocks(n: int) -> Iterable[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, n, _BLOCK))
