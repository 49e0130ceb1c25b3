import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import PoissonGaussian
from sordino.budget.events.gaussian import hockey_stick

BOTH = (AdjacencyType.REMOVE, AdjacencyType.ADD)


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(1e-9, 0.999),
    sigma=st.floats(0.05, 300),
    epsilons=st.lists(st.floats(-20, 20), min_size=1, max_size=8, unique=True).map(sorted),
    direction=st.sampled_from(BOTH),
)
def test_hockey_stick_is_that_of_dp_accounting(rate, sigma, epsilons, direction):
    loss = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=direction)
    # dp_accounting refuses to look beyond the largest loss that an added record can have: nothing is there.
    end = np.inf if direction == AdjacencyType.REMOVE else -np.log(1 - rate)
    expected = np.array([loss.get_delta_for_epsilon(epsilon) if epsilon < end else 0.0 for epsilon in epsilons])
    assert hockey_stick(loss, np.array(epsilons)) == pytest.approx(expected, rel=1e-6, abs=2e-15)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("rate", "sigma"), [(1e-6, 0.3), (0.02, 1.5), (0.5, 1.0), (0.99, 20.0)])
def test_hockey_stick_by_quadrature(direction, rate, sigma):
    """The definition itself: ∫ max(0, upper − e^ε·lower) on a fine grid."""
    x = np.linspace(-12 * sigma - 1, 12 * sigma + 2, 400_001)
    plain = np.exp(-(x**2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    moved = np.exp(-((x - 1) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    mixture = (1 - rate) * plain + rate * moved
    upper, lower = (mixture, plain) if direction == AdjacencyType.REMOVE else (plain, mixture)
    loss = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=direction)
    epsilons = np.array([-2.0, -0.1, 0.0, 0.005, 0.1, 1.0])
    expected = [np.trapezoid(np.maximum(0, upper - np.exp(e) * lower), x) for e in epsilons]
    assert hockey_stick(loss, epsilons) == pytest.approx(expected, abs=2e-9)


@pytest.mark.parametrize("direction", BOTH)
def test_losses_that_would_overflow_have_a_limit(direction):
    loss = GaussianPrivacyLoss(0.01, sampling_prob=1e-6, adjacency_type=direction)
    deltas = hockey_stick(loss, np.array([-1e6, -800.0, 800.0, 1e6]))
    assert np.all((deltas >= 0) & (deltas <= 1))
    assert np.all(np.diff(deltas) <= 0)
    assert deltas[0] == pytest.approx(1)
    assert deltas[-1] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 4.0)])
def test_the_distribution_is_that_of_dp_accounting(rate, sigma):
    interval = 2.0**-11
    ours = PoissonGaussian(rate, sigma).losses("zero-out", interval)
    theirs = losses.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=interval)
    for epsilon in (0.0, 0.01, 0.3, 1.0, 2.0):
        assert max(direction.delta(epsilon) for direction in ours) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilon), rel=1e-3, abs=1e-14
        )


@pytest.mark.parametrize(("rate", "sigma"), [(1e-5, 0.4), (0.3, 4.0)])
def test_the_grid_holds_the_loss_of_a_step_that_left_the_record_out(rate, sigma):
    """Nearly all of the probability is there; on a grid beside it, each of many steps would be rounded up."""
    for direction, sign in zip(PoissonGaussian(rate, sigma).losses("zero-out", 2.0**-8), (1, -1), strict=True):
        assert direction.offset == sign * np.log1p(-rate)
