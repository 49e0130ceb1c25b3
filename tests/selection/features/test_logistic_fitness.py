"""PAFS with logistic regressions: trials fit the budget, and the search finds what predicts."""

import numpy as np
import pytest

from sordino.budget import Gaussian, Ledger, Repeated, cost
from sordino.data import Column
from sordino.data.dataset import cut
from sordino.data.schema import Schema
from sordino.features.encoding import OneHot
from sordino.mechanisms.streams import Streams
from sordino.selection.features.attributes import Attributes
from sordino.selection.features.genetic import Breeding
from sordino.selection.features.logistic_fitness import LogisticTrials, logistic_fitness
from sordino.selection.features.pafs import Trial, pafs


@pytest.fixture
def parts(schema, large):
    """With two classes: class 0 against the others, which `copy` tells at once."""
    train, validation = cut(type(large)(large.x, np.minimum(large.y, 1)), 4000)
    encoded = OneHot(schema.columns)
    return (encoded(train.x), train.y), (encoded(validation.x), validation.y)


def test_trials_fill_the_goal_in_both_parts():
    ledger = Ledger(2.0, 1e-5)
    trials = LogisticTrials.calibrated(30, 5000, 3, 6, ledger, goal=1.5)
    assert trials.trial == Trial(trials.plan.event, Gaussian(trials.score_noise))
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
        trial=trials.trial,
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
