"""Whether draws are what the event says: inclusion frequencies, and independence within and between steps."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.audit.findings import Finding
from sordino.budget import Event, FixedSizeGaussian, Gaussian, PoissonGaussian, ShuffledGaussian
from sordino.data.samplers import Sampler
from sordino.mechanisms.streams import Streams

Draws = NDArray[np.float32]
"""A row a step, a column a record: how often the record is in the step's batch."""

_LAGS = 8
_FEWEST_STEPS, _MOST_STEPS, _EPOCHS = 256, 10_000, 24


def sampler_test(
    sampler: Sampler, event: Event, streams: Streams, name: str = "sampler", about_sound: bool = True
) -> Finding:
    """Draws of the sampler against what a step's event says of them; p-values are combined by a union bound.

    Poisson: every record's count is binomial, their number too; batch sizes vary as they should (shuffled ones do
    not); a record's presence tells nothing about the next steps, nor about other records. What it cannot see: a
    dependence that leaves all of these as they are.
    """
    steps = int(np.clip(np.ceil(_EPOCHS / sampler.sample_rate), _FEWEST_STEPS, _MOST_STEPS))
    draws = np.zeros((steps, sampler.n), dtype=np.float32)
    for step in range(steps):
        np.add.at(draws[step], sampler.draw(streams, step), 1)
    found = _p_values(draws, event)
    worst, value = min(found.items(), key=lambda item: item[1])
    seen = f"least probable of {len(found)}: {worst} over {steps:,} draws"
    return Finding(name, min(1.0, len(found) * value), seen, about_sound)


def _p_values(draws: Draws, event: Event) -> dict[str, float]:
    match event:
        case Gaussian():
            return {"not every record in every batch": _certain(bool((draws == 1).all()))}
        case ShuffledGaussian(steps_per_epoch, _):
            whole = len(draws) // steps_per_epoch * steps_per_epoch
            epochs = draws[:whole].reshape(-1, steps_per_epoch, draws.shape[1]).sum(1)
            return {"a record more than once an epoch": _certain(bool((epochs <= 1).all()))}
        case FixedSizeGaussian(n, size, _):
            sizes = draws.sum(1)
            found = {"batch sizes": _certain(bool((sizes == size).all()) and n == draws.shape[1])}
            return found | _independence(draws, size / n)
        case PoissonGaussian(rate, _):
            found = {"spread of batch sizes": _dispersion(draws.sum(1), draws.shape[1], rate)}
            total = int(draws.sum())
            found["participations in all"] = float(stats.binomtest(total, draws.size, rate).pvalue)
            return found | _independence(draws, rate)
        case _:
            raise ValueError(f"no sampler test is known for a step of {type(event).__name__}")


def _independence(draws: Draws, rate: float) -> dict[str, float]:
    steps, records = draws.shape
    counts = draws.sum(0)
    found = {
        "a record twice in a batch": _certain(bool((draws <= 1).all())),
        "spread of the records' participations": _dispersion(counts, steps, rate),
        "the most frequent record": min(1.0, records * float(stats.binom.sf(counts.max() - 1, steps, rate))),
        "the least frequent record": min(1.0, records * float(stats.binom.cdf(counts.min(), steps, rate))),
    }
    centred = draws - np.float32(rate)
    lags: dict[str, Callable[[int], tuple[Draws, Draws]]] = {
        "a record in batches {} apart": lambda lag: (centred[:-lag], centred[lag:]),
        "records {} apart in a batch": lambda lag: (centred[:, :-lag], centred[:, lag:]),
    }
    for words, pair in lags.items():
        for lag in range(1, min(_LAGS, steps - 1, records - 1) + 1):
            left, right = pair(lag)
            covariance = float(np.vdot(left.ravel(), right.ravel())) / (rate * (1 - rate) * np.sqrt(left.size))
            found[words.format(lag)] = float(2 * stats.norm.sf(abs(covariance)))
    return found


def _dispersion(counts: Draws, trials: int, rate: float) -> float:
    """Two-sided, of the squared deviations of binomial counts: a gamma law with their sum's mean and variance.

    For large counts it is χ²; where counts are small their fourth moment makes the sum vary more.
    """
    variance = trials * rate * (1 - rate)
    total = float(np.square(counts.astype(np.float64) - trials * rate).sum()) / variance
    spread = 2 + (1 - 6 * rate * (1 - rate)) / variance
    law = stats.gamma(len(counts) / spread, scale=spread)
    return float(min(1.0, 2 * min(law.cdf(total), law.sf(total))))


def _certain(kept: bool) -> float:
    """Of something that correct code never does."""
    return 1.0 if kept else 0.0
