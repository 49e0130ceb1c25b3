"""Verdicts follow from the trials: shown only where intervals do not overlap, and not from one seed."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sordino.papers.privacy_aware.intervals import Comparison, Interval, best_size, crossing, difference, phenomenon


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
    assert said(0.5, late).endswith("is ahead below it does not show, that the complex overtakes does not show")
    assert crossing({1.0: [0.5]}, {1.0: [0.6]}) == "one seed has no interval"


def test_whether_intervals_overlap_is_said_whichever_is_higher() -> None:
    low, high, wide, alone = Interval(0.1, 0.01), Interval(0.2, 0.01), Interval(0.15, 0.1), Interval(0.9, None)
    assert low.beside(high) == high.beside(low) == "intervals apart"
    assert low.beside(wide) == wide.beside(high) == "intervals not apart"
    assert low.beside(alone) == alone.beside(low) == "no interval"


FEW_WIN = {1: [0.7, 0.72], 5: [0.8, 0.81], 10: [0.75, 0.765]}
MANY_WIN = {1: [0.7, 0.72], 5: [0.8, 0.81], 10: [0.85, 0.861]}


def test_the_phenomenon_of_features_needs_both_halves() -> None:
    assert best_size(FEW_WIN) == 5
    assert phenomenon(FEW_WIN, MANY_WIN).endswith("the phenomenon shows")
    assert phenomenon(FEW_WIN, FEW_WIN).endswith("does not show in full")
    assert phenomenon(MANY_WIN, MANY_WIN).endswith("does not show in full")


def test_differences_are_split_by_split_and_signed_by_their_interval() -> None:
    found = difference([0.9, 0.5, 0.7], [0.8, 0.41, 0.59])
    assert found.mean == pytest.approx(0.1, abs=0.01)
    assert found.sign() == "above 0"
    assert difference([0.4, 0.59], [0.41, 0.6]).sign() == "below 0"
    assert difference([0.9, 0.5], [0.5, 0.9]).sign() == "not apart from 0"
    assert Interval(0.1, None).sign() == "one split has no interval"
