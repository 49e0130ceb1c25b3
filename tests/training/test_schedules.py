"""Learning rates: a straight line up, half a cosine down to zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.training.schedules import WarmupCosine, rate_at


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
