"""The premises of the proof hold in numbers, the price bounds iterations that are solved exactly, one model is told."""

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
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional

from sordino.budget import BudgetExceeded, Gaussian, Iteration, Ledger, UnsupportedEvent, cost, rdp
from sordino.mechanisms.streams import Streams
from sordino.runs import Key, Run, RunError, environment, key
from sordino.training import LinearClassifier, fit, last_iterate
from sordino.training.last_iterate import (
    LastIteratePlan,
    clipped_inputs,
    gradient_sum,
    largest_learning_rate,
    train_iterate,
)
from sordino.training.linear import linear_scores

PLAN = LastIteratePlan(n=123, batch=10, epochs=5, data_clip=1.5, noise_multiplier=4.0, learning_rate=1.0)
STEPS = 60
seeds = st.integers(0, 9999)


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at once: nothing of ours catches it."""


def data(n: int = 123, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    return generator.normal(size=(n, 6)).astype(np.float32) + np.float32(shift), generator.integers(0, 3, n)


def train(run: Run, plan: LastIteratePlan = PLAN, **options: Any) -> dict[str, Tensor]:
    vectors, labels = options.pop("data", data())
    ledger = options.pop("ledger", None) or Ledger(50.0, 1e-5, path=run.ledger)
    model = LinearClassifier(vectors.shape[1], 3)
    return fit(plan, model, (vectors, labels), ledger=ledger, run=run, **({"seed": 1} | options)).weights


def killed_at(step: int) -> Any:
    def on_progress(done: int, total: int) -> None:
        if done >= step:
            raise Killed

    return on_progress


def problem(seed: int, n: int, classes: int, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, inputs at and within the clip, and labels."""
    generator = np.random.default_rng(seed)
    scale = generator.choice([0.1, 1.0, 30.0], size=(n, 1))
    inputs = clipped_inputs((scale * generator.normal(size=(n, 4))).astype(np.float32), clip).double()
    weights = torch.from_numpy(generator.choice([0.1, 1.0, 10.0]) * generator.normal(size=(classes, 5)))
    return weights, inputs, torch.from_numpy(generator.integers(0, classes, n))


def moved(weights: Tensor, inputs: Tensor, labels: Tensor, rate: float) -> Tensor:
    return weights - rate / len(labels) * gradient_sum(weights, inputs, labels)


# The premises


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(2, 5))
def test_sums_are_the_gradients_of_cross_entropy(seed: int, n: int, classes: int) -> None:
    weights, inputs, labels = problem(seed, n, classes, 2.0)
    leaf = weights.clone().requires_grad_()
    loss = functional.cross_entropy(inputs @ leaf.T, labels, reduction="sum")
    torch.testing.assert_close(gradient_sum(weights, inputs, labels), torch.autograd.grad(loss, leaf)[0])


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.1, 1.0, 25.0]))
def test_a_record_zeroed_out_or_replaced_moves_the_mean_by_no_more_than_the_bound(
    seed: int, n: int, classes: int, clip: float
) -> None:
    weights, inputs, labels = problem(seed, n, classes, clip)
    _, others, other_labels = problem(seed + 1, n, classes, clip)
    bound = LastIteratePlan(n, n, 1, clip, 1.0, 1e-3).gradient_bound
    empty, replaced, relabelled = inputs.clone(), inputs.clone(), labels.clone()
    empty[0], replaced[0], relabelled[0] = 0, others[0], other_labels[0]
    mean = gradient_sum(weights, inputs, labels) / n
    assert (mean - gradient_sum(weights, empty, labels) / n).norm() <= bound / n * (1 + 1e-12)
    assert (mean - gradient_sum(weights, replaced, relabelled) / n).norm() <= 2 * bound / n * (1 + 1e-12)


def test_the_bounds_are_reached() -> None:
    """By a certain and wrong prediction, and its mirror image in its place: neither bound could be smaller."""
    clip = 100.0
    bound = LastIteratePlan(1, 1, 1, clip, 1.0, 1e-6).gradient_bound
    weights, far = torch.tensor([[0.0, 50.0], [0.0, -50.0]]).double(), torch.tensor([[clip, 1.0]]).double()
    one = gradient_sum(weights, far, torch.tensor([1]))
    other = gradient_sum(weights, far * torch.tensor([-1.0, 1.0]), torch.tensor([1]))
    assert one.norm() == pytest.approx(bound)
    assert (one - other).norm() == pytest.approx(2 * bound, rel=1e-4)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 6), st.sampled_from([0.1, 1.0, 5.0]))
def test_the_loss_is_no_less_smooth_than_the_proof_says(seed: int, classes: int, clip: float) -> None:
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(classes, generator.choice([0.05, 1.0, 20.0])))
    assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1] <= 0.5 + 1e-12
    weights, inputs, labels = problem(seed, 3, classes, clip)

    def loss(flat: Tensor) -> Tensor:
        return functional.cross_entropy(inputs @ flat.reshape(weights.shape).T, labels)

    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, weights.flatten()))
    assert eigenvalues[0] >= -1e-9 * (clip**2 + 1)
    assert eigenvalues[-1] <= 0.5 * (clip**2 + 1) * (1 + 1e-9) == pytest.approx(2 / largest_learning_rate(clip))


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.1, 1.0, 10.0]), st.sampled_from([1e-4, 0.1, 10]))
def test_steps_of_the_largest_rate_do_not_expand(seed: int, n: int, classes: int, clip: float, distance: float) -> None:
    weights, inputs, labels = problem(seed, n, classes, clip)
    generator = np.random.default_rng(seed)
    others = weights + distance * torch.from_numpy(generator.normal(size=tuple(weights.shape)))
    rate = largest_learning_rate(clip)
    after = (moved(weights, inputs, labels, rate) - moved(others, inputs, labels, rate)).norm()
    assert after <= (weights - others).norm() * (1 + 1e-9)


@pytest.mark.parametrize(("times", "expands"), [(1.0, False), (1.01, True)])
def test_no_larger_rate_would_do(times: float, expands: bool) -> None:
    """Two classes at even odds and an example at the clip, seen from both sides of the tie."""
    direction = torch.tensor([[3.0, 1.0]]).double()
    step = 1e-4 * torch.cat([direction, -direction])
    ends = [moved(end, direction, torch.tensor([0]), times * largest_learning_rate(3.0)) for end in (step, -step)]
    assert bool((ends[0] - ends[1]).norm() > 2 * step.norm()) is expands


def test_vectors_are_clipped_within_float32_and_what_is_not_finite_is_nothing() -> None:
    vectors = (np.random.default_rng(0).normal(size=(2500, 7)) * 10.0 ** np.arange(-3, 4)).astype(np.float32)
    vectors[3], vectors[4, 1], vectors[5, 2], vectors[6] = 0, np.nan, -np.inf, 3e38
    inputs = clipped_inputs(vectors, 1.5).double().numpy()
    norms = np.linalg.norm(inputs[:, :-1], axis=1)
    assert norms.max() <= 1.5
    assert norms[6] == pytest.approx(1.5)
    assert not inputs[4:6].any()
    assert (np.delete(inputs[:, -1], [4, 5]) == 1).all()
    small = np.linalg.norm(vectors.astype(float), axis=1) < 1.5
    np.testing.assert_allclose(inputs[small, :-1], vectors[small], rtol=1e-6)


def test_the_noise_has_the_plans_scale_and_every_step_its_own() -> None:
    """Inputs of zeros have no gradient: what is left of a step is noise."""
    plan = LastIteratePlan(n=4, batch=2, epochs=4, data_clip=2.0, noise_multiplier=3.0, learning_rate=0.5)
    inputs, labels, streams = torch.zeros(4, 1000), torch.zeros(4, dtype=torch.int64), Streams(bytes(16))
    draws = []
    for step in range(plan.steps):
        iterate = torch.zeros(20, 1000, dtype=torch.float64)
        train_iterate(plan, inputs, labels, iterate, streams, range(step, step + 1))
        draws.append(iterate.flatten())
    noise = torch.stack(draws)
    deviation = 0.5 / 2 * 3.0 * math.sqrt(2 * (2.0**2 + 1))
    np.testing.assert_allclose(noise.std(dim=1), deviation, rtol=0.025)  # five standard errors
    assert noise.mean().abs() < 5 * deviation / math.sqrt(noise.numel())
    assert torch.corrcoef(noise).triu(1).abs().max() < 5 / math.sqrt(noise.shape[1])


def test_steps_go_through_the_records_in_their_order_and_leave_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, seen = replace(PLAN, n=11, batch=3, epochs=2), []
    inputs, labels = torch.arange(11.0)[:, None], torch.zeros(11, dtype=torch.int64)
    monkeypatch.setattr(last_iterate, "gradient_sum", lambda w, x, y: seen.append(x.flatten().tolist()) or w)
    train_iterate(plan, inputs, labels, torch.zeros(2, 1, dtype=torch.float64), Streams(bytes(16)), range(plan.steps))
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8]] * 2


# The price


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(1, 6), st.data())
def test_the_price_bounds_iterations_that_can_be_solved(
    seed: int, epochs: int, steps: int, chosen: st.DataObject
) -> None:
    """Linear maps x → c·x, |c| ≤ 1, end in two Gaussians: their Rényi divergence is known."""
    place = chosen.draw(st.integers(1, steps))
    factors = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 1.0, 1.0], size=epochs * steps)
    shift, variance = 0.0, 0.0
    for step, factor in enumerate(factors):
        shift, variance = factor * shift + (step % steps == place - 1), factor**2 * variance + 1
    price = Iteration(epochs, steps, 1.0).rho_at(place, "zero-out")
    assert shift**2 / (2 * variance) <= price * (1 + 1e-12)
    assert price <= Iteration(epochs, steps, 1.0).rho("zero-out")


@pytest.mark.parametrize("place", [1, 4, 7])
def test_no_other_portions_of_the_shifts_cost_less(place: int) -> None:
    """Theorem 22 leaves the portions free: a search over all that it allows ends at the formula."""
    epochs, steps = 3, 7
    arrived = np.cumsum(np.arange(epochs * steps) % steps == place - 1)
    allowed = [
        {"type": "ineq", "fun": lambda portions: (arrived - np.cumsum(portions))[:-1]},
        {"type": "eq", "fun": lambda portions: arrived[-1] - portions.sum()},
    ]
    start = np.diff(arrived, prepend=0).astype(float)
    best = minimize(lambda portions: (portions**2).sum() / 2, start, jac=lambda portions: portions, constraints=allowed)
    assert best.success
    assert best.fun == pytest.approx(Iteration(epochs, steps, 1.0).rho_at(place, "zero-out"), rel=1e-5)


def test_the_event_is_priced_for_the_last_record() -> None:
    assert PLAN.event == Iteration(epochs=5, steps_per_epoch=12, noise_multiplier=4.0)
    for adjacency, squared in (("zero-out", 1), ("replace-one", 4)):
        rho = squared / (2 * 4.0**2) * (4 / 12 + 1)
        np.testing.assert_allclose(rdp.rdp(PLAN.event, adjacency, (2.0, 16.0)), [2 * rho, 16 * rho])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedEvent):
        cost(PLAN.event, 1e-5, "add-remove")


def test_prices_are_those_of_known_gaussian_releases() -> None:
    """A single epoch costs one release; RDP α/64 is T&B's normalisation at σ_norm = 8: ε = 0.864 at δ = 1e-5."""
    assert cost(replace(PLAN, epochs=1).event, 1e-5).epsilon == pytest.approx(
        rdp.epsilon(Gaussian(4.0), 1e-5, "zero-out")
    )
    several = replace(PLAN, n=40, epochs=5, noise_multiplier=8.0)  # [(5 − 1)/4 + 1]/(2·8²)
    assert rdp.classic_epsilon(several.event, 1e-5, "zero-out", "old") == pytest.approx(0.864, abs=5e-4)


def test_prices_are_the_formulas_converted_at_the_best_order() -> None:
    rho, delta = (4 / 12 + 1) / (2 * 4.0**2), 1e-5
    orders = np.linspace(1.5, 60, 20_000)
    converted = orders * rho + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    assert cost(PLAN.event, delta).epsilon == pytest.approx(converted.min(), rel=1e-3)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_calibration_finds_the_least_noise(adjacency: str) -> None:
    settings = {"n": 1000, "batch": 30, "epochs": 10, "data_clip": 1.0, "learning_rate": 2.0}
    plan = LastIteratePlan.calibrated(**settings, target_epsilon=2.0, target_delta=1e-5, adjacency=adjacency)  # type: ignore[arg-type]
    assert 2.0 * 0.999 <= cost(plan.event, 1e-5, adjacency).epsilon <= 2.0
    assert (plan.steps_per_epoch, plan.epochs, plan.learning_rate) == (33, 10, 2.0)
    after = LastIteratePlan.calibrated(
        **settings,  # type: ignore[arg-type]
        target_epsilon=2.0,
        target_delta=1e-5,
        before=Gaussian(10.0),
        adjacency=adjacency,
    )
    assert after.noise_multiplier > plan.noise_multiplier
    with pytest.warns(UserWarning, match="1/n"):
        LastIteratePlan.calibrated(**settings, target_epsilon=2.0, target_delta=0.01)  # type: ignore[arg-type]


def test_what_the_paper_claims_is_shown_beside_it() -> None:
    plan = LastIteratePlan(n=20_000, batch=100, epochs=5, data_clip=1.0, noise_multiplier=3.0, learning_rate=1.0)
    assert plan.claimed is not None
    claimed = rdp.rdp(plan.claimed, "replace-one", (8.0,))
    np.testing.assert_allclose(claimed, 8 * plan.event.rho("replace-one", 0.99))
    assert PLAN.claimed is None  # of twelve steps, 99 % of the records reach into the last


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"n": 10.0}, "n must be a whole number"),
        ({"batch": True}, "batch must be a whole number"),
        ({"batch": 124}, "more than the n=123"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"data_clip": math.nan}, "data_clip"),
        ({"data_clip": -1.0}, "data_clip"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"learning_rate": 0.0}, "learning_rate must be a number"),
        ({"learning_rate": 1.24}, "at data_clip 1.5 it must be at most 1.23077"),
    ],
)
def test_plans_are_checked_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        replace(PLAN, **changes)
    assert "\n" not in str(caught.value)


def test_a_plan_goes_through_json_and_may_use_the_largest_rate() -> None:
    plan = replace(PLAN, learning_rate=largest_learning_rate(PLAN.data_clip))
    assert LastIteratePlan(**json.loads(json.dumps(plan.to_json()))) == plan


# The run


def test_the_run_is_charged_once_before_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, counts = Run.at(tmp_path / "run"), []

    def watched(*arguments: Any) -> Tensor:
        counts.append([entry.count for entry in Ledger.open(run.ledger).entries])
        return clipped_inputs(*arguments)

    monkeypatch.setattr(last_iterate, "clipped_inputs", watched)
    train(run)
    assert counts == [[1]]
    (entry,) = Ledger.open(run.ledger).entries
    assert (entry.event, entry.count, entry.committed, entry.seeded, entry.planned) == (PLAN.event, 1, 1, True, True)
    assert Ledger.open(run.ledger).epsilon() == pytest.approx(cost(PLAN.event, 1e-5).epsilon)


def test_what_was_announced_is_what_is_charged(tmp_path: Path) -> None:
    ledger = Ledger(
        3.0, 1e-5, planned=[(Gaussian(8.0), "normalisation"), (PLAN.event, "training")], path=tmp_path / "ledger.json"
    )
    ledger.spend(Gaussian(8.0), "normalisation")
    train(Run.at(tmp_path / "run"), ledger=ledger, seed=None)
    assert not ledger.adaptive


@pytest.mark.parametrize("stops", [[0], [3], [30], [60], [0, 2, 21, 45, 60]])
def test_a_run_killed_between_blocks_ends_in_the_same_bits(tmp_path: Path, stops: list[int]) -> None:
    whole, broken = Run.at(tmp_path / "whole"), Run.at(tmp_path / "broken")
    expected = train(whole)
    for stop in stops:
        with pytest.raises(Killed):
            train(broken, on_progress=killed_at(stop))
        assert [entry.count for entry in Ledger.open(broken.ledger).entries] == [1]
    found = train(broken)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert broken.model.read_bytes() == whole.model.read_bytes()
    assert len(Ledger.open(broken.ledger).entries) == 1


def test_a_run_killed_within_a_block_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(Run.at(tmp_path / "whole"))
    run, left = Run.at(tmp_path / "broken"), [0]

    def fragile(*arguments: Any) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return gradient_sum(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(last_iterate, "gradient_sum", fragile)
        for survives in (0, 1, 5, 16):
            left[0] = survives
            with pytest.raises(Killed):
                train(run)
    (run.private / "iterate.safetensors").unlink()  # without it the run starts again under the same key
    found = train(run)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(Ledger.open(run.ledger).entries) == 1


def test_until_the_end_iterates_are_private_and_then_only_the_last_is_left(tmp_path: Path) -> None:
    run = Run.at(tmp_path / "run")
    for stop in (0, 30, 60):
        with pytest.raises(Killed):
            train(run, on_progress=killed_at(stop))
        assert {path.name for path in run.folder.iterdir()} == {
            "private",
            "ledger.json",
            "ledger.json.lock",
            "run.json",
        }
    assert {path.name for path in run.private.iterdir()} == {
        *("lock", "key.json", "iterate.safetensors", "ledger.mark.json")
    }
    assert run.private.stat().st_mode & 0o777 == 0o700
    train(run)
    assert {path.name for path in run.private.iterdir()} == {"lock", "ledger.mark.json"}
    kept, facts = run.read_tensors(run.model)
    assert {name: (tuple(value.shape), value.dtype) for name, value in kept.items()} == {
        "weight": ((3, 6), torch.float32),
        "bias": ((3,), torch.float32),
    }
    assert facts["steps"] == STEPS


def test_a_finished_run_is_loaded_and_not_charged_again(tmp_path: Path) -> None:
    run = Run.at(tmp_path / "run")
    expected = train(run)
    found = train(run, on_progress=killed_at(0))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(Ledger.open(run.ledger).entries) == 1
    with pytest.raises(RunError, match="another plan or ledger"):
        train(run, ledger=Ledger(50.0, 1e-5, path=tmp_path / "other.json"))
    with pytest.raises(RunError, match="another plan or ledger"):
        train(run, replace(PLAN, epochs=6))


def test_a_run_killed_after_it_told_its_model_is_only_tidied_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.at(tmp_path / "run")

    def killed(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Key, "end", killed)
        with pytest.raises(Killed):
            train(run)
    told = run.model.read_bytes()
    assert Key.read(run)
    train(run, on_progress=killed_at(0))
    assert run.model.read_bytes() == told
    assert {path.name for path in run.private.iterdir()} == {"lock", "ledger.mark.json"}
    assert len(Ledger.open(run.ledger).entries) == 1


def test_a_run_that_cannot_be_repeated_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.at(tmp_path / "run")
    with pytest.raises(Killed):
        train(run, on_progress=killed_at(30))
    before = {path: path.read_bytes() for path in (run.ledger, run.private / "iterate.safetensors")}
    attempts: list[tuple[dict[str, Any], str]] = [
        ({"data": data(shift=1e-3)}, "other data"),
        ({"plan": replace(PLAN, learning_rate=0.9)}, "another plan"),
        ({"plan": replace(PLAN, noise_multiplier=5.0)}, "another plan"),
        ({"seed": 2}, "seed"),
        ({"part": "validation"}, "purpose"),
        ({"data": data(n=122)}, "n=123 records, the data has 122"),
    ]
    here = environment()
    for options, words in attempts:
        with pytest.raises(RunError, match=words) as caught:
            train(run, **options)
        assert "\n" not in str(caught.value)
    with monkeypatch.context() as patch:
        patch.setattr(key, "environment", lambda: here | {"threads": 99})
        with pytest.raises(RunError, match="another environment"):
            train(run)
    assert {path: path.read_bytes() for path in before} == before
    train(run)


@pytest.mark.parametrize("epsilon", [0.001, 50.0])
def test_a_wrong_ledger_neither_ends_nor_pays_for_a_run_that_has_paid(tmp_path: Path, epsilon: float) -> None:
    run, wrong = Run.at(tmp_path / "run"), Ledger(epsilon, 1e-5, path=tmp_path / "wrong.json")
    with pytest.raises(Killed):
        train(run, on_progress=killed_at(30))
    with pytest.raises(RunError, match="pass the ledger it was started with"):
        train(run, ledger=wrong)
    assert not wrong.entries
    train(run)
    assert len(Ledger.open(run.ledger).entries) == 1


def test_another_ledger_is_charged_too_where_no_mark_says_which_one_paid(tmp_path: Path) -> None:
    run, other = Run.at(tmp_path / "run"), Ledger(50.0, 1e-5, path=tmp_path / "other.json")
    with pytest.raises(Killed):
        train(run, on_progress=killed_at(30))
    (run.private / "ledger.mark.json").unlink()
    train(run, ledger=other)
    assert [entry.count for entry in other.entries] == [1]


def test_what_does_not_fit_the_budget_reads_nothing_and_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ledger = Run.at(tmp_path / "run"), Ledger(1.0, 1e-5, path=tmp_path / "ledger.json")
    with monkeypatch.context() as patch:
        patch.setattr(last_iterate, "clipped_inputs", None)
        with pytest.raises(BudgetExceeded):
            train(run, ledger=ledger)
    assert not ledger.entries
    train(run, replace(PLAN, noise_multiplier=8.0), ledger=ledger)
    with pytest.raises(ValueError, match="add-remove"):
        train(Run.at(tmp_path / "other"), ledger=Ledger(50.0, 1e-5, adjacency="add-remove"))


def test_runs_without_a_seed_never_share_noise_and_seeded_twins_are_refused(tmp_path: Path) -> None:
    ledger = Ledger(50.0, 1e-5, path=tmp_path / "ledger.json")
    first, second = (train(Run.at(tmp_path / name), ledger=ledger, seed=None) for name in ("first", "second"))
    assert not torch.equal(first["weight"], second["weight"])
    assert [entry.seeded for entry in ledger.entries] == [False, False]
    train(Run.at(tmp_path / "third"), ledger=ledger)
    with pytest.raises(RunError, match="choose another seed"):
        train(Run.at(tmp_path / "fourth"), ledger=ledger)


def test_the_last_iterate_learns(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 3, 3000)
    vectors = (3 * np.eye(3)[labels] + generator.normal(size=(3000, 3))).astype(np.float32)
    plan = LastIteratePlan.calibrated(
        n=3000, batch=100, epochs=10, data_clip=3.0, learning_rate=0.2, target_epsilon=2.0, target_delta=1e-5
    )
    ledger = Ledger(2.0, 1e-5, path=tmp_path / "ledger.json")
    model = LinearClassifier(vectors.shape[1], 3)
    weights = fit(plan, model, (vectors, labels), ledger=ledger, run=tmp_path / "run", seed=3).weights
    assert (linear_scores(weights, torch.from_numpy(vectors)).argmax(dim=1).numpy() == labels).mean() > 0.9
    assert ledger.epsilon() <= 2.0
