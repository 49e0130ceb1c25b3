"""The engine follows its model: parameters put in the place of others are seen, or refused."""

from typing import Any

import pytest
import torch
from torch import nn

from sordino.gradients import ClippedGradients, ExamplesMixError

from .reference import close, gradients, squared_error


def network() -> Any:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def replace_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.randn(3, 4))


def assign_state(model: Any) -> None:
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()}, assign=True)


def replace_layer(model: Any) -> None:
    model[0] = nn.Linear(4, 3)


def tie(model: Any) -> None:
    model[0].weight.data.copy_(torch.randn(3, 4))


@pytest.mark.parametrize("change", [replace_parameter, assign_state, replace_layer, tie])
@pytest.mark.parametrize("prepared", [True, False])
def test_new_parameters_are_followed(change: Any, prepared: bool) -> None:
    torch.manual_seed(0)
    model, x, y = network(), torch.randn(6, 4), torch.randn(6, 2)
    clipped = ClippedGradients(model, squared_error, 0.5)
    if prepared:
        clipped(x, y)
    change(model)
    close(clipped(x, y), gradients(model, squared_error, x, y, 6), 0.5, 1e-5)


def test_other_parameters_to_train_are_refused() -> None:
    model, x, y = network(), torch.randn(6, 4), torch.randn(6, 2)
    model[0].requires_grad_(False)
    clipped = ClippedGradients(model, squared_error)
    clipped(x, y)
    model[0].requires_grad_(True)
    for examples in (6, 0):
        with pytest.raises(ValueError, match=r"0\.bias, 0\.weight\).*make a new one") as error:
            clipped(x[:examples], y[:examples])
    assert "\n" not in str(error.value)
    model[2] = nn.Identity()
    with pytest.raises(ValueError, match="make a new one"):
        clipped.prepare(x, y)


def test_a_layer_that_comes_later_is_looked_at() -> None:
    model, x, y = network(), torch.randn(6, 4), torch.randn(6, 2)
    clipped = ClippedGradients(model, squared_error)
    clipped(x, y)
    model[1] = nn.BatchNorm1d(3, affine=False)
    for _ in range(2):
        with pytest.raises(ExamplesMixError, match="layer 1 "):
            clipped(x, y)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_gradient_hooks_on_parameters_are_refused(register: str) -> None:
    model, x, y = network(), torch.randn(6, 4), torch.randn(6, 2)
    clipped = ClippedGradients(model, squared_error)
    clipped(x, y)
    handle = getattr(model[0].weight, register)(lambda value: None)
    with pytest.raises(ValueError, match=r"0\.weight has a gradient hook"):
        clipped(x, y)
    with pytest.raises(ValueError, match=r"0\.weight has a gradient hook"):
        ClippedGradients(model, squared_error).prepare(x, y)
    handle.remove()
    clipped(x, y)
