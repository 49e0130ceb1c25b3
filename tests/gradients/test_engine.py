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


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_losses_in_single_precision_leave_the_factors_of_a_double_model_in_double(penalty: float) -> None:
    """The norm of an example that is clipped is the clip, to the last digits of the sums' own precision."""
    torch.manual_seed(0)
    x, y = 5 * torch.randn(40, 4, dtype=torch.float64), torch.randint(2, (40,))
    clipped = ClippedGradients(
        network().double(),
        lambda output, target: nn.functional.cross_entropy(output.float(), target, reduction="none"),
        0.1,
        l2_penalty=penalty,
    )
    for place in range(40):
        found = clipped(x[place : place + 1], y[place : place + 1])
        length = sum(float(value.square().sum()) for value in found.sums.values()) ** 0.5
        assert length <= 0.1 * (1 + 1e-14)
        assert found.norms.dtype == torch.float64
        assert found.norms.item() < 0.1 or length == pytest.approx(0.1, rel=1e-12)
