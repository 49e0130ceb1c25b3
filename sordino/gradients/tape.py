"""The tape: which layers a batch passes, and the per-example gradients that come back from them.

A layer with a rule runs as a custom autograd function. Its backward pass returns the gradient of its inputs as
usual, and hands the tape per-example gradients of each parameter instead of their sum. Norms are taken at once, while
the layer's tensors are still in the processor's cache; weighted sums wait until every norm is known.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from sordino.gradients.per_example_gradients import (
    Buffers,
    MeasuredGradient,
    OuterProducts,
    PerExampleGradient,
    WholeGradient,
    by_example,
)
from sordino.gradients.precision import without_autocast
from sordino.gradients.tracked_parameters import NoRuleError, Tracked

Gradients = Mapping[str, PerExampleGradient]
"""By the parameter's name in the model."""


class LayerCall(Protocol):
    """One call of a layer: computes its outputs, and later the gradients of its inputs and parameters."""

    parameters: tuple[str, ...]
    """Names, in the model, of the trainable parameters that get a gradient."""

    def forward(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Outputs, and the tensors to save for the backward pass."""

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Gradients]:
        """Gradients of the inputs (None where not needed), and those of the parameters."""


class Tape:
    """One batch on its way through the model."""

    def __init__(
        self, examples: int, layouts: "Layouts", routes: "Routes", buffers: Buffers, device: torch.device
    ) -> None:
        self.examples = examples
        self.layouts = layouts
        self.buffers = buffers
        self.measured: dict[str, MeasuredGradient] = {}
        self._copies: list[tuple[str, Tensor]] = []
        self._routes = routes
        self._expected: Counter[str] = Counter()
        self._sites: Counter[str] = Counter()
        self._waiting: defaultdict[str, list[PerExampleGradient]] = defaultdict(list)
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    def record(self, call: LayerCall, *inputs: Any) -> Any:
        """Run a layer; its parameters' gradients come with the backward pass."""
        self._expected.update(call.parameters)
        return _Recorded.apply(self, call, self._anchor, *inputs)  # type: ignore[no-untyped-call]

    def run_layer(
        self,
        name: str,
        layer: nn.Module,
        *inputs: Tensor,
        gradients: Callable[[Tensor], Mapping[str, Tensor | PerExampleGradient]] | None = None,
    ) -> Tensor:
        """Run the layer's own forward, and take per-example gradients of its parameters from `gradients`.

        Parameters
        ----------
        name, layer, inputs
            What the rule was called with. Examples are in the first dimension of every input and of the output.
        gradients
            From the gradient of the loss at the layer's output, to a dict: for each parameter of the layer, by its name
            there, a tensor (rows of the input, *shape of the parameter), or `OuterProducts`. Without it they come from
            torch.func, which is slower.
        """
        if not all(isinstance(x, Tensor) and x.ndim for x in inputs):
            raise NoRuleError(f"the arguments of {name} are not plain tensors")
        if any(self.dimension(f"{name}/{index}", x) for index, x in enumerate(inputs)):
            raise NoRuleError(f"the examples are not in the first dimension of the inputs of {name}")
        return self.record(_OwnForward(self, layer, gradients), *inputs)

    def run_open(self, name: str, layer: nn.Module, *inputs: Any, **options: Any) -> Any:
        """Run the layer's own forward, where each operation on a parameter has its rule; by torch.func if one has none.

        Which it is, is learned.
        """
        forward = partial(type(layer).forward, layer, *inputs, **options)
        if name in self.layouts.closed:
            if options:
                raise NoRuleError(f"the arguments of {name} are not plain tensors")
            return self.run_layer(name, layer, *inputs)
        if not self.layouts.learning:
            return forward()
        expected, sites, copies = self._expected.copy(), self._sites.copy(), len(self._copies)
        names = [full for full, _ in map(self.parameter, layer.parameters()) if full]
        try:
            result = forward()
            if all(self._expected[full] > expected[full] for full in names):
                return result
        except (NoRuleError, RuntimeError, TypeError):
            pass
        self._expected, self._sites = expected, sites
        del self._copies[copies:]
        self.layouts.closed.add(name)
        return self.run_open(name, layer, *inputs, **options)

    def track_copies(self, parameter: str, copies: Tensor) -> None:
        """A copy of a parameter for each example, which autograd itself differentiates."""
        self._expected[parameter] += 1
        self._copies.append((parameter, copies))

    def site(self, use: str) -> str:
        """A name for the next use of this kind, the same in every batch."""
        self._sites[use] += 1
        return f"{use}#{self._sites[use]}"

    def dimension(self, layer: str, x: Tensor) -> int:
        """The dimension of this layer's input in which the examples lie."""
        found = self.find_dimension(layer, self.site(layer), x.shape)
        if found is None:
            raise NoRuleError(f"the input of {layer} is the same for all examples")
        return found

    def find_dimension(self, name: str, call: str, shape: torch.Size) -> int | None:
        """The dimension in which the examples lie in a tensor of this shape; None if it is the same for all of them."""
        return self.layouts.find_dimension(name, call, shape, self.examples)

    def backward(self, losses: Tensor) -> None:
        """Measure the gradients of the sum of the losses."""
        if not losses.requires_grad:
            return
        inputs = [self._anchor, *(copies for _, copies in self._copies)]
        found = torch.autograd.grad(losses, inputs, torch.ones_like(losses), allow_unused=True)
        for (name, _), gradient in zip(self._copies, found[1:], strict=True):
            if gradient is not None:
                self.add(name, WholeGradient(gradient))
        for name, gradients in self._waiting.items():
            self.measured[name] = self._measure(name, _added(gradients))
        self._waiting.clear()

    def add(self, name: str, gradient: PerExampleGradient) -> None:
        if self._expected[name] == 1:
            self.measured[name] = self._measure(name, gradient)
        else:  # a layer called several times, or a shared parameter: gradients are added before the norm is taken
            self._waiting[name].append(gradient)

    @staticmethod
    def parameter(value: Tensor | None) -> tuple[str | None, Tensor | None]:
        """A layer's parameter: its name in the model if it is to be trained, and its plain value."""
        if isinstance(value, Tracked):
            if value.derived:
                raise NoRuleError(f"a layer's weight that is computed from {value.parameter} has no rule")
            return value.parameter, value.plain
        return None, value

    def _measure(self, name: str, gradient: PerExampleGradient) -> MeasuredGradient:
        with without_autocast(self._anchor.device.type):
            return self._routes.measure(name, gradient)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: Tape, call: LayerCall, anchor: Tensor, *inputs: Any) -> Any:
        outputs, saved = call.forward(*inputs)
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.call = tape, call
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if all(gradient is None for gradient in gradients):
            return (None,) * len(ctx.needs_input_grad)
        saved = tuple(tensor.detach() for tensor in ctx.saved_tensors)
        backwards, own = ctx.call.backward(saved, ctx.needs_input_grad[3:], *gradients)
        for name, gradient in own.items():
            ctx.tape.add(name, gradient)
        return None, None, None, *backwards


class _OwnForward:
    """A layer that runs its own forward; `gradients` or torch.func give per-example gradients of its parameters."""

    def __init__(
        self,
        tape: Tape,
        layer: nn.Module,
        gradients: Callable[[Tensor], Mapping[str, Tensor | PerExampleGradient]] | None,
    ) -> None:
        known = {name: tape.parameter(value) for name, value in layer.named_parameters()}
        self._names = {name: full for name, (full, _) in known.items() if full}
        self._values = {name: value for name, (_, value) in known.items() if value is not None}
        self.parameters = tuple(self._names.values())
        self._layer, self._examples, self._gradients = layer, tape.examples, gradients

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = self._run(self._values, *inputs)
        if not isinstance(y, Tensor) or any(y is x for x in inputs):
            raise NoRuleError("a layer whose output is not one new tensor has no rule")
        return y, inputs

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Any) -> tuple[Any, Gradients]:
        if self._gradients is not None:
            with _parameters_replaced(dict(self._layer.named_modules()), self._values):
                found = self._gradients(gradient)
            return self._input_gradients(saved, needed, gradient), self._checked(found)
        trained = {name: self._values[name] for name in self._names}
        fixed = {name: value for name, value in self._values.items() if name not in self._names}

        def per_example(g: Tensor, *rows: Tensor) -> Any:
            pull = vjp(lambda values, *x: self._run({**fixed, **values}, *x), trained, *rows)[1]
            return pull(g)

        split = [value.unflatten(0, (self._examples, -1)) for value in (gradient, *saved)]
        own, *backward = vmap(per_example)(*split)
        inputs = tuple(dx.flatten(0, 1) if need else None for dx, need in zip(backward, needed, strict=True))
        return inputs, {full: WholeGradient(own[name]) for name, full in self._names.items()}

    def _input_gradients(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], gradient: Tensor) -> Any:
        inputs = [x.requires_grad_(need) for x, need in zip(saved, needed, strict=True)]
        wanted = [x for x in inputs if x.requires_grad]
        if not wanted:
            return (None,) * len(inputs)
        with torch.enable_grad():
            y = self._run(self._values, *inputs)
        found = iter(torch.autograd.grad(y, wanted, gradient, allow_unused=True))
        return tuple(next(found) if x.requires_grad else None for x in inputs)

    def _checked(self, gradients: Mapping[str, Tensor | PerExampleGradient]) -> Gradients:
        """Those of trainable parameters, by their names in the model, a gradient for each example."""
        unknown = [name for name in gradients if name not in self._values]
        if unknown:
            raise ValueError(
                f"the rule of {type(self._layer).__name__} gives a gradient of {unknown[0]!r}, but the layer's "
                f"parameters are {', '.join(self._values)}"
            )
        found: dict[str, PerExampleGradient] = {}
        for name, value in gradients.items():
            if name in self._names:
                found[self._names[name]] = self._by_example(name, value)
        return found

    def _by_example(self, name: str, value: Tensor | PerExampleGradient) -> PerExampleGradient:
        if not isinstance(value, Tensor):
            return value
        shape = self._values[name].shape
        if value.shape[1:] != shape or len(value) % self._examples:
            raise ValueError(
                f"the rule of {type(self._layer).__name__} gives a gradient of {name!r} of shape "
                f"{tuple(value.shape)}: expected one of shape {tuple(shape)} for each row of the input"
            )
        return WholeGradient(by_example(value, self._examples))

    def _run(self, values: dict[str, Tensor], *inputs: Tensor) -> Any:
        """The layer's own forward, and that of the layers in it, not those that rules put in their place."""
        ruled = [(part, part.__dict__.pop("forward")) for part in self._layer.modules() if "forward" in part.__dict__]
        try:
            return functional_call(self._layer, values, inputs)
        finally:
            for part, forward in ruled:
                part.__dict__["forward"] = forward


_CONSTANT = -1


class Layouts:
    """In which dimension of each layer's input the examples lie: the one that grows with the batch.

    Learned from batches of different size, so that a sequence as long as the batch is never mistaken for it.
    """

    def __init__(self) -> None:
        self.closed: set[str] = set()
        """Layers that use a parameter in a way that has no rule."""
        self.learning = False
        self.unsettled: set[str] = set()
        """Inputs in this pass of which the dimension is not known yet."""
        self._shapes: dict[str, tuple[int, torch.Size]] = {}
        self._dimensions: dict[str, int] = {}
        self._mixed: set[str] = set()

    def learn_from_the_next_pass(self) -> None:
        self.learning = True
        self.closed.clear()
        self.unsettled.clear()

    def find_dimension(self, name: str, call: str, shape: torch.Size, examples: int) -> int | None:
        """The dimension for this name, or for this call if its calls differ; None for a tensor that does not grow."""
        if self.learning and not self._learn(name, call, shape, examples):
            sides = [side == examples for side in shape] + [side % examples == 0 for side in shape]
            return sides.index(True) % len(shape) if any(sides) else None
        dimension = self._dimensions.get(call if self.learning or name in self._mixed else name)
        if dimension == _CONSTANT:
            return None
        if dimension is None or len(shape) <= dimension or shape[dimension] % examples:
            raise NoRuleError(f"no dimension of the input of {name} is that of the examples")
        return dimension

    def _learn(self, name: str, call: str, shape: torch.Size, examples: int) -> bool:
        """Whether this call's dimension is known; compared with the batch before, which had another size."""
        before = self._shapes.get(call, (examples, shape))
        self._shapes[call] = examples, shape
        if before[0] == examples or len(before[1]) != len(shape):
            self.unsettled.add(name)
            return False
        pairs = enumerate(zip(before[1], shape, strict=True))
        growing = [d for d, (old, new) in pairs if old != new and old * examples == new * before[0]]
        if before[1] == shape:
            growing = [_CONSTANT]
        if len(growing) != 1:
            self.unsettled.add(name)
            return False
        if self._dimensions.setdefault(name, growing[0]) != growing[0]:
            self._mixed.add(name)
        self._dimensions[call] = growing[0]
        return True


class Routes:
    """How each parameter's norms are computed, by name and shape: timed while `learning`, fixed afterwards."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.learning = False

    def measure(self, name: str, gradient: PerExampleGradient) -> MeasuredGradient:
        routes = gradient.routes()
        if len(routes) == 1:
            return gradient.measure(routes[0])
        key = f"{name} {gradient.signature()}"
        if self.learning and key not in self.known:
            self.known[key] = min(routes, key=partial(_seconds, gradient))
        route = self.known.get(key, routes[0])
        return gradient.measure(route if route in routes else routes[0])


def _seconds(gradient: PerExampleGradient, route: str) -> float:
    """Of the norms and the sum by this route, the better of two tries."""
    best = float("inf")
    for _ in range(2):
        start = perf_counter()
        measured = gradient.measure(route)
        measured.weighted_sum(torch.ones_like(measured.squares))
        best = min(best, perf_counter() - start)
    return best


def _added(gradients: list[PerExampleGradient]) -> PerExampleGradient:
    if len(gradients) == 1:
        return gradients[0]
    outer = [gradient for gradient in gradients if isinstance(gradient, OuterProducts)]
    if len(outer) == len(gradients):
        return OuterProducts.joined(outer)
    total = gradients[0].whole().clone()
    for gradient in gradients[1:]:
        total += gradient.whole()
    return WholeGradient(total)


@contextmanager
def installed(
    modules: Mapping[str, nn.Module], rules: Mapping[str, Callable[..., Any]], tracked: Mapping[str, Tensor], tape: Tape
) -> Iterator[None]:
    """Put rules in place of the layers' forwards and tracked parameters in place of the others; restore on leaving."""
    try:
        for name, rule in rules.items():
            modules[name].__dict__["forward"] = partial(rule, tape, name, modules[name])
        with _parameters_replaced(modules, tracked):
            yield
    finally:
        for name in rules:
            modules[name].__dict__.pop("forward", None)


@contextmanager
def _parameters_replaced(modules: Mapping[str, nn.Module], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Put these values in place of parameters, by name; restore on leaving."""
    places = [(modules[name.rpartition(".")[0]], name.rpartition(".")[2], value) for name, value in values.items()]
    before = [(module, name, module._parameters[name]) for module, name, _ in places]
    try:
        for module, name, value in places:
            module._parameters[name] = value  # type: ignore[assignment]
        yield
    finally:
        for module, name, parameter in before:
            module._parameters[name] = parameter
