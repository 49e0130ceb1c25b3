"""The plan binds sampler, clip, noise and steps to their event."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.budget import (
    Gaussian,
    Ledger,
    PoissonGaussian,
    Repeated,
    ShuffledGaussian,
    check_delta_against_n,
    cost,
    steps_for,
)
from sordino.data.samplers import FixedSizeSampler, FullBatchSampler, PoissonSampler, ShuffledSampler
from sordino.training.plan import Plan


def calibrated(**changes: object) -> Plan:
    settings = {"n": 60_000, "expected_batch_size": 4096, "epochs": 40, "target_epsilon": 3.0, "target_delta": 1e-5}
    return Plan.calibrated(**settings | {"l2_clip": 0.1} | changes)  # type: ignore[arg-type]


def test_calibration_meets_the_target_from_below() -> None:
    plan = calibrated()
    assert plan.steps == 586
    assert 3 * 0.999 <= plan.epsilon(1e-5) <= 3
    assert plan.event == Repeated(PoissonGaussian(4096 / 60_000, plan.noise_multiplier), 586)


def test_a_full_batch_and_shuffled_batches_are_priced_as_they_run() -> None:
    full = calibrated(n=1000, expected_batch_size=1000, epochs=10, target_delta=1e-4, sampling=FullBatchSampler)
    assert full.step_event == Gaussian(full.noise_multiplier)
    assert 2.997 <= full.epsilon(1e-4) <= 3
    shuffled = calibrated(n=1000, expected_batch_size=100, epochs=10, target_delta=1e-4, sampling=ShuffledSampler)
    assert shuffled.step_event == ShuffledGaussian(10, shuffled.noise_multiplier)
    # Ten epochs, one participation each: the noise of ten full batches.
    assert shuffled.noise_multiplier == pytest.approx(full.noise_multiplier, rel=1e-3)


def test_fixed_size_needs_a_replace_one_ledger() -> None:
    settings = {"n": 1000, "expected_batch_size": 100, "epochs": 2, "sampling": FixedSizeSampler, "target_delta": 1e-4}
    with pytest.raises(ValueError, match="no accountant"):
        calibrated(**settings)
    assert calibrated(**settings, adjacency="replace-one").epsilon(1e-4, "replace-one") <= 3


def test_it_fills_the_rest_of_a_ledger() -> None:
    ledger = Ledger(3.0, 1e-5)
    ledger.announce(Gaussian(8.0), "normalisation")
    plan = calibrated(target_epsilon=None, target_delta=None, ledger=ledger)
    assert plan.noise_multiplier > calibrated().noise_multiplier
    ledger.announce(plan.event, "training")
    ledger.spend(Gaussian(8.0), "normalisation")
    ledger.spend(plan.event, "training")
    assert 3 * 0.999 <= ledger.epsilon() <= 3
    assert not ledger.adaptive


def test_it_fills_the_rest_of_an_adaptive_ledger() -> None:
    ledger = Ledger(3.0, 1e-5)
    ledger.spend(Gaussian(8.0), "a look around")
    plan = calibrated(target_epsilon=None, target_delta=None, ledger=ledger)
    ledger.spend(plan.event, "training")
    assert ledger.adaptive
    assert 3 * 0.999 <= ledger.epsilon() <= 3


@pytest.mark.parametrize(
    "changes",
    [
        {"target_epsilon": 0.0},
        {"target_epsilon": float("nan")},
        {"target_delta": 0.0},
        {"target_delta": 1.0},
        {"l2_clip": 0.0},
        {"l2_clip": float("inf")},
        {"epochs": 0},
        {"epochs": float("nan")},
        {"n": 0},
        {"expected_batch_size": 60_001},
        {"target_epsilon": None},
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        calibrated(**changes)


def test_a_large_delta_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="not below 1/n"):
        check_delta_against_n(1e-3, 5000)
    check_delta_against_n(1e-5, 5000)


@given(st.integers(1, 10_000), st.integers(1, 100), st.integers(1, 60))
def test_whole_epochs_have_whole_numbers_of_steps(batch: int, per_epoch: int, epochs: int) -> None:
    assert steps_for(epochs, batch * per_epoch, batch) == epochs * per_epoch
    assert steps_for(epochs, batch * per_epoch + 1, batch) == epochs * per_epoch + -(-epochs // batch)


@given(st.integers(2, 500), st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 10_000))
def test_plans_survive_json(n: int, clip: float, sigma: float, steps: int) -> None:
    plan = Plan(PoissonSampler(n, n // 2), clip, sigma, steps)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plans_epsilon_is_its_events() -> None:
    plan = Plan(PoissonSampler(50_000, 1024), 1.0, 1.54, 1440)
    assert plan.epsilon(1e-5) == cost(plan.event, 1e-5).epsilon == pytest.approx(2.365, rel=5e-3)


def test_an_exact_plan_costs_the_same_and_old_plans_are_read_as_they_were() -> None:
    plan, exact = calibrated(), calibrated(exact=True)
    assert exact.event == plan.event
    assert "exact" not in plan.to_json()  # unfinished runs from before are bound to a plan without the word
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(json.loads(json.dumps(exact.to_json()))) == exact != plan
    with pytest.raises(ValueError, match="none to draw exactly"):
        replace(Plan.without_noise(PoissonSampler(100, 10), 1.0, 1.0), exact=True)


def test_an_exact_plan_counts_what_rounding_adds() -> None:
    plan = calibrated(exact=True)
    assert plan.sensitivity(26_010) == pytest.approx(1 + (26_010**0.5 + 120_000) / 2**30 + 3.6e9 / 2**52)
    assert 1 < plan.sensitivity(1) < plan.sensitivity(10**8) < 1.0002
    assert calibrated().sensitivity_of_count == 1 < plan.sensitivity_of_count < 1.03
