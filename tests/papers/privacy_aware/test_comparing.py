"""Verdicts follow from the trials: shown only where intervals do not overlap, and not from one seed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sordino.papers.privacy_aware import comparing, crossings, frozen_layers
from sordino.papers.privacy_aware.comparing import Comparison, Interval, best_rate, constant, crossing, grid, tuned
from sordino.papers.privacy_aware.networks import RWT
from sordino.papers.privacy_aware.sample_size import first_step, fitted
from sordino.papers.privacy_aware.trials import NetworkTrial
from sordino.papers.trials import Experiment

TRIAL = NetworkTrial("Location-30 FCN PAW", None, 0.1, 100, 500, noise_multiplier=2.0, seed=3)


def test_an_interval_is_students() -> None:
    values = [0.91, 0.93, 0.95, 0.92]
    found = Interval.of(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean - float(found.half or 0), found.mean + float(found.half or 0)) == pytest.approx((low, high))
    assert Interval.of([0.5]) == Interval(0.5, None)
    assert not Interval.of([0.1 + 0.2] * 3).exceeds(0.3)  # the same number, rounded otherwise
    assert Interval.of([0.1 + 0.2] * 3).exceeds(0.29)


def test_one_lies_above_another_only_if_they_do_not_overlap() -> None:
    assert Interval(0.9, 0.01).above(Interval(0.87, 0.01)) is True
    assert Interval(0.9, 0.02).above(Interval(0.87, 0.02)) is False
    assert Interval(0.87, 0.01).above(Interval(0.9, 0.01)) is False
    assert Interval(0.9, None).above(Interval(0.1, 0.01)) is None


def test_the_phenomenon_needs_both_halves() -> None:
    low, high = Interval(0.8, 0.01), Interval(0.9, 0.01)
    both = Comparison("pair", complex_private=low, simple_private=high, complex_plain=high, simple_plain=low)
    assert both.shows is True
    assert "the phenomenon shows" in both.words()
    assert replace(both, simple_plain=high).shows is False
    assert replace(both, simple_private=low).shows is False
    assert "does not show" in replace(both, simple_private=low).words()
    assert replace(both, simple_private=Interval(0.9, None)).shows is None


def test_rates_are_chosen_on_held_out_records_with_the_trials_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NetworkTrial] = []

    def run_all(experiment: Experiment, trials: list[NetworkTrial]) -> list[dict[str, float]]:
        seen.extend(trials)
        return [{"score": 1 - abs(trial.learning_rate - 0.2)} for trial in trials]

    monkeypatch.setattr(comparing, "run_all", run_all)
    assert tuned(Experiment(), TRIAL, (0.1, 0.2, 0.5)) == replace(TRIAL, learning_rate=0.2)
    assert [trial.learning_rate for trial in seen] == [0.1, 0.2, 0.5]
    for trial in seen:
        assert trial.validation == 401
        assert trial.noise_multiplier == 2.0
        assert trial.epochs == TRIAL.epochs
        assert trial.seed not in range(100)
    seen.clear()
    regression = NetworkTrial("medical FCN 2×10", None, 0.1, noise_multiplier=2.0)
    least, tries = grid(Experiment(), regression, (0.1, 0.2, 0.4), seeds=2)
    assert least == max(tries) == 3.2  # the error falls on and on
    assert [trial.learning_rate for trial in seen] == [0.1, 0.1, 0.2, 0.2, 0.4, 0.4, 0.8, 0.8, 1.6, 1.6, 3.2, 3.2]
    assert len({trial.seed for trial in seen}) == 2


@pytest.mark.parametrize(("best", "tried"), [(0.2, 3), (0.4, 4), (0.1, 4), (0.05, 5), (3.2, 6), (50.0, 6)])
def test_a_grid_goes_on_while_its_best_is_its_last(best: float, tried: int) -> None:
    asked: list[float] = []

    def scored(rates: Sequence[float]) -> list[float]:
        asked.extend(rates)
        return [-abs(np.log(rate / best)) for rate in rates]

    found, tries = best_rate((0.1, 0.2, 0.4), scored)
    assert found == pytest.approx(min(best, 3.2))
    assert sorted(tries) == sorted(asked)
    assert len(asked) == len(set(asked)) == tried


def test_what_is_no_better_than_a_constant_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert constant("SMS RNN STW") == pytest.approx(0.8636, abs=1e-4)
    assert 0.13 < constant("medical FCN 2×10") < 0.15
    said = frozen_layers._learned("SMS RNN STW", [Interval(0.9, 0.01), Interval(0.87, 0.01)])
    assert said == "; with RWT it is not above a constant answer (86.36 %)"
    assert not frozen_layers._learned("SMS RNN STW", [Interval(0.9, 0.01), Interval(0.9, None)])


def _scored(spread: float, *means: float) -> dict[float, list[float]]:
    """Five seeds at 1, 10, 100 …"""
    around = spread * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    return {10.0**place: (value + around).tolist() for place, value in enumerate(means)}


def test_crossovers_are_judged_by_their_intervals() -> None:
    simple, late, never, always = (0.5, 0.6, 0.7), (0.4, 0.5, 0.8), (0.4, 0.5, 0.6), (0.6, 0.7, 0.8)

    def said(spread: float, means: tuple[float, ...]) -> str:
        return crossing(_scored(spread, *simple), _scored(spread, *means))

    assert said(1e-3, late).startswith("crossover at ε of 32 (95% interval 3")
    assert said(1e-3, late).endswith("is ahead below it shows, that the complex overtakes shows")
    assert said(1e-3, never).endswith("at ε of ∞ (95% interval ∞ to ∞): the simple network is ahead even at ε=100")
    assert said(1e-3, always).endswith("at ε of 0 (95% interval 0 to 0): the complex is ahead from ε=1 on")
    assert said(1e-3, (0.6, 0.5, 0.8)).endswith("shows; the means cross 2 times, and this is the last")
    # The same means, too uncertain for a verdict.
    assert said(0.5, late).startswith("crossover at ε of 32 (95% interval 0 to ∞)")
    assert said(0.5, late).endswith("is ahead below it does not show, that the complex overtakes does not")
    assert crossing({1.0: [0.5]}, {1.0: [0.6]}) == "one seed has no interval"


def test_a_figure_of_crossovers_has_seeds_enough_for_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def repeated(_: Any, trial: NetworkTrial, seeds: int) -> list[dict[str, Any]]:
        asked.append(seeds)
        ahead = 0.1 * ("PAW" in trial.network or RWT in trial.network) * (float(trial.epsilon or 0) < 2)
        plan = {"noise_multiplier": 1.0}
        return [
            {"score": 0.8 + ahead + 1e-3 * seed, "plan": plan, "epsilon": 1.0, "learning_rate": 0.1}
            for seed in range(seeds)
        ]

    for module in (crossings, frozen_layers):
        monkeypatch.setattr(module, "repeated", repeated)
    monkeypatch.setattr(comparing, "grid", lambda experiment, trial, rates, seeds: (rates[0], {}))
    for item in (crossings.figure_7, crossings.figure_8, frozen_layers.figure_10):
        record = item(Experiment())
        assert "crossover at ε of" in record.notes[0]
        assert "95% interval" in record.notes[0]
    assert set(asked) == {5}


def test_the_first_step_and_the_fit() -> None:
    assert first_step({"10": 0.5, "20": 0.85, "30": 0.84, "40": 0.9}) == 20
    assert first_step({"10": 0.5}) is None
    sizes = [1e4, 2e4, 1e5]
    assert fitted(sizes, [float(np.log(1.1 + 8922.4 / n)) for n in sizes]) == pytest.approx((1.1, 8922.4))
    assert fitted(sizes, [float(np.log(0.97 + 8400 / n)) for n in sizes])[0] == pytest.approx(1.0)


def test_whether_intervals_overlap_is_said_whichever_is_higher() -> None:
    low, high, wide, alone = Interval(0.1, 0.01), Interval(0.2, 0.01), Interval(0.15, 0.1), Interval(0.9, None)
    assert low.beside(high) == high.beside(low) == "intervals apart"
    assert low.beside(wide) == wide.beside(high) == "intervals not apart"
    assert low.beside(alone) == alone.beside(low) == "no interval"
