"""Private logistic regression: charged first, clipped rows, the plan's price, and what an attacker sees."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from sordino.budget import BudgetExceeded, Except, Gaussian, Ledger, Pure, Repeated, UnsupportedEvent
from sordino.budget.calibration import OutOfReach
from sordino.budget.events import leaves
from sordino.mechanisms.streams import Streams, secret_from_seed
from sordino.training import fit
from sordino.training.convex import (
    GaussianObjective,
    LinearPlan,
    LogisticPlan,
    PureObjective,
    data_norm,
    fit_logistic,
    fit_many,
    logistic,
    predict_logistic,
    scores,
    solver,
)
from sordino.training.plan import plan_from_json


def table(n=4000, d=5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((n, d))
    y = ((x - 0.5) @ np.array([4.0, -3, 2, 0, 0])[:d] + 0.3 * rng.normal(size=n) > 0).astype(int)
    return x, y


def keyed(seed):
    return Streams(secret_from_seed(seed))


def test_a_fit_within_the_budget_predicts():
    x, y = table()
    for delta in (1e-5, None):
        plan = LogisticPlan.calibrated(
            n=4000, width=5, target_epsilon=1.0, target_delta=delta, data_norm=data_norm(5), adjacency="zero-out"
        )
        ledger = Ledger(1.0, 1e-5)
        weights = fit_logistic(plan, x, y, ledger, keyed(0))
        assert weights.shape == (6,)
        assert (predict_logistic(weights, x) == y).mean() > 0.9
        assert 0.99 <= ledger.epsilon() <= 1.0
        assert ledger.entries[0].event == plan.event
        assert ledger.entries[0].seeded


def test_output_perturbation_and_several_classes():
    x, y = table()
    plan = LogisticPlan.output_perturbed(n=4000, width=5, target_epsilon=2.0, target_delta=1e-5, data_norm=data_norm(5))
    assert (predict_logistic(fit_logistic(plan, x, y, Ledger(2.0, 1e-5), keyed(1)), x) == y).mean() > 0.85
    three = (x[:, :3] + np.random.default_rng(1).normal(size=(4000, 3)) * 0.05).argmax(axis=1)
    plan = LogisticPlan.calibrated(
        n=4000, width=5, target_epsilon=3.0, target_delta=1e-5, data_norm=data_norm(5), classes=3
    )
    ledger = Ledger(3.0, 1e-5)
    weights = fit_logistic(plan, x, three, ledger, keyed(2))
    assert weights.shape == (3, 6)
    assert (predict_logistic(weights, x) == three).mean() > 0.8
    assert isinstance(plan.event, Repeated)
    assert plan.event.count == 3
    assert 2.9 < ledger.epsilon() <= 3.0


def test_charged_before_the_rows_are_read():
    class Unreadable(np.ndarray):
        def __array__(self, *args, **kwargs):
            raise AssertionError("read")

    x, y = table(100)
    plan = LogisticPlan(data_norm(5), 10.0, GaussianObjective(1.0))
    ledger = Ledger(0.1, 1e-5)
    with pytest.raises(BudgetExceeded):
        fit_logistic(plan, x.view(Unreadable), y, ledger)
    assert ledger.entries == ()
    ledger = Ledger()
    with pytest.raises(ValueError, match="the label of row 3 is not among the 2 classes"):
        fit_logistic(plan, x, np.where(np.arange(100) == 2, 7, y), ledger)
    assert len(ledger.entries) == 1


def test_long_rows_are_scaled_down_and_unknown_ones_are_empty():
    x, y = table(300)
    plan = LogisticPlan(data_norm(5), 5.0, PureObjective(2.0, 0.01))
    plain = fit_logistic(plan, x, y, Ledger(), keyed(3))
    x[7], x[8] = 1e300, np.nan
    huge = fit_logistic(plan, x, y, Ledger(), keyed(3))
    row = np.full(6, data_norm(5) / math.sqrt(6))
    # At most two records changed, each of norm at most 1 in the plan's units: the minimiser moves by at most 3/λ.
    assert np.linalg.norm(huge - plain) * plan.data_norm <= 3 / plan.ridge + 1e-3
    x[7] = row[:5] * 1e3
    assert np.isfinite(fit_logistic(plan, x, y, Ledger(), keyed(3))).all()
    # An empty row has no label: changing it changes nothing at all.
    other = y.copy()
    other[8] = 1 - other[8]
    x[7] = 0.5
    same = [fit_logistic(plan, x, labels, Ledger(), keyed(3)) for labels in (y, other)]
    assert np.array_equal(*same)


def test_the_same_streams_give_the_same_weights_and_fresh_ones_others():
    x, y = table(200)
    plan = LogisticPlan(data_norm(5), 5.0, GaussianObjective(2.0))
    assert np.array_equal(*(fit_logistic(plan, x, y, Ledger(), keyed(4)) for _ in range(2)))
    assert not np.array_equal(*(fit_logistic(plan, x, y, Ledger()) for _ in range(2)))


def test_what_is_released_is_the_minimiser_with_the_plans_noise():
    """The gradient of the data at the released weights is minus the noise: its law shows through the release."""
    rng = np.random.default_rng(5)
    x, y = rng.random((30, 1)), rng.integers(0, 2, 30)
    plan = LogisticPlan(2.0, 3.0, GaussianObjective(4.0))
    weights = fit_many(x, y, np.ones((1, 1), bool), plan, 20_000, rng)[0]
    rows = np.c_[x, np.ones(30)]
    chances = 1 / (1 + np.exp(-scores(weights, x)))
    noise = -((chances - y[:, None]).T @ rows + 3.0 * 4 * weights) / 2.0
    for column in noise.T:
        assert stats.kstest(column, stats.norm(0, 4).cdf).pvalue > 1e-3


def test_an_attacker_who_knows_all_but_one_record_learns_no_more_than_epsilon():
    """Present or empty, told from released weights: the empirical ε is below that of a release, and not far below.

    Of many classes, all but the first are the same problem with noise of their own: so many releases in one fit.
    """
    fits, noise = 8000, PureObjective.calibrated(1.0, 1.0, "zero-out")
    plan = LogisticPlan(math.sqrt(2), 1.0, noise, classes=fits + 1)
    guesses = []
    for record in (1.0, np.nan):
        told = fit_logistic(plan, np.array([[record]]), np.array([0]), Ledger(), keyed(int(np.isnan(record))))
        guesses.append(told[1:].sum(axis=1) > 1.0)  # far from what the record asks for: more likely without it
    present, empty = (int(g.sum()) for g in guesses)
    low = stats.beta.ppf(0.005, empty, fits - empty + 1)
    high = stats.beta.ppf(0.995, present + 1, fits - present)
    assert 0.3 < math.log(low / high) <= noise.event(1.0, "zero-out").epsilon


def test_experiments_on_many_subsets_at_once():
    x, y = table(500)
    masks = np.array([[True] * 5, [True, False, False, False, True], [False] * 5])
    plan = LogisticPlan(data_norm(5), 1e-3, PureObjective(1e6, 1e6))  # next to no noise
    norms = np.array([data_norm(int(m.sum())) for m in masks])
    weights = fit_many(x, y, masks, plan, 3, np.random.default_rng(0), norms)
    assert weights.shape == (3, 3, 6)
    assert (weights[1][:, 1:4] == 0).all()
    assert (weights[2][:, :5] == 0).all()
    accuracy = [((scores(w, x) > 0) == y[:, None]).mean() for w in weights]
    assert accuracy[0] > 0.95 > accuracy[1] > accuracy[2]
    # One subset alone with its own norm is the same problem.
    alone = fit_many(x, y, masks[1:2], replace(plan, data_norm=float(norms[1])), 1, np.random.default_rng(0))
    assert alone[0, 0] == pytest.approx(weights[1, 0], rel=1e-2)
    with pytest.raises(ValueError, match="longer than the norm"):
        fit_many(x, y, masks, plan, 1, np.random.default_rng(0), np.full(3, 1.0))


def test_plans_follow_the_ledger_and_say_what_is_wrong():
    ledger = Ledger(1.0, 1e-5)
    first = LogisticPlan.calibrated(n=1000, width=4, target_epsilon=0.5, ledger=ledger, data_norm=2.0)
    assert first.epsilon(1e-5) <= 0.5
    assert first.ridge >= 2.0
    with pytest.raises(ValueError, match="replace-one"):
        fit_logistic(first, *table(50, 4), Ledger(adjacency="replace-one"))
    good = {"n": 1000, "width": 4, "target_epsilon": 1.0, "target_delta": 1e-5, "data_norm": 2.0}
    for bad in (
        {"n": 0},
        {"width": 0},
        {"target_epsilon": None},
        {"target_epsilon": -1},
        {"target_delta": 2.0},
        {"data_norm": 0},
        {"data_norm": math.nan},
        {"ridge": 0.0},
        {"classes": 1},
        {"adjacency": "else"},
    ):
        with pytest.raises(ValueError, match=r"."):
            LogisticPlan.calibrated(**good | bad)
    with pytest.raises((OutOfReach, UnsupportedEvent)):
        LogisticPlan.calibrated(**good | {"adjacency": "replace-one"})
    with pytest.raises(ValueError, match="Gaussian and no pure ε covers it: give target_delta"):
        LogisticPlan.output_perturbed(**good | {"target_delta": None})


def test_a_ledger_without_a_target_leaves_the_given_one():
    asked = {"n": 1000, "width": 5, "data_norm": 2.0, "target_epsilon": 3.0}
    ledger = Ledger()
    ledger.spend(Gaussian(5.0), "before")
    for make in (LogisticPlan.calibrated, LogisticPlan.output_perturbed):
        plan = make(**asked, target_delta=1e-5, ledger=ledger)
        assert not isinstance(plan.perturbation, PureObjective)
        # What the ledger holds counts too, by its filter.
        assert 2.99 < ledger.epsilon_if(plan.event, delta=1e-5) <= 3.0
        assert plan.epsilon(1e-5) < 2.7
    kept = LogisticPlan.calibrated(**asked, target_delta=1e-5, ledger=Ledger(9.0, 1e-7))
    assert 2.99 < kept.epsilon(1e-7) <= 3.0


def test_pure_epsilon_adds_up_with_what_the_ledger_holds():
    asked = {"n": 1000, "width": 5, "data_norm": 2.0, "target_epsilon": 1.0}
    for classes in (2, 3):
        ledger = Ledger(planned=[(Pure(0.1), "announced"), (Pure(5.0), "of other records", "validation")])
        ledger.spend(Repeated(Pure(0.1), 2), "before")
        ledger.spend(Pure(0.2), "not announced")
        plan = LogisticPlan.calibrated(**asked, classes=classes, ledger=ledger)
        assert sum(count * event.epsilon for event, count in leaves(plan.event).items()) == pytest.approx(0.5)
    ledger.spend(Pure(0.5), "the rest")
    with pytest.raises(OutOfReach, match="nothing is left"):
        LogisticPlan.calibrated(**asked, ledger=ledger)
    for event in (Gaussian(5.0), Except(Pure(0.1), 1e-9)):
        mixed = Ledger(planned=[(event, "not pure")])
        with pytest.raises(ValueError, match="no pure ε covers: give a target_delta"):
            LogisticPlan.calibrated(**asked, ledger=mixed)


def test_rows_a_rounding_too_long_are_scaled_down_to_the_norm(monkeypatch):
    seen = []

    def minimise(rows, *rest):
        seen.append(rows)
        return solver.minimise(rows, *rest)

    monkeypatch.setattr(logistic, "minimise", minimise)
    x = np.array([[1.000001, 0.0], [0.5, 0.5], [1.0, 0.5]])
    masks = np.array([[True, False], [False, True]])
    plan = LogisticPlan(math.sqrt(2), 1.0, GaussianObjective(1.0))
    fit_many(x, np.array([0, 1, 1]), masks, plan, 1, np.random.default_rng(0))
    (rows,) = seen
    assert (np.linalg.norm(rows[:, [0, 2]], axis=1) <= math.sqrt(2) * (1 + 1e-15)).all()
    assert rows[0, 0] / rows[0, 2] == pytest.approx(x[0, 0], rel=1e-15)
    assert np.array_equal(rows[1:], [[0.5, 0.5, 1.0], [1.0, 0.5, 1.0]])


def test_a_tolerance_that_floating_point_cannot_meet_is_refused_before_anything_is_read():
    plan = replace(LogisticPlan(2.0, 1.0, GaussianObjective(1.0)), tolerance=1e-13)
    ledger = Ledger()
    with pytest.raises(ValueError, match="too fine for floating point"):
        fit_logistic(plan, *table(1000), ledger)
    assert ledger.entries == ()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 6), st.integers(0, 4), st.integers(0, 6), st.integers(0, 2**16))
def test_any_shape_is_fitted_or_refused(n, d, labels, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.choice([0.0, 1.0, -3.0, np.inf, np.nan, 1e200], size=(n, d)), rng.integers(0, 2, labels)
    plan = LogisticPlan(1.5, 1.0, GaussianObjective(1.0))
    if n == labels and n:
        assert np.isfinite(fit_logistic(plan, x, y, Ledger())).all()
    else:
        with pytest.raises(ValueError, match="expected vectors"):
            fit_logistic(plan, x, y, Ledger())


def test_fit_trains_by_the_plan_in_memory_and_in_a_folder_that_is_loaded_again(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(300, 3))
    y = (x.sum(1) > 1.5).astype(np.int64)
    plan = LogisticPlan.calibrated(n=300, width=3, target_epsilon=2.0, target_delta=1e-4, data_norm=2.0)
    line = LinearPlan.calibrated(n=300, target_epsilon=2.0, target_delta=1e-4, data_norm=2.0, target_range=(0.0, 1.0))
    for each, targets in ((plan, y), (line, y.astype(float))):
        assert plan_from_json(json.loads(json.dumps(each.to_json()))) == each
        model, ledger = nn.Linear(3, 1), Ledger(2.0, 1e-4, path=tmp_path / type(each).__name__ / "ledger.json")
        fitted = fit(each, model, (x, targets), ledger=ledger, run=tmp_path / type(each).__name__)
        assert torch.equal(model.bias, fitted.weights["weights"][-1:].float())
        assert [entry.event for entry in ledger.entries] == [each.event]
        again = fit(each, None, (x, targets), ledger=ledger, run=tmp_path / type(each).__name__)
        assert torch.equal(again.weights["weights"], fitted.weights["weights"])
        memory = Ledger(2.0, 1e-4)
        assert fit(each, None, (x, targets), ledger=memory).weights["weights"].shape == (4,)
        assert memory.entries[0].count == 1


@pytest.mark.parametrize("folder", [False, True])
def test_fit_refuses_a_plan_for_another_adjacency_than_the_ledgers(tmp_path: Path, folder: bool) -> None:
    x, y = table(40)
    plan = LogisticPlan.calibrated(n=40, width=5, target_epsilon=1.0, data_norm=3.0)
    ledger = Ledger(1.0, 1e-3, adjacency="replace-one", path=tmp_path / "ledger.json")
    with pytest.raises(ValueError, match="the plan is for zero-out and the ledger for replace-one"):
        fit(plan, None, (x, y), ledger=ledger, run=tmp_path if folder else None)
    assert not ledger.entries


def test_fit_releases_nothing_if_the_solver_charges_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table(40)
    plan = LogisticPlan.calibrated(n=40, width=5, target_epsilon=1.0, data_norm=3.0)
    other = LogisticPlan.calibrated(n=40, width=5, target_epsilon=2.0, data_norm=3.0)
    monkeypatch.setattr(logistic, "fit_logistic", lambda plan, *given, **named: fit_logistic(other, *given, **named))
    with pytest.raises(RuntimeError, match="something else than it was charged for"):
        fit(plan, None, (x, y), ledger=Ledger(1.0, 1e-3))


def test_fit_takes_a_plan_for_many_classes() -> None:
    x, _ = table(60)
    plan = LogisticPlan.calibrated(n=60, width=5, target_epsilon=1.0, data_norm=3.0, classes=3)
    assert fit(plan, None, (x, np.arange(60) % 3), ledger=Ledger(1.0, 1e-3)).weights["weights"].shape == (3, 6)


def test_fit_refuses_what_it_cannot_fit_before_the_charge() -> None:
    x, y = table(40)
    plan = LogisticPlan.calibrated(n=40, width=5, target_epsilon=1.0, data_norm=3.0)
    line = LinearPlan(3.0, (0.0, 1.0), 20.0)
    three = replace(plan, classes=3)
    refused = [
        (replace(plan, tolerance=1e-15), None, x, y, "too fine for floating point"),
        *((each, None, x[:, 0], y, "expected vectors") for each in (plan, line)),
        *((each, None, x, np.stack([y, y], 1), "expected vectors") for each in (plan, line)),
        *((each, nn.Linear(9, 1), x, y, r"nn.Linear\(5, 1\)") for each in (plan, line)),
        *((each, nn.Linear(5, 1, bias=False), x, y, r"nn.Linear\(5, 1\)") for each in (plan, line)),
        *((each, nn.ReLU(), x, y, "not ReLU") for each in (plan, line)),
        (three, nn.Linear(5, 1), x, y, r"nn.Linear\(5, 3\)"),
    ]
    for each, model, rows, labels, message in refused:
        ledger = Ledger(5.0, 1e-3)
        with pytest.raises(ValueError, match=message):
            fit(each, model, (rows, labels), ledger=ledger)
        assert not ledger.entries
