"""Lower bounds on ε, with a confidence level: from many trials with and without a canary, or from one training.

*Many trials.* (ε, δ)-DP says of every set A of outputs: P(A | one arm) ≤ e^ε·P(A | other arm) + δ, whichever arm is the
one. So ε ≥ ln((P(A | one) − δ) / P(A | other)). Some of the trials choose A: which end of the scores, and from which
threshold on. The others count hits, and the two shares are bounded together (`bound_from_hits`).

*One training* with many canaries, each in or out by a fair coin. Two theorems bound how often an adversary guesses
right, and the smaller bound counts: both bound the same probability.
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
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Scores = NDArray[np.floating]

_HELD_OUT = 4
"""One trial in so many chooses the threshold, the others measure: chosen on the same ones it looks too good."""
_THRESHOLDS = 64
"""Candidates from each end of the scores to their middle."""
_CAUTION = 0.7
"""Standard errors of a candidate's promise that are taken off it; about the best of those that were tried."""
_FEWEST = 20
_EDGE = 0.02
"""Of the level, what each share's own interval may use up; the rest is for both together."""
_ONE_SIDED = 0.15
"""Where the error of one share is below so much of the other's, that of the other alone counts."""
_POINTS = 200
_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Which shares of the coins are guessed, the surest first; all are tried, and the confidence is shared among them."""
_LARGEST, _FINE = 50.0, 1e-5


class Outputs(NamedTuple):
    """A set of outputs: those whose score is at least a threshold if `above`, at most otherwise.

    The arm that is in it more often is the canary's if above, the other one otherwise. Errors are of the logarithms of
    the two arms' shares, as far as is known.
    """

    promise: float
    """The bound that is to be hoped for."""
    above: bool
    threshold: float
    error: float
    false_error: float

    def bound(self, present: Scores, absent: Scores, delta: float, confidence: float) -> float:
        """A lower bound on ε from scores of trials that had no part in choosing this set."""
        hits, false_hits = self._hits(present, absent)
        return bound_from_hits(hits, false_hits, delta, 1 - confidence, (self.error, self.false_error))

    def without_error(self, present: Scores, absent: Scores) -> bool:
        """Whether all trials of one arm are in it, and none of the other."""
        (hits, trials), (false_hits, _) = self._hits(present, absent)
        return hits == trials and false_hits == 0

    def _hits(self, present: Scores, absent: Scores) -> tuple[tuple[int, int], tuple[int, int]]:
        """Hits and trials of the arm that is in it more often, then of the other one."""
        inside = [int(np.count_nonzero(self._inside(scores))) for scores in (present, absent)]
        hits, false_hits = ((inside[0], len(present)), (inside[1], len(absent)))
        return (hits, false_hits) if self.above else (false_hits, hits)

    def _inside(self, scores: Scores) -> NDArray[np.bool_]:
        return np.asarray(scores >= self.threshold if self.above else scores <= self.threshold)


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
    choosing = present[::_HELD_OUT], absent[::_HELD_OUT]
    with_canary, without = (np.delete(scores, np.s_[::_HELD_OUT]) for scores in (present, absent))
    chosen = most_telling(*choosing, (len(with_canary), len(without)), delta, confidence)
    return chosen.bound(with_canary, without, delta, confidence)


def most_telling(
    present: Scores, absent: Scores, sizes: tuple[int, int], delta: float, confidence: float, caution: float = _CAUTION
) -> Outputs:
    """The set of outputs that promises the highest bound from so many further trials with and without the canary.

    `caution` is by how many of its standard errors a promise is lowered: the more candidates, the more it should be.
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
    # Less what the choosing trials themselves may err: of many candidates the best look better than they are. The
    # logarithm of a share of few hits has no normal error: its square root has.
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
    """ln((share of hits − δ) / share of false hits) at least, of hits and trials in two independent arms; or 0.

    It errs with probability at most `level`, whatever the shares are. Of a share that is too low (of hits) or too high
    (of false hits) to be true, the binomial tail gives a p-value, and with it a normal score z. All pairs of shares are
    rejected of which one score is beyond its own limit (at a fiftieth of the level each), or a weighted sum of both is
    beyond a common one (Stouffer's method, at the rest): the bound is the least over all pairs that are left. Two
    intervals at half the level each would leave the corner where both shares are at their worst at once. `errors`,
    from other trials, only say which share the weight should be on.
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
    # From one point of the line to the next the shares are within the worse end of either, so nothing is missed.
    least = _lowest_share(*hits, scores[1:])
    most = np.maximum(_highest_share(*false_hits, false_scores[:-1]), np.finfo(float).tiny)
    return float(np.log(np.maximum(((least - delta) / most).min(), 1.0)))


def _lowest_share(hits: int, trials: int, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clopper–Pearson: the least share of which so many hits or more are as probable as such a score or beyond."""
    if hits == 0:
        return np.zeros_like(scores)
    return np.asarray(stats.beta.ppf(stats.norm.sf(scores), hits, trials - hits + 1))


def _highest_share(hits: int, trials: int, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    if hits == trials:
        return np.ones_like(scores)
    return np.asarray(stats.beta.isf(stats.norm.sf(scores), hits + 1, trials - hits))


def is_number(value: object) -> bool:
    return isinstance(value, Real)


def check_confidence(confidence: float) -> None:
    if not is_number(confidence) or not 0 < confidence < 1:
        raise ValueError(f"a confidence lies strictly between 0 and 1, not {confidence!r}")


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
