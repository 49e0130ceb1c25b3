"""Parameters that a model uses outside the layers that have rules.

While a batch passes, every trainable parameter in the model is a `Tracked` tensor. Layers with rules take its plain
value. Any other operation on one ends up here, so that no use of a parameter goes unnoticed: functions that have a rule
(a product, a lookup) take it, others are done on a copy for each example, whose gradient autograd computes, and if
neither covers it, the whole model takes the fallback.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from sordino.gradients.tape import Tape


class NoRuleError(Exception):
    """A use of a parameter that no rule covers: the model's gradients must come from the fallback."""


_Rule = TypeVar("_Rule", bound=Callable[..., Any])
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def register_function(*names: str) -> Callable[[_Rule], _Rule]:
    """Register the decorated function as the rule for torch functions of these names, where a parameter is used.

    It is called as ``rule(tape, site, *arguments)`` and returns NotImplemented where it does not apply.
    """

    def register(rule: _Rule) -> _Rule:
        _FUNCTIONS.update(dict.fromkeys(names, rule))
        return rule

    return register


class Tracked(Tensor):
    """A trainable parameter, or something that is the same for all examples but computed from parameters."""

    parameter: str
    plain: Tensor
    derived: bool
    _tape: "Tape"
    _copies: Tensor | None

    @classmethod
    def of(cls, parameter: str, plain: Tensor, tape: "Tape", copies: Tensor | None = None) -> "Tracked":
        plain = plain.detach()
        self = torch.Tensor._make_subclass(cls, plain, True)
        self.parameter, self.plain, self._tape, self._copies = parameter, plain, tape, copies
        self.derived = copies is not None
        return self

    @classmethod
    def common(cls, parameter: str, copies: Tensor, tape: "Tape") -> Tensor:
        """What is the same for all examples, from a copy for each of them."""
        if not copies.dtype.is_floating_point:
            return copies[0]
        return cls.of(parameter, copies[0], tape, copies)

    def copies(self) -> Tensor:
        """A value for each example, (examples, *shape)."""
        if self._copies is None:
            leaf = self.plain.expand(self._tape.examples, *self.plain.shape).detach().requires_grad_()
            self._tape.track_copies(self.parameter, leaf)
            self._copies = leaf
        return self._copies

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "?")
        with torch._C.DisableTorchFunctionSubclass():
            if name in ("detach", "detach_") or (name == "__get__" and func == Tensor.data.__get__):  # type: ignore[attr-defined]
                return args[0].plain
            if name in _NOT_TENSORS:
                return func(args[0].plain, *args[1:], **kwargs)
            if name == "__get__":
                answer = func(*args, **kwargs)
                if not isinstance(answer, Tensor):
                    return answer
            return _apply(func, name, args, kwargs)


# Results that are not tensors: autograd, too, treats what is computed from them as constant.
_NOT_TENSORS = {"size", "dim", "numel", "nelement", "stride", "is_floating_point", "is_complex", "is_contiguous"}
_NOT_TENSORS |= {"__len__", "item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__repr__", "__format__"}
_ELEMENTWISE = {"add", "sub", "mul", "div", "rsub", "truediv", "true_divide", "subtract", "multiply", "divide"}
_ELEMENTWISE |= {f"__{prefix}{name}__" for name in ("add", "sub", "mul", "truediv") for prefix in ("", "r", "i")}
_ELEMENTWISE |= {"add_", "sub_", "mul_", "div_"}
_ELEMENTWISE |= {"where", "maximum", "minimum", "pow", "__pow__", "masked_fill", "addcmul", "lerp"}
_ELEMENTWISE |= {"scaled_dot_product_attention"}  # of a mask, which has a place for the examples
_PRODUCTS = {"matmul", "__matmul__", "linear"}
_EXPANSIONS = {"expand", "expand_as", "repeat", "broadcast_to"}


def _apply(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tracked = [leaf for leaf in leaves if isinstance(leaf, Tracked)]
    tape = tracked[0]._tape
    site = tape.site(f"{tracked[0].parameter}.{name}")
    if name in _FUNCTIONS:
        result = _FUNCTIONS[name](tape, site, *args, **kwargs)
        if result is not NotImplemented:
            return result
    data = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Tracked) and leaf.ndim]
    places = [tape.find_dimension(f"{site}/{index}", f"{site}/{index}", leaf.shape) for index, leaf in enumerate(data)]
    if any(place is not None for place in places):
        if name in _ELEMENTWISE or (name in _PRODUCTS and tracked[0].ndim > 2):
            sides = {
                (x.ndim - place, x.shape[place]) for x, place in zip(data, places, strict=True) if place is not None
            }
            leaves = [_aligned(leaf.copies(), sides) if isinstance(leaf, Tracked) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return func(*args, **kwargs)
        rest = [leaf for leaf in leaves[1:] if leaf is not None]
        if name in _PRODUCTS and leaves[0] is data[0] and all(isinstance(leaf, Tracked) for leaf in rest):
            return _product(data[0].movedim(places[0] or 0, 0), tracked, transposed=name == "linear").movedim(
                0, places[0] or 0
            )
        if name != "expand_as":
            return _vectorised(func, leaves, spec, data, places)
    if name in _EXPANSIONS:
        return _expanded(func, args, kwargs, site)
    return _of_parameters(func, leaves, spec, tracked)


def _vectorised(func: Any, leaves: list[Any], spec: Any, data: list[Tensor], places: list[int | None]) -> Any:
    """Any other operation on data and parameters: example by example at once, the result as the data has it."""
    tracked = next(leaf for leaf in leaves if isinstance(leaf, Tracked))
    examples, found = tracked._tape.examples, {place for place in places if place is not None}
    name = getattr(func, "__name__", "_")
    if len(found) != 1 or (name.endswith("_") and not name.endswith("__")):  # in place
        raise NoRuleError(f"{name} of {tracked.parameter} with the data has no rule")
    place = found.pop()
    growing = {id(leaf) for leaf, where in zip(data, places, strict=True) if where is not None}
    dimensions = [0 if isinstance(leaf, Tracked) else place if id(leaf) in growing else None for leaf in leaves]
    values = [
        leaf.copies()
        if isinstance(leaf, Tracked)
        else leaf.unflatten(place, (examples, -1))
        if id(leaf) in growing
        else leaf
        for leaf in leaves
    ]

    def on(*values: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(list(values), spec)
        return func(*args, **kwargs)

    result = torch.func.vmap(on, tuple(dimensions), place, randomness="different")(*values)
    return pytree.tree_map_only(Tensor, lambda each: each.flatten(place, place + 1), result)


def _of_parameters(func: Any, leaves: list[Any], spec: Any, tracked: list[Tracked]) -> Any:
    """A value computed from parameters and constants alone is itself a parameter with copies."""

    def on(*values: Tensor) -> Any:
        rest = iter(values)
        args, kwargs = pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, Tracked) else leaf for leaf in leaves], spec
        )
        return func(*args, **kwargs)

    # What is drawn at random is drawn once for all examples, as the model itself does.
    copies = torch.func.vmap(on, randomness="same")(*(leaf.copies() for leaf in tracked))
    return pytree.tree_map(lambda each: Tracked.common(tracked[0].parameter, each, tracked[0]._tape), copies)


def _aligned(copies: Tensor, sides: set[tuple[int, int]]) -> Tensor:
    """The copies ready to be broadcast against data.

    `sides` are the data's dimensions of the examples, counted from the last, with their lengths.
    """
    if len(sides) != 1:
        raise NoRuleError("data with the examples in different dimensions meet in one operation")
    place, length = next(iter(sides))
    examples, *shape = copies.shape
    before, after = shape[: -place or None] if len(shape) >= place else [], shape[len(shape) - place + 1 :]
    if len(shape) >= place:
        if shape[len(shape) - place] != 1:
            raise NoRuleError("a parameter has a dimension where the data it is combined with has the examples")
        copies = copies.reshape(examples, *before, *after).movedim(0, len(before))
    else:
        copies = copies.view(examples, *[1] * (place - 1 - len(shape)), *shape)
    rows = length // examples
    return copies.repeat_interleave(rows, -place) if rows > 1 else copies


def _product(x: Tensor, tracked: list[Tracked], *, transposed: bool) -> Tensor:
    matrices = tracked[0].copies()
    if matrices.ndim != 3 or x.ndim < 2:
        raise NoRuleError(f"a product with {tracked[0].parameter} has no rule")
    matrices = matrices.transpose(1, 2) if transposed else matrices
    y = x.reshape(matrices.shape[0], -1, x.shape[-1]) @ matrices
    if len(tracked) == 2:
        y = y + tracked[1].copies()[:, None]
    return y.reshape(*x.shape[:-1], matrices.shape[-1])


def _expanded(func: Any, args: Any, kwargs: Any, site: str) -> Any:
    """A parameter given a dimension of examples: `token.expand(len(x), -1, -1)`, `token.repeat(len(x), 1, 1)`."""
    tracked = args[0]
    tape, shape = tracked._tape, func(tracked.plain, *args[1:], **kwargs).shape
    place = tape.find_dimension(f"{site}/result", f"{site}/result", shape)
    if place is None:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return _of_parameters(func, leaves, spec, [leaf for leaf in leaves if isinstance(leaf, Tracked)])
    if place:
        raise NoRuleError(f"the expansion of {tracked.parameter} in dimension {place} has no rule")
    copies = tracked.copies()
    if len(shape) == tracked.plain.ndim and shape == (len(copies) * copies.shape[1], *copies.shape[2:]):
        return copies.flatten(0, 1)
    if len(shape) == tracked.plain.ndim and tracked.plain.shape[0] == 1:
        copies = copies[:, 0]
    elif len(shape) != tracked.plain.ndim + 1:
        raise NoRuleError(f"the expansion of {tracked.parameter} has no rule")
    rows = shape[0] // tape.examples
    copies = copies.repeat_interleave(rows, 0) if rows > 1 else copies
    if copies.shape[1:] != shape[1:]:
        raise NoRuleError(f"the expansion of {tracked.parameter} in several dimensions has no rule")
    return copies
