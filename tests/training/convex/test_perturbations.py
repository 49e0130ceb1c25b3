"""Noise of the stated law, and prices against the exact densities of what is released."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from sordino.budget import Composed, Gaussian, LogisticPerturbation, Pure
from sordino.training.convex import GaussianObjective, GaussianOutput, PureObjective
from sordino.training.convex.solver import minimise


def masks(count, width, kept=None):
    found = np.zeros((count, width), dtype=bool)
    found[:, : kept or width] = True
    return found


@pytest.mark.parametrize("kept", [1, 3])
def test_pure_noise_has_a_gamma_norm_and_any_direction(kept):
    noise = PureObjective(0.5, 1.0).objective_noise(np.random.default_rng(0), masks(20_000, 4, kept))
    assert (noise[:, kept:] == 0).all()
    norms = np.linalg.norm(noise, axis=1)
    assert stats.kstest(norms, stats.gamma(kept, scale=2.0).cdf).pvalue > 1e-3
    directions = noise[:, :kept] / norms[:, None]
    assert np.abs(directions.mean(axis=0)).max() < 0.03
    assert directions.T @ directions / len(noise) == pytest.approx(np.eye(kept) / kept, abs=0.02)


def test_gaussian_noise_has_its_deviation():
    noise = GaussianObjective(3.0).objective_noise(np.random.default_rng(1), masks(20_000, 3, 2))
    assert stats.kstest(noise[:, 0], stats.norm(0, 3).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.03
    assert (noise[:, 2] == 0).all()


def test_noise_on_the_output_is_in_units_of_what_the_output_may_move():
    everything, rng = masks(20_000, 2), np.random.default_rng(2)
    gap = GaussianObjective(3.0).output_noise(rng, everything, ridge=5.0, tolerance=0.1)
    assert gap.std() == pytest.approx(32 * 3 * 2 * 0.1 / 5, rel=0.02)
    gap = PureObjective(0.5, 0.01).output_noise(rng, everything, ridge=5.0, tolerance=0.1)
    assert np.linalg.norm(gap, axis=1).mean() == pytest.approx(2 * (2 * 0.1 / 5) / 0.01, rel=0.02)
    output = GaussianOutput(3.0).output_noise(rng, everything, ridge=5.0, tolerance=0.1)
    assert output.std() == pytest.approx(3 * 1.2 / 5, rel=0.02)


def test_events():
    assert GaussianObjective(3.0).event(4.0, "zero-out") == Composed((LogisticPerturbation(3.0, 0.25), Gaussian(96.0)))
    assert GaussianOutput(3.0).event(4.0, "zero-out") == Gaussian(3.0)
    # The ridge is at least 1/rate: the curvature is free.
    assert PureObjective(0.5, 0.01).event(2.0, "zero-out") == Pure(0.51)
    assert PureObjective(0.5, 0.01).event(2.0, "replace-one") == Pure(1.01)


def pure_log_density(theta, rows, ridge, rate):
    t = expit(-np.outer(theta, rows))
    noise = (t * rows).sum(axis=1) - ridge * theta
    return -rate * np.abs(noise) + np.log((t * (1 - t) * rows**2).sum(axis=1) + ridge) + math.log(rate / 2)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("ridge_times_epsilon", [0.4, 1.0, 3.0])
def test_no_output_tells_more_than_pure_epsilon(adjacency, epsilon, ridge_times_epsilon):
    ridge = ridge_times_epsilon / epsilon * (2 if adjacency == "replace-one" else 1)
    noise = PureObjective.calibrated(epsilon, ridge, adjacency)
    price = noise.event(ridge, adjacency).epsilon
    assert 0.999 * epsilon < price <= epsilon
    theta = np.linspace(-200, 200, 10_001) / noise.rate / ridge
    worst = 0.0
    for others in ([], [1.0], [0.5, -1.0], [-1.0] * 30, [1.0] * 30):
        for record, other in ((1.0, 0.0), (-0.8, 0.0)) if adjacency == "zero-out" else ((1.0, -1.0), (0.7, 1.0)):
            pair = [pure_log_density(theta, np.array([*others, r]), ridge, noise.rate) for r in (record, other)]
            worst = max(worst, float(np.abs(pair[0] - pair[1]).max()))
    assert worst <= price
    # In one dimension, two records that pull opposite ways share one unit of gradient between them.
    assert worst > (0.75 if adjacency == "zero-out" else 0.4) * price


def test_a_ridge_too_small_for_the_budget_is_refused():
    for adjacency in ("zero-out", "replace-one"):
        with pytest.raises(ValueError, match="raise it"):
            PureObjective.calibrated(0.1, 0.01, adjacency)


def test_one_record_moves_the_minimiser_by_one_over_the_ridge_at_most():
    rng, ridge, tolerance = np.random.default_rng(3), 0.7, 1e-3
    most = 0.0
    for _ in range(60):
        rows = rng.normal(size=(5, 3))
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
        rows[0] /= np.linalg.norm(rows[0])
        linear = rng.normal(size=(1, 3)) * 30  # labels, and a linear term that makes the record as surprising as can be
        found = []
        for label in (None, 0, 1):
            present = rows.copy() if label is not None else np.concatenate([[np.zeros(3)], rows[1:]])
            own = linear - (rows[0] if label == 1 else 0)
            terms = np.array([ridge]), np.array([tolerance])
            found.append(minimise(present, np.ones(5), own, *terms)[0])
        most = max(most, *(float(np.linalg.norm(found[0] - one)) for one in found[1:]))
    assert 0.9 / ridge < most <= (1 + 2 * tolerance) / ridge


def test_output_perturbation_lies_on_a_public_grid_whatever_the_minimiser():
    """In doubles the last bits of solved + noise show what was solved."""
    grid = 2.0**-30 / 4.0
    for number in (0.0, 1 / 3):
        told = GaussianOutput(3.0).released(np.random.default_rng(1), np.full((1, 5000), number), 4.0, 0.1)
        assert np.array_equal(np.rint(told / grid) * grid, told)
        assert (told - number).std() == pytest.approx(3 * 1.2 / 4, rel=0.05)
