"""Many logistic regressions at once: each at its own minimum, whichever way it was found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from sordino.training.convex import solver


def gradients(rows, counts, weights, linear, ridge, masks):
    found = (counts[:, None] * expit(rows @ weights.T)).T @ rows + ridge[:, None] * weights + linear
    return found * masks


def problems(seed, n=60, d=6, count=12):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d))
    linear = -(rng.integers(0, 2, n) @ rows) + rng.normal(size=(count, d)) * 5
    masks = rng.random((count, d)) < 0.6
    return rows, rng.integers(1, 4, n).astype(float), linear, rng.uniform(0.01, 3, count), masks


@pytest.fixture(params=["own Hessians", "shared Hessian"])
def way(request, monkeypatch):
    if request.param == "shared Hessian":
        monkeypatch.setattr(solver, "MOST_PRODUCTS", 0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("masked", [False, True])
def test_every_problem_is_solved_to_its_tolerance(masked):
    rows, counts, linear, ridge, masks = problems(0)
    masks = masks if masked else np.ones_like(masks)
    tolerance = np.geomspace(1e-9, 1e-2, len(linear))
    weights = solver.minimise(rows, counts, linear, ridge, tolerance, masks if masked else None)
    assert (np.linalg.norm(gradients(rows, counts, weights, linear, ridge, masks), axis=1) <= tolerance * 1.01).all()
    assert (weights[~masks] == 0).all()


@pytest.mark.usefixtures("way")
def test_the_minimum_is_scipys():
    rows, counts, linear, ridge, _ = problems(1)
    weights = solver.minimise(rows, counts, linear, ridge, np.full(len(linear), 1e-9))
    for found, c, r in zip(weights, linear, ridge, strict=True):

        def objective(w, c=c, r=r):
            return counts @ np.logaddexp(0, rows @ w) + r / 2 * w @ w + c @ w

        assert found == pytest.approx(minimize(objective, np.zeros(6), tol=1e-12).x, abs=1e-4)


@pytest.mark.usefixtures("way")
def test_hard_problems_are_finished_too():
    """Separable rows with next to no ridge, and noise that drives the weights far out."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(40, 3)) * np.array([1, 10, 0.01])
    linear = np.stack([-((rows[:, 0] > 0).astype(float) @ rows), 1e4 * rng.normal(size=3), np.zeros(3), -rows.sum(0)])
    ridge = np.array([1e-4, 1e-2, 1e-6, 1e-3])
    weights = solver.minimise(rows, np.ones(40), linear, ridge, np.full(4, 1e-6))
    assert (np.linalg.norm(gradients(rows, np.ones(40), weights, linear, ridge, 1.0), axis=1) <= 1.1e-6).all()


def test_the_sure_step_alone_gets_there(monkeypatch):
    monkeypatch.setattr(solver, "_QUICK_ITERATIONS", 0)
    rows, counts, linear, ridge, masks = problems(3)
    weights = solver.minimise(rows, counts, linear * 20, ridge, np.full(len(linear), 1e-8), masks)
    assert np.linalg.norm(gradients(rows, counts, weights, linear * 20, ridge, masks), axis=1).max() <= 1.1e-8


def test_a_count_is_that_many_rows():
    rows, counts, linear, ridge, _ = problems(4)
    several = np.repeat(rows, counts.astype(int), axis=0)
    tight = np.full(len(linear), 1e-10)
    together = solver.minimise(rows, counts, linear, ridge, tight)
    assert together == pytest.approx(solver.minimise(several, np.ones(len(several)), linear, ridge, tight), abs=1e-7)


def test_an_impossible_tolerance_is_said_and_never_passed_over(monkeypatch):
    monkeypatch.setattr(solver, "_MOST_ITERATIONS", 80)
    rows, counts, linear, ridge, _ = problems(5)
    with pytest.raises(ArithmeticError, match="least_tolerance"):
        solver.minimise(rows, counts, linear, ridge, np.full(len(linear), 1e-30))


@pytest.mark.parametrize("n", [100, 5000])
@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_the_computed_gradient_errs_by_less_than_the_least_tolerance(n, ridge):
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(n, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    linear = rng.normal(size=(1, 5)) * 30
    weights = solver.minimise(rows, np.ones(n), linear, np.array([ridge]), np.array([1e-6]))
    exact = (1 / (1 + np.exp(-(rows.astype(np.longdouble) @ weights[0])))) @ rows + ridge * weights[0] + linear[0]
    computed = gradients(rows, np.ones(n), weights, linear, np.array([ridge]), 1.0)[0]
    assert np.linalg.norm(exact - computed) < solver.least_tolerance(n, 5, ridge, float(np.linalg.norm(linear)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**32), st.booleans())
def test_all_shapes(n, d, count, seed, scaled):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * (rng.random((n, 1)) if scaled else 1)
    linear, ridge, masks = rng.normal(size=(count, d)), rng.uniform(0.1, 2, count), rng.random((count, d)) < 0.5
    weights = solver.minimise(rows, np.ones(n), linear, ridge, np.full(count, 1e-9), masks)
    assert weights.shape == (count, d)
    assert np.linalg.norm(gradients(rows, np.ones(n), weights, linear, ridge, masks), axis=1).max() <= 1.1e-9
