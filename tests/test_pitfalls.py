"""One test for each of the twelve pitfalls of DP training that jax_privacy lists, under its name there.

The list is "Common Pitfalls in DP Training" by Ryan McKenna and H. Brendan McMahan, docs/sharp_edges_dp_training_
pitfalls.md of google-deepmind/jax_privacy at commit 03d01d9. Each test goes through the public interface, and each
fails where the pitfall is stepped into.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino
from sordino.budget import BudgetExceeded, Gaussian, Ledger, PoissonGaussian, Repeated, calibration, cost
from sordino.data.samplers import PoissonSampler, ShuffledSampler
from sordino.gradients import Automatic, ClippedGradients, Clipping, ExamplesMixError, Flat, PerLayer
from sordino.mechanisms.contingency import PairTables
from sordino.mechanisms.trials import noisy_accuracy
from sordino.runs import Run
from sordino.training import SGD, LinearClassifier, LoopError, Plan, PrivateLoop, fit

LOSS = nn.CrossEntropyLoss(reduction="none")
N, WIDTH, CLASSES = 200, 60, 10


def records(seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, WIDTH, generator=generator)
    return TensorDataset(x, torch.randint(0, CLASSES, (N,), generator=generator))


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(WIDTH, 15), nn.Tanh(), nn.Linear(15, CLASSES))


def still(model: nn.Module, data: TensorDataset | None = None, **changes: Any) -> PrivateLoop:
    """A private loop whose optimizer leaves the weights as they are, so that its gradients can be recomputed."""
    settings: dict[str, Any] = {
        **{"expected_batch_size": 20, "epochs": 2, "l2_clip": 0.5, "target_epsilon": 3.0, "target_delta": 1e-4},
        **{"physical_batch": 32},
        **changes,
    }
    loop: PrivateLoop = sordino.make_private(
        *(model, torch.optim.SGD(model.parameters(), 0.0), LOSS, data or records()), **settings
    )
    return loop


def gradient(model: nn.Module) -> Tensor:
    """What the optimizer was given."""
    found = [parameter.grad for parameter in model.parameters()]
    return torch.cat([each.flatten() for each in found if each is not None]).double()


def summing(model: nn.Module, l2_clip: float = 0.5, **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Σ of the clipped gradients of a batch."""
    clipped = ClippedGradients(model, LOSS, l2_clip, **{"physical_batch": 32} | options)

    def summed(x: Tensor, y: Tensor) -> Tensor:
        sums = clipped(x, y).sums
        return torch.cat([sums[name].flatten() for name, _ in model.named_parameters()]).double()

    return summed


def steps(loop: PrivateLoop, model: nn.Module) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each batch, and the gradient that its step gave to the optimizer."""
    for x, y in loop.batches():
        loop.step(x, y)
        yield x, y, gradient(model)


def test_division_by_batch_size() -> None:
    """The noise is that of a sum, and what divides it is the public expected batch size, whatever was drawn."""
    model = network()
    loop = still(model, seed=1)
    scale = loop.plan.noise_multiplier * loop.plan.l2_clip
    sizes, summed = set(), summing(model)
    for x, y, found in steps(loop, model):
        sizes.add(len(x))
        noise = 20 * found - summed(x, y)
        assert float(noise.std()) == pytest.approx(scale, rel=0.1)
        assert abs(float(noise.mean())) < 5 * scale / math.sqrt(len(noise))
    assert max(sizes) > 1.3 * min(sizes)  # by the batch's own size the noise would have been off by as much


@pytest.mark.parametrize("clipping", [Flat(), Automatic(), PerLayer(), PerLayer({"0": 3.0, "2": 1.0})], ids=repr)
def test_sensitivity_alignment(clipping: Clipping) -> None:
    """Under every way to clip, one example moves all sums together by the l2_clip that the noise is scaled by."""
    model = network()
    x, y = records().tensors
    longest, summed = 0.0, summing(model, clipping=clipping)
    for size in (1e-3, 1.0, 1e4):
        alone = float(summed(size * x[:1], y[:1]).norm())
        beside, without = summed(size * x[:9], y[:9]), summed(size * x[1:9], y[1:9])
        assert max(alone, float((beside - without).norm())) <= 0.5 * (1 + 1e-5)
        longest = max(longest, alone)
    assert longest > 0.3  # nor is noise wasted on a bound that nothing comes near
    loop = still(model, clipping=clipping, seed=1)
    x, y, found = next(steps(loop, model))
    noise = 20 * found - summed(x, y)
    assert float(noise.std()) == pytest.approx(loop.plan.noise_multiplier * 0.5, rel=0.1)


def test_accounting_and_batch_selection_mismatch() -> None:
    """The event that is charged is that of the batches that are drawn, and no other batch can be stepped on."""
    numbered = TensorDataset(torch.arange(N).float()[:, None].expand(N, WIDTH).contiguous(), torch.zeros(N).long())
    model = network()
    loop = still(model, numbered, epochs=40, seed=1)
    drawn = [x[:, 0].long() for x, _, _ in steps(loop, model)]
    [entry] = loop.ledger.entries
    assert entry.event == loop.plan.step_event == PoissonGaussian(20 / N, loop.plan.noise_multiplier)
    assert entry.count == len(drawn) == loop.plan.steps == 400
    # Poisson: sizes spread as a binomial's, no record twice in a batch, and each as often as the rate says.
    sizes = np.array([len(batch) for batch in drawn])
    assert sizes.var() == pytest.approx(N * 0.1 * 0.9, rel=0.35)
    assert all(len(batch.unique()) == len(batch) for batch in drawn)
    times = torch.bincount(torch.cat(drawn), minlength=N).double()
    assert float((times - 40).abs().max()) < 6 * math.sqrt(400 * 0.1 * 0.9)
    assert float(times.var()) == pytest.approx(400 * 0.1 * 0.9, rel=0.35)  # an epoch over all would have none
    x, y = numbered.tensors
    loop = still(model, numbered)
    next(loop.batches(1))
    with pytest.raises(LoopError, match="the batch that batches"):
        loop.step(x[:20], y[:20])
    # Batches of a shuffled epoch are another event, which does not get the price of Poisson's.
    shuffled = Plan(ShuffledSampler(N, 20), 0.5, 2.0, 10)
    assert shuffled.epsilon(1e-4) > Plan(PoissonSampler(N, 20), 0.5, 2.0, 10).epsilon(1e-4)


def test_public_vs_private_metadata(tmp_path: Path) -> None:
    """But for the weights, nothing that a run shows depends on the records."""
    shown = []
    for seed in (0, 1):
        x, y = (tensor.numpy() for tensor in records(seed).tensors)
        run = Run.at(tmp_path / str(seed))
        plan = Plan.calibrated(
            n=N, expected_batch_size=20, epochs=1, target_epsilon=2.0, target_delta=1e-4, l2_clip=0.5
        )
        ledger = Ledger(2.0, 1e-4, path=run.ledger, planned=[(plan.event, "training", "train")])
        model = LinearClassifier(x.shape[1], CLASSES)
        fit(plan, model, (x, y), optimiser=SGD(0.5), ledger=ledger, run=run)
        content = json.loads(json.dumps(ledger.statement()))
        [entry] = ledger.entries
        files = {
            path.name: path.stat().st_size
            for path in run.folder.rglob("*")
            if path.is_file() and run.private not in path.parents and path.suffix != ".lock"
        }
        facts = entry.event, entry.count, entry.what, entry.part
        shown.append((plan, facts, {key: content[key] for key in content if key != "entries"}, files))
        assert [path.name for path in run.private.rglob("*.json")] == ["ledger.mark.json"]  # key and draws are gone
        assert {"model.safetensors", "ledger.json"} <= files.keys()
    assert shown[0][:2] == shown[1][:2]
    assert shown[0][2].keys() == shown[1][2].keys()
    assert shown[0][2]["epsilon"] == shown[1][2]["epsilon"]
    assert shown[0][3].keys() == shown[1][3].keys()
    assert shown[0][3]["model.safetensors"] == shown[1][3]["model.safetensors"]


def test_neighboring_relation_clarity() -> None:
    """A ledger has one relation, prices by it, and nothing that uses n takes one under which n is private."""
    zero_out, replace_one = (cost(Gaussian(2.0), 1e-5, adjacency).epsilon for adjacency in ("zero-out", "replace-one"))
    assert replace_one == pytest.approx(cost(Gaussian(1.0), 1e-5, "zero-out").epsilon, rel=1e-3)  # twice as far
    assert replace_one > 1.9 * zero_out
    for adjacency in ("zero-out", "replace-one"):
        ledger = Ledger(5.0, 1e-4, adjacency=adjacency)
        loop = still(network(), ledger=ledger, target_epsilon=None, target_delta=None)
        [entry] = ledger.entries
        total = cost(Repeated(entry.event, loop.plan.steps), 1e-4, adjacency).epsilon
        assert 4.5 < total <= 5.0
        assert ledger.statement()["adjacency"] == adjacency
    unknown = Ledger(5.0, 1e-4, adjacency="add-remove")
    with pytest.raises(ValueError, match="add-remove"):
        still(network(), ledger=unknown, target_epsilon=None, target_delta=None)
    assert not unknown.entries
    with pytest.raises(ValueError, match="adjacency"):
        Ledger(5.0, 1e-4, adjacency="neighbours")


def test_zero_sized_batches_and_non_finite_gradients() -> None:
    """Neither an empty draw nor a record that gives no number changes what a step does, or shows."""
    model = network()
    loop = still(model, expected_batch_size=1, epochs=0.1, seed=1)
    seen = set()
    for x, _, found in steps(loop, model):
        seen.add(len(x))
        if not len(x):
            assert float(found.std()) == pytest.approx(loop.plan.noise_multiplier * 0.5, rel=0.1)
    assert 0 in seen
    x, y = records().tensors
    summed, kept = summing(model), [0, 1, 2, 4, 5, 6, 7]
    without = summed(x[kept], y[kept])
    for broken in (math.nan, math.inf, -math.inf):
        spoiled = x[:8].clone()
        spoiled[3] = broken
        torch.testing.assert_close(summed(spoiled, y[:8]), without, atol=1e-6, rtol=1e-5)
    spoiled = x.clone()
    spoiled[::3] = math.nan
    loop = still(model, TensorDataset(spoiled, y))
    assert all(bool(found.isfinite().all()) for _, _, found in steps(loop, model))


def test_gradient_accumulation() -> None:
    """However a batch is cut into physical ones, each example is clipped alone and noise is added once."""
    model = network()
    x, y = (tensor[:20] for tensor in records().tensors)
    alone = summing(model, 0.01, physical_batch=1)
    one_by_one = torch.stack([alone(x[i : i + 1], y[i : i + 1]) for i in range(20)]).sum(0)
    for physical_batch in (1, 7, 20):
        whole = summing(model, 0.01, physical_batch=physical_batch)(x, y)
        torch.testing.assert_close(whole, one_by_one, atol=1e-6, rtol=1e-4)
    released = []
    for physical_batch in (1, 7, 64):
        model = network()
        loop = still(model, physical_batch=physical_batch, seed=3, epochs=0.5)
        released.append([found for _, _, found in steps(loop, model)])
        assert loop.ledger.entries[0].count == loop.plan.steps  # a charge a batch, not a charge a piece
    for found in zip(*released, strict=True):
        torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(found[0], found[2], atol=1e-6, rtol=1e-4)


class Centred(nn.Module):
    """Sees how far each example lies from the mean of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Routed(nn.Module):
    """Two experts of limited capacity: the examples of a batch compete for their places."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        wanted = self.gate(x)
        out = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            chosen = wanted[:, place].topk((len(x) + 1) // 2).indices
            out = out.index_copy(0, chosen, expert(x[chosen]) + out[chosen])
        return out


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(WIDTH), Centred(), Routed()], ids=lambda layer: type(layer).__name__)
def test_cross_example_operations(layer: nn.Module) -> None:
    """A model in which examples look at each other is refused before anything is charged."""
    ledger = Ledger(3.0, 1e-4)
    with pytest.raises((ExamplesMixError, ValueError), match=r"mix|depend"):
        still(nn.Sequential(layer, network()), ledger=ledger, target_epsilon=None, target_delta=None)
    assert not ledger.entries


def test_auxiliary_information(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No loss, norm or batch size leaves a training; a score on private records is noised and charged."""
    model = network()
    loop = still(model)
    for x, y in loop.batches():
        assert loop.step(x, y) is None  # type: ignore[func-returns-value]
    run = Run.at(tmp_path / "run")
    x, y = (tensor.numpy() for tensor in records().tensors)
    plan = Plan(PoissonSampler(N, 20), 0.5, 2.0, 10)
    model = LinearClassifier(x.shape[1], CLASSES)
    fit(plan, model, (x, y), optimiser=SGD(0.5), ledger=Ledger(path=run.ledger), run=run)
    public = [path for path in run.folder.rglob("*") if path.is_file() and run.private not in path.parents]
    text = b"".join(path.read_bytes() for path in public).lower()
    for word in (b"loss", b"norms", b"accuracy", b"indices", b"batch_size_drawn"):
        assert word not in text
    assert capsys.readouterr().out == ""
    ledger = Ledger(1.0, 1e-5)
    correct = np.arange(1000) % 4 > 0
    told = [noisy_accuracy(correct, 20.0, ledger, "score", "validation") for _ in range(2)]
    assert told[0] != told[1]
    assert 0.75 not in told
    assert len(ledger.entries) == 2
    with pytest.raises(BudgetExceeded):
        noisy_accuracy(correct, 0.1, ledger, "score", "validation")


def test_randomness_and_rng_injection() -> None:
    """Noise and draws come from the operating system, apart from each other; a seed is said to void privacy."""
    released = []
    for seed in (None, None, 7, 7):
        torch.manual_seed(0)
        np.random.seed(0)  # what a user may have fixed does not fix the noise
        model = network()
        loop = still(model, seed=seed)
        batches = list(steps(loop, model))
        released.append((tuple(len(x) for x, _, _ in batches), torch.stack([found for _, _, found in batches])))
        assert bool(loop.ledger.statement()["seeded"]) == (seed is not None)
        summed = summing(model)
        noise = torch.stack([20 * found - summed(x, y) for x, y, found in batches])
        assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.2  # no step reuses another's
    assert released[0][0] != released[1][0]
    assert not torch.allclose(released[0][1], released[1][1])
    assert released[2][0] == released[3][0]
    torch.testing.assert_close(released[2][1], released[3][1])


def test_floating_point_robustness() -> None:
    """Released counts lie on one public grid: no last bit says which count was behind them."""
    plan = PairTables((2, 2), noise_multiplier=10.0)
    told = {}
    for count in (0, 1, 3):
        codes = np.zeros((count, 2), dtype=np.int64)
        told[count] = np.array([plan.release(codes, Ledger())[0, 1][0, 0] for _ in range(300)])
    # A double near 10 has 2⁻⁴⁹ to spare, and whole numbers on a grid have none: they are exact multiples of it.
    grids = [max(2.0**power for power in range(-60, 4) if not (values % 2.0**power).any()) for values in told.values()]
    assert grids[0] == grids[1] == grids[2] > 2.0**-30
    assert grids[0] < 1e-3 * plan.noise_of((0, 1))


def test_finite_precision_numerical_error() -> None:
    """Rounding goes the safe way or next to nowhere: clip, accounting and calibrated noise."""
    summed, (x, y) = summing(network(), 0.1), records().tensors
    for size in (1e-6, 1e-2, 1.0, 1e3, 1e8):
        for place in range(10):
            example = slice(place, place + 1)
            assert float(summed(size * x[example], y[example]).norm()) <= 0.1 * (1 + 1e-6)
    # One Gaussian has a closed form (Balle & Wang 2018), which our ε must not fall short of, nor exceed by much.
    for sigma in (0.5, 1.0, 5.0):
        epsilon = cost(Gaussian(sigma), 1e-6).epsilon
        delta = ndtr(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * ndtr(-0.5 / sigma - epsilon * sigma)
        assert 0.9e-6 < delta <= 1e-6 * (1 + 1e-9)
    for target in (0.1, 8.0):
        sigma = calibration.noise_multiplier(lambda s: Repeated(PoissonGaussian(0.01, s), 100), target, 1e-6)
        assert 0.99 * target < cost(Repeated(PoissonGaussian(0.01, sigma), 100), 1e-6).epsilon <= target
