"""The plan binds sampler, clip, noise and steps to their event."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
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
from sordino.training.plan import SENSITIVITY, Plan, QuantileClip


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


# QuantileClip adapts: what its count may show, and that count and gradient together are what the plan charges.


CLIP = QuantileClip(10.0)
norms = st.floats(min_value=0) | st.floats(0.5, 1.5) | st.just(math.nan)
sigmas = st.floats(0.05, 50)


@given(st.lists(norms, max_size=8), norms, st.floats(1e-6, 1e6))
@example([], math.nan, 1.0)
@example([], math.inf, 1.0)
@example([1.0], 1.0, 1.0)
def test_one_example_moves_the_count_by_at_most_a_half(others: list[float], one: float, clip: float) -> None:
    before = CLIP.count(torch.tensor(others, dtype=torch.float64), clip)
    after = CLIP.count(torch.tensor([*others, one], dtype=torch.float64), clip)
    assert SENSITIVITY == 0.5
    assert abs(after - before) <= 0.5 + 1e-12
    assert math.isfinite(after)


def test_the_count_tells_norms_within_the_clip_from_those_beyond() -> None:
    assert CLIP.count(torch.tensor([0.0, 0.5, 0.99]), 1.0) == 1.5
    assert CLIP.count(torch.tensor([1.01, 7.0, math.inf, math.nan]), 1.0) == -2.0
    assert CLIP.count(torch.zeros(0), 1.0) == 0.0


def test_rounding_at_the_edge_flips_no_count() -> None:
    at = torch.full((1000,), 1.0, dtype=torch.float64)
    assert abs(CLIP.count(at, 1.0) - CLIP.count(at * (1 + 1e-7), 1.0)) < 0.02


@given(st.integers(-(2**28), 2**28), st.sampled_from([2.0**-30, 2.0**-31, 2.0**-45]), st.floats(1e-3, 1e3))
@example(1000 * 2**10 + 2**9, 2.0**-31, 1.0)  # amid a unit of 2⁻²⁰
def test_an_exact_plan_counts_what_the_rounding_of_others_does_to_a_count(
    place: int, error: float, clip: float
) -> None:
    """All norms at one place of the ramp, between two units, and off by what the plan assumes; one record comes."""
    n = 1000
    plan = Plan(PoissonSampler(n, 500), clip, 1.0, 10, CLIP, exact=True)
    norm = clip * (1 - 0.01 * (place + 0.5) * 2.0**-30)
    below = torch.full((n,), norm - error * clip, dtype=torch.float64)
    above = torch.full((n,), norm + error * clip, dtype=torch.float64)
    above[0] = 9 * clip
    moved = abs(CLIP.count(below[1:], clip) - CLIP.count(above, clip)) / SENSITIVITY
    assert 1 <= moved <= plan.sensitivity_of_count


@given(sigmas, sigmas)
def test_joint_noise_is_that_of_both_releases_scaled_to_their_sensitivities(gradient: float, count: float) -> None:
    joint = QuantileClip(count).joint(gradient)
    assert joint == pytest.approx((gradient**-2 + count**-2) ** -0.5)
    assert joint < min(gradient, count)
    assert QuantileClip(count).beside(joint) == pytest.approx(gradient, rel=1e-3)
    assert QuantileClip(count).joint(QuantileClip(count).beside(joint)) >= joint


def test_the_plan_charges_exactly_both() -> None:
    plain = Plan(PoissonSampler(10_000, 500), 1.0, 1.2, 100)
    both = replace(plain, noise_multiplier=1.5, quantile_clip=QuantileClip(2.0))
    assert both.effective_noise_multiplier == pytest.approx(1.2)  # 1/1.5² + 1/2² = 1/1.2²
    assert both.step_event == PoissonGaussian(0.05, both.effective_noise_multiplier)
    assert both.event == Repeated(both.step_event, 100)
    assert both.epsilon(1e-5) == pytest.approx(plain.epsilon(1e-5), rel=1e-9)
    assert both.epsilon(1e-5) > replace(plain, noise_multiplier=1.5).epsilon(1e-5)
    shuffled = replace(both, sampler=ShuffledSampler(10_000, 500))
    assert shuffled.claimed_step == both.step_event


def test_calibration_leaves_room_for_the_count() -> None:
    settings = {"n": 10_000, "expected_batch_size": 500, "epochs": 5, "target_epsilon": 2.0, "target_delta": 1e-5}
    plain = Plan.calibrated(**settings, l2_clip=1.0)  # type: ignore[arg-type]
    both = Plan.calibrated(**settings, l2_clip=1.0, quantile_clip=QuantileClip(50.0))  # type: ignore[arg-type]
    assert both.noise_multiplier > plain.noise_multiplier
    assert both.effective_noise_multiplier == pytest.approx(plain.noise_multiplier, rel=1e-9)
    assert 2 * 0.999 <= cost(both.event, 1e-5).epsilon <= 2
    with pytest.raises(ValueError, match="count alone"):
        Plan.calibrated(**settings, l2_clip=1.0, quantile_clip=QuantileClip(0.5))  # type: ignore[arg-type]


@given(sigmas, st.floats(0, 1), st.floats(0.01, 2))
def test_plans_with_a_quantile_clip_survive_json(sigma: float, quantile: float, rate: float) -> None:
    plan = Plan(PoissonSampler(50, 5), 0.1, 1.0, 3, QuantileClip(sigma, quantile, rate))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(st.floats(1e-9, 1e9), st.floats(-1e300, 1e300))
def test_the_clip_stays_a_usable_number(clip: float, count: float) -> None:
    moved = CLIP.next_clip(clip, count, 100, start=1.0)
    assert 1e-6 <= moved <= 1e6


def test_it_moves_towards_the_quantile_by_the_expected_batch() -> None:
    clip = QuantileClip(1.0, quantile=0.5, learning_rate=0.2)
    # Everyone of an expected batch of 100 within the clip: the share is 1, whatever number of them came.
    assert clip.next_clip(1.0, 50.0, 100, 1.0) == pytest.approx(math.exp(-0.2 * 0.5))
    assert clip.next_clip(1.0, 60.0, 100, 1.0) == pytest.approx(math.exp(-0.2 * 0.6))
    assert clip.next_clip(1.0, -50.0, 100, 1.0) == pytest.approx(math.exp(0.2 * 0.5))
    assert clip.next_clip(1.0, 0.0, 100, 1.0) == 1.0


@pytest.mark.parametrize("bad", [(0.0,), (math.nan,), (1.0, 1.1), (1.0, -0.1), (1.0, 0.5, 0.0), (1.0, 0.5, math.inf)])
def test_impossible_settings_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="quantile"):
        QuantileClip(*bad)
