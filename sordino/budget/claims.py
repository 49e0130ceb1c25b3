"""What papers claim for choosing among private trainings, for comparison; a sound choice is `RepeatAndSelect`."""

import math
from collections.abc import Sequence


def claimed_random_search(
    training_epsilon: float,
    candidates: Sequence[int],
    validation_size: int = 5000,
    accuracy_loss: float = 0.0225,
    failure: float = 1e-4,
) -> float:
    """PAW Eq. 9 for RS (one generation) and MGRS (several): a claim, not a guarantee; never charged to a ledger.

    The theorem it cites is for pure ε and a random-stopping mechanism, not for the best of k; k stands upside down in
    it (fewer candidates cost more); and it counts the training once for all generations. The sound price of the same
    search is that of one `RepeatAndSelect` a generation, composed.
    """
    return training_epsilon + sum(8 * _eq9(k, validation_size, accuracy_loss, failure) for k in candidates)


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
