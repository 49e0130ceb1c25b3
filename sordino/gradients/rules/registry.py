"""Which rule each type of layer has: ours and those that users register, by the same decorator."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from sordino.gradients.tape import Tape

Rule = Callable[..., Any]
"""rule(tape, name, layer, *inputs, **options): the layer's forward pass, recorded on the tape."""
_Rule = TypeVar("_Rule", bound=Rule)
_RULES: dict[type[nn.Module], Rule] = {}


def register_rule(*layers: type[nn.Module]) -> Callable[[_Rule], _Rule]:
    """Register the decorated function as the rule for per-example gradients of these types of layers.

    Layers without a rule get theirs from torch.func; a rule makes them faster, or saves memory.

    Guarantee: before a model is trained, the sums that its rules give are compared with plain autograd, example by
    example in double precision, at its weights and at weights nearby, in batches of 3 and of 17. A registered rule that
    disagrees is refused with the names of the layers it is for.

    Parameters
    ----------
    *layers
        Types of layers. A subclass with a forward of its own does not inherit the rule: register it as well.

    The decorated function is called as ``rule(tape, name, layer, *inputs)`` in place of the layer's forward, and
    returns the layer's output. Most rules are one call of ``tape.run_layer``, which runs the layer's own forward and
    takes the per-example gradients of its parameters from a function of the gradient at its output.

    Examples
    --------
    >>> import torch, sordino
    >>> class Scale(torch.nn.Module):
    ...     def __init__(self, features):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.ones(features))
    ...
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> @sordino.register_rule(Scale)
    ... def scale(tape, name, layer, x):
    ...     return tape.run_layer(name, layer, x, gradients=lambda g: {"weight": g * x})
    >>> def squared_error(output, target):
    ...     return (output - target).square().sum(1)
    >>> clipped = sordino.ClippedGradients(Scale(3), squared_error, l2_clip=1.0)
    >>> clipped(torch.ones(5, 3), torch.zeros(5, 3)).sums["weight"]
    tensor([2.8868, 2.8868, 2.8868])
    """
    if not layers or not all(isinstance(layer, type) and issubclass(layer, nn.Module) for layer in layers):
        raise TypeError("register_rule takes the types of layers that the rule is for: @register_rule(MyLayer)")

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(layers, rule))
        return rule

    return register


def is_built_in(rule: Rule) -> bool:
    """Whether the rule is one of ours, not one that a user registered."""
    return getattr(rule, "__module__", "").startswith(f"{__package__}.")


def rules_for(model: nn.Module) -> dict[str, Rule]:
    """A rule for each layer with parameters to train, by the layer's name."""
    found = {}
    for name, layer in model.named_modules():
        if any(parameter.requires_grad for parameter in layer.parameters()):
            rule = _rule_of(layer)
            if rule is not None:
                found[name] = rule
    return found


def _rule_of(layer: nn.Module) -> Rule | None:
    if "forward" in layer.__dict__:
        return None
    # A subclass that computes something else has no rule.
    for kind in type(layer).__mro__:
        if kind in _RULES and type(layer).forward is kind.forward and not is_parametrized(layer):
            return _RULES[kind]
    own = next(layer.parameters(recurse=False), None)
    return any_layer if own is not None and next(layer.children(), None) is None else None


def any_layer(tape: Tape, name: str, layer: nn.Module, *inputs: Any, **options: Any) -> Any:
    """A layer without a rule and without layers inside: by what it does with its parameters, or else by torch.func."""
    return tape.run_open(name, layer, *inputs, **options)
