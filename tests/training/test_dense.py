"""Closed-form clipped gradients of dense networks equal the engine's; one example moves them by the clip at most."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from sordino import models
from sordino.data import ArrayRecords
from sordino.mechanisms.streams import Streams
from sordino.training.dense import DenseNetwork
from sordino.training.dense_sums import Slope, logistic_slope, softmax_slope, squared_slope
from sordino.training.heads import cross_entropy
from sordino.training.modules import TrainableModule

STREAMS = Streams(bytes(range(16)))
ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.Sigmoid]
Loss = Callable[[Tensor, Tensor], Tensor]


def _logistic(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores[:, 0], labels.float(), reduction="none")


def _squared(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores[:, 0] - targets.float()).square()


LOSSES: list[tuple[Slope, Loss, int]] = [
    (softmax_slope, cross_entropy, 4),
    (logistic_slope, _logistic, 1),
    (squared_slope, _squared, 1),
]


def _rows(n: int, width: int, classes: int, seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = (scale * generator.normal(size=(n, width))).astype(np.float32)
    return x, generator.integers(0, max(2, classes), n)


def _network(width: int, hidden: list[int], classes: int, activation: type[nn.Module]) -> nn.Sequential:
    widths = [width, *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for place, outputs in enumerate(widths[1:]):
        layers += [nn.Linear(widths[place], outputs, bias=place != 1), activation()]
    return nn.Sequential(*layers[:-1])


@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@given(
    st.integers(0, 9),
    st.lists(st.integers(1, 7), max_size=3),
    st.sampled_from(ACTIVATIONS),
    st.sampled_from(LOSSES),
    st.integers(0, 99),
    st.sampled_from([0.01, 0.5, 50.0]),
)
def test_sums_and_norms_are_the_engines(
    count: int, hidden: list[int], activation: type[nn.Module], loss: tuple[Slope, Loss, int], seed: int, clip: float
) -> None:
    slope, by_engine, classes = loss
    x, y = _rows(9, 5, classes, seed)

    def build() -> nn.Sequential:
        return _network(5, hidden, classes, activation)

    records = ArrayRecords(x, y)
    own, engine = DenseNetwork(build, slope), TrainableModule(build, by_engine, physical_batch=4)
    engine.choose(records, None, 9)
    own.initialise(STREAMS)
    engine.initialise(STREAMS)
    indices = np.sort(np.random.default_rng(seed).permutation(9)[:count])
    found = own.clipped_sum(records, indices, clip)
    expected = engine.clipped_sum(records, indices, clip, np.random.default_rng(0))
    assert found.sums.keys() == expected.sums.keys()
    for name, value in found.sums.items():
        np.testing.assert_allclose(value, expected.sums[name], rtol=1e-4, atol=1e-5 * min(clip, 1))
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 999),
    st.sampled_from([1e-3, 1.0, 1e4, 1e20, 1e37]),
    st.sampled_from([1e-7, 0.01, 1.0]),
    st.sampled_from(ACTIVATIONS),
)
def test_one_example_moves_the_sums_by_at_most_the_clip(
    seed: int, scale: float, clip: float, activation: type[nn.Module]
) -> None:
    x, y = _rows(8, 5, 3, seed, scale)
    records = ArrayRecords(x, y)
    own = DenseNetwork(lambda: _network(5, [6, 4], 3, activation), softmax_slope)
    own.initialise(Streams(seed.to_bytes(16, "little")))
    everyone, others = (own.clipped_sum(records, np.arange(first, 8), clip).sums for first in (0, 1))
    alone = own.clipped_sum(records, np.array([0]), clip).sums
    for one in (alone, {name: everyone[name].double() - others[name].double() for name in alone}):
        assert torch.sqrt(sum(value.double().square().sum() for value in one.values())) <= clip * (1 + 1e-4)


def test_slopes_of_the_callers_own_see_the_examples_of_one_network_in_rows() -> None:
    x, _ = _rows(8, 5, 3, 2)
    targets = np.random.default_rng(2).random((8, 3), dtype=np.float32)
    targets /= targets.sum(axis=1, keepdims=True)

    def soft(scores: Tensor, shares: Tensor) -> Tensor:
        assert scores.shape == shares.shape
        return torch.softmax(scores, dim=1) - shares

    def loss(scores: Tensor, shares: Tensor) -> Tensor:
        return functional.cross_entropy(scores, shares, reduction="none")

    own, engine = (
        DenseNetwork(lambda: models.dense(5, 4, 3), soft),
        TrainableModule(lambda: models.dense(5, 4, 3), loss, physical_batch=4),
    )
    records = ArrayRecords(x, targets)
    engine.choose(records, None, 8)
    own.initialise(STREAMS)
    engine.initialise(STREAMS)
    expected = engine.clipped_sum(records, np.arange(7), 0.1, np.random.default_rng(0)).sums
    for name, value in own.clipped_sum(records, np.arange(7), 0.1).sums.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)
    beside = DenseNetwork(lambda: models.dense(5, 4, 3), soft, place=(1, 2))
    beside.choose(records, None, 8)
    beside.load(own.weights())
    for name, value in beside.clipped_sum(records, np.arange(7), 0.1).sums.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)


def test_what_is_not_finite_adds_zero() -> None:
    x, y = _rows(6, 5, 3, 1)
    damaged = x.copy()
    damaged[2, 1], damaged[4, 0] = np.nan, np.inf
    own = DenseNetwork(lambda: models.dense(5, 4, 3), softmax_slope)
    spoilt, whole = ArrayRecords(damaged, y), ArrayRecords(x, y)
    for name, value in own.clipped_sum(spoilt, np.arange(6), 0.5).sums.items():
        expected = own.clipped_sum(whole, np.array([0, 1, 3, 5]), 0.5).sums[name]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_frozen_layers_are_the_runs_own_and_their_outputs_are_kept_for_it() -> None:
    images = np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32)
    labels = np.arange(12) % 3

    def build() -> nn.Sequential:
        convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten()).requires_grad_(False)
        return nn.Sequential(convolution, models.dense(72, 5, 3))

    own, engine = (
        DenseNetwork(build, softmax_slope),
        TrainableModule(build, cross_entropy),
    )
    records = ArrayRecords(images, labels)
    engine.choose(records, None, 12)
    for key in (1, 2):
        own.initialise(Streams(bytes([key] * 16)))
        engine.initialise(Streams(bytes([key] * 16)))
        assert own.weights().keys() == engine.weights().keys()
        assert all(torch.equal(value, engine.weights()[name]) for name, value in own.weights().items())
        found = own.clipped_sum(records, np.arange(12), 1.0).sums
        expected = engine.clipped_sum(records, np.arange(12), 1.0, np.random.default_rng(0)).sums
        assert set(found) == {"1.1.weight", "1.1.bias", "1.3.weight", "1.3.bias"} == set(expected)
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_batches_beyond_one_piece_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows(9, 5, 3, 0)
    records = ArrayRecords(x, y)
    own = DenseNetwork(lambda: models.dense(5, 4, 3), softmax_slope)
    whole = own.clipped_sum(records, np.arange(9), 0.3)
    monkeypatch.setattr(own, "rows", 2)
    pieces = own.clipped_sum(records, np.arange(9), 0.3)
    np.testing.assert_allclose(pieces.norms, whole.norms, rtol=1e-6)
    for name, value in pieces.sums.items():
        np.testing.assert_allclose(value, whole.sums[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: nn.Linear(5, 3), "Sequential"),
        (lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU()), "end in a dense layer"),
        (lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(), nn.Linear(3, 3)), "Dropout.*TrainableModule"),
        (lambda: nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3).requires_grad_(False)), "not a trained dense layer"),
        (lambda: nn.Sequential(nn.Linear(5, 3).requires_grad_(False)), "nothing to train"),
        (lambda: nn.Sequential(nn.Linear(5, 3).double()), "float32"),
        (lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 3)), "flatten"),
    ],
)
def test_other_networks_are_sent_to_the_engine(network: Callable[[], nn.Module], said: str) -> None:
    records = ArrayRecords(*_rows(4, 5, 3, 0))
    with pytest.raises(ValueError, match=said):
        DenseNetwork(network, softmax_slope).choose(records, None, 2)  # type: ignore[arg-type]
