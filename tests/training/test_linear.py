"""Closed-form clipped gradients equal a naive loop, and one example moves the sum by no more than the clip."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sordino.data import ArrayRecords
from sordino.mechanisms.streams import Streams
from sordino.training.linear import LinearClassifier


class Known(LinearClassifier):
    """With the records that it is tried on."""

    records: ArrayRecords


def classifier(n: int, width: int, classes: int, seed: int, scale: float = 1.0) -> Known:
    generator = np.random.default_rng(seed)
    vectors = (scale * generator.normal(size=(n, width))).astype(np.float32)
    records = ArrayRecords(vectors, generator.integers(0, classes, n))
    model = Known(width, classes)
    model.records = records
    model.parameters = {
        "weight": torch.from_numpy(generator.normal(size=(classes, width)).astype(np.float32)),
        "bias": torch.from_numpy(generator.normal(size=classes).astype(np.float32)),
    }
    return model


def naive(model: Known, indices: np.ndarray, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A loop over examples with autograd, in double precision."""
    vectors, labels = (torch.from_numpy(array) for array in model.records.arrays)
    weight, bias = model.parameters["weight"].double(), model.parameters["bias"].double()
    total = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for index in indices:
        leaves = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        scores = leaves[0] @ vectors[index].double() + leaves[1]
        gradients = torch.autograd.grad(functional.cross_entropy(scores[None], labels[index][None]), leaves)
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        for part, gradient in zip(total, gradients, strict=True):
            part += gradient * min(1.0, clip / norm.item())
    return total[0], total[1]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 9), st.integers(2, 5), st.integers(0, 999), st.sampled_from([0.01, 0.3, 50.0])
)
def test_sums_equal_a_naive_loop(n: int, width: int, classes: int, seed: int, clip: float) -> None:
    model = classifier(n, width, classes, seed)
    indices = np.flatnonzero(np.random.default_rng(seed).random(n) < 0.7)
    sums = model.clipped_sum(model.records, indices, clip).sums
    weight, bias = naive(model, indices, clip)
    np.testing.assert_allclose(sums["weight"], weight, rtol=1e-5, atol=1e-5 * min(clip, 1))
    np.testing.assert_allclose(sums["bias"], bias, rtol=1e-5, atol=1e-5 * min(clip, 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.sampled_from([1e-3, 1.0, 1e4, 1e20, 1e37]), st.sampled_from([1e-7, 0.01, 1.0]))
def test_one_example_moves_the_sum_by_at_most_the_clip(seed: int, scale: float, clip: float) -> None:
    model = classifier(8, 5, 3, seed, scale)
    everyone, others = (model.clipped_sum(model.records, np.arange(first, 8), clip).sums for first in (0, 1))
    alone = model.clipped_sum(model.records, np.array([0]), clip).sums
    for one in (alone, {name: everyone[name].double() - others[name].double() for name in alone}):
        assert torch.sqrt(sum(value.double().square().sum() for value in one.values())) <= clip * (1 + 1e-4)


@pytest.mark.parametrize("exponent", [40, 50, 59, 70, 95])
def test_a_large_input_with_tiny_residuals_is_clipped_too(exponent: int) -> None:
    """Inputs that nearly cancel in the scores: residuals whose squares float32 cannot hold, times a huge vector."""
    for seed in range(40):
        model = classifier(1, 3, 3, seed)
        weight = model.parameters["weight"]
        weight[1:] = 0
        huge, third = 2.0**exponent, 58 / float(weight[0, 2])
        row = [[float(weight[0, 1]) * huge, -float(weight[0, 0]) * huge, third]]
        records = ArrayRecords(np.array(row, np.float32), np.zeros(1, np.int64))
        adversary = LinearClassifier(len(row[0]), 3)
        adversary.parameters = model.parameters | {"bias": torch.zeros(3)}
        one = adversary.clipped_sum(records, np.array([0]), 0.1).sums
        assert torch.sqrt(sum(value.double().square().sum() for value in one.values())) <= 0.1 * (1 + 1e-5)


def test_an_example_that_is_not_finite_contributes_zero() -> None:
    model = classifier(6, 4, 3, seed=1)
    vectors, labels = (array.copy() for array in model.records.arrays)
    vectors[2, 1], vectors[4, 0] = np.nan, np.inf
    records = ArrayRecords(vectors, labels)
    damaged = LinearClassifier(vectors.shape[1], 3)
    damaged.parameters = model.parameters
    sums = damaged.clipped_sum(records, np.arange(6), 0.5).sums
    expected = model.clipped_sum(model.records, np.array([0, 1, 3, 5]), 0.5).sums
    for name, value in sums.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_an_empty_batch_gives_zeros() -> None:
    model = classifier(6, 4, 3, seed=1)
    sums = model.clipped_sum(model.records, np.zeros(0, np.int64), 1.0).sums
    assert all(not value.any() for value in sums.values())
    assert sums["weight"].shape == (3, 4)


@pytest.mark.parametrize("label", [-1, 3, 0.5, np.nan])
def test_labels_outside_the_classes_are_refused_by_row(label: float) -> None:
    labels = np.array([0, 1, label, 2])
    records = ArrayRecords(np.zeros((4, 2), np.float32), labels)
    with pytest.raises(ValueError, match="row 3"):
        LinearClassifier(2, 3).prepared(records)
    with pytest.raises(ValueError, match="n labels"):
        LinearClassifier(2, 3).prepared(ArrayRecords(np.zeros((4, 2), np.float32), labels[:, None]))


def test_it_starts_at_zero() -> None:
    model = classifier(6, 4, 3, seed=1)
    model.initialise(Streams(bytes(16)))
    assert not model.parameters["weight"].any()
    assert model.parameters["bias"].shape == (3,)


@pytest.mark.parametrize("clip", [0.1, 1.0])
def test_norms_that_reach_the_clip_are_scaled_to_it(clip: float) -> None:
    model = classifier(1, 4, 3, seed=2, scale=100)
    one = model.clipped_sum(model.records, np.array([0]), clip).sums
    norm = torch.sqrt(sum(value.square().sum() for value in one.values()))
    assert norm.item() == pytest.approx(clip, rel=1e-5) or norm.item() < clip
