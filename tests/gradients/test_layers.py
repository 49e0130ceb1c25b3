"""Linear, embedding, norms and layers that have no rule of their own give the naive loop's sums and norms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from .reference import Applied, check

few = settings(max_examples=8, deadline=None)
counts, sizes = st.integers(1, 5), st.integers(1, 7)


@few
@given(counts, sizes, sizes, st.lists(st.integers(1, 4), max_size=2), st.booleans(), st.integers(0, 99))
def test_linear(examples: int, inputs: int, outputs: int, positions: list[int], bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs, outputs, bias), nn.Tanh(), nn.Linear(outputs, 3))
    check(model, torch.randn(examples, *positions, inputs))


@pytest.mark.parametrize("route", ["whole", "gram"])
@pytest.mark.parametrize("positions", [4, 5, 6])
def test_linear_by_each_route(route: str, positions: int) -> None:
    torch.manual_seed(positions)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 18, bias=False))
    check(model, torch.randn(4, positions, 16), routes=route)


def test_linear_wide_with_few_outputs() -> None:
    torch.manual_seed(0)
    check(nn.Linear(300, 10), torch.randn(6, 300))
    check(nn.Linear(3, 40), torch.randn(6, 2, 3))


@few
@given(counts, st.integers(2, 6), st.integers(1, 6), st.booleans(), st.integers(0, 99))
def test_embedding(examples: int, tokens: int, length: int, padded: bool, seed: int) -> None:
    """Few different tokens, so that they repeat within an example and between examples."""
    torch.manual_seed(seed)
    embedding = nn.Embedding(tokens, 4, padding_idx=tokens - 1 if padded else None)
    model = nn.Sequential(embedding, nn.Tanh(), nn.Linear(4, 2))
    check(model, torch.randint(0, tokens, (examples, length)))


def test_embedding_of_one_token_and_with_examples_second() -> None:
    torch.manual_seed(0)
    check(nn.Embedding(5, 3), torch.randint(0, 5, (4,)))
    check(Applied(nn.Embedding(5, 3), lambda layer, x: layer(x.T).transpose(0, 1)), torch.randint(0, 5, (4, 6)))


@few
@given(counts, st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), max_size=3), st.integers(0, 99))
def test_group_norm(examples: int, groups: int, each: int, positions: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    norm = nn.GroupNorm(groups, groups * each)
    nn.init.normal_(norm.weight)
    x = torch.randn(examples, groups * each, *positions, 2)
    check(nn.Sequential(norm, nn.Tanh(), nn.GroupNorm(1, groups * each)), x)


def test_group_norm_with_channels_last() -> None:
    """After another layer: on a processor torch crashes in such a norm of the batch itself."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 6)
    nn.init.normal_(norm.weight)
    x = torch.randn(4, 6, 3, 5).contiguous(memory_format=torch.channels_last)
    check(nn.Sequential(nn.Conv2d(6, 6, 1), norm, nn.Tanh()), x)


@few
@given(counts, st.lists(st.integers(2, 4), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 99))
def test_layer_norm(examples: int, shape: list[int], normalised: int, seed: int) -> None:
    torch.manual_seed(seed)
    norm = nn.LayerNorm(shape[-normalised:], bias=seed % 2 == 0)
    nn.init.normal_(norm.weight)
    check(nn.Sequential(norm, nn.Tanh(), nn.Linear(shape[-1], 2)), torch.randn(examples, *shape))


@pytest.mark.parametrize("tracking", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_instance_norm(dimensions: int, tracking: bool) -> None:
    """Statistics that were tracked are fixed in evaluation mode; without them they are each example's own."""
    torch.manual_seed(dimensions)
    kind = nn.InstanceNorm1d if dimensions == 1 else nn.InstanceNorm2d
    norm = kind(3, affine=True, track_running_stats=tracking)
    nn.init.normal_(norm.weight)
    x = 2 + 3 * torch.randn(4, 3, *[5] * dimensions)
    norm(x)
    check(nn.Sequential(norm, nn.Tanh()).train(not tracking), x)


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 4, 2), (3, 2, 3, 2)])
def test_batch_norm_in_evaluation_mode(shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(shape))
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}[len(shape)]
    norm = kind(3)
    nn.init.normal_(norm.weight)
    x = 2 + 3 * torch.randn(4, *shape)
    norm(x)
    check(nn.Sequential(norm, nn.Tanh()).eval(), x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.PReLU(3), (3, 4)),
        (nn.PReLU(), (3, 4)),
        (nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
        (nn.ConvTranspose1d(2, 4, 3, groups=2), (2, 4)),
        (nn.RMSNorm(4), (3, 4)),
    ],
)
def test_layers_without_a_rule(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(nn.Sequential(layer, nn.Tanh()), torch.randn(4, *shape))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for it
def test_bilinear() -> None:
    torch.manual_seed(0)
    check(nn.Bilinear(3, 4, 2), (torch.randn(5, 3), torch.randn(5, 4)))
    check(Applied(nn.Bilinear(3, 4, 2), lambda layer, x: layer(x[..., :3], x[..., 3:])), torch.randn(5, 2, 7))


@pytest.mark.parametrize("clip_part", ["weight", "bias"])
def test_one_of_two_parameters_frozen(clip_part: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.Conv1d(3, 6, 1), nn.GroupNorm(2, 6), nn.LayerNorm(4), nn.Linear(4, 2)]
    for layer in layers:
        getattr(layer, clip_part).requires_grad_(False)
    model = nn.Sequential(layers[1], nn.Tanh(), *layers[2:4], nn.Tanh(), layers[4])
    clipped = check(model, torch.randn(4, 3, 4))
    assert not any(name.endswith(clip_part) for name in clipped(torch.zeros(0, 3, 4), torch.zeros(0)).sums)
