"""Random search, sound: the best of a random number of secret trials (PAW's RS), and generations of it (MGRS)."""

from dataclasses import dataclass
from typing import Any

from sordino.budget import Event, RepeatAndSelect
from sordino.selection.search.candidates import Trial
from sordino.selection.search.searching import Search, Stage
from sordino.selection.search.space import C


@dataclass(frozen=True)
class RandomSearch:
    """Candidates drawn at random, one after the other; only the best is ever shown.

    Guarantee: the best of a random number of runs of one training, and of one score (`RepeatAndSelect`), whatever the
    number turns out to be. Trials are independent and alike (a candidate that comes twice is trained twice), and their
    number is drawn from the law that is charged, under the search's secret key.
    """

    mean_trials: float = 400.0
    shape: float = 1.0

    def __post_init__(self) -> None:
        _check((self.mean_trials,))

    @property
    def hides_trials(self) -> bool:
        return True

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        return (_stage("the best of a random number of trials", training, score, self.mean_trials, self.shape),)

    def run(self, search: Search[C]) -> Trial:
        count = search.number_of_trials(0, self.mean_trials, self.shape)
        space = search.question.space
        draws = (space.draw(search.generator("candidates", place)) for place in range(count))
        return max(search.hidden(0, draws), key=lambda trial: trial.score)

    def to_json(self) -> dict[str, Any]:
        return {"method": "random", **vars(self)}


@dataclass(frozen=True)
class GenerationalSearch:
    """Random searches in a row: from the second on, candidates are mutants of the last winner, or drawn anew.

    Guarantee: one `RepeatAndSelect` a generation, composed. Each generation's winner is released, so what the next one
    draws its candidates from is no secret, and choosing among the winners is free: the best by score is taken.
    """

    mean_trials: tuple[float, ...] = (40.0, 20.0, 10.0)
    mutation: float = 0.7
    shape: float = 1.0

    def __post_init__(self) -> None:
        _check(self.mean_trials)
        if not 0 <= self.mutation <= 1:
            raise ValueError(f"the rate of mutation lies between 0 and 1, not {self.mutation!r}")

    @property
    def hides_trials(self) -> bool:
        return True

    def stages(self, training: Event, score: Event) -> tuple[Stage, ...]:
        of = len(self.mean_trials)
        return tuple(
            _stage(f"the best of generation {place} of {of}", training, score, mean, self.shape)
            for place, mean in enumerate(self.mean_trials, 1)
        )

    def run(self, search: Search[C]) -> Trial:
        winners: list[Trial] = []
        last: C | None = None
        for generation, mean in enumerate(self.mean_trials):
            count = search.number_of_trials(generation, mean, self.shape)
            candidates = [self._candidate(search, last, generation, place) for place in range(count)]
            trials = search.hidden(generation, candidates)
            winner = max(trials, key=lambda trial: trial.score)
            last = candidates[trials.index(winner)]
            if search.ledger is not None:  # of public records all trials were shown already
                search.on_finding(winner.finding)
            winners.append(winner)
        return max(winners, key=lambda trial: trial.score)

    def to_json(self) -> dict[str, Any]:
        return {"method": "generational", **vars(self)}

    def _candidate(self, search: Search[C], last: C | None, generation: int, place: int) -> C:
        generator = search.generator(f"candidates of generation {generation}", place)
        if last is not None and generator.random() < self.mutation:
            return search.question.space.mutate(last, generator)
        return search.question.space.draw(generator)


def _stage(name: str, training: Event, score: Event, mean: float, shape: float) -> Stage:
    return Stage(name, 1, RepeatAndSelect(training, mean, shape), RepeatAndSelect(score, mean, shape))


def _check(means: tuple[float, ...]) -> None:
    if not means or not all(1 <= mean < 1e6 for mean in means):
        raise ValueError(f"the mean number of trials lies between 1 and a million, not {', '.join(map(str, means))}")
