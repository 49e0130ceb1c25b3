"""Parameters that a model uses outside the layers that have rules.

While a batch passes, every trainable parameter in the model is a `Tracked` tensor. Layers with rules take its plain
value. Any other operation on one ends up here, so that no use of a parameter goes unnoticed: it is done on a copy for
each example, whose gradient autograd computes, or, if no rule covers it, the whole model takes the fallback.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from sordino.gradients.tape import Tape


class NoRuleError(Exception):
    """A use of a parameter that no rule covers: the model's gradients must come from the fallback."""


class Tracked(Tensor):
    """A trainable parameter, or something computed from parameters alone."""

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
_PRODUCTS = {"matmul", "__matmul__", "linear"}
_EXPANSIONS = {"expand", "expand_as", "repeat", "broadcast_to"}


def _apply(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tracked = [leaf for leaf in leaves if isinstance(leaf, Tracked)]
    tape = tracked[0]._tape
    data = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Tracked) and leaf.ndim]
    site = tape.site(f"{tracked[0].parameter}.{name}")
    places = [tape.find_dimension(f"{site}/{index}", f"{site}/{index}", leaf.shape) for index, leaf in enumerate(data)]
    if any(place is not None for place in places):
        if _broadcasts(name, leaves, data, tracked) and all(place == 0 for place in places):
            copies = _aligned(tracked[0].copies(), data[0])
            args, kwargs = pytree.tree_unflatten([copies if leaf is tracked[0] else leaf for leaf in leaves], spec)
            return func(*args, **kwargs)
        rest = [leaf for leaf in leaves[1:] if leaf is not None]
        if name in _PRODUCTS and leaves[0] is data[0] and all(isinstance(leaf, Tracked) for leaf in rest):
            return _product(data[0].movedim(places[0] or 0, 0), tracked, transposed=name == "linear").movedim(
                0, places[0] or 0
            )
        if name != "expand_as":
            raise NoRuleError(f"{name} of {tracked[0].parameter} with the data has no rule")
    if name in _EXPANSIONS:
        return _expanded(func, args, kwargs, site)
    return _of_parameters(func, leaves, spec, tracked)


def _broadcasts(name: str, leaves: list[Any], data: list[Tensor], tracked: list[Tracked]) -> bool:
    """Whether the one parameter is combined with data element by element, or is added to the scores of an attention."""
    if len(tracked) != 1:
        return False
    if name == "scaled_dot_product_attention":  # a bias of relative positions is its mask
        return len(data) == 3 and all(leaf is value for leaf, value in zip(leaves, data, strict=False))
    return name in _ELEMENTWISE and len(data) == 1


def _of_parameters(func: Any, leaves: list[Any], spec: Any, tracked: list[Tracked]) -> Any:
    """A value computed from parameters and constants alone is itself a parameter with copies."""

    def on(*values: Tensor) -> Any:
        rest = iter(values)
        args, kwargs = pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, Tracked) else leaf for leaf in leaves], spec
        )
        return func(*args, **kwargs)

    plain = on(*(leaf.plain for leaf in tracked))
    copies = torch.func.vmap(on)(*(leaf.copies() for leaf in tracked))
    first = tracked[0]
    return pytree.tree_map(lambda p, c: Tracked.of(first.parameter, p, first._tape, c), plain, copies)


def _aligned(copies: Tensor, data: Tensor) -> Tensor:
    """The copies as (rows, …), ready to be broadcast against a tensor whose first dimension is the examples' rows."""
    if copies.ndim - 1 == data.ndim and copies.shape[1] == 1:
        copies = copies[:, 0]
    if copies.ndim > data.ndim:
        raise NoRuleError("a parameter has more dimensions than the data it is combined with")
    rows = data.shape[0] // copies.shape[0]
    copies = copies.repeat_interleave(rows, 0) if rows > 1 else copies
    return copies.view(copies.shape[0], *[1] * (data.ndim - copies.ndim), *copies.shape[1:])


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
    if len(shape) == tracked.plain.ndim and tracked.plain.shape[0] == 1:
        copies = copies[:, 0]
    elif len(shape) != tracked.plain.ndim + 1:
        raise NoRuleError(f"the expansion of {tracked.parameter} has no rule")
    rows = shape[0] // tape.examples
    copies = copies.repeat_interleave(rows, 0) if rows > 1 else copies
    if copies.shape[1:] != shape[1:]:
        raise NoRuleError(f"the expansion of {tracked.parameter} in several dimensions has no rule")
    return copies
