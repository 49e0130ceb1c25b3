"""Gradients formed whole: in the mode that trains, with checkpoints, and where torch itself would crash."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from sordino.gradients import ClippedGradients

from .reference import check, close, gradients, squared_error

SLOW = pytest.mark.filterwarnings("ignore:.*example by example")


class StochasticDepth(nn.Module):
    """Skips a layer now and then, by a draw that control flow depends on: torch.func has no form for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()  # moves rows, so that the layer rules do not apply
        x = torch.tanh(self.first(x[order]))[order.argsort()]
        if not self.training or torch.rand(()) < 0.5:
            x = x + self.second(x)
        return self.head(x)  # type: ignore[no-any-return]


@SLOW
def test_a_model_that_vmap_takes_in_evaluation_mode_only() -> None:
    torch.manual_seed(0)
    model, x, y = StochasticDepth(), torch.randn(6, 4), torch.randn(6, 2)
    evaluated, training = (ClippedGradients(model.train(mode), squared_error, 0.5) for mode in (False, True))
    model.eval()
    evaluated.prepare(x, y)
    assert evaluated.choices is not None
    assert evaluated.choices.strategy == "vmap"
    close(evaluated(x, y), gradients(model, squared_error, x, y, 6), 0.5, 1e-5)
    model.train()
    training.prepare(x, y)
    assert training.choices is not None
    assert training.choices.strategy == "loop"
    skipped = [float(training(x, y).sums["second.weight"].norm()) for _ in range(8)]
    assert all(norm < 3.1 for norm in skipped)
    assert any(norm > 0 for norm in skipped)


class Rarely(nn.Module):
    """Has no vectorised form for inputs that the first batch does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.raises = False

    def forward(self, x: Tensor) -> Tensor:
        if self.raises and len(x) > 1:
            raise RuntimeError("no kernel for this")
        return torch.tanh(self.layer(x))


def test_a_batch_that_cannot_run_is_done_one_by_one() -> None:
    torch.manual_seed(0)
    model, x, y = Rarely(), torch.randn(6, 4), torch.randn(6, 2)
    clipped = ClippedGradients(model, squared_error, 0.5)
    clipped.prepare(x, y)
    each = gradients(model, squared_error, x, y, 6)
    model.raises = True
    close(clipped(x, y), each, 0.5, 1e-5)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.second, torch.tanh(self.first(x)), use_reentrant=True)


@SLOW
def test_reentrant_checkpoints() -> None:
    """They run with .backward() only; gradients that parameters have already are left alone."""
    torch.manual_seed(0)
    model, x, y = Checkpointed().double(), torch.randn(5, 4).double(), torch.randn(5, 2).double()
    each = []
    for place in range(5):
        model.zero_grad()
        squared_error(model(x[place : place + 1]), y[place : place + 1]).sum().backward()
        each.append({name: value.grad.clone() for name, value in model.named_parameters()})  # type: ignore[union-attr]
    for value in model.parameters():
        value.grad = torch.full_like(value, 7.0)
    close(ClippedGradients(model, squared_error, 0.5)(x, y), each, 0.5, 1e-9)
    assert all(bool((value.grad == 7.0).all()) for value in model.parameters())  # type: ignore[union-attr]


class Packed(nn.Module):
    """Takes sequences sorted by length, the longest first, and refuses others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        return self.head(self.layer(packed)[1][0])  # type: ignore[no-any-return]


@SLOW
@pytest.mark.parametrize("examples", [1, 2, 5])
def test_packed_sequences_that_must_be_sorted(examples: int) -> None:
    torch.manual_seed(0)
    check(Packed(), (torch.randn(examples, 5, 3), torch.tensor([5, 4, 2, 2, 1])[:examples]))


def test_group_norms_on_one_pixel() -> None:
    """Whose layout could be taken for either."""
    torch.manual_seed(0)
    for shape in ((4, 1, 1), (4, 1, 3), (4, 3, 1)):
        model, x = nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()), torch.randn(3, *shape)
        y = torch.randn_like(x).flatten(1)
        each = gradients(nn.Sequential(nn.Flatten(2), *model), squared_error, x, y, 3)
        each = [{name.replace("1.", "0."): value for name, value in one.items()} for one in each]
        last = x.to(memory_format=torch.channels_last)
        close(ClippedGradients(model, squared_error, 0.5)(last, y), each, 0.5, 1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_group_norms_on_channels_last_that_need_no_gradient(frozen: bool) -> None:
    """On a processor torch itself crashes on the way back."""
    torch.manual_seed(0)
    first = nn.Conv2d(4, 4, 1).requires_grad_(not frozen) if frozen else nn.Identity()
    model = nn.Sequential(first, nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3), nn.Tanh(), nn.Flatten())
    x, y = torch.randn(4, 4, 5, 5), torch.randn(4, 18)
    each = gradients(model, squared_error, x, y, 4)
    last = x.to(memory_format=torch.channels_last)
    for batch, built in ((last, model), (last, model.to(memory_format=torch.channels_last))):
        close(ClippedGradients(built, squared_error, 0.5)(batch, y), each, 0.5, 1e-5)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return squared_error(self.scale * output, target)


def test_parameters_outside_the_model_are_refused() -> None:
    torch.manual_seed(0)
    x, y, loss = torch.randn(5, 4), torch.randn(5, 2), Temperature()
    for one in (loss, lambda output, target: loss(output, target)):
        with pytest.raises(ValueError, match=r"shape \(\) that requires a gradient but is no parameter") as error:
            ClippedGradients(nn.Linear(4, 2), one).prepare(x, y)
        assert "\n" not in str(error.value)
    ClippedGradients(nn.Linear(4, 2), loss.requires_grad_(False)).prepare(x, y)


def test_values_that_are_made_to_need_a_gradient_are_no_parameters() -> None:
    """The habit of adapters with checkpoints: what a frozen layer gives is made to need a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda layer, args, output: output.requires_grad_() if output.is_leaf else None)
    check(model, torch.randn(5, 4), torch.randn(5, 2))
