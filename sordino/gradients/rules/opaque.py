"""Layers without a rule and without layers inside: per-example gradients of the layer alone, by torch.func."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from sordino.gradients.pieces import Piece, Whole
from sordino.gradients.tape import Pieces, Tape
from sordino.gradients.watching import Unruled


def opaque(tape: Tape, name: str, layer: nn.Module, *inputs: Any, **options: Any) -> Any:
    if options or not all(isinstance(x, Tensor) and x.ndim for x in inputs):
        raise Unruled(f"the arguments of {name} are not plain tensors")
    if any(tape.dimension(f"{name}/{index}", x) for index, x in enumerate(inputs)):
        raise Unruled(f"the examples are not first in the inputs of {name}")
    return tape.tap(_Opaque(tape, layer), *inputs)


class _Opaque:
    def __init__(self, tape: Tape, layer: nn.Module) -> None:
        known = {name: tape.parameter(value) for name, value in layer.named_parameters()}
        self._names = {name: full for name, (full, _) in known.items() if full}
        self._values = {name: value for name, (_, value) in known.items() if value is not None}
        self.parameters = tuple(self._names.values())
        self._layer, self._examples = layer, tape.examples

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = self._run(self._values, *inputs)
        if not isinstance(y, Tensor) or any(y is x for x in inputs):
            raise Unruled("a layer whose output is not one new tensor has no rule")
        return y, inputs

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Pieces]:
        trained = {name: self._values[name] for name in self._names}
        fixed = {name: value for name, value in self._values.items() if name not in self._names}

        def per_example(g: Tensor, *rows: Tensor) -> Any:
            pull = vjp(lambda values, *x: self._run({**fixed, **values}, *x), trained, *rows)[1]
            return pull(g)

        split = [value.unflatten(0, (self._examples, -1)) for value in (gradient, *kept)]
        own, *backward = vmap(per_example)(*split)
        pieces: dict[str, Piece] = {full: Whole(own[name]) for name, full in self._names.items()}
        return tuple(dx.flatten(0, 1) if need else None for dx, need in zip(backward, needed, strict=True)), pieces

    def _run(self, values: dict[str, Tensor], *inputs: Tensor) -> Any:
        # The layer's own forward, not the tapped one that stands in its place.
        layer = self._layer
        tapped = layer.__dict__.pop("forward", None)
        try:
            return functional_call(layer, values, inputs)
        finally:
            if tapped is not None:
                layer.__dict__["forward"] = tapped
