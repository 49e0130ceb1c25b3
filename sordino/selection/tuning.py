"""Hyperparameters chosen privately: `tune` for a network, the best of trials for any training, and rules of thumb.

On public data that stands in for the private (no ledger), all of it is free.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sordino.budget import Event, Ledger, NonPrivate, Planned, RepeatAndSelect
from sordino.mechanisms import Stream, Streams, number_of_trials, secret_from_seed
from sordino.runs import Diverged, check_budget
from sordino.selection.executors import Executor
from sordino.selection.search_methods import GeneticSearch, RandomSearch, SearchMethod
from sordino.selection.search_spaces import Dense, DenseLayer, Grid
from sordino.selection.search_workflow import SearchRequest, search_within_budget
from sordino.selection.searching import OnResult

T = TypeVar("T")
M = TypeVar("M")


def tune(
    source: str | Path,
    *,
    epsilon: float,
    delta: float,
    target: str | None = None,
    schema: str | Path | None = None,
    hidden: Sequence[int] = (),
    learning_rates: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    clips: Sequence[float] = (0.1, 1.0),
    mean_trials: float = 5.0,
    epochs: float = 20.0,
    expected_batch_size: int | None = None,
    score_epsilon: float | None = None,
    public: str | Path | None = None,
    ledger: str | Path | None = None,
    out: str | Path | None = None,
    executor: Executor | None = None,
    seed: int | None = None,
    on_result: OnResult = lambda result: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Choose learning rate and clip of one network on private data, and train it, within one budget.

    The best of a random, secret number of trainings by noisy validation accuracy; only the best is ever shown. With
    `public` data all settings are tried on that, free, and the best is trained on the private data. The same call on
    the same `out` resumes an interrupted search, or gives its result again. Does what `sordino tune` does.

    Guarantee: (epsilon, delta) for the whole workflow, choice and training together, charged to one ledger in the
    folder (see `search`).

    Parameters
    ----------
    source : a .csv or .parquet file, or the name of a dataset
    epsilon, delta : the budget of everything that the ledger holds
    target : the column to predict, of a table without a schema
    schema : JSON file with the public domain of each column of a table
    hidden : widths of the hidden layers; none is a linear model
    learning_rates : to choose from; each is divided by the clip
    clips : L2 clips to choose from
    mean_trials : mean of the random number of trials
    epochs, expected_batch_size : of each training
    score_epsilon : ε of each score's Laplace noise; by default as the budget allows
    public : public data like the private
    ledger : an existing ledger, or its folder, that pays
    out : folder of the search; by default a new one under runs/
    executor : where trials run (`InProcess`, `Processes`, `OnRay`)
    seed : fixes all randomness, for experiments; it voids the privacy
    on_result, say : called with results that may be shown, and with messages

    Returns
    -------
    The chosen candidate, its noisy accuracy, ε and δ spent and the folder ("run"), as JSON values.

    Examples
    --------
    >>> import sordino
    >>> sordino.tune("digits", epsilon=2.0, delta=1e-4, clips=[])
    Traceback (most recent call last):
        ...
    ValueError: a grid needs at least one candidate
    """
    method, grid = settings_search(hidden, learning_rates, clips, mean_trials, on_public=public is not None)
    return search_within_budget(
        source,
        SearchRequest(method, grid, epochs, expected_batch_size, score_epsilon=score_epsilon),
        epsilon=epsilon,
        delta=delta,
        target=target,
        schema=schema,
        public=public,
        ledger=ledger,
        out=out,
        executor=executor,
        seed=seed,
        on_result=on_result,
        say=say,
    )


def settings_search(
    hidden: Sequence[int],
    learning_rates: Sequence[float],
    clips: Sequence[float],
    mean_trials: float,
    *,
    on_public: bool,
) -> tuple[SearchMethod, Grid[Dense]]:
    """How settings of one network are tried, and the grid of them: parameters as for `tune`."""
    layers = tuple(DenseLayer(width) for width in hidden)
    grid = Grid(tuple(Dense(layers, rate / clip, 0.0, clip) for clip in clips for rate in learning_rates))
    # On public data nothing needs to be random or secret: all settings are tried.
    return GeneticSearch(1, len(grid.candidates)) if on_public else RandomSearch(mean_trials), grid


@dataclass(frozen=True)
class BestTrial(Generic[T, M]):
    """The chosen candidate with its model, which needs no second training, and its score."""

    candidate: T
    model: M
    score: float


def best_of_trials(
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
) -> BestTrial[T, M]:
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
    best: BestTrial[T, M] | None = None
    for draw in draws:
        try:
            model, found = train_and_score(candidates[int(draw)])
        except Diverged:
            continue
        if best is None or found > best.score:
            best = BestTrial(candidates[int(draw)], model, found)
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
    scores, all of them looked at, are charged as `training` and `score` each. On private records use `best_of_trials`.
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

    `points` are pairs of an ε and the best learning rate × steps there: from public data, or released by
    `best_of_trials` at small ε. One point gives a line through zero, more give the line of least squares.

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
