"""Genetic searches over subsets; PAFS charges a training and a score for each different subset before it is tried."""

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Gaussian, Ledger, Pure, Repeated, cost
from sordino.data import Column
from sordino.data.dataset import cut
from sordino.data.schema import Schema
from sordino.features import OneHot
from sordino.mechanisms.streams import Streams
from sordino.selection.attributes import Attributes, Uncertainties, merits
from sordino.selection.subset_search import (
    PAFS_BREEDING,
    Breeding,
    LogisticTrials,
    SubsetCost,
    cfs_genetic,
    evolve,
    logistic_fitness,
    pafs,
    random_subset,
    tournament,
    truncation,
)

GOAL = np.arange(12) % 3 == 0


def likeness(masks):
    return (masks == GOAL).sum(axis=1).astype(float)


@pytest.mark.parametrize("parents", [truncation, tournament])
def test_it_finds_the_best_subset_and_scores_each_once(parents):
    seen = []

    def fitness(masks):
        seen.extend(map(bytes, masks))
        return likeness(masks)

    found = evolve(fitness, 12, Breeding(300), parents, np.random.default_rng(0))
    np.testing.assert_array_equal(found.mask, GOAL)
    assert found.score == 12
    assert len(seen) == len(set(seen)) == found.unique
    assert all(np.frombuffer(mask, bool).any() for mask in seen)


def test_it_stops_at_the_most_that_may_be_scored():
    asked = []

    def fitness(masks):
        asked.append(len(masks))
        return likeness(masks)

    found = evolve(fitness, 12, Breeding(100), tournament, np.random.default_rng(0), most_scored=150)
    assert sum(asked) == found.unique == 150
    alone = evolve(fitness, 12, Breeding(100), tournament, np.random.default_rng(0), most_scored=1)
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
    assert set(truncation(scores, 1000, generator)) == set(range(90, 100))
    won = tournament(scores, 20_000, generator)
    assert won.mean() == pytest.approx(74.75, abs=1)  # the mean of the greatest of three
    for wrong in ({"population": 1}, {"population": 9, "crossover": 0.9}):
        with pytest.raises(ValueError, match=r"."):
            Breeding(**wrong)


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
        evolve(lambda masks: np.full(len(masks), np.nan), 3, Breeding(5), tournament, np.random.default_rng(0))


def test_random_subsets():
    masks = np.stack([random_subset(6, 2, np.random.default_rng(seed)) for seed in range(300)])
    assert (masks.sum(axis=1) == 2).all()
    np.testing.assert_allclose(masks.mean(axis=0), 1 / 3, atol=0.1)
    with pytest.raises(ValueError, match="1 to 6"):
        random_subset(6, 7, np.random.default_rng(0))


SMALL = Breeding(30, generations=3)
TRIAL = SubsetCost(Gaussian(200.0), Gaussian(300.0))


def size(masks):
    return -np.abs(masks.sum(axis=1) - 3.0)


def test_every_different_subset_is_counted_before_it_is_tried():
    ledger = Ledger(5.0, 1e-5)
    tried = 0

    def fitness(masks):
        nonlocal tried
        tried += len(masks)
        assert [entry.count for entry in ledger.entries] == [tried, tried]
        return size(masks)

    found = pafs(fitness, 8, np.random.default_rng(0), cost=TRIAL, ledger=ledger, breeding=SMALL)
    assert found.mask.sum() == 3
    assert found.unique == tried
    assert [(entry.event, entry.part, entry.committed) for entry in ledger.entries] == [
        (TRIAL.training, "train", 120),
        (TRIAL.score, "validation", 120),
    ]
    assert ledger.epsilon() == cost(Repeated(TRIAL.training, tried), 1e-5).epsilon
    # Where it stopped may tell something, so the statement holds it to all that was reserved.
    assert ledger.statement()["epsilon"] == cost(Repeated(TRIAL.training, 120), 1e-5).epsilon


def test_trials_beyond_the_reserved_ones_are_not_made():
    ledger = Ledger(5.0, 1e-5)
    found = pafs(size, 8, np.random.default_rng(0), cost=TRIAL, ledger=ledger, most_trials=40, breeding=SMALL)
    assert found.unique == 40
    assert [entry.count for entry in ledger.entries] == [40, 40]
    public = pafs(size, 8, np.random.default_rng(0), cost=SubsetCost(Gaussian(200.0)), ledger=Ledger(), breeding=SMALL)
    assert public.mask.sum() == 3


def test_what_would_overspend_is_refused_before_the_first_trial():
    def fitness(masks):
        raise AssertionError("tried")

    with pytest.raises(BudgetExceeded):
        pafs(fitness, 8, np.random.default_rng(0), cost=SubsetCost(Pure(0.1)), ledger=Ledger(1.0, 1e-5))
    for wrong in ({"cost": TRIAL}, {"ledger": Ledger()}, {"most_trials": 0}):
        with pytest.raises(ValueError, match=r"both or neither|at least one trial"):
            pafs(fitness, 8, np.random.default_rng(0), **wrong)


def test_pafs_breeds_as_the_paper_does():
    assert Breeding(600, 10, crossover=0.5, mutation=0.2, bit_flip=0.1) == PAFS_BREEDING


@pytest.fixture
def parts(schema, large):
    """With two classes: class 0 against the others, which `copy` tells at once."""
    train, validation = cut(type(large)(large.x, np.minimum(large.y, 1)), 4000)
    encoded = OneHot(schema.columns)
    return (encoded(train.x), train.y), (encoded(validation.x), validation.y)


def test_trials_fill_the_goal_in_both_parts():
    ledger = Ledger(2.0, 1e-5)
    trials = LogisticTrials.calibrated(30, 5000, 3, 6, ledger, goal=1.5)
    assert trials.cost == SubsetCost(trials.plan.event, Gaussian(trials.score_noise))
    for event in (trials.plan.event, Gaussian(trials.score_noise)):
        assert 1.49 < cost(Repeated(event, 30), 1e-5).epsilon <= 1.5
    assert trials.plan.data_norm == 2.0


def test_the_search_finds_what_predicts(schema, parts):
    train, validation = parts
    owners = Attributes(schema).owners
    ledger = Ledger(8.0, 1e-5)
    trials = LogisticTrials.calibrated(40, len(train[0]), 3, 6, ledger, 8.0)
    fitness = logistic_fitness(trials, train, validation, owners)
    found = pafs(
        *(fitness, 6, np.random.default_rng(0)),
        cost=trials.cost,
        ledger=ledger,
        most_trials=40,
        breeding=Breeding(16, 3),
    )
    assert found.mask[:2].any()
    assert found.score > 0.9
    assert ledger.epsilon() <= 8.0
    assert {entry.part for entry in ledger.entries} == {"train", "validation"}


def test_scores_carry_the_stated_noise(schema, parts):
    train, validation = parts
    plan = LogisticTrials.calibrated(1, len(train[0]), 3, 6, Ledger(50.0, 1e-5), 50.0).plan
    masks = np.repeat(np.eye(6, dtype=bool)[:1], 100, axis=0)  # one subset that hardly any noise confuses
    train = (train[0][:500], train[1][:500])
    owners = Attributes(schema).owners
    seen = logistic_fitness(LogisticTrials(plan, 40.0, 1.0), train, validation, owners, Streams(bytes(16)))(masks)
    assert seen.mean() == pytest.approx(1.0, abs=0.005)
    assert seen.std() == pytest.approx(40 / 4000, rel=0.3)
    with pytest.raises(ValueError, match="validation record"):
        logistic_fitness(LogisticTrials(plan, 40.0, 1.0), train, (validation[0][:0], validation[1][:0]), owners)


def test_a_goal_needs_a_delta():
    with pytest.raises(ValueError, match="target δ"):
        LogisticTrials.calibrated(5, 100, 1, 1, Ledger(), 1.0)


def test_the_norm_of_a_subset_counts_attributes_not_features():
    schema = Schema((Column("a", ("x", "y", "z")), Column("b", bounds=(0, 1))), Column("t", ("0", "1")))
    rows = np.array([[1, 0, 0, 1.0]] * 10 + [[0, 1, 0, 1.0]] * 10)
    labels = np.arange(20) % 2
    trials = LogisticTrials.calibrated(1, 20, 2, 4, Ledger(1.0, 1e-5), 1.0)
    # A row of norm √3, the bias included: a smaller public norm for it would be refused by the fit.
    assert logistic_fitness(trials, (rows, labels), (rows, labels), Attributes(schema).owners)(
        np.ones((1, 4), bool)
    ).shape == (1,)
