"""Settings chosen privately: the best of a random number of trials, INS's procedure, and rules that need no trial.

On a public dataset that stands in for the private one (no ledger), all of it is free. `search` over a `Grid` is the
same choice for networks, kept in a folder and able to go on after a kill; here any training of the caller's will do.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sordino.budget import Event, Ledger, NonPrivate, Planned, RepeatAndSelect
from sordino.mechanisms import Stream, Streams, number_of_trials, secret_from_seed
from sordino.runs import Diverged, check_budget

T = TypeVar("T")
M = TypeVar("M")


@dataclass(frozen=True)
class Tuned(Generic[T, M]):
    """The chosen candidate with its model, which needs no second training, and its score."""

    candidate: T
    model: M
    score: float


def tune(
    candidates: Sequence[T],
    train_and_score: Callable[[T], tuple[M, float]],
    ledger: Ledger | None,
    *,
    training: Event,
    score: Event,
    mean_trials: float,
    shape: float = 1.0,
    what: str = "tuning",
    seed: int | None = None,
) -> Tuned[T, M]:
    """The best by score of a random number of trials, each of a candidate drawn at random; without a ledger, free.

    Guarantee: `RepeatAndSelect` of the training on the part "train" and of the score on the part "validation", charged
    before the first trial (see `search` for why each part pays for its own). It holds if every call of train_and_score
    draws one training event and one score event with fresh randomness, spends nothing itself, and shows nothing. The
    number of trials and all but the best stay here. A training that diverges loses to every other.
    """
    if not candidates:
        raise ValueError("tuning needs at least one candidate")
    events = {
        "train": RepeatAndSelect(training, mean_trials, shape),
        "validation": RepeatAndSelect(score, mean_trials, shape),
    }
    streams = Streams.fresh() if seed is None else Streams(secret_from_seed(seed))
    count = number_of_trials(mean_trials, shape, streams.generator(Stream.SAMPLING, 0))
    if ledger is not None:
        ledger.refuse_add_remove()
        check_budget(ledger, [Planned(event, what, part) for part, event in events.items()])
        for part, event in events.items():
            ledger.spend(event, what, part, seeded=seed is not None)
    draws = streams.generator(Stream.SAMPLING, 1).integers(len(candidates), size=count)
    best: Tuned[T, M] | None = None
    for draw in draws:
        try:
            model, found = train_and_score(candidates[int(draw)])
        except Diverged:
            continue
        if best is None or found > best.score:
            best = Tuned(candidates[int(draw)], model, found)
    if best is None:
        raise Diverged("no trial gave a model: all that were tried diverged; lower the learning rates")
    return best


@dataclass(frozen=True)
class ClipAndRate:
    l2_clip: float
    learning_rate: float
    score: float


def clip_then_rate(
    train_and_score: Callable[[float, float, bool], float],
    *,
    clips: Sequence[float],
    learning_rates: Sequence[float],
    public_rate: float,
    tolerance: float = 0.02,
    ledger: Ledger | None = None,
    training: Event = NonPrivate(),  # noqa: B008 (a frozen value)
    score: Event = NonPrivate(),  # noqa: B008
) -> ClipAndRate:
    """INS 3.3: the smallest clip that costs next to no accuracy without noise, then the best learning rate with noise.

    train_and_score(l2_clip, learning_rate, noisy) gives an accuracy. The largest clip stands for no clip at all;
    `public_rate` is a learning rate that is good without privacy; `tolerance` is what a clip may cost in accuracy.
    Below that clip, a clip k times smaller wants a learning rate k times larger and gains nothing (INS).

    Guarantee: none by itself, as INS say. Without a ledger the records are public, and it is free. With one, every
    training without noise is charged as not private, so a ledger with a target refuses it; the noisy trainings and
    scores, all of them looked at, are charged as `training` and `score` each. On private records use `tune`.
    """
    if not clips or not learning_rates:
        raise ValueError("the procedure needs at least one clip and one learning rate to try")

    if ledger is not None:
        ledger.refuse_add_remove()

    def tried(l2_clip: float, rate: float, noisy: bool) -> float:
        if ledger is not None:
            words = f"clip {l2_clip:g}, learning rate {rate:g}"
            ledger.spend(training if noisy else NonPrivate(), words, "train")
            ledger.spend(score if noisy else NonPrivate(), words, "validation")
        try:
            return train_and_score(l2_clip, rate, noisy)
        except Diverged:
            return -math.inf

    largest, *smaller = sorted(clips, reverse=True)
    unclipped, chosen = tried(largest, public_rate, False), largest
    for l2_clip in smaller:
        if tried(l2_clip, public_rate, False) < unclipped - tolerance:
            break
        chosen = l2_clip
    scores = {rate: tried(chosen, rate, True) for rate in learning_rates}
    best = max(scores, key=lambda rate: scores[rate])
    return ClipAndRate(chosen, best, scores[best])


def rate_by_noise(tuned_rate: float, tuned_n: int, tuned_epsilon: float, n: int, epsilon: float) -> float:
    """T&B's rule: fewer records or a smaller ε mean more noise a step, and the learning rate shrinks in proportion.

    Guarantee: of public numbers alone; it costs nothing.
    """
    _positive(tuned_rate=tuned_rate, tuned_n=tuned_n, tuned_epsilon=tuned_epsilon, n=n, epsilon=epsilon)
    return tuned_rate * min(1.0, (n / tuned_n) * (epsilon / tuned_epsilon))


def rate_by_line(points: Sequence[tuple[float, float]], epsilon: float, steps: int) -> float:
    """The linear rule (Panda et al. 2024): learning rate × steps grows linearly with ε.

    `points` are pairs of an ε and the best learning rate × steps there: from public data, or released by `tune` at
    small ε. One point gives a line through zero, more give the line of least squares.

    Guarantee: computed from public numbers or releases; it costs nothing more.
    """
    if not points:
        raise ValueError("the linear rule needs at least one point: an ε, and learning rate × steps there")
    _positive(epsilon=epsilon, steps=steps)
    for at, total in points:
        _positive(epsilon=at, total=total)
    least, at_least = min(points)
    through_zero = at_least * epsilon / least
    if len({at for at, _ in points}) == 1:
        return through_zero / steps
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    # Far below the points a line may fall under zero, where the one from the smallest of them to zero does not.
    return max(slope * epsilon + intercept, min(through_zero, at_least)) / steps


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive finite number, not {value!r}")
