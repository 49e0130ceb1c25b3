"""Recommendations keep the budget and the allowance, lie where doubling no longer pays, and say why."""

import math
from itertools import pairwise

import pytest

from sordino.budget import PoissonGaussian, Repeated, cost
from sordino.training.large_rates import LARGE_RATES
from sordino.training.noise_shares import GradientSize
from sordino.training.recommending import recommend

SIZE = GradientSize(25_386)


def test_a_recommendation_keeps_budget_and_allowance() -> None:
    found = recommend(60_000, 2.93, 1e-5, SIZE, compute=40 * 60_000, memory=1e9)
    chosen = found.chosen
    event = Repeated(PoissonGaussian(chosen.sample_rate, chosen.noise_multiplier), chosen.steps)
    assert 2.92 < cost(event, 1e-5).epsilon == found.cost.epsilon <= 2.93
    assert found.cost.accountant == "pld"
    assert 39 * 60_000 < chosen.steps * chosen.expected_batch_size <= 40 * 60_000
    # LSR's own search for this dataset and budget ended there, too.
    assert chosen.sample_rate == pytest.approx(LARGE_RATES["lsr-m3"].sample_rate, rel=0.01)
    assert chosen in found.candidates
    longest = max(made.learning_rate * made.l2_clip / (1 - made.momentum) for made in LARGE_RATES.values())
    assert found.learning_rate * found.l2_clip / (1 - found.momentum) == pytest.approx(longest, rel=0.02)
    assert found.physical_batch == 10**9 // (8 * 25_386)
    assert any("3 pieces a step" in reason for reason in found.reasons)


def test_larger_rates_have_less_noise_along_the_square_root() -> None:
    found = recommend(60_000, 1.0, 1e-5, SIZE, compute=100 * 60_000, least_gain=0.005)
    assert [each.sample_rate for each in found.candidates] == sorted(each.sample_rate for each in found.candidates)
    for smaller, larger in pairwise(found.candidates):
        assert smaller.excess_noise > larger.excess_noise > 1
        assert smaller.noise_multiplier < larger.noise_multiplier
    place = found.candidates.index(found.chosen)
    below, above = found.candidates[place - 1], found.candidates[place + 1]
    assert above.excess_noise > found.chosen.excess_noise * 0.995
    assert below.sample_rate < 0.1427 <= found.chosen.sample_rate  # the least of LSR's
    for each in found.candidates:
        assert each.noise_multiplier == pytest.approx(found.root_law * math.sqrt(each.sample_rate), rel=0.05)


def test_more_budget_allows_longer_steps() -> None:
    little, more = (recommend(90, epsilon, 1e-3, SIZE).learning_rate for epsilon in (0.5, 1.0))
    assert little < more


def test_plenty_of_compute_is_not_all_used_and_tiny_data_is_taken_whole() -> None:
    found = recommend(900, 3.0, 1e-5, SIZE, compute=1e12)
    assert 99 < found.epochs <= 100
    assert "no more than LSR's longest" in found.reasons[0]
    tiny = recommend(1, 1.0, 1e-5, SIZE)
    assert (tiny.chosen.sample_rate, tiny.chosen.accounted_share) == (1.0, 1.0)
    assert "every record in every step" in tiny.reasons[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 0}, "n must be"),
        ({"target_epsilon": 0.0}, "positive finite"),
        ({"target_delta": 1.5}, "δ|delta"),
        ({"compute": -1.0}, "compute must be a positive"),
        ({"compute": float("nan")}, "compute must be a positive"),
        ({"compute": 999.0}, "less than one epoch"),
        ({"memory": 1000.0}, "does not hold one example"),
        ({"memory": float("nan")}, "does not hold one example"),
        ({"least_gain": 0.0}, "least_gain"),
    ],
)
def test_impossible_wishes_get_one_line(changes: dict[str, float], words: str) -> None:
    wish = {"n": 1000, "target_epsilon": 1.0, "target_delta": 1e-5, "size": SIZE} | changes
    with pytest.raises(ValueError, match=words) as refused:
        recommend(**wish)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.3, 3.0])
def test_rates_are_large_whatever_the_budget(epsilon: float) -> None:
    found = recommend(60_000, epsilon, 1e-5, SIZE)
    assert 0.14 <= found.chosen.sample_rate <= 0.2
    assert found.chosen.steps >= 240


def test_what_is_all_but_all_is_not_said_to_be_all() -> None:
    found = recommend(60_000, 0.001, 1e-5, SIZE)
    assert found.chosen.accounted_share < 1
    assert "99.99 %" in " ".join(found.reasons)
    assert "100 %" not in " ".join(found.reasons)


def test_a_reason_is_given_only_where_it_holds() -> None:
    words = "both kinds of noise fall together"
    assert words in " ".join(recommend(60_000, 1.0, 1e-5, SIZE).reasons)
    assert words not in " ".join(recommend(60_000, 1000.0, 1e-5, SIZE).reasons)
