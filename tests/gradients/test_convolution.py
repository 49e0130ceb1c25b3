"""Convolutions of every geometry and by every route give the naive loop's sums and norms."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sordino.gradients import ClippedGradients
from sordino.gradients.per_example_gradients import Buffers
from sordino.gradients.rules.convolution import Geometry, Patches
from sordino.gradients.tuning import Choices

from .reference import Applied, check, close, gradients, squared_error

KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def geometries(draw: Any) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution and the shape of an example that it takes."""
    dimensions = draw(st.sampled_from([1, 2, 2, 3]))
    largest = 3 if dimensions < 3 else 2

    def sides(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=dimensions, max_size=dimensions)))

    groups = draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = (groups * draw(st.integers(1, 5 // groups)) for _ in range(2))
    kernel, dilation = sides(1, largest), sides(1, 2)
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
    same = draw(st.integers(0, 4)) == 0
    padding, stride = ("same", 1) if same else (sides(0, 2), sides(1, 3))
    shape = tuple((side - 1) * gap + 1 + more for side, gap, more in zip(kernel, dilation, sides(2, 4), strict=True))
    conv = KINDS[dimensions](
        inputs, outputs, kernel, stride, padding, dilation, groups, draw(st.booleans()), padding_mode=mode
    )
    return conv, (inputs, *shape)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=40, deadline=None)
@given(geometries(), st.integers(1, 4), st.integers(0, 99))
def test_any_geometry(drawn: tuple[nn.Module, tuple[int, ...]], examples: int, seed: int) -> None:
    torch.manual_seed(seed)
    conv, shape = drawn
    check(nn.Sequential(conv, nn.Tanh(), nn.Flatten()), torch.randn(examples, *shape))


@pytest.mark.parametrize("route", ["whole", "gram"])
@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv1d(24, 16, 3, padding=1), (24, 6)),
        (nn.Conv2d(16, 24, 2), (16, 3, 3)),
        (nn.Conv2d(32, 32, 3, stride=2, padding=1), (32, 5, 4)),
        (nn.Conv2d(32, 24, 2, dilation=2, bias=False), (32, 4, 4)),
        (nn.Conv3d(16, 32, 2), (16, 3, 2, 3)),
        (nn.Conv2d(2, 64, 3, padding=1), (2, 2, 2)),
    ],
)
def test_each_route(conv: nn.Module, shape: tuple[int, ...], route: str) -> None:
    torch.manual_seed(0)
    check(nn.Sequential(conv, nn.Tanh()), torch.randn(3, *shape), routes=route)


@pytest.mark.parametrize("route", ["whole", "gram"])
def test_each_route_with_several_rows_an_example(route: str) -> None:
    """Each example is several images: they are one example's, and are summed before the norm."""
    torch.manual_seed(0)
    model = Applied(nn.Conv2d(16, 24, 2), lambda conv, x: conv(x.flatten(0, 1)).unflatten(0, (len(x), -1)).tanh())
    check(model, torch.randn(3, 2, 16, 2, 3), routes=route)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@settings(max_examples=40, deadline=None)
@given(
    groups=st.sampled_from([1, 2, 6]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    rows=st.integers(1, 2),
    side=st.integers(5, 7),
)
def test_the_routes_give_the_same(
    layout: torch.memory_format,
    groups: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    rows: int,
    side: int,
) -> None:
    """Also where one of them is not worth timing; with 6 groups each channel is convolved by itself."""
    torch.manual_seed(0)
    examples = 3
    conv = nn.Conv2d(6, 12, kernel, stride, padding, dilation, groups)
    x = torch.randn(examples * rows, 6, side, side + 2).contiguous(memory_format=layout)
    g = torch.randn_like(conv(x).detach())
    geometry = Geometry(conv.weight.shape, (stride,) * 2, (padding,) * 2, (dilation,) * 2, groups)
    loss = (conv(x) * g).flatten(1).sum(1).unflatten(0, (examples, rows)).sum(1)
    exact = torch.stack([torch.autograd.grad(one, conv.weight, retain_graph=True)[0] for one in loss])
    factors = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    for route in ("whole", "each", "grouped", *["gram"] * (groups == 1)):
        found = Patches(g, x, rows, geometry, Buffers(), "weight").measure(route)
        squares = exact.double().square().flatten(1).sum(1)
        known = torch.where(found.squares.isnan(), squares, found.squares)  # NaN: formed alone
        assert torch.allclose(known, squares, rtol=1e-4)
        total = torch.tensordot(factors.float(), exact, dims=1)
        assert torch.allclose(found.weighted_sum(factors), total, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_layouts(dtype: torch.dtype) -> None:
    """Channels-last and transposed inputs, and forwards that view what a convolution gives."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(5, 6, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 6), nn.Conv2d(6, 4, 3))
    x = torch.randn(4, 5, 6, 7)
    check(Applied(layers, lambda layers, x: layers(x).view(len(x), -1)), x, dtypes=(dtype,))
    check(layers, x.contiguous(memory_format=torch.channels_last), dtypes=(dtype,))
    check(layers, torch.randn(4, 7, 6, 5).transpose(1, 3), dtypes=(dtype,))


def test_many_examples_are_done_in_blocks() -> None:
    """Patches are formed a few examples at a time; the blocks' border must not show."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 4, 5, padding=2), nn.Tanh(), nn.Flatten())
    check(model, torch.randn(11, 8, 28, 28), dtypes=(torch.float64,))


@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(8, 2, 2), (4, 2, 1), (6, 3, 2), (4, 4, 0), (3, 2, 1)])
def test_strided_kernels_on_few_channels(inputs: int, kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(inputs, 3, (2, kernel), (1, stride), (1, padding))
    for width in (kernel, kernel + 3):
        check(nn.Sequential(conv, nn.Tanh(), nn.Flatten()), torch.randn(5, inputs, 4, width))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(8, 2, 3), (4, 2, 2), (3, 3, 2), (3, 1, 1)])
def test_nothing_of_a_wider_input_is_left_around_a_narrower_one(kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv1d(1, 4, kernel, stride, padding)
    model = nn.Sequential(conv, nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    wide, narrow, y = torch.randn(8, 1, 28), torch.randn(8, 1, 27), torch.randn(8, 4)
    alone = ClippedGradients(model, squared_error)(narrow, y)
    clipped = ClippedGradients(model, squared_error)
    for large in (1.0, 1e4):
        clipped(large * wide, y)
        after = clipped(narrow, y)
        assert torch.allclose(after.norms, alone.norms, rtol=1e-4)
        assert all(torch.allclose(after.sums[name], alone.sums[name], atol=1e-4) for name in alone.sums)


def test_a_layout_in_which_torch_is_wrong_is_not_taken() -> None:
    """Convolutions of one input channel to one column, with channels last, are wrong in torch 2.13 on a processor."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, (2, 4), (1, 4), (1, 0)), nn.Tanh(), nn.Flatten())
    x, y = torch.randn(5, 1, 4, 7), torch.randn(5, 15)
    each = gradients(model, squared_error, x, y, 5)
    clipped = ClippedGradients(model, squared_error, 10.0)
    clipped.choices = Choices("rules", 8, True, {})  # as another processor may have chosen
    close(clipped(x, y), each, 10.0, 1e-5)
