"""PAFS charges a training and a score for each different subset, before it is tried; claims stand beside."""

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Gaussian, Ledger, Pure, Repeated, cost
from sordino.selection.features.costs import cfs_cost, claimed_cfs, claimed_pafs, pafs_cost
from sordino.selection.features.genetic import Breeding
from sordino.selection.features.pafs import PAFS_BREEDING, Trial, pafs

SMALL = Breeding(30, generations=3)
TRIAL = Trial(Gaussian(200.0), Gaussian(300.0))


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

    found = pafs(fitness, 8, np.random.default_rng(0), trial=TRIAL, ledger=ledger, breeding=SMALL)
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
    found = pafs(size, 8, np.random.default_rng(0), trial=TRIAL, ledger=ledger, most_trials=40, breeding=SMALL)
    assert found.unique == 40
    assert [entry.count for entry in ledger.entries] == [40, 40]
    public = pafs(size, 8, np.random.default_rng(0), trial=Trial(Gaussian(200.0)), ledger=Ledger(), breeding=SMALL)
    assert public.mask.sum() == 3


def test_what_would_overspend_is_refused_before_the_first_trial():
    def fitness(masks):
        raise AssertionError("tried")

    with pytest.raises(BudgetExceeded):
        pafs(fitness, 8, np.random.default_rng(0), trial=Trial(Pure(0.1)), ledger=Ledger(1.0, 1e-5))
    for wrong in ({"trial": TRIAL}, {"ledger": Ledger()}, {"most_trials": 0}):
        with pytest.raises(ValueError, match=r"both or neither|at least one trial"):
            pafs(fitness, 8, np.random.default_rng(0), **wrong)


def test_the_papers_claims_beside_what_holds():
    assert Breeding(600, 10, crossover=0.5, mutation=0.2, bit_flip=0.1) == PAFS_BREEDING
    assert claimed_cfs(43) == pytest.approx(2.31, abs=0.005)
    assert claimed_pafs(2314) == pytest.approx(49.63, abs=0.01)
    both = pafs_cost(2314, Trial(Pure(0.1), Gaussian(50.0)), claimed_pafs(2314), 1e-5)
    assert both.claimed > both.train.epsilon > both.validation.epsilon
    assert both.sound == both.train.epsilon == cost(Repeated(Pure(0.1), 2314), 1e-5).epsilon
    assert cfs_cost(43, Gaussian(2.0), 1e-5).sound == cost(Gaussian(2.0), 1e-5).epsilon
