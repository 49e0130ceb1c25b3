"""A lower bound on ε from one training with many canaries, each in or out by a fair coin.

Two theorems bound how often an adversary guesses right, and the smaller bound counts: both are of the same probability.
Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2: if the training is (ε, δ)-DP,
an adversary who guesses r of the m coins is right v times or more with probability at most
f(v) + 2mδ·max over i of (f(v − i) − f(v))/i, where f(v) = P(Binomial(r, e^ε/(1 + e^ε)) ≥ v).
Mahloujifar, Melis & Chaudhuri 2024, "Auditing f-Differential Privacy in One Run": let p_j be the probability of j right
guesses of r. Flip the coin of one canary, and where a guess at it was right with j right in all, it is now wrong with
j − 1. So, where b(x) = min(1, e^ε·x + δ, 1 − e^−ε·(1 − δ − x)) bounds what a set of probability x can become,
Σ_{j ≥ i} j·p_j/m ≤ b(Σ_{j ≥ i−1} (r − j)·p_j/m) for every i; b is concave, so the mean over canaries keeps it. It loses
nothing to the number of canaries times δ, and is the tighter one where that is large.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from sordino.audit.lower_bound import check_confidence

_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Which shares of the coins are guessed, the surest first; all are tried, and the confidence is shared among them."""
_LARGEST, _FINE = 50.0, 1e-5


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


def impossible(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, level: float) -> bool:
    """Whether so many correct guesses or more have a probability below `level` under (ε, δ)-DP, by the second theorem.

    With at least that probability there are so many right and wrong guesses a canary at least; from there down to no
    right guess at all both grow as little as they can. If even so they come to more than all guesses, they cannot be.
    """
    if correct == 0:
        return False
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    for fewer in range(correct - 1, -1, -1):
        least = max(wrong, (right - delta) * math.exp(-epsilon), 1 - delta - math.exp(epsilon) * (1 - right))
        if least <= wrong:
            break
        right += fewer / (guesses - fewer) * (least - wrong)
        wrong = least
        if right + wrong > guesses / canaries:
            return True
    return False


def _least_epsilon(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """The ε up to which all are rejected at this level, by whichever theorem rejects more."""

    def rejected(epsilon: float) -> bool:
        seen = canaries, guesses, correct, epsilon, delta
        return p_value(*seen) <= level or impossible(*seen, level)

    if not rejected(0.0):
        return 0.0
    # Both reject less as ε grows, wherever p is small; so does the one that rejects more. The lower end is kept.
    low, high = 0.0, _LARGEST
    while high - low > _FINE:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
