"""Linear regression from noisy statistics: how far one record moves them, their noise, and what comes out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.mechanisms.gaussian import noisy_gram
from sordino.mechanisms.streams import Streams, secret_from_seed
from sordino.training.convex import LinearPlan, data_norm, fit_linear, predict_linear
from sordino.training.convex import linear_regression as linear

PLAN = LinearPlan(data_norm(3), (-5.0, 15.0), 2.0)


def keyed(seed):
    return Streams(secret_from_seed(seed))


def table(n=5000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((n, 3))
    return x, x @ np.array([6.0, -4, 2]) + 3 + 0.1 * rng.normal(size=n)


def test_much_data_gives_the_true_line_within_the_budget():
    x, y = table()
    ledger = Ledger(1.0, 1e-5)
    plan = LinearPlan.calibrated(n=5000, ledger=ledger, data_norm=data_norm(3), target_range=(-5.0, 15.0))
    weights = fit_linear(plan, x, y, ledger, keyed(0))
    assert np.sqrt(np.mean((predict_linear(weights, x) - y) ** 2)) < 0.5
    assert 0.99 < ledger.epsilon() <= 1.0
    assert plan.epsilon(1e-5) == pytest.approx(cost(Gaussian(plan.noise_multiplier / math.sqrt(3)), 1e-5).epsilon)
    without = LinearPlan(data_norm(3), (-5.0, 15.0), 1e-6)
    exact = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    assert fit_linear(without, x, y, Ledger(), keyed(1)) == pytest.approx(exact, abs=1e-3)


def in_units(told):
    return [value * linear._UNIT for value in told]


def test_one_record_moves_each_statistic_by_one_at_most():
    x, y = table(40)
    x[0], y[0] = 1e9, 1e9  # clipped to the norm and to the bounds: as large as a record gets
    present = in_units(linear.sufficient_statistics(*linear.unit_records(PLAN, x, y)))
    for gone in (np.nan, np.inf):
        x[0, 0] = gone
        absent = in_units(linear.sufficient_statistics(*linear.unit_records(PLAN, x, y)))
        assert 1 - 1e-4 < np.linalg.norm(present[0] - absent[0]) <= 1.0
        assert 0 <= present[1] - absent[1] <= 1 + 1e-9
        assert 1 - 1e-4 < np.linalg.norm(present[2] - absent[2]) <= 1.0
    x[0], y[0] = 0.5, np.nan
    rows, targets = linear.unit_records(PLAN, x, y)
    assert not rows[0].any()
    assert targets[0] == 0


def test_the_matrix_has_independent_noise_in_the_frobenius_norm():
    rng = np.random.default_rng(1)
    nothing = np.zeros((3, 3), dtype=np.int64)
    noise = np.stack([noisy_gram(rng, nothing, 2.0**-36, 2.0) for _ in range(4_000)])
    assert np.array_equal(noise, noise.transpose(0, 2, 1))
    deviations = noise.std(axis=0)
    assert np.diag(deviations) == pytest.approx(2.0, rel=0.05)
    assert deviations[0, 1] == pytest.approx(math.sqrt(2), rel=0.05)
    assert abs(np.corrcoef(noise[:, 0, 1], noise[:, 0, 2])[0, 1]) < 0.05


def test_all_three_statistics_are_noised(monkeypatch):
    """With no data at all, what comes out varies; without noise on any one of them it would show."""
    seen = []
    monkeypatch.setattr(linear, "_ridge_solution", lambda *told: seen.append(told) or np.zeros(4))
    for seed in range(400):
        fit_linear(PLAN, np.full((3, 3), np.nan), np.zeros(3), Ledger(), keyed(seed))
    grams, products, ridges = (np.array([one[i] for one in seen]) for i in range(3))
    assert grams[:, 0, 0].std() == pytest.approx(2.0, rel=0.15)
    assert products.std(axis=0) == pytest.approx(2.0, rel=0.15)
    full = linear._ridge(4, 2.0, 0.0)
    assert (ridges <= full).all()
    assert 0 < (ridges < full).mean() < 0.1


def test_charged_first_and_bad_input_is_refused():
    x, y = table(20)
    ledger = Ledger(0.01, 1e-5)
    with pytest.raises(BudgetExceeded):
        fit_linear(PLAN, x, y, ledger)
    assert ledger.entries == ()
    for bad in ((0.0, (0.0, 1.0), 1.0), (1.0, (1.0, 1.0), 1.0), (1.0, (0.0, math.inf), 1.0), (1.0, (0.0, 1.0), 0.0)):
        with pytest.raises(ValueError, match=r"."):
            LinearPlan(*bad)
    asked = {"n": 10, "data_norm": 1.0, "target_range": (0.0, 1.0)}
    with pytest.raises(ValueError, match="target_epsilon"):
        LinearPlan.calibrated(**asked)
    with pytest.raises(ValueError, match="Gaussian and no pure ε covers it: give target_delta"):
        LinearPlan.calibrated(**asked, target_epsilon=1.0, ledger=Ledger())


def test_a_ledger_without_a_target_leaves_the_given_one_and_counts_what_it_holds():
    ledger = Ledger()
    ledger.spend(Gaussian(5.0), "before")
    plan = LinearPlan.calibrated(
        n=1000, data_norm=1.0, target_range=(0.0, 1.0), target_epsilon=3.0, target_delta=1e-5, ledger=ledger
    )
    assert 2.99 < ledger.epsilon_if(plan.event, delta=1e-5) <= 3.0
    assert plan.epsilon(1e-5) < 2.7


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(0, 3), st.integers(0, 5), st.integers(0, 2**16))
def test_any_shape_is_fitted_or_refused(n, d, targets, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.choice([0.0, 1.0, np.inf, np.nan, -1e200], size=(n, d)), rng.choice([0.0, 1e9, np.nan], targets)
    if n == targets and n:
        assert np.isfinite(fit_linear(PLAN, x, y, Ledger())).all()
    else:
        with pytest.raises(ValueError, match="expected vectors"):
            fit_linear(PLAN, x, y, Ledger())
