"""What choosing among private trainings costs: the best of a random number, all of them, and what papers claim."""

import math
from collections.abc import Sequence

from sordino.budget.accountant import Cost, cost
from sordino.budget.events import Composed, Event, RepeatAndSelect, Repeated


def best_of_random(training: Event, mean_trials: float, shape: float = 1.0) -> RepeatAndSelect:
    """The event of releasing only the best of a random number of trainings (geometric by default).

    Guarantee: RDP by Papernot & Steinke 2021. Score and training together are the event; the number of trials must be
    drawn from that law and stay secret, and trials that were not chosen are never shown.
    """
    return RepeatAndSelect(training, mean_trials, shape)


def all_released(training: Event, trials: int) -> Event:
    """The event of training `trials` candidates and looking at every one (what PAAS does)."""
    return Repeated(training, trials)


def advanced_composition(epsilon: float, count: int, slack_delta: float) -> float:
    """ε' of count pure ε-DP releases with slack δ' (Dwork, Rothblum & Vadhan 2010; PAW Eq. 8)."""
    if not (epsilon >= 0 and count >= 0 and 0 < slack_delta < 1):
        raise ValueError("advanced composition needs ε ≥ 0, a count ≥ 0 and a slack δ strictly between 0 and 1")
    return epsilon * math.sqrt(2 * count * math.log(1 / slack_delta)) + count * epsilon * math.expm1(epsilon)


def claimed_random_search(
    training_epsilon: float,
    candidates: Sequence[int],
    validation_size: int = 5000,
    accuracy_loss: float = 0.0225,
    failure: float = 1e-4,
) -> float:
    """PAW Eq. 9 for RS (one generation) and MGRS (several): a claim, not a guarantee; never charged to a ledger.

    The theorem it cites is for pure ε and a random-stopping mechanism, not for the best of k; k stands upside down in
    it (fewer candidates cost more); and it counts the training once for all generations. See `sound_random_search`.
    """
    return training_epsilon + sum(8 * _eq9(k, validation_size, accuracy_loss, failure) for k in candidates)


def sound_random_search(
    training: Event, candidates: Sequence[int], delta: float, adjacency: str = "zero-out", shape: float = 1.0
) -> Cost:
    """The cost of the same search done soundly: each generation the best of a random number with that mean."""
    generations = tuple(best_of_random(training, float(k), shape) for k in candidates)
    return cost(Composed(generations), delta, adjacency)


def _eq9(candidates: int, validation_size: int, accuracy_loss: float, failure: float) -> float:
    """The smallest ε' in (0, ½] with x·v ≥ (4/ε')·ln(1/(ε'·δ·k))."""
    goal = accuracy_loss * validation_size

    def needed(epsilon: float) -> float:
        return 4 / epsilon * math.log(1 / (epsilon * failure * candidates))

    low, high = 1e-9, 0.5
    if needed(high) > goal:
        raise ValueError("Eq. 9 has no solution below ½: allow a larger loss of accuracy or a larger validation set")
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if needed(middle) > goal else (low, middle)
    return high
