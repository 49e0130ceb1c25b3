"""The two kinds of noise against a simulation, and norms against plain autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sordino.training.heads import cross_entropy
from sordino.training.noise_shares import GradientSize, accounted_share, gradient_size, gradient_size_on


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
