"""Frozen first layers computed once: the same model, the same clipped sums, and weights that never move."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sordino.budget import Ledger
from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Streams
from sordino.runs import Run
from sordino.training import SGD, Plan, TrainableModule, fit
from sordino.training.heads import cross_entropy
from sordino.training.modules import FrozenFirst, frozen_first, trainable_network

X = np.random.default_rng(0).normal(size=(60, 1, 8, 8)).astype("float32")
Y = np.random.default_rng(1).integers(3, size=60)
RECORDS = ArrayRecords(X, Y)


def network() -> nn.Sequential:
    frozen = nn.Conv2d(1, 4, 3).requires_grad_(False)
    return nn.Sequential(frozen, nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), nn.Tanh(), nn.Linear(5, 3))


def test_sums_are_those_of_the_whole_network() -> None:
    both = TrainableModule(network, cross_entropy), FrozenFirst(network, cross_entropy)
    streams = Streams(bytes(range(16)))
    for trainee in both:
        trainee.choose(RECORDS, None, 20)
        trainee.initialise(streams)
    whole, cut = both
    assert {name: value.shape for name, value in whole.weights().items()} == {
        name: value.shape for name, value in cut.weights().items()
    }
    for name, value in whole.weights().items():
        torch.testing.assert_close(cut.weights()[name], value)
    rows = np.arange(0, 60, 3)
    sums = [trainee.clipped_sum(RECORDS, rows, 0.3, np.random.default_rng(0)) for trainee in both]
    assert sums[0].sums.keys() == sums[1].sums.keys()
    for name, value in sums[0].sums.items():
        torch.testing.assert_close(sums[1].sums[name], value)
    torch.testing.assert_close(sums[0].norms, sums[1].norms)


def test_a_run_keeps_frozen_weights_and_goes_on_with_them(tmp_path: Path) -> None:
    plan, run = Plan(PoissonSampler(60, 20), 1.0, 2.0, 8), Run.at(tmp_path / "run")

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    def trained(on_progress=lambda done, total: None) -> TrainableModule:
        trainee = trainable_network(network, cross_entropy)
        fit(
            plan,
            trainee,
            RECORDS,
            optimiser=SGD(0.5),
            ledger=Ledger(path=run.ledger),
            run=run,
            checkpoint_every=2,
            on_progress=on_progress,
        )
        return trainee

    with pytest.raises(KeyboardInterrupt):
        trained(stop)
    before = run.read_tensors(run.checkpoint)[0]
    trainee = trained()
    weights = run.read_tensors(run.model)[0]
    assert "0.weight" not in trainee.parameters
    assert torch.equal(weights["0.weight"], before["weight.0.weight"])
    assert not torch.equal(weights["3.weight"], before["weight.3.weight"])
    # The features that the last steps saw are those of the weights that are released.
    model = network()
    model.load_state_dict(weights)
    np.testing.assert_allclose(
        trainee._rows(RECORDS, np.arange(60))[0], model[:3](torch.from_numpy(X)).detach().numpy(), atol=1e-6
    )


def test_other_weights_make_other_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.training.modules._BLOCK", 16)
    trainee = FrozenFirst(network, cross_entropy)
    rows = np.array([3, 20, 59])
    before = trainee._rows(RECORDS, rows)[0].clone()
    weights = {name: value.clone() for name, value in trainee.weights().items()}
    trainee.load(weights | {"3.bias": weights["3.bias"] + 1})
    assert torch.equal(trainee._rows(RECORDS, rows)[0], before)
    trainee.load(weights | {"0.bias": weights["0.bias"] + 1})
    assert not torch.equal(trainee._rows(RECORDS, rows)[0], before)


def test_what_counts_as_frozen_first() -> None:
    assert frozen_first(network()) == 3
    trained = network()
    trained[0].requires_grad_(True)
    assert frozen_first(trained) == 0
    # Dropout is drawn anew each step, so nothing from there on can be computed once.
    assert frozen_first(nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 2).requires_grad_(False))) == 0
    assert frozen_first(nn.Linear(2, 2).requires_grad_(False)) == 0
    assert isinstance(trainable_network(lambda: nn.Linear(64, 3), cross_entropy), TrainableModule)
