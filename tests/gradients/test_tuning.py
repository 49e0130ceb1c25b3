"""Physical batches do not show in the result, and what was chosen once is done again bit by bit."""

import json

import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import ClippedGradients, PerLayer
from sordino.gradients.batches import Setup
from sordino.gradients.tuning import Choices, _saved_bytes

from .reference import difference, length, squared_error


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 6), nn.Conv2d(6, 8, 3), nn.Tanh(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(32, 3)), torch.randn(11, 3, 4, 4), torch.randn(11, 3)


def tokens() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    return model, torch.randint(0, 9, (11, 4)), torch.randn(11, 4, 2)


@pytest.mark.parametrize("build", [network, tokens])
@pytest.mark.parametrize("clipping", [None, PerLayer()])
def test_any_physical_batch_gives_the_same(build: object, clipping: PerLayer | None) -> None:
    model, x, y = build()  # type: ignore[operator]
    whole = ClippedGradients(model, squared_error, 0.5, clipping=clipping, physical_batch=11)(x, y)
    for size in (1, 2, 3, 10, 64):
        parts = ClippedGradients(model, squared_error, 0.5, clipping=clipping, physical_batch=size)(x, y)
        assert difference(parts.sums, whole.sums) <= 2e-6 * length(whole.sums)
        assert torch.allclose(parts.norms, whole.norms, rtol=1e-5)
        assert torch.allclose(parts.losses, whole.losses, rtol=1e-5)


def test_batches_of_other_sizes_than_the_first() -> None:
    model, x, y = network()
    clipped = ClippedGradients(model, squared_error, 0.5)
    first = clipped(x[:1], y[:1])
    rest = clipped(x[1:], y[1:])
    whole = clipped(x, y)
    together = {name: first.sums[name] + rest.sums[name] for name in first.sums}
    assert difference(together, whole.sums) <= 2e-6 * length(whole.sums)
    assert torch.allclose(torch.cat([first.norms, rest.norms]), whole.norms, rtol=1e-5)


def test_the_first_batch_of_one_example_hides_no_order_of_rows() -> None:
    """Rows that go through the examples in turn look right when there is one example only."""

    class InTurn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.transpose(0, 1).reshape(-1, 3)
            return torch.tanh(self.layer(rows)).view(x.shape[1], len(x), 2).transpose(0, 1)

    torch.manual_seed(0)
    model, x, y = InTurn().double(), torch.randn(6, 4, 3).double(), torch.randn(6, 4, 2).double()
    told = pytest.warns(UserWarning, match="example by example")
    with told:
        expected = ClippedGradients(model, squared_error, 0.1)(x, y)
    clipped = ClippedGradients(model, squared_error, 0.1)
    with told:
        clipped(x[:1], y[:1])
        found = clipped(x, y)
    assert torch.allclose(found.norms, expected.norms)
    assert difference(found.sums, expected.sums) <= 1e-9


@pytest.mark.parametrize("build", [network, tokens])
def test_an_empty_batch(build: object) -> None:
    model, x, y = build()  # type: ignore[operator]
    clipped = ClippedGradients(model, squared_error, 0.5)
    for _ in range(2):  # before and after anything was chosen
        empty = clipped(x[:0], y[:0])
        assert {name: total.shape for name, total in empty.sums.items()} == {
            name: value.shape for name, value in model.named_parameters()
        }
        assert not any(total.any() or total.requires_grad for total in empty.sums.values())
        assert empty.norms.shape == empty.losses.shape == (0,)
        clipped(x, y)


@pytest.mark.parametrize("build", [network, tokens])
def test_choices_survive_and_repeat_bit_by_bit(build: object) -> None:
    model, x, y = build()  # type: ignore[operator]
    first = ClippedGradients(model, squared_error, 0.5)
    first(x, y)
    assert first.choices is not None
    document = json.loads(json.dumps(first.choices.to_json()))
    assert Choices.from_json(document) == first.choices
    kept = first(x, y)
    for _ in range(2):
        again = ClippedGradients(model, squared_error, 0.5)
        again.choices = Choices.from_json(document)
        found = again(x, y)
        assert again.choices == first.choices
        assert all(torch.equal(found.sums[name], kept.sums[name]) for name in kept.sums)
        assert torch.equal(found.norms, kept.norms)


@pytest.mark.parametrize("strategy", ["rules", "vmap", "loop"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_given_choices_are_kept(strategy: str, channels_last: bool) -> None:
    model, x, y = network()
    expected = ClippedGradients(model, squared_error, 0.5)(x, y)
    choices = Choices(strategy, 4, channels_last, {})
    results = []
    for _ in range(2):
        clipped = ClippedGradients(model, squared_error, 0.5)
        clipped.choices = choices
        results.append(clipped(x, y))
        assert clipped.choices == choices
    assert all(torch.equal(results[0].sums[name], results[1].sums[name]) for name in expected.sums)
    assert difference(results[0].sums, expected.sums) <= 2e-6 * length(expected.sums)


def test_physical_batch_is_kept() -> None:
    model, x, y = network()
    clipped = ClippedGradients(model, squared_error, physical_batch=3)
    clipped(x, y)
    assert clipped.choices is not None
    assert clipped.choices.physical_batch == 3


def test_no_physical_batch_forms_more_than_plain_training_keeps_of_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 128, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(128 * 16, 1))
    x, y = torch.randn(128, 8, 4, 4), torch.randn(128, 1)
    clipped = ClippedGradients(model, squared_error)
    clipped.prepare(x, y)
    assert clipped.choices is not None
    saved = _saved_bytes(Setup(model, squared_error, dict(model.named_parameters()), 1), x, y)
    assert 4 * 128 * 16 <= saved <= 8 * 4 * 128 * 16  # tanh's output, at least
    assert clipped.choices.physical_batch * (saved + 4 * 128 * 8 * 9) <= 2 * 128 * saved
