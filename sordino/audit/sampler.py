"""Whether a sampler draws as its event assumes: inclusion frequencies, and independence within and between steps."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.audit.result import Finding
from sordino.budget import Event, FixedSizeGaussian, Gaussian, PoissonGaussian, ShuffledGaussian
from sordino.data import Sampler
from sordino.mechanisms import Streams

Draws = NDArray[np.uint8]
"""One row per step, one column per record: how often the record is in the step's batch."""
Present = NDArray[np.bool_]

_LAGS = 8
_FEWEST_STEPS, _MOST_STEPS, _EPOCHS = 256, 10_000, 24
_MOST_DRAWS = 2**24
"""Steps times records, which is the size in bytes."""
_FEWEST_PARTICIPATIONS = 1000
_MOST_COMPARED, _MOST_PRODUCTS = 2000, 2**30
"""Records compared with each other, and steps times pairs of them."""


def sampler_test(
    sampler: Sampler, event: Event, streams: Streams, name: str = "sampler", about_sound: bool = True
) -> Finding:
    """Test the sampler's draws against the distribution that a step's event assumes; p-values by a union bound.

    Poisson: each record's count and the total are binomial; batch sizes vary as they should (those of shuffled batches
    do not); a record's presence is independent of the next steps and of every other record's. Not detected: dependence
    among three or more, and dependence between pairs that is too weak to show in this many draws.
    """
    steps = int(np.clip(np.ceil(_EPOCHS / sampler.sample_rate), _FEWEST_STEPS, _MOST_STEPS))
    steps = max(1, min(steps, _MOST_DRAWS // sampler.n))
    draws = np.zeros((steps, sampler.n), dtype=np.uint8)
    for step in range(steps):
        np.add.at(draws[step], sampler.draw(streams, step), 1)
    found = _p_values(draws, event)
    worst, value = min(found.items(), key=lambda item: item[1])
    seen = f"least probable of {len(found)}: {worst} over {steps:,} draws"
    return Finding(name, min(1.0, len(found) * value), seen, about_sound)


def sampler_findings(sampler: Sampler, streams: Streams) -> list[Finding]:
    """The test against the event that is charged and, where another one is claimed, against that too."""
    found = [sampler_test(sampler, sampler.event(1.0), streams)]
    claimed = sampler.claimed(1.0)
    if claimed is not None:
        found.append(sampler_test(sampler, claimed, streams, "sampler, as claimed", about_sound=False))
    return found


def _p_values(draws: Draws, event: Event) -> dict[str, float]:
    """The p-value of each property; 0 or 1 for those that correct code always has."""
    match event:
        case Gaussian() | PoissonGaussian(1.0, _):
            return {"not every record in every batch": float((draws == 1).all())}
        case ShuffledGaussian(steps_per_epoch, _):
            whole = len(draws) // steps_per_epoch * steps_per_epoch
            epochs = draws[:whole].reshape(-1, steps_per_epoch, draws.shape[1]).sum(1)
            return {"a record more than once an epoch": float((epochs <= 1).all())}
        case FixedSizeGaussian(n, size, _):
            sizes = draws.sum(1)
            found = {"batch sizes": float((sizes == size).all() and n == draws.shape[1])}
            return found if size == n else found | _independence(draws, size / n, size / n * (size - 1) / (n - 1))
        case PoissonGaussian(rate, _):
            found = {"spread of batch sizes": _dispersion(draws.sum(1), draws.shape[1], rate)}
            total = int(draws.sum())
            found["participations in all"] = float(stats.binomtest(total, draws.size, rate).pvalue)
            return found | _independence(draws, rate, rate**2)
        case _:
            raise ValueError(f"no sampler test is known for a step of {type(event).__name__}")


def _independence(draws: Draws, rate: float, together: float) -> dict[str, float]:
    """p-values if each record is in a batch at this rate, and any two of them at the rate `together`."""
    steps, records = draws.shape
    counts = draws.sum(0)
    found = {
        "a record twice in a batch": float((draws <= 1).all()),
        "spread of the records' participations": _dispersion(counts, steps, rate),
        "the most frequent record": min(1.0, records * float(stats.binom.sf(counts.max() - 1, steps, rate))),
        "the least frequent record": min(1.0, records * float(stats.binom.cdf(counts.min(), steps, rate))),
    }
    present = draws > 0
    by_record = np.ascontiguousarray(present.T)
    for lag in range(1, min(_LAGS, steps - 1, records - 1) + 1):
        found[f"a record in batches {lag} apart"] = _apart(present, lag, rate, rate**2)
        found[f"records {lag} apart in a batch"] = _apart(by_record, lag, rate, together)
    return found | _pairs(present, together)


def _apart(rows: Present, lag: int, rate: float, both: float) -> float:
    """p-value of how many disjoint pairs of entries `lag` rows apart are both present, or at high rates both absent.

    Under Poisson sampling that number is binomial, however small; with batches of a fixed size it varies less.
    """
    first = np.arange(len(rows) - lag)
    first = first[first // lag % 2 == 0]
    left, right = rows[first], rows[first + lag]
    if rate > 0.5:
        left, right, both = ~left, ~right, 1 - 2 * rate + both
    return float(stats.binomtest(int(np.count_nonzero(left & right)), left.size, both).pvalue)


def _pairs(present: Present, together: float) -> dict[str, float]:
    """p-values of the two records most and least often together, among pairs of some records: counts are binomial."""
    steps, records = present.shape
    if records < 2:
        return {}
    some = np.random.default_rng(0).permutation(records)[: min(_MOST_COMPARED, math.isqrt(_MOST_PRODUCTS // steps))]
    chosen = present[:, some].astype(np.float32)
    counts = chosen.T @ chosen
    np.fill_diagonal(counts, counts[0, 1])  # a record with itself is no pair
    pairs, law = math.comb(len(some), 2), stats.binom(steps, together)
    return {
        "the two records most often together": min(1.0, pairs * float(law.sf(counts.max() - 1))),
        "the two records least often together": min(1.0, pairs * float(law.cdf(counts.min()))),
    }


def _dispersion(counts: NDArray[np.integer], trials: int, rate: float) -> float:
    """Two-sided p-value of the squared deviations of binomial counts, by a gamma law with their mean and variance.

    For large counts that is χ²; for small counts the fourth moment makes the sum vary more. With too few participations
    the law is not accurate enough for a test.
    """
    if len(counts) * trials * min(rate, 1 - rate) < _FEWEST_PARTICIPATIONS:
        return 1.0
    variance = trials * rate * (1 - rate)
    total = float(np.square(counts.astype(np.float64) - trials * rate).sum()) / variance
    spread = 2 + (1 - 6 * rate * (1 - rate)) / variance
    law = stats.gamma(len(counts) / spread, scale=spread)
    return float(min(1.0, 2 * min(law.cdf(total), law.sf(total))))
