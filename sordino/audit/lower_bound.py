"""A lower bound on ε, with a confidence level, from an adversary's scores of trials with and without a canary.

(ε, δ)-DP says of every set A of outputs: P(A | one arm) ≤ e^ε·P(A | other arm) + δ, whichever arm is the one. So
ε ≥ ln((P(A | one) − δ) / P(A | other)), and Clopper–Pearson intervals of the two probabilities bound the right side.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.floating]

_HELD_OUT = 10
"""One trial in so many says where thresholds lie, the others measure: chosen on the same ones they look too good."""
_THRESHOLDS = 8
"""At each end of the scores; the confidence is shared among all of them (a union bound)."""
_LARGEST_SHARE = 0.3
_FEWEST = 20


def epsilon_lower_bound(present: Scores, absent: Scores, delta: float, confidence: float = 0.95) -> float:
    """An ε that the mechanism exceeds with this confidence, or 0; the trials must be independent of each other.

    Scores may be anything that grows with the canary's presence. At most a share 1 − confidence of such bounds lies
    above the true ε, whatever the mechanism is.
    """
    check_confidence(confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), not {delta!r}")
    if min(len(present), len(absent)) < _FEWEST:
        raise ValueError(f"a lower bound needs at least {_FEWEST} trials with the canary and as many without")
    held_out = np.sort(np.concatenate([present[::_HELD_OUT], absent[::_HELD_OUT]]))
    with_canary, without = (np.sort(np.delete(scores, np.s_[::_HELD_OUT])) for scores in (present, absent))
    ranks = np.geomspace(1, max(1.0, _LARGEST_SHARE * len(held_out)), _THRESHOLDS).astype(int)
    level = (1 - confidence) / (2 * _THRESHOLDS)
    high, low = held_out[-ranks], held_out[ranks - 1]
    above = [len(scores) - np.searchsorted(scores, high, side="left") for scores in (with_canary, without)]
    below = [np.searchsorted(scores, low, side="right") for scores in (with_canary, without)]
    bounds = (
        _bounds(above[0], len(with_canary), above[1], len(without), delta, level),
        _bounds(below[1], len(without), below[0], len(with_canary), delta, level),
    )
    return float(np.max(bounds))


def _bounds(
    hits: NDArray[np.integer],
    trials: int,
    false_hits: NDArray[np.integer],
    false_trials: int,
    delta: float,
    level: float,
) -> NDArray[np.float64]:
    """ln((lower bound of one share − δ) / upper bound of the other), each at half the level; at least 0."""
    low = np.where(hits > 0, stats.beta.ppf(level / 2, np.maximum(hits, 1), trials - hits + 1), 0.0)
    misses = false_trials - false_hits
    high = np.where(misses > 0, stats.beta.isf(level / 2, false_hits + 1, np.maximum(misses, 1)), 1.0)
    return np.log(np.maximum((low - delta) / high, 1.0))


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies strictly between 0 and 1, not {confidence!r}")
