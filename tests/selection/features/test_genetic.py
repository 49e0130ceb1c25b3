"""The genetic search finds what greater scores lie at, scores each subset once, and keeps its rates."""

import numpy as np
import pytest

from sordino.selection.features.genetic import Breeding, Tournament, Truncation, cfs_genetic, evolve, random_subset
from sordino.selection.features.merit import merits
from sordino.selection.features.uncertainty import Uncertainties

GOAL = np.arange(12) % 3 == 0


def likeness(masks):
    return (masks == GOAL).sum(axis=1).astype(float)


@pytest.mark.parametrize("parents", [Truncation(), Truncation(0.4), Tournament()])
def test_it_finds_the_best_subset_and_scores_each_once(parents):
    seen = []

    def fitness(masks):
        seen.extend(map(bytes, masks))
        return likeness(masks)

    found = evolve(fitness, 12, Breeding(300), parents, np.random.default_rng(0))
    np.testing.assert_array_equal(found.mask, GOAL)
    assert found.score == 12
    assert len(seen) == len(set(seen)) == found.unique
    assert list(found.best_by_generation) == sorted(found.best_by_generation)
    assert all(np.frombuffer(mask, bool).any() for mask in seen)


def test_it_stops_at_the_most_that_may_be_scored():
    asked = []

    def fitness(masks):
        asked.append(len(masks))
        return likeness(masks)

    found = evolve(fitness, 12, Breeding(100), Tournament(), np.random.default_rng(0), most_scored=150)
    assert sum(asked) == found.unique == 150
    alone = evolve(fitness, 12, Breeding(100), Tournament(), np.random.default_rng(0), most_scored=1)
    assert alone.unique == 1
    assert alone.mask.any()


def test_offspring_are_crossed_mutated_or_copied_at_the_stated_rates():
    breeding = Breeding(20_000)
    generator = np.random.default_rng(0)
    masks = np.zeros((2, 400), bool)
    masks[1] = True

    def both_parents(scores, count, generator):
        both_parents.calls += 1
        return np.full(count, both_parents.calls - 1)

    both_parents.calls = 0
    offspring = breeding.next(masks, np.zeros(2), both_parents, generator)  # all-zero parents first, all-one second
    share = offspring.mean(axis=1)
    assert (share > 0.3).mean() == pytest.approx(0.5, abs=0.02)
    mutated = (share > 0.03) & (share < 0.3)
    assert mutated.mean() == pytest.approx(0.2, abs=0.02)
    assert share[mutated].mean() == pytest.approx(0.1, abs=0.005)
    assert (offspring.sum(axis=1) == 1).mean() == pytest.approx(0.3, abs=0.02)  # copies of nothing get one feature


def test_parents():
    scores = np.arange(100.0)
    generator = np.random.default_rng(0)
    assert set(Truncation(0.1)(scores, 1000, generator)) == set(range(90, 100))
    won = Tournament(3)(scores, 20_000, generator)
    assert won.mean() == pytest.approx(74.75, abs=1)  # the mean of the greatest of three
    for wrong in (
        lambda: Truncation(0),
        lambda: Tournament(0),
        lambda: Breeding(1),
        lambda: Breeding(9, crossover=0.9),
    ):
        with pytest.raises(ValueError, match=r"."):
            wrong()


def test_the_search_by_merit():
    generator = np.random.default_rng(3)
    between = np.full((10, 10), 0.5)
    np.fill_diagonal(between, 1.0)
    found = Uncertainties(between, generator.random(10), tuple("abcdefghij"))
    every = (np.arange(1, 2**10)[:, None] >> np.arange(10)) & 1 == 1
    best = cfs_genetic(found, generator, Breeding(400))
    assert best.score == pytest.approx(merits(found, every).max())
    assert merits(found, best.mask[None])[0] == pytest.approx(best.score)


def test_a_fitness_that_is_none():
    with pytest.raises(ValueError, match="a number for each"):
        evolve(lambda masks: np.full(len(masks), np.nan), 3, Breeding(5), Tournament(), np.random.default_rng(0))


def test_random_subsets():
    masks = np.stack([random_subset(6, 2, np.random.default_rng(seed)) for seed in range(300)])
    assert (masks.sum(axis=1) == 2).all()
    np.testing.assert_allclose(masks.mean(axis=0), 1 / 3, atol=0.1)
    with pytest.raises(ValueError, match="1 to 6"):
        random_subset(6, 7, np.random.default_rng(0))
