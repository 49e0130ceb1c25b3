"""The means move by no more than the proof says, the noise is what is charged for, and only the last draw is told."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest, norm
from torch import Tensor, nn

from sordino.budget import (
    BudgetExceeded,
    Composed,
    Except,
    Gaussian,
    Ledger,
    NonPrivate,
    Repeated,
    ShuffledGaussian,
    UnsupportedEvent,
    cost,
)
from sordino.budget.weight_trajectories import displacements
from sordino.data.samplers import FixedSizeSampler, FullBatchSampler, PoissonSampler, Sampler, ShuffledSampler
from sordino.gradients import ExamplesMixError
from sordino.gradients.tuning import Choices
from sordino.mechanisms.gaussian import clip_rows
from sordino.mechanisms.streams import Streams
from sordino.runs import Diverged, Run, RunError, environment, key
from sordino.training import weight_distributions
from sordino.training.dpsgd import ClippedSum
from sordino.training.fitting import fit
from sordino.training.linear import LinearClassifier, linear_scores
from sordino.training.modules import MixingModule, TrainableModule
from sordino.training.optimisers import SGD
from sordino.training.plan import Plan
from sordino.training.schedules import OneCycle, Schedule, Staircase, WarmupCosine
from sordino.training.weight_distributions import (
    Means,
    WeightDistributionPlan,
    train_means,
)

PLAN = WeightDistributionPlan(PoissonSampler(60, 9), 0.5, 4000.0, 40, Staircase(0.5, 0.8, 7), 0.6, 1e-6)
LOSS = nn.CrossEntropyLoss(reduction="none")
SAMPLERS = [PoissonSampler(12, 4), ShuffledSampler(12, 5), FullBatchSampler(12, 12)]
samplers = st.sampled_from(SAMPLERS)
rates: st.SearchStrategy[float | Schedule] = st.sampled_from([0.3, Staircase(0.5, 0.7, 3), WarmupCosine(0.4, 3, 12)])
momenta = st.sampled_from([0.0, 0.5, 0.9])
seeds = st.integers(0, 9999)


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at once: nothing of ours catches it."""


def plan_for(sampler: Sampler, **changes: Any) -> WeightDistributionPlan:
    excess = 1e-6 if isinstance(sampler, PoissonSampler) else None
    known = {"l2_clip": 0.7, "noise_multiplier": 3.0, "steps": 11, "learning_rate": 0.3, "excess_probability": excess}
    return WeightDistributionPlan(sampler, **(known | changes))


class Scripted:
    """Gradients that are written down for each step and record: what equal weights θ make of equal records."""

    def __init__(self, gradients: NDArray[np.float64]) -> None:
        self._gradients = gradients
        self.parameters = {"w": torch.zeros(gradients.shape[-1], dtype=torch.float64)}
        self.batches: list[NDArray[np.int64]] = []
        self.seen: list[Tensor] = []

    def clipped_sum(self, records: Any, indices: NDArray[np.int64], l2_clip: float, augmentation: Any) -> ClippedSum:
        rows = clip_rows(self._gradients[len(self.batches), indices], l2_clip)
        self.batches.append(indices)
        self.seen.append(self.parameters["w"].clone())
        return ClippedSum({"w": torch.from_numpy(rows.sum(axis=0))}, torch.zeros(len(rows)))


def means_along(plan: WeightDistributionPlan, gradients: NDArray[np.float64], seed: int) -> tuple[Tensor, Scripted]:
    """The secret means after every step."""
    model, streams = Scripted(gradients), Streams(seed.to_bytes(16, "little"))
    state, along = Means.start(model.parameters), []
    for step in range(plan.steps):
        train_means(plan, model, None, state, streams, step + 1)  # type: ignore[arg-type]
        along.append(state.means["w"].clone())
    return torch.stack(along), model


def joined(model: Scripted, record: int) -> NDArray[np.bool_]:
    return np.array([record in batch for batch in model.batches])


# Sensitivity


@settings(max_examples=60, deadline=None)
@given(samplers, rates, momenta, seeds)
def test_aligned_gradients_move_the_means_by_exactly_the_bound(
    sampler: Sampler, rate: float | Schedule, momentum: float, seed: int
) -> None:
    plan = plan_for(sampler, learning_rate=rate, momentum=momentum)
    gradients = np.random.default_rng(seed).normal(size=(plan.steps, 12, 3))
    gradients[:, 0] = [0.0, 1e3, 0.0]
    zeroed = gradients.copy()
    zeroed[:, 0] = 0
    with_record, model = means_along(plan, gradients, seed)
    without, _ = means_along(plan, zeroed, seed)
    bound = displacements(joined(model, 0), plan.rates, momentum) * plan.l2_clip / sampler.expected_batch_size
    np.testing.assert_allclose((with_record - without).norm(dim=1), bound, rtol=1e-9, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(samplers, rates, momenta, seeds, st.sampled_from([0.1, 1.0, 100.0]))
def test_whatever_the_gradients_the_means_move_by_no_more(
    sampler: Sampler, rate: float | Schedule, momentum: float, seed: int, scale: float
) -> None:
    """Zeroed out: the bound; replaced by another record: twice the bound."""
    plan = plan_for(sampler, learning_rate=rate, momentum=momentum)
    generator = np.random.default_rng(seed)
    gradients = scale * generator.normal(size=(plan.steps, 12, 3))
    zeroed, replaced = gradients.copy(), gradients.copy()
    zeroed[:, 0], replaced[:, 0] = 0, scale * generator.normal(size=(plan.steps, 3))
    with_record, model = means_along(plan, gradients, seed)
    bound = displacements(joined(model, 0), plan.rates, momentum) * plan.l2_clip / sampler.expected_batch_size
    for other, factor in ((zeroed, 1.0), (replaced, 2.0)):
        moved = (with_record - means_along(plan, other, seed)[0]).norm(dim=1).numpy()
        assert (moved <= factor * bound * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_a_record_did_is_within_what_is_charged(sampler: Sampler) -> None:
    """Σ (shift of the mean / deviation of the noise)² over a whole run is at most μ²."""
    plan = plan_for(sampler, learning_rate=Staircase(0.5, 0.8, 3), momentum=0.5)
    gradients = np.zeros((plan.steps, 12, 2))
    gradients[:, 0, 0] = 1e3
    for seed in range(20):
        moved = means_along(plan, gradients, seed)[0].norm(dim=1).numpy()
        deviations = np.array(plan.rates) * plan.l2_clip * plan.noise_multiplier / sampler.expected_batch_size
        assert np.linalg.norm(moved / deviations) <= plan.norm / plan.noise_multiplier * (1 + 1e-9)


# The algorithm and its noise


def test_it_is_algorithm_1_with_a_heavy_ball() -> None:
    """Step by step in NumPy, from the weights that gradients were taken at."""
    plan = plan_for(PoissonSampler(12, 4), learning_rate=Staircase(0.5, 0.7, 3), momentum=0.9)
    gradients = np.random.default_rng(0).normal(size=(plan.steps, 12, 3))
    along, model = means_along(plan, gradients, 5)
    velocity, mean = np.zeros(3), np.zeros(3)
    for step, batch in enumerate(model.batches):
        total = sum((row * min(1, 0.7 / np.linalg.norm(row)) for row in gradients[step, batch]), np.zeros(3))
        velocity = 0.9 * velocity + total / 4
        mean = mean - 0.5 * 0.7 ** (step // 3) * velocity
        np.testing.assert_allclose(along[step], mean, rtol=1e-12, atol=1e-15)
    assert torch.equal(model.seen[0], torch.zeros(3, dtype=torch.float64))  # θ_0 = μ_0, without noise
    drawn = torch.stack([*model.seen[1:], model.parameters["w"]])
    assert not any(torch.equal(theta, mu) for theta, mu in zip(drawn, along, strict=True))


def test_the_noise_has_the_deviation_that_is_charged_and_nothing_in_common() -> None:
    plan = plan_for(FullBatchSampler(12, 12), steps=60, learning_rate=Staircase(0.5, 0.8, 10), momentum=0.5)
    gradients = np.random.default_rng(1).normal(size=(60, 12, 500))
    along, model = means_along(plan, gradients, 7)
    drawn = torch.stack([*model.seen[1:], model.parameters["w"]])
    deviations = torch.tensor(plan.rates, dtype=torch.float64) * 0.7 * 3.0 / 12
    noise = ((drawn - along) / deviations[:, None]).numpy()
    assert kstest(noise.ravel(), norm.cdf).pvalue > 1e-3
    for step in (0, 15, 59):  # each rate its own deviation
        assert noise[step].std() == pytest.approx(1, abs=4 / math.sqrt(2 * 500))
    between_steps = np.corrcoef(noise)[np.triu_indices(60, 1)]
    assert np.abs(between_steps).max() < 5 / math.sqrt(500)
    between_weights = np.corrcoef(noise.T)[np.triu_indices(500, 1)]
    assert np.mean(between_weights**2) == pytest.approx(1 / 59, rel=0.05)


def test_two_parameters_get_noise_of_their_own() -> None:
    class Two(Scripted):
        def __init__(self) -> None:
            self.parameters = {"a": torch.zeros(50), "b": torch.zeros(50)}

        def clipped_sum(self, *arguments: Any) -> ClippedSum:
            return ClippedSum({name: torch.zeros(50) for name in "ab"}, torch.zeros(0))

    model, plan = Two(), plan_for(FullBatchSampler(12, 12))
    train_means(plan, model, None, Means.start(model.parameters), Streams(bytes(16)), 3)  # type: ignore[arg-type]
    a, b = model.parameters.values()
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.6
    assert not torch.equal(a, b)


# The price


def test_each_sampler_has_its_event() -> None:
    poisson, shuffled, full = (plan_for(sampler) for sampler in SAMPLERS)
    assert isinstance(poisson.event, Except)
    assert poisson.event.probability == 1e-6
    assert isinstance(poisson.event.event, Gaussian)
    assert shuffled.event == Composed((ShuffledGaussian(3, 3.0 / shuffled.norm),))
    assert full.event == Gaussian(3.0 / full.norm)
    assert full.norm == pytest.approx(math.sqrt(11 * 12 * 23 / 6))
    with pytest.raises(UnsupportedEvent, match="add-remove"):
        shuffled.epsilon(1e-5, "add-remove")
    assert cost(full.claimed, 1e-5).epsilon == pytest.approx(cost(Gaussian(3 / math.sqrt(11)), 1e-5).epsilon)
    assert replace(full, examples_mix=True).event == NonPrivate()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_several_trainings_cost_what_each_of_them_does(sampler: Sampler) -> None:
    """A training is one event, and steps of an epoch are not: twenty trainings are not one epoch."""
    event = plan_for(sampler, noise_multiplier=50.0).event
    for count in (2, 20):
        one_by_one = cost(Composed((event,) * count), 1e-4).epsilon
        assert cost(Repeated(event, count), 1e-4).epsilon == pytest.approx(one_by_one)
        assert one_by_one > 1.3 * cost(event, 1e-4).epsilon


@pytest.mark.parametrize(
    "sampler", [PoissonSampler(5000, 500), ShuffledSampler(5000, 500), FullBatchSampler(5000, 5000)]
)
@pytest.mark.parametrize("target", [0.5, 4.0])
def test_who_asks_for_an_epsilon_gets_a_run_that_is_sound_at_it(sampler: Sampler, target: float) -> None:
    settings = {"l2_clip": 1.0, "steps": 25, "learning_rate": Staircase(0.5, 0.9, 5), "momentum": 0.5}
    plan = WeightDistributionPlan.calibrated(sampler, target_epsilon=target, target_delta=1e-5, **settings)
    assert target * (1 - 1e-3) <= plan.epsilon(1e-5) <= target
    assert cost(plan.claimed, 1e-5).epsilon < target / 3
    assert plan.final_epsilon(1e-5) < target
    ledger = Ledger(target, 1e-5)
    ledger.spend(plan.event, "training", claimed=plan.claimed)
    after = WeightDistributionPlan.calibrated(
        sampler, target_epsilon=target, target_delta=1e-5, before=Gaussian(20.0), **settings
    )
    assert after.noise_multiplier > plan.noise_multiplier


@settings(max_examples=30, deadline=None)
@given(samplers, rates | st.just(OneCycle(0.5, 11)), momenta, st.floats(0.1, 50), st.booleans())
def test_plans_survive_json(sampler: Sampler, rate: float | Schedule, momentum: float, sigma: float, mix: bool) -> None:
    plan = plan_for(sampler, learning_rate=rate, momentum=momentum, noise_multiplier=sigma, examples_mix=mix)
    assert WeightDistributionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": FixedSizeSampler(12, 4)},
        {"l2_clip": 0.0},
        {"l2_clip": math.inf},
        {"l2_clip": True},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"steps": 0},
        {"steps": 2.5},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"learning_rate": WarmupCosine(0.5, 1, 5)},  # at zero from step 5 on: no noise
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"excess_probability": None},
        {"excess_probability": 0.0},
        {"sampler": FullBatchSampler(12, 12)},  # with an excess_probability
    ],
)
def test_bad_settings_are_refused_in_one_line(changes: dict[str, Any]) -> None:
    known = plan_for(PoissonSampler(12, 4))
    with pytest.raises(ValueError, match=r"\w") as caught:
        replace(known, **changes)
    assert "\n" not in str(caught.value)


# Runs


def data(n: int = 60, shift: float = 0.0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(5)
    return (generator.normal(size=(n, 1, 8, 8)) + shift).astype(np.float32), generator.integers(0, 3, n)


def cnn() -> nn.Module:
    frozen = nn.Conv2d(1, 2, 3, padding=1).requires_grad_(False)  # random and fixed
    return nn.Sequential(
        *(frozen, nn.Conv2d(2, 4, 3), nn.GroupNorm(1, 4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 3))
    )


def network_on(choices: Choices | None = None) -> TrainableModule:
    return TrainableModule(cnn, LOSS, choices=choices)


def train(run: Run, plan: WeightDistributionPlan = PLAN, **options: Any) -> dict[str, Tensor]:
    model = options.pop("model", None) or LinearClassifier(64, 3)
    images, labels = options.pop("data", data())
    x = images if isinstance(model, TrainableModule) else images.reshape(len(images), -1)
    ledger = options.pop("ledger", None) or Ledger(50.0, 1e-5, path=run.ledger)
    return fit(plan, model, (x, labels), ledger=ledger, run=run, **({"seed": 1} | options)).weights


def killed_at(step: int) -> Any:
    def on_progress(done: int, total: int) -> None:
        if done >= step:
            raise Killed

    return on_progress


def test_it_is_charged_once_before_the_first_step_with_the_claim_beside(tmp_path: Path) -> None:
    run, counts = Run.at(tmp_path / "run"), []

    class Watched(LinearClassifier):
        def clipped_sum(self, *arguments: Any) -> ClippedSum:
            counts.append([entry.count for entry in Ledger.open(run.ledger).entries])
            return super().clipped_sum(*arguments)

    model = Watched(64, 3)
    weights = train(run, model=model)
    assert counts == [[1]] * PLAN.steps
    ledger = Ledger.open(run.ledger)
    (entry,) = ledger.entries
    assert (entry.event, entry.claimed, entry.committed, entry.seeded) == (PLAN.event, PLAN.claimed, 1, True)
    statement = ledger.statement()
    assert statement["epsilon"] == pytest.approx(PLAN.epsilon(1e-5))
    assert 0 < statement["entries"][0]["claimed_epsilon"] < 1e-2 < 0.1 < statement["epsilon"]
    assert statement["samplers"] == ["Poisson"]
    assert all(torch.equal(model.weights()[name], value) for name, value in weights.items())


def test_a_network_killed_between_blocks_ends_in_the_same_bits(tmp_path: Path) -> None:
    whole, broken = Run.at(tmp_path / "whole"), Run.at(tmp_path / "broken")
    first = network_on()
    expected = train(whole, model=first)
    for stop in (0, 21):
        with pytest.raises(Killed):
            train(broken, model=network_on(first.choices), on_progress=killed_at(stop))
    found = train(broken, model=network_on(first.choices))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(Ledger.open(broken.ledger).entries) == 1


@pytest.mark.parametrize("sampler", [PoissonSampler(60, 9), ShuffledSampler(60, 9)])
def test_a_run_killed_anywhere_ends_in_the_same_bits(tmp_path: Path, sampler: Sampler) -> None:
    plan = replace(PLAN, sampler=sampler, excess_probability=1e-6 if isinstance(sampler, PoissonSampler) else None)
    expected = train(Run.at(tmp_path / "whole"), plan, model=LinearClassifier(64, 3))
    run = Run.at(tmp_path / "broken")

    class Fragile(LinearClassifier):
        left = 0

        def clipped_sum(self, *arguments: Any) -> ClippedSum:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return super().clipped_sum(*arguments)

    for survives in (0, 1, 5, 16):
        model = Fragile(64, 3)
        model.left = survives
        with pytest.raises(Killed):
            train(run, plan, model=model)
    found = train(run, plan, model=LinearClassifier(64, 3))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert run.model.read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert len(Ledger.open(run.ledger).entries) == 1


def test_until_the_end_means_are_private_and_then_only_the_last_weights_are_left(tmp_path: Path) -> None:
    run, network = Run.at(tmp_path / "run"), network_on()
    for stop in (0, 40):
        with pytest.raises(Killed):
            train(run, model=network, on_progress=killed_at(stop))
        assert {path.name for path in run.folder.iterdir()} == {
            "private",
            "ledger.json",
            "ledger.json.lock",
            "run.json",
        }
        assert {path.name for path in run.private.iterdir()} == {
            *("lock", "key.json", "means.safetensors", "ledger.mark.json")
        }
    means, _ = run.read_tensors(run.private / "means.safetensors")
    weights = train(run, model=network)
    assert {path.name for path in run.private.iterdir()} == {"lock", "ledger.mark.json"}
    kept, facts = run.read_tensors(run.model)
    assert set(kept) == set(network.weights())
    assert facts["steps"] == PLAN.steps
    deviation = PLAN.rates[-1] * PLAN.l2_clip * PLAN.noise_multiplier / 9
    for name in ("1.weight", "6.weight"):  # what is told is a draw, not the mean
        spread = (weights[name].double() - means[f"mean.{name}"]).square().mean().sqrt()
        assert float(spread) == pytest.approx(deviation, rel=0.35)
    assert torch.equal(weights["0.weight"], means["fixed.0.weight"])


def test_who_asks_is_shown_the_means_that_the_last_weights_are_drawn_around(tmp_path: Path) -> None:
    shown: list[Means] = []

    def disturb(state: Means) -> None:  # whoever looks may leave the model at any weights
        shown.append(Means(state.done, {name: value.clone() for name, value in state.means.items()}, {}))
        for value in model.parameters.values():
            value.zero_()

    model = LinearClassifier(64, 3)
    run = Run.at(tmp_path / "run")
    released = train(run, model=model, ledger=Ledger(path=run.ledger), on_trained=disturb)
    (state,) = shown
    deviation = PLAN.rates[-1] * PLAN.l2_clip * PLAN.noise_multiplier / PLAN.sampler.expected_batch_size
    assert state.done == PLAN.steps
    noise = torch.cat([(released[name] - mean).flatten() for name, mean in state.means.items()]) / deviation
    assert kstest(noise.numpy(), "norm").pvalue > 1e-3
    undisturbed = train(Run.at(tmp_path / "other"))
    assert all(torch.equal(released[name], undisturbed[name]) for name in released)


def test_a_finished_run_is_loaded_and_not_charged_again(tmp_path: Path) -> None:
    run, model = Run.at(tmp_path / "run"), LinearClassifier(64, 3)
    expected = train(run)
    found = train(run, model=model, on_progress=killed_at(0))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(torch.equal(model.weights()[name], value) for name, value in expected.items())
    assert len(Ledger.open(run.ledger).entries) == 1
    with pytest.raises(RunError, match="another plan or ledger"):
        train(run, replace(PLAN, noise_multiplier=5000.0))


def test_a_run_that_cannot_be_repeated_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.at(tmp_path / "run")
    with pytest.raises(Killed):
        train(run, on_progress=killed_at(20))
    before = {path: path.read_bytes() for path in (run.ledger, run.private / "means.safetensors")}
    attempts: list[tuple[dict[str, Any], str]] = [
        ({"data": data(shift=1e-3)}, "other data"),
        ({"plan": replace(PLAN, momentum=0.5)}, "another plan"),
        ({"plan": replace(PLAN, learning_rate=0.5)}, "another plan"),
        ({"seed": 2}, "seed"),
        ({"part": "validation"}, "purpose"),
        ({"data": data(n=59)}, "n=60 records, the data has 59"),
    ]
    for options, words in attempts:
        with pytest.raises(RunError, match=words) as caught:
            train(run, **options)
        assert "\n" not in str(caught.value)
    here = environment()
    with monkeypatch.context() as patch:
        patch.setattr(key, "environment", lambda: here | {"threads": 99})
        with pytest.raises(RunError, match="another environment"):
            train(run)
    assert {path: path.read_bytes() for path in before} == before
    train(run)


def test_what_does_not_fit_the_budget_reads_nothing(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path / "run"), Ledger(0.1, 1e-5, path=tmp_path / "ledger.json")
    with pytest.raises(BudgetExceeded):
        train(run, ledger=ledger)
    assert not ledger.entries
    train(run, replace(PLAN, noise_multiplier=40_000.0), ledger=ledger)


def test_weights_that_are_no_numbers_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_distributions, "gaussian_noise", lambda g, shape, deviation: np.full(shape, np.inf))
    run, ledger = Run.at(tmp_path / "run"), Ledger(path=tmp_path / "ledger.json")
    for _ in range(2):
        with pytest.raises(Diverged):
            train(run, ledger=ledger)
        assert {path.name for path in run.private.iterdir()} == {
            "lock",
            "ledger.mark.json",
        }  # neither key nor means are left
    assert len(ledger.entries) == 1


def test_it_learns_within_its_budget(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 3, 3000)
    vectors = (3 * np.eye(3)[labels] + generator.normal(size=(3000, 3))).astype(np.float32)
    plan = WeightDistributionPlan.calibrated(
        FullBatchSampler(3000, 3000),
        **{"l2_clip": 1.0, "steps": 10, "learning_rate": 1.0, "target_epsilon": 2.0, "target_delta": 1e-5},
    )
    ledger = Ledger(2.0, 1e-5, path=tmp_path / "ledger.json")
    run = Run.at(tmp_path / "run")
    weights = fit(plan, LinearClassifier(3, 3), (vectors, labels), ledger=ledger, run=run, seed=3).weights
    assert (linear_scores(weights, torch.from_numpy(vectors)).argmax(dim=1).numpy() == labels).mean() > 0.9
    assert ledger.epsilon() <= 2.0


# Examples that mix


def test_a_model_whose_examples_mix_needs_a_plan_that_says_so(tmp_path: Path) -> None:
    def bn() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)
        )

    images, labels = data()
    mixing = MixingModule(bn, LOSS)
    ledger = Ledger(target_delta=1e-5, path=tmp_path / "ledger.json")
    with pytest.raises(ExamplesMixError, match="BatchNorm1d"):
        train(Run.at(tmp_path / "a"), model=TrainableModule(bn, LOSS), ledger=ledger)
    with pytest.raises(ExamplesMixError, match="examples_mix=True"):
        train(Run.at(tmp_path / "b"), model=mixing, ledger=ledger)
    plain = Plan(PoissonSampler(60, 9), 1.0, 2.0, 3)
    with pytest.raises(ExamplesMixError):
        fit(plain, mixing, (images, labels), optimiser=SGD(0.1), ledger=ledger, run=tmp_path / "c")
    assert not ledger.entries
    flagged = replace(PLAN, examples_mix=True)
    with pytest.raises(BudgetExceeded):
        train(Run.at(tmp_path / "d"), flagged, model=mixing)
    train(Run.at(tmp_path / "e"), flagged, model=mixing, ledger=ledger)
    assert ledger.epsilon() == math.inf
    assert ledger.statement()["entries"][0]["claimed_epsilon"] < 1
