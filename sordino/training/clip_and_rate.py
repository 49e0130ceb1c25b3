"""Clip and learning rate in four steps (INS, Section 3.3), on public records.

1. The best learning rate without noise and without a clip.
2. At that rate and still without noise, the smallest clip that costs next to nothing.
3. At that clip and with the plan's noise, the best learning rate.
4. Their neighbours, in case one is better still.

Where the clip is small the best rate is inversely proportional to it, so a rate need be sought at one clip alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sordino.training.plan import Plan
from sordino.training.planning import check_positive

Score = Callable[[Plan, float], float]
"""Trains on public records under this plan at this learning rate; gives the accuracy on other public ones."""
_UNCLIPPED = 1e6
_NEIGHBOURS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class TriedSetting:
    """A training of the search: in which of the four steps, at what settings, and its score."""

    step: int
    l2_clip: float
    learning_rate: float
    noise_multiplier: float
    score: float


@dataclass(frozen=True)
class FoundSettings:
    """The settings that were found, and all that were tried."""

    l2_clip: float
    learning_rate: float
    tried: tuple[TriedSetting, ...]


def tune_clip_and_rate(
    plan: Plan,
    score: Score,
    *,
    learning_rates: Sequence[float],
    clips: Sequence[float],
    tolerance: float = 0.01,
) -> FoundSettings:
    """Clip and learning rate for a private training under this plan, found on public records.

    Guarantee: it costs nothing if `score` reads public records alone. Steps 1 and 2 train without noise, under plans
    whose event says so: a `score` that trains on private records with their ledger is refused there if that has a
    target, and charged ε=∞ if not. To tune on private records, use `sordino tune`, which charges for it.

    Parameters
    ----------
    plan : the private training's plan; public ones have its noise, sampling rate and steps, and not its clip.
    score : score(plan, learning_rate), higher is better.
    learning_rates, clips : what is tried.
    tolerance : how much of the score a clip may cost in step 2.

    >>> from sordino.data import PoissonSampler
    >>> plan = Plan(PoissonSampler(1000, 100), 1.0, 2.0, 50)
    >>> def score(plan, rate):  # best where rate·clip is 1, and clips above 3 are not felt
    ...     felt = min(plan.l2_clip, 3.0)
    ...     return 1 - 0.1 * abs(rate * felt - 3) - 0.01 * plan.noise_multiplier * plan.l2_clip
    >>> found = tune_clip_and_rate(plan, score, learning_rates=[0.5, 1.0, 2.0], clips=[1.0, 3.0, 10.0])
    >>> found.l2_clip, found.learning_rate
    (1.5, 2.0)
    """
    if not learning_rates or not clips:
        raise ValueError("give at least one learning rate and one clip to try")
    for value in (*learning_rates, *clips):
        check_positive("what is tried", value)
    tried: list[TriedSetting] = []

    def at(step: int, l2_clip: float, rate: float, private: bool) -> TriedSetting:
        asked = replace(plan, l2_clip=l2_clip)
        if not private:
            asked = replace(asked, noise_multiplier=0.0, private=False)
        found = TriedSetting(step, l2_clip, rate, asked.noise_multiplier, score(asked, rate))
        tried.append(found)
        return found

    plain = max((at(1, _UNCLIPPED, rate, False) for rate in learning_rates), key=lambda each: each.score)
    clipped = [at(2, clip, plain.learning_rate, False) for clip in sorted(clips)]
    near = [each for each in clipped if each.score >= plain.score - tolerance]
    clip = (near[0] if near else max(clipped, key=lambda each: each.score)).l2_clip
    noisy = max((at(3, clip, rate, True) for rate in learning_rates), key=lambda each: each.score)
    around = [
        at(4, clip * wider, noisy.learning_rate * faster, True)
        for wider in _NEIGHBOURS
        for faster in _NEIGHBOURS
        if (wider, faster) != (1.0, 1.0)
    ]
    best = max([noisy, *around], key=lambda each: each.score)
    return FoundSettings(best.l2_clip, best.learning_rate, tuple(tried))
