"""Tuning: what it charges, that it shows the best alone, INS's procedure, and the rules that cost nothing."""

import math

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Gaussian, Laplace, Ledger, NonPrivate, RepeatAndSelect, Repeated, cost
from sordino.runs import Diverged
from sordino.selection.tuning import ClipAndRate, best_of_trials, clip_then_rate, rate_by_line, rate_by_noise

TRAINING, SCORE = Gaussian(4.0), Laplace(5.0)
EVENTS = {"training": TRAINING, "score": SCORE, "mean_trials": 4.0}


def test_the_best_of_a_random_number_is_charged_before_the_first_trial() -> None:
    ledger = Ledger(20.0, 1e-5)
    tried = []

    def trial(rate: float) -> tuple[str, float]:
        assert [entry.count for entry in ledger.entries] == [1, 1]
        tried.append(rate)
        return f"model {len(tried)}", -abs(rate - 0.5)

    found = best_of_trials([0.1, 0.5, 2.0], trial, ledger, seed=2, **EVENTS)
    assert len(tried) > 1
    assert found.candidate == min(tried, key=lambda rate: abs(rate - 0.5))
    assert found.model == f"model {1 + tried.index(found.candidate)}"
    by_part = {entry.part: entry.spent for entry in ledger.entries}
    assert by_part == {
        "train": Repeated(RepeatAndSelect(TRAINING, 4.0), 1),
        "validation": Repeated(RepeatAndSelect(SCORE, 4.0), 1),
    }
    assert ledger.epsilon() == max(cost(event, 1e-5).epsilon for event in by_part.values())
    assert all(entry.seeded for entry in ledger.entries)


def test_candidates_are_drawn_alike_and_the_number_of_trials_from_its_law() -> None:
    counts, draws = [], []
    for seed in range(400):
        tried: list[int] = []
        best_of_trials(range(4), lambda c, tried=tried: (None, float(tried.append(c) or 0)), None, seed=seed, **EVENTS)
        counts.append(len(tried))
        draws += tried
    assert np.mean(counts) == pytest.approx(4.0, rel=0.15)
    assert np.mean(np.array(counts) == 1) == pytest.approx(0.25, abs=0.08)
    assert np.bincount(draws) / len(draws) == pytest.approx(0.25, abs=0.05)


def test_what_does_not_fit_is_refused_before_anything_is_charged_or_tried() -> None:
    ledger = Ledger(1.0, 1e-5)
    with pytest.raises(BudgetExceeded):
        best_of_trials(
            [1], lambda c: pytest.fail("tried"), ledger, training=Gaussian(100.0), score=Laplace(0.1), mean_trials=4
        )
    assert ledger.entries == ()


def test_trials_that_diverge_lose() -> None:
    def trial(rate: float) -> tuple[float, float]:
        if rate > 1:
            raise Diverged("too fast")
        return rate, -100.0

    assert best_of_trials([0.5, 9.0], trial, None, seed=3, **EVENTS | {"mean_trials": 20.0}).candidate == 0.5
    with pytest.raises(Diverged, match="all that were tried"):
        best_of_trials([9.0], trial, None, **EVENTS)
    with pytest.raises(ValueError, match="at least one candidate"):
        best_of_trials([], trial, None, **EVENTS)


def accuracy(l2_clip: float, rate: float, noisy: bool) -> float:
    """Clips below .5 cost accuracy; with noise the best rate is .25."""
    return 0.9 - max(0.0, 0.5 - l2_clip) - (abs(math.log2(rate / 0.25)) * 0.05 if noisy else 0.0)


def test_the_smallest_clip_that_costs_nothing_then_the_best_rate() -> None:
    choices = {"clips": [0.1, 0.5, 1, 4], "learning_rates": [0.125, 0.25, 1.0], "public_rate": 0.1}
    found = clip_then_rate(accuracy, **choices)
    assert found == ClipAndRate(0.5, 0.25, pytest.approx(0.9))
    assert clip_then_rate(accuracy, **choices, tolerance=0.5).l2_clip == 0.1


def test_on_private_records_the_procedure_is_refused_or_charged_in_full() -> None:
    choices = {"clips": [0.1, 1], "learning_rates": [0.25, 1.0], "public_rate": 0.1}
    ledger = Ledger(5.0, 1e-5)
    with pytest.raises(BudgetExceeded):
        clip_then_rate(accuracy, **choices, ledger=ledger, training=TRAINING, score=SCORE)
    assert ledger.entries == ()
    ledger = Ledger(target_delta=1e-5)
    clip_then_rate(accuracy, **choices, ledger=ledger, training=TRAINING, score=SCORE)
    train = [entry.event for entry in ledger.entries if entry.part == "train"]
    assert train == [NonPrivate(), NonPrivate(), TRAINING, TRAINING]
    assert ledger.epsilon() == math.inf


def test_a_rate_that_diverges_is_not_taken_and_nothing_to_try_is_said() -> None:
    def trial(l2_clip: float, rate: float, noisy: bool) -> float:
        if rate > 1:
            raise Diverged("too fast")
        return 0.5

    assert clip_then_rate(trial, clips=[1], learning_rates=[8, 1, 4], public_rate=1).learning_rate == 1
    with pytest.raises(ValueError, match="at least one clip"):
        clip_then_rate(trial, clips=[], learning_rates=[1], public_rate=1)


def test_rules_that_need_no_trial() -> None:
    assert rate_by_noise(4.0, 60_000, 3.0, 30_000, 1.5) == pytest.approx(1.0)
    assert rate_by_noise(4.0, 60_000, 3.0, 600_000, 3.0) == 4.0
    assert rate_by_line([(0.1, 2.0)], 1.0, 40) == pytest.approx(0.5)
    assert rate_by_line([(0.1, 2.0), (0.3, 4.0)], 1.0, 10) == pytest.approx(1.1)
    assert rate_by_line([(1.0, 1.0), (2.0, 10.0)], 0.5, 1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rate_by_noise(0, 1, 1, 1, 1),
        lambda: rate_by_noise(1, 1, 1, 1, math.nan),
        lambda: rate_by_line([], 1.0, 10),
        lambda: rate_by_line([(1.0, -1.0)], 1.0, 10),
        lambda: rate_by_line([(1.0, 1.0)], 1.0, 0),
    ],
)
def test_rules_check_their_numbers(call) -> None:
    with pytest.raises(ValueError, match=r"positive|at least one"):
        call()
