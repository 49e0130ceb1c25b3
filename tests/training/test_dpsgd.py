"""The loop: noise of the planned size on the sum, division by the expected batch size, count and gradient one event."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Stream, Streams
from sordino.runs import Diverged
from sordino.training.dpsgd import ClippedSum, Training, check_finite, noisy_mean, release, train_steps
from sordino.training.linear import LinearClassifier
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import SGD
from sordino.training.plan import Plan, QuantileClip

STREAMS = Streams(bytes(range(16)))
PLAN = Plan(PoissonSampler(200, 20), l2_clip=0.5, noise_multiplier=3.0, steps=50)


def noise(step: int) -> np.random.Generator:
    return STREAMS.generator(Stream.NOISE, step)


def _records() -> ArrayRecords:
    generator = np.random.default_rng(0)
    return ArrayRecords(generator.normal(size=(200, 4)).astype(np.float32), generator.integers(0, 3, 200))


RECORDS = _records()
EXACT = replace(PLAN, exact=True)


def linear() -> LinearClassifier:
    model = LinearClassifier(4, 3)
    model.initialise(STREAMS)
    return model


@pytest.mark.parametrize("clip", [0.5, 0.02])
def test_noise_is_normal_scaled_by_the_clip_of_the_step_and_the_expected_batch(clip: float) -> None:
    sums = {"weight": torch.zeros(100, 200), "bias": torch.zeros(5000)}
    means = [noisy_mean(sums, clip, PLAN, noise(step)) for step in range(3)]
    for mean in means:
        standard = np.concatenate([value.numpy().ravel() for value in mean.values()]) * 20 / (3 * clip)
        assert stats.kstest(standard, "norm").pvalue > 1e-3
        assert standard.var() == pytest.approx(1, rel=0.04)
    # Steps and parameters are independent of each other.
    assert abs(np.corrcoef(means[0]["bias"], means[1]["bias"])[0, 1]) < 0.06
    assert abs(np.corrcoef(means[0]["bias"], means[0]["weight"].ravel()[:5000])[0, 1]) < 0.06


def test_noise_is_the_same_in_one_piece_or_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {"b": torch.ones(7), "a": torch.ones(2, 3), "c": torch.ones(4, dtype=torch.float64), "d": torch.ones(5)}
    whole = noisy_mean(sums, 0.5, PLAN, noise(1))
    monkeypatch.setattr("sordino.training.dpsgd._TOGETHER", 8)
    pieces = noisy_mean(sums, 0.5, PLAN, noise(1))
    normal = noise(1)
    for name in "abcd":
        assert whole[name].dtype == sums[name].dtype
        assert torch.equal(whole[name], pieces[name])
        drawn = torch.from_numpy(normal.normal(0.0, 1.5, tuple(sums[name].shape)))
        assert torch.equal(whole[name], ((sums[name].double() + drawn) / 20).to(sums[name].dtype))


def test_without_privacy_nothing_is_drawn() -> None:
    plan = Plan.without_noise(PoissonSampler(200, 20), 0.5, 1.0)
    mean = noisy_mean({"b": torch.full((3,), 40.0)}, 0.5, plan, None)  # type: ignore[arg-type]
    assert torch.equal(mean["b"], torch.full((3,), 2.0))


def test_the_sum_is_divided_by_the_expected_batch_whatever_was_drawn() -> None:
    quiet = Plan(PoissonSampler(200, 20), l2_clip=1e-9, noise_multiplier=1e-6, steps=1)
    mean = noisy_mean({"bias": torch.full((3,), 40.0)}, quiet.l2_clip, quiet, noise(0))
    np.testing.assert_allclose(mean["bias"], 2.0)


def test_steps_use_their_own_draw_and_noise() -> None:
    model, again = linear(), linear()
    training = Training(PLAN, model, RECORDS, SGD(0.5, momentum=0.9))
    train_steps(training, training.start(), STREAMS, 1)
    sums = again.clipped_sum(RECORDS, PLAN.sampler.draw(STREAMS, 0), PLAN.l2_clip).sums
    # Noise comes in the order of the parameters' names: bias before weight.
    normal = noise(0)
    normal.normal(0.0, 1.5, 3)
    gradient = (sums["weight"].double() + torch.from_numpy(normal.normal(0.0, 1.5, (3, 4)))) / 20
    assert torch.equal(model.parameters["weight"], -0.5 * gradient.float())


def test_the_noise_of_the_count_has_half_its_multiplier_and_is_nobody_elses() -> None:
    plan = replace(PLAN, quantile_clip=QuantileClip(8.0, quantile=0.5, learning_rate=0.1))
    nobody = ClippedSum({"w": torch.zeros(1)}, torch.zeros(0))
    clips = np.array([release(nobody, 0.5, plan, STREAMS, step)[1] for step in range(4000)])
    # The clip moves by exp(−0.1·noise/20); the noise has deviation 8·½.
    counts = -np.log(clips / 0.5) / 0.1 * 20
    assert stats.kstest(counts / 4.0, "norm").pvalue > 1e-3
    gradients = [float(release(nobody, 0.5, plan, STREAMS, step)[0]["w"]) for step in range(4000)]
    assert abs(np.corrcoef(counts, gradients)[0, 1]) < 0.06
    assert np.std(gradients) * 20 / 0.5 == pytest.approx(3.0, rel=0.04)


def test_the_clip_finds_the_quantile_of_the_norms() -> None:
    plan = replace(PLAN, steps=150, noise_multiplier=1e-3, quantile_clip=QuantileClip(2.0, 0.7, 0.2))
    training = Training(plan, linear(), RECORDS, SGD(1e-9))
    state = training.start()
    train_steps(training, state, STREAMS, 150)
    norms = training.model.clipped_sum(RECORDS, np.arange(200), 1.0, noise(0)).norms
    assert np.mean(norms.numpy() <= state.l2_clip) == pytest.approx(0.7, abs=0.15)


def test_steps_take_the_clip_from_where_the_run_stands() -> None:
    plan = replace(PLAN, noise_multiplier=1e-9, quantile_clip=QuantileClip(1.0))
    clips = []

    class Watching(LinearClassifier):
        def clipped_sum(self, records: Any, indices: Any, l2_clip: float, augmentation: Any = None) -> ClippedSum:
            clips.append(l2_clip)
            return super().clipped_sum(records, indices, l2_clip)

    model = Watching(4, 3)
    model.initialise(STREAMS)
    training = Training(plan, model, RECORDS, SGD(0.1))
    state = training.start()
    train_steps(training, state, STREAMS, 10)
    assert clips[0] == 0.5
    assert len(set(clips)) == 10
    assert state.l2_clip not in clips


def test_divergence_is_said_in_one_line() -> None:
    with pytest.raises(Diverged, match="lower the learning rate"):
        check_finite({"w": torch.tensor([float("nan")])})


def test_an_error_in_a_sum_is_an_error_whatever_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*arguments: object) -> ClippedSum:
        raise StopIteration

    training = Training(PLAN, linear(), RECORDS, SGD(0.5))
    monkeypatch.setattr(training.model, "clipped_sum", ended)
    with pytest.raises(StopIteration):
        train_steps(training, training.start(), STREAMS, 2)


def test_exact_noise_is_the_plans_and_its_sums_lie_on_a_public_grid() -> None:
    """Noise added in double precision has bits of its own below any grid, and they tell one sum from another."""
    released = {}
    for value in (0.0, 0.3):
        sums = {"weight": torch.full((100, 200), value, dtype=torch.float64), "bias": torch.zeros(50).double()}
        mean = noisy_mean(sums, 0.5, EXACT, noise(int(10 * value)))
        assert all(part.dtype == torch.float64 for part in mean.values())
        released[value] = mean["weight"].numpy().ravel() * 20
    # Units of 2⁻³⁰ clips, and noise of 1.5: the grid is 2⁻²⁰ of the power of two below 3 clips.
    grid = 0.5 * 2.0**-19
    for value, told in released.items():
        assert np.array_equal(np.rint(told / grid) * grid / 20 * 20, told)
        assert stats.kstest((told - value) / 1.5, "norm").pvalue > 1e-3
        assert stats.chisquare(np.bincount(np.rint(told / grid).astype(np.int64) % 32)).pvalue > 1e-4
    plain = noisy_mean({"weight": torch.zeros(1000).double()}, 0.5, PLAN, noise(0))["weight"].numpy() * 20
    assert not np.array_equal(np.rint(plain / grid) * grid, plain)


def test_one_example_moves_exact_sums_by_no_more_than_the_plan_counts() -> None:
    """Between neighbours, in any order of the rest; rounding is far below what is counted for it."""
    generator = torch.Generator().manual_seed(3)
    images, labels = torch.randn(40, 1, 9, 9, generator=generator).double(), torch.arange(40) % 3

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(196, 3)).double()

    loss = nn.CrossEntropyLoss(reduction="none")
    records = ArrayRecords(images, labels)
    trainee = TrainableModule(build, loss, physical_batch=16)
    trainee.initialise(STREAMS)
    trainee.choose(records, None, 20)
    plan = Plan(PoissonSampler(40, 20), 0.05, 1.0, 1, exact=True)

    def units(rows: np.ndarray) -> np.ndarray:
        sums = trainee.clipped_sum(records, rows, plan.l2_clip, noise(0)).sums
        flat = torch.cat([sums[name].flatten() for name in sorted(sums)])
        assert flat.dtype == torch.float64
        return (flat / plan.l2_clip / plan.unit).round().numpy().astype(np.int64)

    rows = np.arange(40)
    whole = units(rows)
    for gone in (0, 17, 39):
        moved = np.linalg.norm((whole - units(np.delete(rows, gone))).astype(float)) * plan.unit
        assert 0.99 < moved <= plan.sensitivity(whole.size)
    for seed in range(3):
        again = units(np.random.default_rng(seed).permutation(rows))
        assert np.linalg.norm((whole - again).astype(float)) * plan.unit < np.sqrt(whole.size) * plan.unit


def test_the_count_of_a_quantile_clip_lies_on_a_grid_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(QuantileClip, "next_clip", lambda self, clip, count, *rest: seen.append(count) or clip)
    for plan in (PLAN, EXACT):
        clipped = ClippedSum({"bias": torch.zeros(3).double()}, torch.full((7,), 0.4999).double())
        for step in range(200):
            release(clipped, 0.5, replace(plan, quantile_clip=QuantileClip(20.0)), STREAMS, step)
    assert np.array_equal(np.rint(np.array(seen) * 2**20), np.array(seen) * 2**20)
    assert np.std(seen) == pytest.approx(10, rel=0.15)
