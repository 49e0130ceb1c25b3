"""Per-example gradients by the rules of a model's layers: one forward and one backward pass for a whole batch.

The rules assume that a row belongs to the same example all the way through. A model that sorts its batch, or picks rows
by a mask, breaks that without mixing anything: its gradients must be formed example by example.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.gradients import batches
from sordino.gradients.batches import Setup
from sordino.gradients.dry_runs import sample_examples, without_side_effects
from sordino.gradients.per_example_gradients import Buffers, MeasuredGradient
from sordino.gradients.rules import Rule, rules_for
from sordino.gradients.tape import Layouts, Routes, Tape, installed
from sordino.gradients.tracked_parameters import NoRuleError, Tracked

Strategy = Callable[[Any, Any], tuple[Tensor, dict[str, MeasuredGradient]]]
"""From a batch (x, y): losses of the examples, and measured gradients of each parameter that the loss depends on."""
_SIZES = (5, 7, 11, 13)


class LayerRules:
    """The strategy that runs the model with rules in place of its layers."""

    def __init__(self, setup: Setup, rules: Mapping[str, Rule] | None = None) -> None:
        self._setup = setup
        self._rules = rules_for(setup.model) if rules is None else rules
        self._modules = dict(setup.model.named_modules(remove_duplicate=False))
        # A parameter that has several names is tracked under each of them.
        first = {id(value): name for name, value in setup.parameters.items()}
        every = setup.model.named_parameters(remove_duplicate=False)
        self._aliases = {name: first[id(value)] for name, value in every if id(value) in first}
        self.layouts = Layouts()
        self.routes = Routes()
        self.buffers = Buffers()
        self.channels_last = False

    @classmethod
    def learned(cls, setup: Setup, x: Any, y: Any, rules: Mapping[str, Rule] | None = None) -> "LayerRules":
        """Having seen batches of different size, in not all of which the model moves rows.

        In the first, a sequence as long as the batch may be taken for it; what follows from that is seen in the second,
        and learned in the third.
        """
        strategy = cls(setup, rules)
        moved: list[set[str]] = []
        problem: Exception | None = None
        for count in _SIZES:
            backwards = torch.arange(count).flip(0)
            examples = batches.take(*sample_examples(x, y, setup.views, count), backwards, setup.views)
            strategy.layouts.learn_from_the_next_pass()
            with without_side_effects(setup.model), _MovedRows(count) as watch:
                try:
                    strategy(*examples)
                    problem = None
                except (NoRuleError, RuntimeError) as reason:  # maybe of a sequence that was taken for the batch
                    problem = reason
            moved.append(watch.found)
            if problem is None and not strategy.layouts.unsettled:
                break
        if problem is not None:
            raise problem
        if strategy.layouts.unsettled:
            name = min(strategy.layouts.unsettled)
            raise NoRuleError(f"the input of {name} does not grow with the batch in one dimension")
        if set.intersection(*moved):
            raise NoRuleError(f"the model picks or moves rows of its batch ({', '.join(set.intersection(*moved))})")
        strategy.layouts.learning = False
        return strategy

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, dict[str, MeasuredGradient]]:
        setup, examples = self._setup, batches.size(y)
        device = next(iter(setup.parameters.values())).device
        tape = Tape(examples, self.layouts, self.routes, self.buffers, device)
        arrange = batches.channels_last if self.channels_last else lambda batch: batch
        known = {name: Tracked.of(name, arrange(value), tape) for name, value in setup.parameters.items()}
        tracked = {alias: known[name] for alias, name in self._aliases.items()}
        x = arrange(x)
        with installed(self._modules, self._rules, tracked, tape), torch.enable_grad():
            losses = batches.losses_of(setup.model, setup.loss, x, y, examples, setup.views)
            tape.backward(losses)  # with rules still in place: a model that checkpoints runs its layers again
        return losses.detach(), tape.measured


_PICKING = {"nonzero", "masked_select", "masked_scatter", "masked_scatter_"}
_PICKING |= {"_unique2", "unique_dim", "unique_consecutive"}
_ALONG = {"index_select": 1, "gather": 1, "flip": 1, "roll": 2, "sort": 1, "argsort": 1, "topk": 2}
_INDEXED = {"index", "index_put", "index_put_", "_unsafe_index"}


class _MovedRows(TorchDispatchMode):
    """Notes operations that take the rows of a batch in another order, or only some of them."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()
        self._rows = rows

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip it torch imports it, a second and a half in which nothing here is compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].ndim and len(args[0]) % self._rows == 0:
            moves = name in _PICKING or (name in _INDEXED and _moves_rows(args)) or _along_rows(name, args, kwargs)
            self.found |= {name} if moves else set()
        return func(*args, **kwargs)


def _moves_rows(args: Any) -> bool:
    """Whether an indexing takes rows other than in their order."""
    if not args[1] or args[1][0] is None:
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    rows = args[1][0]
    if rows.dtype == torch.bool or len(args[0]) != rows.shape[0]:
        return True
    in_order = torch.arange(len(rows), device=rows.device).view(-1, *[1] * (rows.ndim - 1))
    return not bool((rows == in_order).all())


def _along_rows(name: str, args: Any, kwargs: Any) -> bool:
    place = _ALONG.get(name)
    if place is None:
        return False
    along = kwargs.get("dim", kwargs.get("dims", args[place] if len(args) > place else -1))
    return any(dimension in (0, -args[0].ndim) for dimension in (along if isinstance(along, list | tuple) else [along]))
