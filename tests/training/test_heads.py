"""Heads: what a network sees in training is what it sees when it is asked, and its start is what it says."""

import numpy as np
import pytest
import torch
from torch import nn

from sordino.audit import sensitivity_probe
from sordino.mechanisms.streams import Streams, secret_from_seed
from sordino.models import mnist_scatter_cnn
from sordino.training.augmentation import Shifts
from sordino.training.heads import NetworkHead

X = np.random.default_rng(0).normal(size=(5, 81, 7, 7)).astype(np.float32)
Y = np.arange(5)


def test_features_are_scaled_in_training_and_in_use() -> None:
    plain, scaled = NetworkHead(mnist_scatter_cnn), NetworkHead(mnist_scatter_cnn, 0.3)
    assert np.array_equal(scaled.records(X, Y).x, X * np.float32(0.3))
    assert plain.records(X, Y).x is X
    weights = mnist_scatter_cnn().state_dict()
    assert torch.equal(scaled.scores(weights, X, 10), plain.scores(weights, X * np.float32(0.3), 10))


def test_an_orthogonal_start() -> None:
    model = NetworkHead(mnist_scatter_cnn, orthogonal=True).model(X[0].size, 10)
    model.initialise(Streams(secret_from_seed(0)))
    weights = model.weights()
    matrices = [value.flatten(1) for name, value in weights.items() if name.endswith("weight")]
    for matrix in matrices[:-1]:
        assert torch.allclose(matrix @ matrix.T, torch.eye(len(matrix)), atol=1e-5)
    assert not torch.allclose(matrices[-1] @ matrices[-1].T, torch.eye(10), atol=0.1)
    assert all(not value.any() for name, value in weights.items() if name.endswith("bias"))
    again = NetworkHead(mnist_scatter_cnn, orthogonal=True).model(X[0].size, 10)
    again.initialise(Streams(secret_from_seed(1)))
    assert not torch.equal(again.weights()["0.weight"], weights["0.weight"])


def test_the_description_names_what_is_not_usual() -> None:
    assert repr(NetworkHead(mnist_scatter_cnn)) == "NetworkHead(mnist_scatter_cnn)"
    assert repr(NetworkHead(nn.Linear, 0.3, True)) == "NetworkHead(Linear, input_scale=0.3, orthogonal)"
    assert repr(NetworkHead(nn.Linear, shifts=Shifts(2, 1))) == "NetworkHead(Linear, Shifts(views=2, most=1))"


def test_moved_views_are_of_training_alone() -> None:
    x, y = X[:, :1], Y
    moved, plain = (NetworkHead(lambda classes: _tiny(), shifts=shifts) for shifts in (Shifts(3, 2), None))
    sums = []
    for head, seed in ((moved, 0), (moved, 0), (moved, 1), (plain, 0)):
        model, records = head.model(x[0].size, 10), head.records(x, y)
        model.initialise(Streams(secret_from_seed(0)))
        model.choose(records, None, 5)
        sums.append(model.clipped_sum(records, np.arange(5), 0.1, np.random.default_rng(seed)).sums["1.weight"])
    assert torch.equal(sums[0], sums[1])
    assert not torch.allclose(sums[0], sums[2])
    assert not torch.allclose(sums[0], sums[3])
    weights = _tiny().state_dict()
    assert torch.equal(moved.scores(weights, x, 10), plain.scores(weights, x, 10))


def test_a_model_with_moved_views_is_not_probed() -> None:
    head = NetworkHead(lambda classes: _tiny(), shifts=Shifts(1, 1))
    model, records = head.model(49, 10), head.records(X[:, :1], Y)
    with pytest.raises(ValueError, match="random views cannot be probed"):
        sensitivity_probe(model, records, 0.1, Streams.fresh())


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 10))
