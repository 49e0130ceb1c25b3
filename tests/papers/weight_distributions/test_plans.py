"""A row's ε are those of the plan that it trained: the paper's claim as the paper has it, and what holds."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from sordino.papers.trials import TrialStore
from sordino.papers.weight_distributions.plans import (
    DELTA,
    PaperSettings,
    PlanAudit,
    SoundSettings,
    claimed_noise,
    dpsgd_optimiser,
    dpsgd_plan,
    sound_plan,
)
from sordino.training.schedules import Schedule, Staircase

AUTHORS = {7: 0.48, 3: 0.643, 1: 0.978, 0.5: 1.354, 0.1: 4.12, 0.05: 7.1, 0.025: 23.5}


def _falling(epoch: int, steps: int) -> Schedule:
    return Staircase(0.1, 0.9, epoch)


SMALL = PaperSettings(320, 32, 4, 3.1, _falling, 0.9)


@pytest.mark.parametrize(("epsilon", "z"), AUTHORS.items())
def test_the_noise_of_a_claim_is_the_authors(epsilon: float, z: float) -> None:
    assert claimed_noise(32 / 60_000, 18_750, epsilon) == pytest.approx(z, rel=2e-3)


def test_a_claim_is_far_below_what_holds(tmp_path: Path) -> None:
    plan = SMALL.plan(0.5)
    assert (plan.steps, plan.rates[:11:10]) == (40, pytest.approx((0.1, 0.09)))
    found = PlanAudit(plan, 1000).run(store=TrialStore(tmp_path))
    assert found["claimed"] == pytest.approx(0.5, rel=1e-3)
    assert found["claimed"] < found["audited"] < found["sound"]
    assert found["claimed"] < found["final"] < found["sound"]
    assert found["sound"] == plan.epsilon(DELTA)
    assert (found["sound_verdict"], found["failed"]) == ("consistent", [])


def test_where_examples_mix_nothing_holds(tmp_path: Path) -> None:
    mixing, apart = (
        PlanAudit(SMALL.plan(0.5, mixing), 100).run(store=TrialStore(tmp_path)) for mixing in (True, False)
    )
    assert mixing["sound"] is None
    assert apart["sound"] is not None
    assert mixing["claimed"] == apart["claimed"]


@pytest.mark.parametrize("epsilon", [3.0, 0.05])
def test_sound_plans_cost_what_is_asked(epsilon: float, tmp_path: Path) -> None:
    settings = SoundSettings(10, 2, 4.0)
    plans = sound_plan(60_000, epsilon, settings.shrunk(60_000, epsilon)), dpsgd_plan(60_000, epsilon, settings)
    for plan in plans:
        found = PlanAudit(plan, 200).run(store=TrialStore(tmp_path))
        assert 0.99 * epsilon < found["sound"] <= epsilon
        assert found["audited"] <= epsilon
    assert plans[0].learning_rate == pytest.approx(4 * epsilon / 3)
    assert dpsgd_optimiser(settings.shrunk(30_000, epsilon)).learning_rate == pytest.approx(4 * epsilon / 3 / 2)
    assert plans[1].sampler.expected_batch_size == 6000


def test_an_audit_is_done_once_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = PlanAudit(SMALL.plan(0.5), 100).run(said.append, TrialStore(tmp_path))
    monkeypatch.setattr(PlanAudit, "compute", None)
    assert PlanAudit(SMALL.plan(0.5), 100).run(said.append, TrialStore(tmp_path)) == first
    assert len(said) == 1
    for other in (SMALL.plan(0.6), replace(SMALL, l2_clip=3.0).plan(0.5)):
        with pytest.raises(TypeError):
            PlanAudit(other, 100).run(store=TrialStore(tmp_path))


def test_a_small_dataset_is_no_reason_for_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sound_plan(16, 3.0, SoundSettings(2, 1, 1.0)).steps == 2
