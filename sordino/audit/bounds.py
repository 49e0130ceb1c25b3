"""Lower bounds on ε, with a confidence level: from many trials with and without a canary, or from one training.

*Many trials.* Under (ε, δ)-DP every set A of outputs has P(A | one arm) ≤ e^ε·P(A | other arm) + δ, for either order of
the arms. So ε ≥ ln((P(A | one) − δ) / P(A | other)). Some trials choose A: which end of the scores, and from which
threshold. The others count hits, and the two shares are bounded together (`bound_from_hits`).

*One training run* with many canaries, each in or out by a fair coin. Two theorems bound the probability that an
adversary guesses so many coins right; the smaller bound counts.
Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2: if the training is (ε, δ)-DP,
an adversary who guesses r of the m coins is right v times or more with probability at most
f(v) + 2mδ·max over i of (f(v − i) − f(v))/i, where f(v) = P(Binomial(r, e^ε/(1 + e^ε)) ≥ v).
Mahloujifar, Melis & Chaudhuri 2024, "Auditing f-Differential Privacy in One Run": let p_j be the probability of j right
guesses of r. Flip the coin of one canary, and where a guess at it was right with j right in all, it is now wrong with
j − 1. With b(x) = min(1, e^ε·x + δ, 1 − e^−ε·(1 − δ − x)), the most that a set of probability x can become,
Σ_{j ≥ i} j·p_j/m ≤ b(Σ_{j ≥ i−1} (r − j)·p_j/m) for every i; b is concave, so this holds for the mean over canaries. It
has no term of the number of canaries times δ, and is tighter where that is large.
"""

import math
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Scores = NDArray[np.floating]

_HELD_OUT = 4
"""One trial in four chooses the threshold, the others measure: it looks too good on the trials that chose it."""
_THRESHOLDS = 64
"""Candidates from each end of the scores to their middle."""
_CAUTION = 0.7
"""Standard errors subtracted from a candidate's expected bound; 0.7 was about the best of the values tried."""
_FEWEST = 20
_EDGE = 0.02
"""The share of the level for each proportion's own interval; the rest is for both together."""
_ONE_SIDED = 0.15
"""If one proportion's error is below this share of the other's, only the larger one is used."""
_POINTS = 200
_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of the coins to guess, the surest guesses first; all are tried, and the confidence is split among them."""
_LARGEST, _FINE = 50.0, 1e-5


class Outputs(NamedTuple):
    """A set of outputs: scores at or above a threshold (`above`), or at or below it.

    Above, the arm with the canary is expected to hit more often, else the other one. The errors are standard errors of
    the logarithms of the two arms' shares, as estimated.
    """

    promise: float
    """The expected bound."""
    above: bool
    threshold: float
    error: float
    false_error: float

    def bound(self, present: Scores, absent: Scores, delta: float, confidence: float) -> float:
        """A lower bound on ε, from the scores of trials that did not choose this set."""
        hits, false_hits = self._hits(present, absent)
        return bound_from_hits(hits, false_hits, delta, 1 - confidence, (self.error, self.false_error))

    def without_error(self, present: Scores, absent: Scores) -> bool:
        """Whether it separates the arms: all trials of one are in it, and none of the other."""
        (hits, trials), (false_hits, _) = self._hits(present, absent)
        return hits == trials and false_hits == 0

    def _hits(self, present: Scores, absent: Scores) -> tuple[tuple[int, int], tuple[int, int]]:
        """Hits and trials of the arm expected to hit more often, then of the other one."""
        inside = [int(np.count_nonzero(self._inside(scores))) for scores in (present, absent)]
        hits, false_hits = ((inside[0], len(present)), (inside[1], len(absent)))
        return (hits, false_hits) if self.above else (false_hits, hits)

    def _inside(self, scores: Scores) -> NDArray[np.bool_]:
        return np.asarray(scores >= self.threshold if self.above else scores <= self.threshold)


def epsilon_lower_bound(present: Scores, absent: Scores, delta: float, confidence: float = 0.95) -> float:
    """A lower bound on the mechanism's ε at this confidence, or 0; the trials must be independent of each other.

    Scores should grow with the canary's presence. Guarantee: whatever the mechanism and the scores are, the bound
    exceeds the true ε with probability at most 1 − confidence.
    """
    check_levels(delta, confidence)
    if min(len(present), len(absent)) < _FEWEST:
        raise ValueError(f"a lower bound needs at least {_FEWEST} trials with the canary and as many without")
    choosing = present[::_HELD_OUT], absent[::_HELD_OUT]
    with_canary, without = (np.delete(scores, np.s_[::_HELD_OUT]) for scores in (present, absent))
    chosen = best_set(*choosing, (len(with_canary), len(without)), delta, confidence)
    return chosen.bound(with_canary, without, delta, confidence)


def best_set(
    present: Scores, absent: Scores, sizes: tuple[int, int], delta: float, confidence: float, caution: float = _CAUTION
) -> Outputs:
    """The set of outputs with the highest expected bound, from `sizes` further trials with and without the canary.

    An expected bound is lowered by `caution` of its standard errors: the more candidates, the larger it should be.
    """
    arms = np.sort(present), np.sort(absent)
    return max(_best(arms, sizes, delta, 1 - confidence, caution, above) for above in (True, False))


def _best(
    arms: tuple[Scores, Scores], sizes: tuple[int, int], delta: float, level: float, caution: float, above: bool
) -> Outputs:
    pooled = np.unique(np.concatenate(arms))
    ranks = np.unique(np.geomspace(1, max(1.0, len(pooled) / 2), _THRESHOLDS).astype(int))
    thresholds = pooled[np.unique(np.concatenate([ranks - 1, len(pooled) - ranks]))]
    if above:
        inside = [len(scores) - np.searchsorted(scores, thresholds, side="left") for scores in arms]
    else:
        inside = [np.searchsorted(scores, thresholds, side="right") for scores in arms]
    hit, falsely = (0, 1) if above else (1, 0)
    trials, false_trials = len(arms[hit]), len(arms[falsely])
    share, false_share = (inside[hit] + 0.5) / (trials + 1), (inside[falsely] + 1) / (false_trials + 2)
    beyond = np.maximum(share - delta, 1e-12)
    error = np.sqrt(share * (1 - share) / sizes[hit]) / beyond
    false_error = np.sqrt((1 - false_share) / false_share / sizes[falsely])
    # Less the error of the choosing trials themselves: the best of many candidates looks better than it is. The
    # logarithm of a share of few hits has no normal error, but its square root has.
    unsure = caution * error * math.sqrt(sizes[hit] / trials)
    falsely_unsure = 2 * np.log1p(caution / 2 * false_error * math.sqrt(sizes[falsely] / false_trials))
    promise = np.log(beyond / false_share) - stats.norm.isf(level) * np.hypot(error, false_error)
    promise -= np.hypot(unsure, falsely_unsure)
    best = int(np.argmax(promise))
    return Outputs(
        promise=float(promise[best]),
        above=above,
        threshold=float(thresholds[best]),
        error=float(error[best]),
        false_error=float(false_error[best]),
    )


def bound_from_hits(
    hits: tuple[int, int], false_hits: tuple[int, int], delta: float, level: float, errors: tuple[float, float]
) -> float:
    """A lower bound on ln((share of hits − δ) / share of false hits), or 0; each arm is given as (hits, trials).

    Guarantee: it errs with probability at most `level`, whatever the shares are. For each candidate share, the binomial
    tail gives a p-value (too low for the hits seen, or too high for the false hits), and that a normal score z. A pair
    of shares is rejected if one score exceeds its own limit (at 2 % of the level each), or a weighted sum of both
    exceeds a common limit (Stouffer's method, at the rest of the level). The bound is the least over the pairs that
    remain. Two intervals at half the level each would include the corner where both shares are at their worst.
    `errors`, from other trials, only decide the weights.
    """
    limit, common = stats.norm.isf(level * _EDGE), stats.norm.isf(level * (1 - 2 * _EDGE))
    error, false_error = errors
    error, false_error = (
        0.0 if error < _ONE_SIDED * false_error else error,
        0.0 if false_error < _ONE_SIDED * error else false_error,
    )
    weight, false_weight = np.array([error, false_error]) / math.hypot(error, false_error)
    if weight == 0 or false_weight == 0:
        scores = np.full(2, limit if weight == 0 else common)
        false_scores = np.full(2, limit if false_weight == 0 else common)
    else:
        scores = np.linspace((common - false_weight * limit) / weight, limit, _POINTS)
        false_scores = np.minimum(limit, (common - weight * scores) / false_weight)
    # Between two points of the line the shares are bounded by the worse end of each, so nothing is missed.
    least = _lowest_share(*hits, scores[1:])
    most = np.maximum(_highest_share(*false_hits, false_scores[:-1]), np.finfo(float).tiny)
    return float(np.log(np.maximum(((least - delta) / most).min(), 1.0)))


def _lowest_share(hits: int, trials: int, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clopper–Pearson: the lowest share that these hits do not reject at each of these normal scores."""
    if hits == 0:
        return np.zeros_like(scores)
    return np.asarray(stats.beta.ppf(stats.norm.sf(scores), hits, trials - hits + 1))


def _highest_share(hits: int, trials: int, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    if hits == trials:
        return np.ones_like(scores)
    return np.asarray(stats.beta.isf(stats.norm.sf(scores), hits + 1, trials - hits))


def is_number(value: object) -> bool:
    return isinstance(value, Real)


def check_levels(delta: float, confidence: float) -> None:
    if not is_number(confidence) or not 0 < confidence < 1:
        raise ValueError(f"a confidence lies strictly between 0 and 1, not {confidence!r}")
    if not is_number(delta) or not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), not {delta!r}")


def one_run_lower_bound(
    scores: NDArray[np.floating], coins: NDArray[np.bool_], delta: float, confidence: float = 0.95
) -> float:
    """A lower bound on the training's ε at this confidence, or 0: canaries with high scores are guessed to be in."""
    check_levels(delta, confidence)
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
    """An upper bound on the probability of this many correct guesses or more under (ε, δ)-DP, by the first theorem."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses about {canaries} canaries cannot be")
    fewer = np.arange(correct - 1, -1, -1.0)
    ways = special.gammaln(guesses + 1) - special.gammaln(fewer + 1) - special.gammaln(guesses - fewer + 1)
    odds = fewer * special.log_expit(epsilon) + (guesses - fewer) * special.log_expit(-epsilon)
    slopes = np.cumsum(np.exp(ways + odds)) / np.arange(1, correct + 1)
    tail = special.bdtrc(correct - 1, guesses, special.expit(epsilon)) if correct else 1.0
    return float(min(1.0, tail + 2 * canaries * delta * slopes.max(initial=0.0)))


def impossible(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, level: float) -> bool:
    """Whether this many correct guesses or more have a probability below `level` under (ε, δ)-DP, by theorem two.

    Assume that their probability is `level`. That gives the expected right and wrong guesses per canary among these
    outcomes; outcomes with fewer right guesses are added one by one, each with the least probability that the theorem
    allows. If right and wrong together then exceed all guesses, the assumption is false.
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
    """The largest ε rejected at this level by either theorem, together with all below it."""

    def rejected(epsilon: float) -> bool:
        seen = canaries, guesses, correct, epsilon, delta
        return p_value(*seen) <= level or impossible(*seen, level)

    if not rejected(0.0):
        return 0.0
    # Where p is small, both reject less as ε grows, and so does their union. The lower end is kept.
    low, high = 0.0, _LARGEST
    while high - low > _FINE:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
