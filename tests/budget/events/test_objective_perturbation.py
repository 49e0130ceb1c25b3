"""The price of a perturbed objective against the exact densities of its releases, and its bound against a search."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logsumexp, ndtr

from sordino.budget import Composed, Gaussian, LogisticPerturbation, Repeated, UnsupportedEvent, cost, pld, rdp
from sordino.budget.events import objective_perturbation as priced


def log_density(theta, rows, ridge, sigma):
    """log p(θ) of the minimiser in one dimension: b is a function of θ, and the Jacobian is the second derivative."""
    t = expit(-np.outer(theta, rows))
    noise = (t * rows).sum(axis=1) - ridge * theta
    second = (t * (1 - t) * rows**2).sum(axis=1) + ridge
    return -0.5 * (noise / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi)) + np.log(second)


def exact_delta(rows, other, ridge, sigma, epsilons):
    """δ at each ε of the release on `rows` against that on `other`, by quadrature."""
    reach = (10 * sigma + len(rows)) / ridge
    theta = np.linspace(-reach, reach, 40_001)
    p, q = (log_density(theta, np.asarray(data), ridge, sigma) for data in (rows, other))
    assert np.trapezoid(np.exp(p), theta) == pytest.approx(1, abs=1e-6)
    return [float(np.trapezoid(np.maximum(np.exp(p) - np.exp(e + q), 0), theta)) for e in epsilons]


def priced_delta(event, epsilons, interval=2.0**-10):
    either, _ = event.losses("zero-out", interval)
    return np.array([either.delta(epsilon) for epsilon in epsilons])


@pytest.mark.parametrize("sigma", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("curvature", [0.03, 0.5, 4.0])
@pytest.mark.parametrize("others", [[], [0.3, -1.0], [1.0] * 10])
@pytest.mark.parametrize("record", [1.0, -0.9])
def test_the_exact_release_never_loses_more_than_its_price(sigma, curvature, others, record):
    event, ridge = LogisticPerturbation(sigma, curvature), 1 / curvature
    present, absent = [*others, record], [*others, 0.0]
    epsilons = np.array([0.0, 0.2, 1.0, 3.0]) / sigma
    bound = priced_delta(event, epsilons) + 1e-8
    assert (exact_delta(present, absent, ridge, sigma, epsilons) <= bound).all()
    assert (exact_delta(absent, present, ridge, sigma, epsilons) <= bound).all()


def test_the_price_is_nearly_reached():
    """Many records that say the opposite hold θ where the gradient is full: then the release is a Gaussian one."""
    event, sigma, ridge = LogisticPerturbation(2.0, 0.5), 2.0, 2.0
    others = [-1.0] * 60
    exact = np.array(exact_delta([*others, 1.0], [*others, 0.0], ridge, sigma, [0.1, 0.5]))
    assert (exact > np.array([0.7, 0.6]) * priced_delta(event, [0.1, 0.5])).all()


@pytest.mark.parametrize("curvature", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_the_worst_loss_is_that_of_a_search(curvature):
    near = np.geomspace(1e-9, 0.5, 10_000)
    t = np.concatenate([[0.0], near, 1 - near, [1.0]])
    losses = np.concatenate([np.linspace(-3, 3, 201), curvature * np.linspace(-1.5, 1.5, 101)])
    searched = (np.log1p(curvature * t * (1 - t)) + losses[:, None] * t).max(axis=1)
    found = priced.worst_loss(losses, curvature)
    assert (found >= searched - 1e-12).all()
    assert found == pytest.approx(searched, rel=1e-6, abs=1e-3 * min(1, curvature))
    positive = found[found > 1e-9]
    back = priced.worst_loss(priced.largest_gaussian_loss(positive, curvature), curvature)
    assert (back <= positive).all()
    assert back == pytest.approx(positive, rel=1e-9)


def test_where_noise_outweighs_curvature_the_curvature_is_free():
    gaussian = cost(Gaussian(30.0), 1e-5).epsilon
    assert cost(LogisticPerturbation(30.0, 0.1), 1e-5).epsilon == pytest.approx(gaussian, rel=1e-6)
    assert gaussian * 1.05 < cost(LogisticPerturbation(30.0, 0.2), 1e-5).epsilon < gaussian + math.log1p(0.05)


def sampled_losses(event, count, repeats=400_000):
    z = np.random.default_rng(0).normal(size=(repeats, count))
    mu = 1 / event.noise_multiplier
    return priced.worst_loss(mu * mu / 2 + mu * z, event.curvature).sum(axis=1)


@pytest.mark.parametrize("event", [LogisticPerturbation(2.0, 0.7), LogisticPerturbation(5.0, 0.01)])
@pytest.mark.parametrize("count", [1, 4])
def test_composed_prices_are_those_of_drawn_losses(event, count):
    drawn = sampled_losses(event, count)
    delta = 0.01
    found = pld.epsilon(Repeated(event, count), delta, "zero-out")
    assert np.mean(np.maximum(-np.expm1(found - drawn), 0)) == pytest.approx(delta, rel=0.1)
    for order in (1.5, 4.0):
        expected = (logsumexp((order - 1) * drawn) - math.log(len(drawn))) / (order - 1)
        assert rdp.rdp(Repeated(event, count), "zero-out", (order,))[0] == pytest.approx(expected, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.3, 100), st.floats(1e-3, 20), st.integers(2, 10))
def test_every_grid_is_pessimistic(sigma, curvature, halvings):
    event = LogisticPerturbation(sigma, curvature)
    coarse, _ = event.losses("zero-out", 2.0**-halvings / sigma)
    epsilons = np.linspace(0, 4 / sigma + 1 / sigma**2, 7)
    mu = 1 / sigma
    z = np.linspace(-9, 9, 200_001)
    losses = priced.worst_loss(mu * mu / 2 + mu * z, curvature)
    weights = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    exact = [float((weights * np.maximum(-np.expm1(e - losses), 0)).sum()) for e in epsilons]
    assert (np.array([coarse.delta(epsilon) for epsilon in epsilons]) >= np.array(exact) - 1e-9).all()
    assert coarse.probabilities.sum() + coarse.infinite == pytest.approx(1, abs=1e-9)
    assert coarse.probabilities[0] >= ndtr((-curvature - mu * mu / 2) / mu) - 1e-12


def test_more_noise_and_more_ridge_cost_less_and_both_accountants_agree():
    found = [cost(LogisticPerturbation(s, 1.0), 1e-5).epsilon for s in (1.0, 2.0, 4.0, 8.0)]
    assert found == sorted(found, reverse=True)
    found = [cost(LogisticPerturbation(5.0, k), 1e-5) for k in (0.1, 1.0, 3.0, 10.0)]
    assert [one.epsilon for one in found] == sorted(one.epsilon for one in found)
    assert all(one.pld <= one.rdp <= 1.3 * one.pld for one in found)


def test_a_replaced_record_is_refused_and_others_compose():
    with pytest.raises(UnsupportedEvent, match="replace-one"):
        cost(LogisticPerturbation(2.0, 0.1), 1e-5, "replace-one")
    both = cost(Composed((LogisticPerturbation(2.0, 0.1), Gaussian(2.0))), 1e-5).epsilon
    assert cost(Gaussian(2 / math.sqrt(2)), 1e-5).epsilon <= both * (1 + 1e-3)
    assert both < 2 * cost(Gaussian(2.0), 1e-5).epsilon
