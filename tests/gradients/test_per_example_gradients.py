"""A norm is never under-estimated: not by positions that cancel, not by long rows, not by large or small numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.gradients import ClippedGradients
from sordino.gradients.per_example_gradients import OuterProducts, block_length, gram_norm, squared_norms

from .reference import Applied, forced


def gram(g: Tensor, a: Tensor) -> Tensor:
    g, a = g.double(), a.double()
    return gram_norm(g @ g.transpose(1, 2), a @ a.transpose(1, 2))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from([0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 1.0]),
    st.sampled_from([1e-4, 1.0, 1e4]),
    st.integers(0, 999),
)
def test_gram_norms_of_positions_that_cancel(pairs: int, apart: float, size: float, seed: int) -> None:
    """Either right to the fifth digit, or NaN, which sends the example to be done over."""
    torch.manual_seed(seed)
    g, a = torch.randn(4, pairs, 5), size * torch.randn(4, pairs, 7)
    g = torch.cat([g, -g + apart * torch.randn_like(g)], 1)
    a = torch.cat([a, a + apart * size * torch.randn_like(a)], 1)
    exact = torch.linalg.vector_norm(g.double().transpose(1, 2) @ a.double(), dim=(1, 2))
    squares, mass = gram(g, a), (g.double().norm(dim=2) * a.double().norm(dim=2)).sum(1)
    told = ~squares.isnan()
    assert torch.all(told | (exact < 2e-2 * mass))
    assert torch.all((squares.sqrt() - exact).abs()[told] <= 1e-5 * exact[told])


def test_gram_norm_of_nothing_is_zero() -> None:
    zero = torch.zeros(2, 3, 4)
    assert gram(zero, torch.randn(2, 3, 4)).tolist() == [0, 0]
    assert gram(torch.randn(2, 3, 4), zero).tolist() == [0, 0]
    exact = torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]])
    square = gram(exact, torch.ones(1, 2, 3))
    assert bool(square.isnan() | (square == 0))


@pytest.mark.parametrize("small", [1e-14, 1e-18, 1e-25, 1e-37, 3e-44])
@pytest.mark.parametrize("large", [1e-20, 1.0, 1e3, 1e9])
def test_outer_products_of_small_and_large_are_measured_at_once(small: float, large: float) -> None:
    """A sure network's examples have gradients next to nothing; they are no reason to do them one by one."""
    torch.manual_seed(0)
    g, a = small * torch.randn(4, 1, 10), large * torch.randn(4, 1, 20)
    g[1], a[2] = 0.0, 0.0
    for left, right in ((g, a), (a, g)):
        exact = (left.double().square().sum((1, 2)) * right.double().square().sum((1, 2))).sqrt()
        found = OuterProducts(left, right).measure("outer").squares.sqrt()
        assert torch.all((found - exact).abs() <= 1e-6 * exact)


def test_what_is_next_to_nothing_beside_something_huge_is_done_over() -> None:
    squares = OuterProducts(torch.full((2, 1, 3), 1e-40), torch.full((2, 1, 3), 1e30)).measure("outer").squares
    assert bool(squares.isnan().all())


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 150_000, 3_000_001])
def test_long_rows_lose_nothing_small(length: int) -> None:
    rows = torch.full((2, length), 2e-4)
    rows[:, 0] = torch.tensor([1.0, 1e3])
    exact = rows.double().square().sum(1)
    assert torch.all((squared_norms(rows) - exact).abs() <= 1e-5 * exact)


@pytest.mark.parametrize("size", [1e-15, 1e-3, 1e4, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norms_of_large_and_small_rows(size: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = (size * torch.randn(3, 2, 700)).to(dtype)
    exact = rows.double().flatten(1).square().sum(1)
    assert squared_norms(rows).dtype == torch.float64
    assert torch.allclose(squared_norms(rows), exact, rtol=1e-5, atol=0)


def test_norms_that_overflow_are_not_finite() -> None:
    assert not bool(torch.isfinite(squared_norms(torch.full((1, 4), 1e30))).any())


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Linear in the output: the target is the gradient that comes back."""
    return (output * target).flatten(1).sum(1)


LAYERS = {
    "linear": (nn.Linear(16, 16, bias=False), (5, 16)),
    "conv": (Applied(nn.Conv1d(24, 16, 1, bias=False), lambda conv, x: conv(x.mT).mT), (5, 24)),
}


@pytest.mark.parametrize("route", ["whole", "gram"])
@pytest.mark.parametrize("layer", LAYERS)
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]),
    st.sampled_from([1.0, 1e2, 1e4]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 99),
)
def test_layers_whose_positions_cancel(
    layer: str, route: str, apart: float, size: float, penalty: float, seed: int
) -> None:
    """Alone in a batch, an example adds at most the clip, and its norm bounds what it adds.

    Whoever forms the gradient in single precision rounds by a part of what cancels: only that much is allowed.
    """
    torch.manual_seed(seed)
    model, shape = LAYERS[layer]
    weight = next(model.parameters()).detach()
    a = size * torch.randn(1, *shape)
    a[:, 1] = a[:, 0] * (1 + apart * torch.randn(shape[1]))
    a[:, 3] = a[:, 2] * (1 + apart * torch.randn(shape[1]))
    g = torch.randn(1, shape[0], 16)
    g[:, 1], g[:, 3], g[:, 4] = -g[:, 0], -g[:, 2], apart * g[:, 4]
    exact = (g.double().transpose(1, 2) @ a.double())[0] + penalty * weight.double().flatten(1)
    norm, rounding = float(exact.norm()), 3e-7 * float((g.norm(dim=2) * a.norm(dim=2)).sum())
    plain = torch.randn(3, *shape), torch.randn(3, shape[0], 16)
    for l2_clip in (1.0, norm / 2 or 1.0, 1e9):
        clipped = ClippedGradients(model, loss, l2_clip, l2_penalty=penalty)
        clipped.choices = forced(ClippedGradients(model, loss), *plain, route)
        found = clipped(a, g)
        total, factor = next(iter(found.sums.values())).double(), min(1.0, l2_clip / max(norm, 1e-300))
        assert float(total.norm()) <= min(l2_clip, float(found.norms[0])) * (1 + 1e-5)
        assert abs(float(found.norms[0]) - norm) <= 1e-5 * norm + rounding
        assert float((total.flatten(1) - factor * exact).norm()) <= 1e-5 * factor * norm + 2 * factor * rounding


@pytest.mark.parametrize("size", [1, 7, 1024, 1021 * 3, 7919, 243 * 64 * 9])
def test_blocks_divide_a_row_and_are_short_enough_for_single_precision(size: int) -> None:
    assert size % block_length(size) == 0
    assert block_length(size) <= 1024


def test_an_infinite_input_under_a_gradient_of_zero_is_not_taken_for_nothing() -> None:
    """Its product is no number, and would be so in the sum over the whole batch."""
    zero = torch.zeros(1, 2, 1)
    assert math.isnan(gram(zero, torch.tensor([[[math.inf], [1.0]]])).item())
    assert gram(zero, torch.tensor([[[3.0], [1.0]]])).item() == 0
    assert gram(torch.tensor([[[2.0], [0.0]]]), torch.tensor([[[3.0], [1.0]]])).item() == 36
