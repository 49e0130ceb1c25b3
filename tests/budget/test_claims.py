"""PAW's search costs (NOTES.md §4), claimed and sound."""

import math

import pytest

from sordino.budget import (
    Composed,
    Gaussian,
    PoissonGaussian,
    RepeatAndSelect,
    Repeated,
    UnsupportedEvent,
    claims,
    cost,
    rdp,
)

FCN = Repeated(PoissonGaussian(100 / 60_000, 2.0), 500 * 600)


def test_paas_composes_54_trainings():
    """22.3 is what RDP gives for ≈54 trainings."""
    event = Repeated(FCN, 54)
    assert rdp.classic_epsilon(event, 1e-5, "zero-out") == pytest.approx(22.3, rel=5e-3)


def test_random_search_claimed():
    """Table: RS 3.51 with k=400; MGRS 8.53 with k=40, 20, 10 in three generations. Claims, not guarantees."""
    assert claims.claimed_random_search(2.11, [400]) == pytest.approx(3.51, rel=5e-3)
    assert claims.claimed_random_search(2.11, [40, 20, 10]) == pytest.approx(8.53, rel=5e-3)


def test_the_claim_has_k_upside_down():
    few, many = (claims.claimed_random_search(2.11, [k]) for k in (10, 1000))
    assert few > many


def sound(candidates, adjacency="zero-out", shape=1.0):
    """Of the same search done soundly: each generation the best of a random number with that mean."""
    return cost(Composed(tuple(RepeatAndSelect(FCN, float(k), shape) for k in candidates)), 1e-5, adjacency).epsilon


def test_random_search_sound():
    assert sound([400]) == pytest.approx(5.84, rel=5e-3)
    assert sound([40, 20, 10]) == pytest.approx(11.8, rel=5e-3)
    assert sound([400], shape=math.inf) == pytest.approx(33.6, rel=5e-3)


def test_sound_selection_has_no_price_where_its_training_has_none():
    with pytest.raises(UnsupportedEvent):
        sound([10], "replace-one")


def test_a_single_expected_run_still_costs_more_than_one_training():
    """The number of runs is random even with mean 1 in general; by the theorem it is never cheaper than one."""
    event = RepeatAndSelect(Gaussian(4.0), 1.0)
    assert cost(event, 1e-5).epsilon >= rdp.epsilon(Gaussian(4.0), 1e-5, "zero-out")


def test_eq_9_without_a_solution_says_so():
    with pytest.raises(ValueError, match=r"Eq\. 9"):
        claims.claimed_random_search(2.0, [10], validation_size=100)
