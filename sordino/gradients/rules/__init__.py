"""Rules by which layers give per-example gradients at nearly the price of plain ones. Importing it registers ours."""

from sordino.gradients.rules import convolution, functions, linear, normalisation, recurrent  # noqa: F401
from sordino.gradients.rules.registry import Rule, any_layer, is_built_in, register_rule, rules_for

__all__ = ["Rule", "any_layer", "is_built_in", "register_rule", "rules_for"]
