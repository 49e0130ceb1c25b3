"""Recommendations keep the budget and the allowance, lie where doubling no longer pays, and say why."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sordino.budget import PoissonGaussian, Repeated, cost
from sordino.training.heads import cross_entropy
from sordino.training.large_rates import (
    LARGE_RATES,
    GradientSize,
    accounted_share,
    gradient_size,
    gradient_size_on,
    recommend,
)

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


def test_the_share_is_that_of_a_simulated_step() -> None:
    generator = np.random.default_rng(0)
    n, rate, sigma, width, repeats = 400, 0.2, 1.5, 20, 4000
    gradients = generator.normal(size=(n, width))
    gradients *= np.minimum(1, generator.uniform(0.2, 2, n) / np.linalg.norm(gradients, axis=1))[:, None]
    gradients /= np.maximum(1, np.linalg.norm(gradients, axis=1))[:, None]
    sampled = (generator.random((repeats, n)) < rate) @ gradients
    noisy = sampled + generator.normal(scale=sigma, size=sampled.shape)
    share = 1 - sampled.var(axis=0).sum() / noisy.var(axis=0).sum()
    size = GradientSize(width, float(np.square(gradients).sum(axis=1).mean()))
    assert accounted_share(size, n, rate, sigma) == pytest.approx(share, abs=0.02)
    assert accounted_share(GradientSize(width), n, rate, sigma) < accounted_share(size, n, rate, sigma) - 0.02


@given(st.integers(1, 10**6), st.integers(1, 10**7), st.floats(1e-6, 1), st.floats(0.1, 100))
def test_full_batches_have_no_sampling_noise(parameters: int, n: int, rate: float, sigma: float) -> None:
    size = GradientSize(parameters)
    assert 0 < accounted_share(size, n, rate, sigma) <= accounted_share(size, n, 1.0, sigma) == 1


def test_norms_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(9, 6), torch.arange(9) % 3
    squares = []
    for row, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(row[None]), label[None])
        found = torch.autograd.grad(loss, list(model.parameters()))
        squares.append(sum(float(part.square().sum()) for part in found))
    expected = np.mean(np.minimum(np.sqrt(squares) / 2.0, 1) ** 2)
    size = gradient_size(model, cross_entropy, x, y, 2.0, "measured")
    assert size.mean_square == pytest.approx(expected, rel=1e-5)
    assert 0.1 < size.mean_square < 1
    assert size.parameters == 53


def test_a_public_dataset_is_measured_without_touching_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    size = gradient_size_on("mnist-5k", 1.0)
    assert 0.2 < size.mean_square < 1
    assert size.parameters == 25_386
    assert "mnist-5k" in size.known_from
    assert torch.equal(before, torch.random.get_rng_state())
    with pytest.raises(ValueError, match="digits does not have so many"):
        gradient_size_on("digits", 1.0)


@pytest.mark.parametrize("wrong", [(0, 1.0), (5, 1.5), (5, -0.1), (5, float("nan")), (2.5, 1.0)])
def test_impossible_sizes_are_refused(wrong: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number|lies in"):
        GradientSize(*wrong)
