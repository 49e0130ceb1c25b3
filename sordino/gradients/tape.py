"""The tape: which layers a batch passes, what reaches them going forward and what comes back.

Ruled layers run as autograd functions of their own. Their backward passes on the gradient of the data as usual, and
hands the tape a piece of each parameter's gradient instead of the gradient itself. Norms are taken at once, while
the layer's tensors are still in the processor's cache; sums wait until every norm is known.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sordino.gradients.buffers import Buffers
from sordino.gradients.pieces import Measured, OuterSum, Piece, Whole
from sordino.gradients.precision import without_autocast
from sordino.gradients.watching import Unruled, Watched

Pieces = Mapping[str, Piece]


class Use(Protocol):
    """One use of a layer: computes its outputs, and later its inputs' gradients and its parameters' pieces."""

    parameters: tuple[str, ...]
    """Full names of the trainable parameters that get a piece."""

    def forward(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Outputs, and the tensors to keep for the backward pass."""

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Pieces]:
        """Gradients of the inputs (None where not needed), and the pieces."""


Rule = Callable[..., Any]
"""rule(tape, name, layer, *inputs, **options): the layer's forward, with taps."""


class Tape:
    """One batch on its way through the model."""

    def __init__(
        self, examples: int, layouts: "Layouts", routes: "Routes", buffers: Buffers, device: torch.device
    ) -> None:
        self.examples = examples
        self.layouts = layouts
        self.buffers = buffers
        self.leaves: list[tuple[str, Tensor]] = []
        """Per-example copies of parameters that the model uses outside any layer."""
        self.measured: dict[str, Measured] = {}
        self._routes = routes
        self._expected: Counter[str] = Counter()
        self._sites: Counter[str] = Counter()
        self._waiting: defaultdict[str, list[Piece]] = defaultdict(list)
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    def tap(self, use: Use, *inputs: Any) -> Any:
        """Run a layer; its parameters' pieces come with the backward pass."""
        self._expected.update(use.parameters)
        return _Tap.apply(self, use, self._anchor, *inputs)  # type: ignore[no-untyped-call]

    def expect(self, parameter: str, leaf: Tensor) -> None:
        """A per-example copy of a parameter that autograd itself will differentiate."""
        self._expected[parameter] += 1
        self.leaves.append((parameter, leaf))

    def site(self, use: str) -> str:
        """A name for the next use of this kind, the same in every batch."""
        self._sites[use] += 1
        return f"{use}#{self._sites[use]}"

    def dimension(self, layer: str, x: Tensor) -> int:
        """In which dimension of this layer's input the examples lie."""
        found = self.place(layer, self.site(layer), x.shape)
        if found is None:
            raise Unruled(f"the input of {layer} is the same for all examples")
        return found

    def place(self, name: str, call: str, shape: torch.Size) -> int | None:
        """In which dimension of a tensor of this shape the examples lie; None if it is the same for all of them."""
        return self.layouts.place(name, call, shape, self.examples)

    def backward(self, losses: Tensor) -> None:
        """All pieces, measured: of the sum of the losses."""
        if not losses.requires_grad:
            return
        inputs = [self._anchor, *(leaf for _, leaf in self.leaves)]
        found = torch.autograd.grad(losses, inputs, torch.ones_like(losses), allow_unused=True)
        for (name, _), gradient in zip(self.leaves, found[1:], strict=True):
            if gradient is not None:
                self.add(name, Whole(gradient))
        for name, pieces in self._waiting.items():
            self.measured[name] = self._measure(name, _joined(pieces))
        self._waiting.clear()

    def add(self, name: str, piece: Piece) -> None:
        if self._expected[name] == 1:
            self.measured[name] = self._measure(name, piece)
        else:  # a layer called several times, or a shared parameter: its pieces are summed before the norm
            self._waiting[name].append(piece)

    @staticmethod
    def parameter(value: Tensor | None) -> tuple[str | None, Tensor | None]:
        """A layer's parameter as the tape knows it: its name if it is to be trained, and its plain value."""
        if isinstance(value, Watched):
            if value.derived:
                raise Unruled(f"a layer's weight that is computed from {value.parameter} has no rule")
            return value.parameter, value.plain
        return None, value

    def _measure(self, name: str, piece: Piece) -> Measured:
        with without_autocast(self._anchor.device.type):
            return self._routes.measure(name, piece)


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: Tape, use: Use, anchor: Tensor, *inputs: Any) -> Any:
        outputs, kept = use.forward(*inputs)
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.use = tape, use
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if all(gradient is None for gradient in gradients):
            return (None,) * len(ctx.needs_input_grad)
        kept = tuple(tensor.detach() for tensor in ctx.saved_tensors)
        backwards, pieces = ctx.use.backward(kept, ctx.needs_input_grad[3:], *gradients)
        for name, piece in pieces.items():
            ctx.tape.add(name, piece)
        return None, None, None, *backwards


CONSTANT = -1


class Layouts:
    """In which dimension of each layer's input the examples lie: the one that grows with the batch.

    Learnt from two batches of different size, so that a sequence as long as the batch is never taken for it.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, torch.Size]] = {}
        self._dimensions: dict[str, int] = {}
        self.learning = False

    def place(self, name: str, call: str, shape: torch.Size, examples: int) -> int | None:
        """The dimension for this name, about which all its calls must agree; None for what does not grow."""
        if self.learning:
            self._learn(name, call, shape, examples)
            sides = [side == examples for side in shape] + [side % examples == 0 for side in shape]
            return sides.index(True) % len(shape) if any(sides) else None
        dimension = self._dimensions.get(name)
        if dimension == CONSTANT:
            return None
        if dimension is None or len(shape) <= dimension or shape[dimension] % examples:
            raise Unruled(f"the input of {name} has no dimension of the examples")
        return dimension

    def _learn(self, name: str, call: str, shape: torch.Size, examples: int) -> None:
        before = self._shapes.setdefault(call, (examples, shape))
        if before[0] == examples:
            return
        pairs = enumerate(zip(before[1], shape, strict=False))
        growing = [d for d, (old, new) in pairs if old != new and old * examples == new * before[0]]
        if before[1] == shape:
            growing = [CONSTANT]
        if len(before[1]) != len(shape) or len(growing) != 1 or self._dimensions.get(name, growing[0]) != growing[0]:
            raise Unruled(f"the input of {name} does not grow with the batch in one dimension")
        self._dimensions[name] = growing[0]


class Routes:
    """Which way each piece's norm is taken, by parameter and shape; measured while `learning`, fixed afterwards."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.known = dict(known or {})
        self.learning = False

    def measure(self, name: str, piece: Piece) -> Measured:
        routes = piece.routes()
        if len(routes) == 1:
            return piece.measure(routes[0])
        key = f"{name} {piece.signature()}"
        if self.learning and key not in self.known:
            self.known[key] = min(routes, key=partial(_seconds, piece))
        route = self.known.get(key, routes[0])
        return piece.measure(route if route in routes else routes[0])


def _seconds(piece: Piece, route: str) -> float:
    """Of the norms and the sum by this route, the better of two tries."""
    best = float("inf")
    for _ in range(2):
        start = perf_counter()
        measured = piece.measure(route)
        measured.weighted_sum(torch.ones_like(measured.squares))
        best = min(best, perf_counter() - start)
    return best


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    outer = [piece for piece in pieces if isinstance(piece, OuterSum)]
    if len(outer) == len(pieces):
        return OuterSum.joined(outer)
    total = pieces[0].whole().clone()
    for piece in pieces[1:]:
        total += piece.whole()
    return Whole(total)


@contextmanager
def installed(
    modules: Mapping[str, nn.Module], rules: Mapping[str, Rule], watched: Mapping[str, Any], tape: Tape
) -> Iterator[None]:
    """A model with its ruled layers tapped and its other trainable parameters watched; as it was, afterwards."""
    places = [(modules[name.rpartition(".")[0]], name.rpartition(".")[2], value) for name, value in watched.items()]
    before = [(module, name, module._parameters[name]) for module, name, _ in places]
    try:
        for name, rule in rules.items():
            modules[name].__dict__["forward"] = partial(rule, tape, name, modules[name])
        for module, name, value in places:
            module._parameters[name] = value
        yield
    finally:
        for name in rules:
            modules[name].__dict__.pop("forward", None)
        for module, name, parameter in before:
            module._parameters[name] = parameter
