"""INS's four steps find what they say, on public records alone: a private ledger refuses the steps without noise."""

import numpy as np
import pytest
import torch
from torch import nn

from sordino.budget import BudgetExceeded, Ledger
from sordino.data import PoissonSampler
from sordino.training import SGD, Plan, cross_entropy, fit
from sordino.training.clip_and_rate import tune_clip_and_rate

PLAN = Plan(PoissonSampler(60, 20), 7.0, 2.0, 4)
RATES, CLIPS = [0.1, 1.0, 10.0], [0.01, 0.1, 1.0, 10.0]


def test_the_four_steps_in_order() -> None:
    asked: list[tuple[float, float, float, bool]] = []

    def score(plan: Plan, rate: float) -> float:
        asked.append((plan.l2_clip, plan.noise_multiplier, rate, plan.private))
        if plan.private:
            return 0.5 - 0.1 * abs(np.log10(rate * plan.l2_clip / 0.1))  # best where their product is 0.1
        return 0.9 - 0.1 * abs(np.log10(rate)) - (0.5 if plan.l2_clip < 0.1 else 0.005)

    found = tune_clip_and_rate(PLAN, score, learning_rates=RATES, clips=CLIPS)
    steps = [each.step for each in found.tried]
    assert [steps.count(step) for step in (1, 2, 3, 4)] == [3, 4, 3, 8]
    assert {(each.noise_multiplier, each.step > 2) for each in found.tried} == {(0.0, False), (2.0, True)}
    assert all(private == (sigma > 0) for _, sigma, _, private in asked)
    assert [each.l2_clip for each in found.tried if each.step == 3] == [0.1] * 3  # the smallest that costs little
    assert found.l2_clip * found.learning_rate == pytest.approx(0.1)


def test_where_every_clip_costs_much_the_best_of_them_is_taken() -> None:
    found = tune_clip_and_rate(
        PLAN, lambda plan, rate: float(plan.l2_clip) - rate, learning_rates=[1.0], clips=[0.5, 0.1]
    )
    assert [each.l2_clip for each in found.tried if each.step == 3] == [0.5]


def test_private_records_are_refused_before_they_are_read() -> None:
    ledger = Ledger(3.0, 1e-4)
    records = torch.rand(60, 3), torch.zeros(60, dtype=torch.int64)

    def score(plan: Plan, rate: float) -> float:
        fit(plan, nn.Linear(3, 2), records, loss=cross_entropy, optimiser=SGD(rate), ledger=ledger)
        return 0.0

    with pytest.raises(BudgetExceeded):
        tune_clip_and_rate(PLAN, score, learning_rates=RATES, clips=CLIPS)
    assert ledger.epsilon(1e-4) == 0


@pytest.mark.parametrize(("rates", "clips"), [([], [1.0]), ([1.0], []), ([0.0], [1.0]), ([1.0], [float("inf")])])
def test_nothing_to_try_is_refused(rates: list[float], clips: list[float]) -> None:
    with pytest.raises(ValueError, match=r"tr(y|ied)"):
        tune_clip_and_rate(PLAN, lambda plan, rate: 0.0, learning_rates=rates, clips=clips)
