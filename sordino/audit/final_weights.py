"""Audits of a loop of which only the last weights are told, whatever it does inside."""

from collections.abc import Callable

from sordino.audit.canaries import CanaryTrainee, by_record, half_of
from sordino.audit.findings import Audit
from sordino.audit.lower_bound import epsilon_lower_bound
from sordino.mechanisms import Streams
from sordino.training import Trainee, Weights

Loop = Callable[[Trainee, Streams], Weights]
"""Trains on the trainee's records and returns what is released."""


def audit_final_weights(
    loop: Loop,
    *,
    records: int,
    l2_clip: float,
    claimed_epsilon: float,
    sound_epsilon: float,
    delta: float,
    confidence: float = 0.95,
    streams: Streams | None = None,
) -> Audit:
    """A lower bound on the loop's ε from what one execution tells of so many canaries, half of them present.

    A canary's gradient is always the clip along its own parameter, every other record's there is zero; the score is
    how far the released parameter went against it.
    """
    streams = Streams.fresh() if streams is None else streams
    coins = half_of(records, streams)
    scores = -by_record(loop(CanaryTrainee(coins, l2_clip), streams)).double().numpy()
    bound = epsilon_lower_bound(scores[coins], scores[~coins], delta, confidence)
    return Audit(bound, confidence, claimed_epsilon, sound_epsilon, delta, records)
