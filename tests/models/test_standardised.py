"""Standardised weights: what they are, and per-example gradients through them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sordino import models
from sordino.gradients import ClippedGradients

from ..gradients.reference import check


def test_weights_have_mean_0_and_variance_1() -> None:
    torch.manual_seed(0)
    layer = models.StandardisedConv2d(3, 8, 5, bias=False).double()
    found = layer.standardise(layer.weight)
    assert torch.allclose(found.mean((1, 2, 3)), torch.zeros(8, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(found.var((1, 2, 3), correction=0), torch.ones(8, dtype=torch.float64), atol=1e-6)
    plain = nn.Conv2d(3, 8, 5, bias=False).double()
    plain.weight.data = found
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    assert torch.equal(layer(x), plain(x))
    with torch.no_grad():
        layer.weight.mul_(3).add_(2)
    assert torch.allclose(layer(x), plain(x), atol=1e-6)  # scale and shift of a kernel do nothing


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(1, 2),
    st.integers(0, 2),
    st.booleans(),
)
def test_gradients(
    examples: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int, bias: bool
) -> None:
    torch.manual_seed(kernel)
    layer = models.StandardisedConv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
    clipped = check(nn.Sequential(layer, nn.Tanh()), torch.randn(examples, inputs, 6, 5), dtypes=(torch.float64,))
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"


def test_gradients_of_several_views() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(models.StandardisedConv2d(2, 3, 3), nn.Tanh(), models.StandardisedConv2d(3, 2, 3))
    check(model, torch.randn(4, 2, 2, 8, 8), views=2)


def test_a_frozen_weight_stays_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(models.StandardisedConv2d(2, 3, 3), nn.Tanh())
    model[0].weight.requires_grad_(False)
    assert list(
        check(model, torch.randn(4, 2, 6, 6), dtypes=(torch.float64,))(
            torch.zeros(0, 2, 6, 6).double(), torch.zeros(0)
        ).sums
    ) == ["0.bias"]


def test_half_precision_is_widened_before_it_is_summed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(models.StandardisedConv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2))
    x, y = torch.randn(4, 2, 6, 6), torch.randint(0, 2, (4,))
    loss = nn.CrossEntropyLoss(reduction="none")
    exact = ClippedGradients(model, loss, 0.1)(x, y).sums
    with torch.autocast("cpu", torch.bfloat16):
        found = ClippedGradients(model, loss, 0.1)(x, y).sums
    for name, value in exact.items():
        assert found[name].dtype == torch.float32
        assert float((found[name] - value).norm()) < 0.05 * float(value.norm())


def test_a_kernel_of_one_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="a kernel of one weight is zero"):
        models.StandardisedConv2d(1, 4, 1)
