"""A lower bound on ε from one training with many canaries, each in or out by a fair coin.

Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2: if the training is (ε, δ)-DP,
an adversary who guesses r of the m coins is right v times or more with probability at most
f(v) + 2mδ·max over i of (f(v − i) − f(v))/i, where f(v) = P(Binomial(r, e^ε/(1 + e^ε)) ≥ v).
"""

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from sordino.audit.lower_bound import check_confidence

_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Which shares of the coins are guessed, the surest first; all are tried, and the confidence is shared among them."""
_LARGEST = 50.0


def one_run_lower_bound(
    scores: NDArray[np.floating], coins: NDArray[np.bool_], delta: float, confidence: float = 0.95
) -> float:
    """An ε that the training exceeds with this confidence, or 0: high scores are guessed to be in, low ones out."""
    check_confidence(confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), not {delta!r}")
    if scores.shape != coins.shape or scores.ndim != 1 or len(scores) < 2:
        raise ValueError(f"there must be one score and one coin for each of two canaries or more, not {scores.shape}")
    order = np.argsort(scores, kind="stable")
    level = (1 - confidence) / len(_SHARES)
    bounds = []
    for share in _SHARES:
        each = max(1, int(share * len(scores)) // 2)
        correct = int(np.count_nonzero(coins[order[-each:]]) + np.count_nonzero(~coins[order[:each]]))
        bounds.append(_least_epsilon(len(scores), 2 * each, correct, delta, level))
    return max(bounds)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most that the probability of so many correct guesses can be under (ε, δ)-DP."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses about {canaries} canaries cannot be")
    fewer = np.arange(correct - 1, -1, -1.0)
    ways = special.gammaln(guesses + 1) - special.gammaln(fewer + 1) - special.gammaln(guesses - fewer + 1)
    odds = fewer * special.log_expit(epsilon) + (guesses - fewer) * special.log_expit(-epsilon)
    slopes = np.cumsum(np.exp(ways + odds)) / np.arange(1, correct + 1)
    tail = special.bdtrc(correct - 1, guesses, special.expit(epsilon)) if correct else 1.0
    return float(min(1.0, tail + 2 * canaries * delta * slopes.max(initial=0.0)))


def _least_epsilon(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """The ε up to which all are rejected at this level."""

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - level

    if excess(0.0) > 0:
        return 0.0
    # p grows with ε wherever it is small. A hair below the root: rounding must not carry the bound beyond it.
    return max(0.0, float(optimize.brentq(excess, 0.0, _LARGEST, xtol=1e-6)) - 1e-5)
