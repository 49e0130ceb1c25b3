"""The loop: noise of the planned size on the sum, division by the expected batch size, the heavy ball."""

import numpy as np
import pytest
import torch
from scipy import stats

from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Stream, Streams
from sordino.training.dpsgd import Diverged, Momentum, check_finite, noisy_mean, train_steps
from sordino.training.linear import LinearClassifier
from sordino.training.plan import Plan

STREAMS = Streams(bytes(range(16)))
PLAN = Plan(PoissonSampler(200, 20), l2_clip=0.5, noise_multiplier=3.0, steps=50)


def test_noise_is_normal_scaled_by_clip_and_expected_batch() -> None:
    sums = {"weight": torch.zeros(100, 200), "bias": torch.zeros(5000)}
    means = [noisy_mean(sums, PLAN, STREAMS, step) for step in range(3)]
    for mean in means:
        standard = np.concatenate([value.numpy().ravel() for value in mean.values()]) * 20 / 1.5
        assert stats.kstest(standard, "norm").pvalue > 1e-3
        assert standard.var() == pytest.approx(1, rel=0.04)
    # Steps and parameters are independent of each other.
    assert abs(np.corrcoef(means[0]["bias"], means[1]["bias"])[0, 1]) < 0.06
    assert abs(np.corrcoef(means[0]["bias"], means[0]["weight"].ravel()[:5000])[0, 1]) < 0.06


def test_the_sum_is_divided_by_the_expected_batch_whatever_was_drawn() -> None:
    quiet = Plan(PoissonSampler(200, 20), l2_clip=1e-9, noise_multiplier=1e-6, steps=1)
    mean = noisy_mean({"bias": torch.full((3,), 40.0)}, quiet, STREAMS, 0)
    np.testing.assert_allclose(mean["bias"], 2.0)


def test_steps_use_their_own_draw_and_noise() -> None:
    generator = np.random.default_rng(0)
    model = LinearClassifier(generator.normal(size=(200, 4)).astype(np.float32), generator.integers(0, 3, 200), 3)
    model.initialise(STREAMS)
    optimiser = Momentum(0.5, 0.9)
    velocity = optimiser.start(model.parameters)
    expected_weight = torch.zeros(3, 4)
    expected_velocity = torch.zeros(3, 4)
    train_steps(PLAN, model, optimiser, velocity, STREAMS, 0, 1)
    model_again = LinearClassifier(*model.data(), 3)
    model_again.initialise(STREAMS)
    sums = model_again.clipped_sum(PLAN.sampler.draw(STREAMS, 0), PLAN.l2_clip)
    # Noise comes in the order of the parameters' names: bias before weight.
    normal = STREAMS.generator(Stream.NOISE, 0)
    normal.normal(0.0, 1.5, 3)
    gradient = (sums["weight"].double() + torch.from_numpy(normal.normal(0.0, 1.5, (3, 4)))) / 20
    expected_velocity = 0.9 * expected_velocity + gradient.float()
    expected_weight -= 0.5 * expected_velocity
    assert torch.equal(model.parameters["weight"], expected_weight)


def test_the_heavy_ball() -> None:
    optimiser, parameters = Momentum(0.1, 0.5), {"w": torch.tensor([1.0])}
    velocity = optimiser.start(parameters)
    for _ in range(2):
        optimiser.step(parameters, velocity, {"w": torch.tensor([2.0])})
    np.testing.assert_allclose(velocity["w"], [3.0])
    np.testing.assert_allclose(parameters["w"], [0.5])


@pytest.mark.parametrize(("rate", "momentum"), [(0, 0.9), (float("nan"), 0.9), (float("inf"), 0), (1, 1), (1, -0.1)])
def test_impossible_optimisers_are_refused(rate: float, momentum: float) -> None:
    with pytest.raises(ValueError, match=r"learning rate|momentum"):
        Momentum(rate, momentum)


def test_divergence_is_said_in_one_line() -> None:
    with pytest.raises(Diverged, match="lower the learning rate"):
        check_finite({"w": torch.tensor([float("nan")])})
