"""Rules that users register: checked against autograd before they are used, and refused when they are wrong."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import Choices, ClippedGradients, OuterProducts, register_rule
from sordino.gradients.rules import registry
from sordino.gradients.tape import Tape

from .reference import check, squared_error


class Scale(nn.Module):
    """A weight and a gain for each feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)
        self.bias = nn.Parameter(torch.rand(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


class Perceptron(nn.Module):
    """A layer with layers inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 3), Scale(3)
        self.scale.weight.requires_grad_(False)  # which is not used

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale.bias


@pytest.fixture(autouse=True)
def own_rules_only() -> Iterator[None]:
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), Scale(3), nn.Tanh(), nn.Linear(3, 2))


def register_scale(called: list[str]) -> None:
    @register_rule(Scale)
    def scale(tape: Tape, name: str, layer: Scale, x: Tensor) -> Tensor:
        called.append(name)
        return tape.run_layer(name, layer, x, gradients=lambda g: {"weight": g * x, "bias": g})


def test_a_registered_rule_is_used_and_right() -> None:
    called: list[str] = []
    register_scale(called)
    clipped = check(model(), torch.randn(5, 4))
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"
    assert set(called) == {"2"}


def test_choices_name_registered_rules_so_that_a_run_is_bound_to_them() -> None:
    """A run that resumes without a rule rounds differently: what it was bound to must not look the same."""
    batch = torch.randn(5, 4), torch.randn(5, 2)
    without = ClippedGradients(model(), squared_error)
    without(*batch)
    register_scale([])
    with_rule = ClippedGradients(model(), squared_error)
    with_rule.choices = without.choices
    with_rule(*batch)
    assert without.choices is not None
    assert with_rule.choices is not None
    assert "registered" not in without.choices.to_json()
    assert with_rule.choices != without.choices
    assert list(with_rule.choices.registered) == ["2"]
    assert Choices.from_json(with_rule.choices.to_json()) == with_rule.choices


def test_a_registered_rule_gets_rows_for_each_view_and_skips_frozen_parameters() -> None:
    called: list[str] = []
    register_scale(called)
    built = model()
    built[2].bias.requires_grad_(False)
    check(built, torch.randn(5, 2, 4), views=2)
    assert called


def test_a_rule_may_leave_outer_products_unformed_and_hold_layers_inside() -> None:
    @register_rule(Perceptron)
    def perceptron(tape: Tape, name: str, layer: Perceptron, x: Tensor) -> Tensor:
        def gradients(g: Tensor) -> dict[str, Tensor | OuterProducts]:
            return {
                "linear.weight": OuterProducts(g[:, None], x[:, None]),
                "linear.bias": g,
                "scale.bias": g,
                "scale.weight": torch.zeros_like(g),
            }

        return tape.run_layer(name, layer, x, gradients=gradients)

    check(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Perceptron()), torch.randn(5, 4))


@pytest.mark.parametrize("factor", [0.0, 0.5, -1.0, 1.001])
def test_a_wrong_rule_is_refused_by_name(factor: float) -> None:
    @register_rule(Scale)
    def scale(tape: Tape, name: str, layer: Scale, x: Tensor) -> Tensor:
        return tape.run_layer(name, layer, x, gradients=lambda g: {"weight": factor * g * x, "bias": g})

    clipped = ClippedGradients(model(), squared_error)
    with pytest.raises(ValueError, match="rule registered for Scale does not give the gradients that autograd gives"):
        clipped(torch.randn(5, 4), torch.randn(5, 2))


def test_a_rule_that_is_wrong_only_once_a_parameter_has_left_0_is_refused() -> None:
    @register_rule(Scale)
    def scale(tape: Tape, name: str, layer: Scale, x: Tensor) -> Tensor:
        return tape.run_layer(name, layer, x, gradients=lambda g: {"weight": g * x + layer.bias * g.mean(0), "bias": g})

    built = model()
    nn.init.zeros_(built[2].bias)
    before = copy.deepcopy(built.state_dict())
    with pytest.raises(ValueError, match="registered for Scale"):
        ClippedGradients(built, squared_error)(torch.randn(5, 4), torch.randn(5, 2))
    assert all(torch.equal(value, before[name]) for name, value in built.state_dict().items())


@pytest.mark.parametrize("examples", [5, 40])
def test_a_rule_that_is_wrong_only_for_larger_batches_is_refused(examples: int) -> None:
    @register_rule(Scale)
    def scale(tape: Tape, name: str, layer: Scale, x: Tensor) -> Tensor:
        def gradients(g: Tensor) -> dict[str, Tensor | OuterProducts]:
            return {"weight": g * x if len(x) <= 8 else g * x + g.sum(0), "bias": g}

        return tape.run_layer(name, layer, x, gradients=gradients)

    with pytest.raises(ValueError, match="registered for Scale"):
        ClippedGradients(model(), squared_error)(torch.randn(examples, 4), torch.randn(examples, 2))


def test_a_rule_that_forgets_a_parameter_is_refused() -> None:
    @register_rule(Scale)
    def scale(tape: Tape, name: str, layer: Scale, x: Tensor) -> Tensor:
        return tape.run_layer(name, layer, x, gradients=lambda g: {"weight": g * x})

    with pytest.raises(ValueError, match="registered for Scale"):
        ClippedGradients(model(), squared_error)(torch.randn(5, 4), torch.randn(5, 2))


@pytest.mark.parametrize(
    ("name", "shape", "message"), [("weights", (3,), "parameters are weight, bias"), ("weight", (2,), "shape")]
)
def test_a_gradient_of_the_wrong_name_or_shape_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    @register_rule(Scale)
    def scale(tape: Tape, layer_name: str, layer: Scale, x: Tensor) -> Tensor:
        return tape.run_layer(layer_name, layer, x, gradients=lambda g: {name: g.new_zeros(len(g), *shape), "bias": g})

    with pytest.raises(ValueError, match=message):
        ClippedGradients(model(), squared_error)(torch.randn(5, 4), torch.randn(5, 2))


def test_a_subclass_that_computes_something_else_does_not_inherit_the_rule() -> None:
    called: list[str] = []
    register_scale(called)

    class Squared(Scale):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()

    check(nn.Sequential(nn.Linear(4, 3), Squared(3)), torch.randn(5, 4))
    assert not called


def test_rules_are_for_types_of_layers() -> None:
    with pytest.raises(TypeError, match="register_rule"):
        register_rule(Scale(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="register_rule"):
        register_rule()
