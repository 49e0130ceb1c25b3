"""Learning rates: what their names say, and torch's where they are torch's."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.training.schedules import (
    OneCycle,
    Schedule,
    Staircase,
    WarmupCosine,
    rate_at,
    schedule_from_json,
    schedule_to_json,
)


@given(st.floats(1e-6, 1e6), st.integers(0, 50), st.integers(1, 200))
def test_warm_up_rises_to_the_peak_and_the_cosine_falls_to_zero(peak: float, warmup: int, rest: int) -> None:
    schedule = WarmupCosine(peak, warmup, warmup + rest)
    rates = [schedule.rate(step) for step in range(warmup + rest + 1)]
    assert max(rates) == pytest.approx(peak)
    assert rates[warmup] == pytest.approx(peak)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(rate > 0 for rate in rates[:-1])
    assert rates[-1] == pytest.approx(0, abs=1e-9 * peak)
    if warmup:
        assert rates[0] == pytest.approx(peak / warmup)


def test_a_number_is_a_constant_rate() -> None:
    assert rate_at(0.25, 0) == rate_at(0.25, 999) == 0.25


@pytest.mark.parametrize("bad", [(0.0, 1, 2), (1.0, 2, 2), (1.0, -1, 2), (1.0, 0, 0), (1.0, 0.5, 3), (True, 0, 3)])
def test_impossible_schedules_are_refused(bad: tuple[float, int, int]) -> None:
    with pytest.raises(ValueError, match=r"learning rate|warm-up"):
        WarmupCosine(*bad)


@pytest.mark.parametrize(("first", "factor", "every"), [(0.1, 0.9, 3), (1.0, 0.5, 1)])
def test_a_staircase_is_torchs(first: float, factor: float, every: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=first)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, every, factor)
    _same_as(scheduler, optimizer, Staircase(first, factor, every), 20)


@pytest.mark.parametrize("steps", [7, 50, 333])
def test_one_cycle_is_torchs(steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.12, total_steps=steps, cycle_momentum=False)
    _same_as(scheduler, optimizer, OneCycle(0.12, steps), steps)


def _same_as(
    scheduler: torch.optim.lr_scheduler.LRScheduler, optimizer: torch.optim.Optimizer, ours: Schedule, steps: int
) -> None:
    for step in range(steps):
        assert ours.rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if step + 1 < steps:
            scheduler.step()


@pytest.mark.parametrize("rate", [0.25, WarmupCosine(1.0, 2, 9), Staircase(0.1, 0.9, 5), OneCycle(0.1, 20)])
def test_learning_rates_survive_json(rate: float | Schedule) -> None:
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(rate)))) == rate


def test_a_schedule_of_someone_elses_has_no_json() -> None:
    class Mine:
        def rate(self, step: int) -> float:
            return 1.0

    with pytest.raises(ValueError, match="Mine is not one of"):
        schedule_to_json(Mine())


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(Staircase, (0.1, 0.0, 3)), (Staircase, (0.0, 0.9, 3)), (Staircase, (0.1, 0.9, 0)), (OneCycle, (0.1, 6))],
)
def test_other_impossible_schedules_are_refused(kind: type, bad: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"learning rate|stair|cycle"):
        kind(*bad)
