"""Genetic search over feature subsets (PAW Algorithm 4): with merits CFS-GA, with private trainings PAFS."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger, Repeated, calibration
from sordino.mechanisms import Stream, Streams, check_count_noise, noisy_counts
from sordino.selection.attributes import Mask, Uncertainties, check_size, merits
from sordino.training import GaussianObjective, LogisticPlan, data_norm, fit_many, least_tolerance, noise_ridge, scores

Vectors = NDArray[Any]
Scores = NDArray[np.float64]
Fitness = Callable[[Mask], Scores]
"""Masks (subsets, features) → a score each, the greater the better."""
Parents = Callable[[Scores, int, np.random.Generator], NDArray[np.intp]]
"""Scores of a population, how many → that many members to breed from."""


PARENTS_SHARE = 0.1
"""Of the population, in `truncation`. The paper does not name it. Beside .4 (Algorithm 2's), a tenth finds subsets of
greater merit on Adult (.190 for .159) and of the same on Breast Cancer (.136); CFS-Greedy finds .201 and .137."""
_TOURNAMENT = 3


def truncation(scores: Scores, count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Parents drawn from the best share of the population (Algorithm 4, line 4)."""
    best = np.argsort(-scores, kind="stable")[: max(2, round(PARENTS_SHARE * len(scores)))]
    return np.asarray(generator.choice(best, count))


def tournament(scores: Scores, count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Each parent is the best of a few drawn at random (as DEAP does, which PAFS was made with)."""
    drawn = generator.integers(0, len(scores), (count, _TOURNAMENT))
    return np.asarray(drawn[np.arange(count), scores[drawn].argmax(axis=1)])


@dataclass(frozen=True)
class Breeding:
    """How a population of subsets changes. Rates as NOTES settles them; an offspring is crossed, mutated, or a copy."""

    population: int
    generations: int = 10
    crossover: float = 0.5
    mutation: float = 0.2
    bit_flip: float = 0.1
    """Chance of each bit to be flipped in a mutation."""

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 1:
            raise ValueError("a genetic search needs a population of at least 2 and at least one generation")
        rates = (self.crossover, self.mutation, self.bit_flip)
        if not all(0 <= rate <= 1 for rate in rates) or self.crossover + self.mutation > 1:
            raise ValueError("crossover, mutation and bit flip are chances, the first two together at most 1")

    def first(self, features: int, generator: np.random.Generator) -> Mask:
        """Uniformly random subsets."""
        return _not_empty(generator.random((self.population, features)) < 0.5, generator)

    def next(self, masks: Mask, scores: Scores, parents: Parents, generator: np.random.Generator) -> Mask:
        """Lines 5 to 12 of Algorithm 4 for the whole population; crossover takes each bit from either parent."""
        first, second = (masks[parents(scores, self.population, generator)] for _ in range(2))
        chance = generator.random((self.population, 1))
        crossed = np.where(generator.random(first.shape) < 0.5, first, second)
        mutated = first ^ (generator.random(first.shape) < self.bit_flip)
        both = self.crossover + self.mutation
        offspring = np.where(chance < self.crossover, crossed, np.where(chance < both, mutated, first))
        return _not_empty(offspring, generator)


@dataclass(frozen=True, eq=False)
class BestSubset:
    """The best subset of a search, its score, and what the search took."""

    mask: Mask
    score: float
    unique: int
    """Different subsets that were scored."""


def evolve(
    fitness: Fitness,
    features: int,
    breeding: Breeding,
    parents: Parents,
    generator: np.random.Generator,
    most_scored: int | None = None,
) -> BestSubset:
    """Generations of subsets, each scored once however often it comes up, and at most `most_scored` in all.

    The best subset ever scored is given, which the last population (Algorithm 4, line 14) may have lost again. Whether
    the search is private is up to the fitness.
    """
    known: dict[bytes, float] = {}
    masks = breeding.first(features, generator)
    best = (masks[0], -np.inf)
    for generation in range(breeding.generations + 1):
        keys = [row.tobytes() for row in np.packbits(masks, axis=1)]
        new = list({key: i for i, key in enumerate(keys) if key not in known}.items())
        allowed = len(new) if most_scored is None else most_scored - len(known)
        if new[:allowed]:
            fresh = masks[[i for _, i in new[:allowed]]]
            scores = np.asarray(fitness(fresh), dtype=np.float64)
            if scores.shape != (len(fresh),) or np.isnan(scores).any():
                raise ValueError(f"the fitness must give a number for each of {len(fresh)} subsets")
            known.update(zip((key for key, _ in new), scores.tolist(), strict=False))
            top = int(scores.argmax())
            if scores[top] > best[1]:
                best = (fresh[top].copy(), float(scores[top]))
        if len(new) > allowed or generation == breeding.generations:
            break
        masks = breeding.next(masks, np.array([known[key] for key in keys]), parents, generator)
    return BestSubset(*best, len(known))


CFS_BREEDING = Breeding(population=5000)


def cfs_genetic(found: Uncertainties, generator: np.random.Generator, breeding: Breeding = CFS_BREEDING) -> BestSubset:
    """CFS-GA (Algorithm 4): the subset of greatest merit that a genetic search finds.

    Guarantee: post-processing of the uncertainties; the generator decides nothing about privacy.
    """
    return evolve(lambda masks: merits(found, masks), len(found.names), breeding, truncation, generator)


def random_subset(features: int, size: int, generator: np.random.Generator) -> Mask:
    """The baseline: a random subset of this size; it reads no records, so it costs nothing."""
    check_size(size, features)
    mask = np.zeros(features, dtype=bool)
    mask[generator.choice(features, size, replace=False)] = True
    return mask


def _not_empty(masks: Mask, generator: np.random.Generator) -> Mask:
    """An empty subset gets one feature, drawn at random."""
    empty = np.flatnonzero(~masks.any(axis=1))
    masks[empty, generator.integers(0, masks.shape[1], len(empty))] = True
    return masks


PAFS_BREEDING = Breeding(population=600)


@dataclass(frozen=True)
class SubsetCost:
    """What trying one subset costs: a training on the train part, and a noisy score on the validation part.

    Without a score event the validation records are public.
    """

    training: Event
    score: Event | None = None


def pafs(
    fitness: Fitness,
    features: int,
    generator: np.random.Generator,
    *,
    cost: SubsetCost | None = None,
    ledger: Ledger | None = None,
    most_trials: int | None = None,
    breeding: Breeding = PAFS_BREEDING,
) -> BestSubset:
    """The subset of the best score that a genetic search finds; scores are of validation records, never of test ones.

    Guarantee: every different subset is one training of `cost.training` on the part "train" and one score of
    `cost.score` on the part "validation". Room for `most_trials` of them (by default for all that could come up) is
    reserved before the first, so that they are priced as planned; each is counted before it is run. The fitness must
    do what `cost` states and charge nothing itself; all its outputs may be shown. Without a ledger nothing is charged:
    then the records must be public, or the result labelled "selection not private".
    """
    if (ledger is None) != (cost is None):
        raise ValueError("a ledger and the cost of a trial go together: give both or neither")
    most = breeding.population * (breeding.generations + 1) if most_trials is None else most_trials
    if most < 1:
        raise ValueError(f"a search needs at least one trial, not {most}")
    if ledger is None or cost is None:
        return evolve(fitness, features, breeding, tournament, generator, most)
    ledger.refuse_add_remove()
    entries = [ledger.begin(cost.training, most, "PAFS: trainings", "train")]
    if cost.score is not None:
        entries.append(ledger.begin(cost.score, most, "PAFS: scores", "validation"))
    done = 0

    def charged(masks: Mask) -> Scores:
        nonlocal done
        done += len(masks)
        for entry in entries:
            ledger.raise_count(entry, done)
        return fitness(masks)

    return evolve(charged, features, breeding, tournament, generator, most)


@dataclass(frozen=True)
class LogisticTrials:
    """How each subset is tried: an objective perturbation on the train part, a noisy count on the validation part."""

    plan: LogisticPlan
    score_noise: float
    """Standard deviation of the noise on the number of correct predictions, which one record moves by at most 1."""
    epsilon_of_one: float
    """ε of one training alone, at the ledger's δ."""

    def __post_init__(self) -> None:
        check_count_noise(self.score_noise)

    @property
    def cost(self) -> SubsetCost:
        return SubsetCost(self.plan.event, Gaussian(self.score_noise))

    @classmethod
    def calibrated(
        cls, trials: int, n: int, attributes: int, width: int, ledger: Ledger, goal: float
    ) -> "LogisticTrials":
        """The least noise with which this many trials keep both parts of the ledger within the goal.

        n is the number of training records; `attributes` columns become `width` features when encoded.
        """
        ledger.refuse_add_remove()
        delta = ledger.terms.target_delta
        if delta is None:
            raise ValueError("trials are planned for a ledger with a target δ")
        adjacency = ledger.terms.adjacency

        def planned(sigma: float) -> LogisticPlan:
            noise = GaussianObjective(sigma)
            ridge = noise_ridge(noise, n, width)
            least = least_tolerance(n, width + 1, ridge, 10 * noise.expected_norm(width + 1))
            return LogisticPlan(data_norm(attributes), ridge, noise, max(1e-6, 4 * least), adjacency=adjacency)

        training = calibration.noise_multiplier(
            lambda sigma: Repeated(planned(sigma).event, trials), goal, delta, adjacency, ledger.epsilon_if
        )
        score = calibration.noise_multiplier(
            lambda sigma: Repeated(Gaussian(sigma), trials),
            goal,
            delta,
            adjacency,
            lambda event: ledger.epsilon_if(event, "validation"),
        )
        plan = planned(training)
        return cls(plan, score, plan.epsilon(delta))


def logistic_fitness(
    trials: LogisticTrials,
    train: tuple[Vectors, NDArray[np.integer]],
    validation: tuple[Vectors, NDArray[np.integer]],
    owners: NDArray[np.intp],
    streams: Streams | None = None,
) -> Fitness:
    """Masks → the share of correct predictions on the validation vectors, with noise, of models trained with noise.

    Guarantee: each subset is what `trials.cost` says; charging it is the search's business (`pafs`). Vectors are those
    of the one-hot encoding: a row of a subset that touches a attributes has norm at most √(a+1), the bias included, and
    the fit's noise is in units of that public norm. `owners` names each feature's attribute.
    """
    generator = (Streams.fresh() if streams is None else streams).generator(Stream.NOISE)
    x, y = train
    held, labels = validation
    if len(held) == 0:
        raise ValueError("scores need at least one validation record")
    belongs = owners[:, None] == np.unique(owners)

    def fitness(masks: Mask) -> Scores:
        touched = (masks.astype(np.int64) @ belongs.astype(np.int64) > 0).sum(axis=1)
        weights = fit_many(x, y, masks, trials.plan, 1, generator, np.sqrt(touched + 1.0))[:, 0]
        correct = ((scores(weights, held) > 0) == labels[:, None]).sum(axis=0)
        noisy = noisy_counts(generator, correct, trials.score_noise)
        return np.asarray(noisy / len(held))

    return fitness
