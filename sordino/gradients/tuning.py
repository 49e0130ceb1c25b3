"""Choosing what is fastest for a model and a batch: rules or fallback, layout, physical batch, a route for each layer.

Choices are timed once and then fixed: other rules or chunks round differently, and a repeated step must not.
"""

import math
import resource
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import batches, fallback
from sordino.gradients.autograd_check import agrees, in_double_precision, perturb
from sordino.gradients.batches import Setup
from sordino.gradients.dry_runs import sample_examples, without_side_effects
from sordino.gradients.fallback import WholeGradients
from sordino.gradients.layer_rules import LayerRules, Strategy
from sordino.gradients.rules import any_layer, is_built_in, rules_for
from sordino.gradients.tracked_parameters import NoRuleError
from sordino.mechanisms import memory

_MIDDLING, _LARGEST = 64, 8192
_PATIENCE = 20.0
"""Seconds after which timing stops with the best found so far."""
_SHARE_OF_MEMORY = 0.5
_MOST_BUFFERS = 2**27
_SHARE_OF_PLAIN = 2.0
"""Times what plain training saves of a whole batch: a physical batch that needs more is not even tried."""
_FORMED, _WHOLE_BYTES = 64, 2**28
_PROMISING, _TURNS, _AT_LEAST = 1.5, 2, 64
_STRICT, _LOOSE = 1e-6, 0.1
_FEW, _MORE = 7, 17
"""Examples to compare rules with autograd on: of models with our rules alone, and with rules that users registered."""


@dataclass(frozen=True)
class Choices:
    """What was timed to be fastest: everything that decides how sums are rounded."""

    strategy: str
    physical_batch: int
    channels_last: bool
    routes: dict[str, str]
    registered: dict[str, str] = field(default_factory=dict)
    """Names of the rules that users registered, by layer."""

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        return document if self.registered else {name: document[name] for name in document if name != "registered"}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Choices":
        return cls(**document)


def strategy_for(setup: Setup, x: Any, y: Any, wanted: str = "rules") -> tuple[str, Strategy]:
    """The first of rules, vectorised and one-by-one gradients, from the wanted one on, that agrees with autograd."""
    if wanted == "rules":
        why = _why_not_rules(setup, x, y)
        if why is None:
            return "rules", LayerRules.learned(setup, x, y)
        warnings.warn(f"the model's gradients are formed example by example, which is slow: {why}", stacklevel=5)
    if wanted in ("rules", "vmap"):
        vectorised = WholeGradients(fallback.by_vmap, setup)
        try:
            if agrees(vectorised, setup, x, y, tolerance=_LOOSE):
                return "vmap", vectorised
        except (RuntimeError, ValueError, NotImplementedError):  # an operation without a vectorised form
            pass
    loop = WholeGradients(fallback.by_loop, setup)
    with without_side_effects(setup.model):
        loop(*sample_examples(x, y, setup.views, 1))
    return "loop", loop


def _why_not_rules(setup: Setup, x: Any, y: Any) -> str | None:
    """Why the layer rules do not hold for this model; None if they do. A registered rule that is wrong is refused."""
    try:
        LayerRules.learned(setup, x, y)
        if _rules_agree(setup, x, y):
            return None
    except (NoRuleError, RuntimeError) as reason:
        return str(reason).partition("\n")[0]
    registered = _registered(setup)
    if registered and _rules_agree(setup, x, y, without=registered):
        layers = dict(setup.model.named_modules())
        kinds = sorted({type(layers[name]).__name__ for name in registered})
        raise ValueError(
            f"the rule registered for {', '.join(kinds)} does not give the gradients that autograd gives: correct the "
            "function that register_rule decorates, or remove it; without a rule the layer works too, but slower"
        )
    return "its layer rules disagree with autograd"


def _registered(setup: Setup) -> dict[str, str]:
    """Names of the rules that users registered for layers of this model."""
    rules = {name: rule for name, rule in rules_for(setup.model).items() if not is_built_in(rule)}
    return {
        name: f"{rule.__module__}.{getattr(rule, '__qualname__', type(rule).__name__)}" for name, rule in rules.items()
    }


def _rules_agree(setup: Setup, x: Any, y: Any, without: Iterable[str] = ()) -> bool:
    """Whether the layer rules agree with autograd; layers `without` a rule take the one for any layer.

    With registered rules they must agree on a larger batch too, and when all parameters have moved a little.
    """
    replaced, registered = dict.fromkeys(without, any_layer), bool(_registered(setup))
    try:
        # In double precision: in single, rounding alone flips a unit now and then, and with it the gradient.
        exact, inputs, targets = in_double_precision(setup, x, y, examples=_MORE if registered else _FEW)
        rules = LayerRules.learned(exact, inputs, targets, {**rules_for(exact.model), **replaced})
        agree = agrees(rules, exact, inputs, targets, tolerance=_STRICT)
        if agree and registered:
            perturb(exact.model)
            agree = agrees(rules, exact, inputs, targets, tolerance=_STRICT, examples=_MORE)
        return agree
    except (RuntimeError, TypeError, ValueError):
        # A model that cannot be copied, or that computes in one precision only.
        rules = LayerRules.learned(setup, x, y, {**rules_for(setup.model), **replaced})
        return agrees(rules, setup, x, y, tolerance=_LOOSE) and (
            not registered or agrees(rules, setup, x, y, tolerance=_LOOSE, examples=_MORE)
        )


def fastest(setup: Setup, x: Any, y: Any, physical_batch: int | None) -> tuple[Strategy, Choices]:
    """A strategy that holds for this model, and the choices that are fastest on batches like (x, y)."""
    name, strategy = strategy_for(setup, x, y)
    if not isinstance(strategy, LayerRules):
        bytes_each = sum(value.numel() * value.element_size() for value in setup.parameters.values())
        most = physical_batch or max(1, min(_FORMED, _WHOLE_BYTES // max(bytes_each, 1)))
        return strategy, Choices(name, most, False, {})
    sizes = [physical_batch] if physical_batch else _candidates(batches.size(y))
    layouts = (
        (True, False) if _has_images(setup.model, x) and _right_with_channels_last(strategy, setup, x, y) else (False,)
    )
    registered = _registered(setup)
    candidates = [Choices(name, size, last, {}, registered) for size in sizes for last in layouts]
    device = next(iter(setup.parameters.values())).device
    seconds: dict[int, float] = {}
    saved, formed = _saved_bytes(setup, x, y), 0
    began, bytes_an_example, limit = perf_counter(), 0.0, math.inf
    for number, candidate in enumerate(candidates):
        if seconds and perf_counter() - began > _PATIENCE:
            break
        used = min(candidate.physical_batch, batches.size(y))
        too_much = used * bytes_an_example > _SHARE_OF_MEMORY * _available_bytes(device)
        unlike_plain = seconds and used * (saved + formed) > _SHARE_OF_PLAIN * batches.size(y) * saved
        if physical_batch is None and (too_much or unlike_plain or candidate.physical_batch >= limit):
            continue
        before = _peak_bytes(device)
        with suppress(RuntimeError):  # a layout that the model's own code does not take
            candidates[number] = _with_routes(strategy, candidate, setup, x, y)
            seconds[number] = _seconds_an_example(strategy, candidates[number], setup, x, y)
        bytes_an_example = max(bytes_an_example, (_peak_bytes(device) - before) / used)
        formed = max(formed, _formed_bytes(strategy, setup))
        if strategy.buffers.bytes > _MOST_BUFFERS:  # gradients this large are nowhere near the cache
            limit = min(limit, candidate.physical_batch)
        strategy.buffers.clear()
    if not seconds:
        return strategy, Choices(name, 1, False, {}, registered)
    # Other work on the machine disturbs the timing: promising candidates are tried again, in turns.
    promising = [number for number in seconds if seconds[number] < _PROMISING * min(seconds.values())]
    for number in promising * _TURNS if len(promising) > 1 else ():
        seconds[number] = min(seconds[number], _seconds_an_example(strategy, candidates[number], setup, x, y))
    strategy.buffers.clear()
    best = candidates[min(seconds, key=lambda number: seconds[number])]
    apply(strategy, best)
    return strategy, best


def repeated(setup: Setup, x: Any, y: Any, choices: Choices) -> tuple[Strategy, Choices]:
    """The strategy that was chosen before; if it or a registered rule has changed, the choices returned differ."""
    name, strategy = strategy_for(setup, x, y, choices.strategy)
    if name != choices.strategy:
        return fastest(setup, x, y, choices.physical_batch)
    if isinstance(strategy, LayerRules):
        if choices.channels_last and not _right_with_channels_last(strategy, setup, x, y):
            return fastest(setup, x, y, choices.physical_batch)
        choices = replace(choices, registered=_registered(setup))
    apply(strategy, choices)
    return strategy, choices


def apply(strategy: Strategy, choices: Choices) -> None:
    """Configure the strategy as chosen."""
    if isinstance(strategy, LayerRules):
        strategy.channels_last = choices.channels_last
        strategy.routes.known = dict(choices.routes)
        strategy.routes.learning = False


def _with_routes(rules: LayerRules, choices: Choices, setup: Setup, x: Any, y: Any) -> Choices:
    """The choices with the fastest route for each layer."""
    apply(rules, choices)
    rules.routes.learning = True
    _run(rules, *_first(choices, setup, x, y))
    return replace(choices, routes=dict(rules.routes.known))


def _seconds_an_example(rules: LayerRules, choices: Choices, setup: Setup, x: Any, y: Any) -> float:
    apply(rules, choices)
    x, y = _first(choices, setup, x, y)
    repeats = max(1, min(4, _AT_LEAST // batches.size(y)))
    start = perf_counter()
    for _ in range(repeats):
        _run(rules, x, y)
    return (perf_counter() - start) / repeats / batches.size(y)


def _formed_bytes(rules: LayerRules, setup: Setup) -> int:
    """The bytes of an example's gradient that were formed."""
    names = rules.buffers.names & setup.parameters.keys()
    return sum(setup.parameters[name].nbytes for name in names)


def _first(choices: Choices, setup: Setup, x: Any, y: Any) -> tuple[Any, Any]:
    return batches.between(x, y, 0, choices.physical_batch, setup.views)


def _run(strategy: Strategy, x: Any, y: Any) -> None:
    losses, parts = strategy(x, y)
    ones = torch.ones(len(losses), dtype=torch.float64, device=losses.device)
    for part in parts.values():
        part.weighted_sum(ones)
    if losses.is_cuda:
        torch.cuda.synchronize(losses.device)


def _candidates(examples: int) -> list[int]:
    """Powers of two and a third of the batch; the largest takes a batch like this one, or a little larger, at once.

    The smallest comes first, to see what memory an example needs, then those that usually win.
    """
    sizes = [2**power for power in range(4, 13) if 2 ** (power + 1) <= examples]
    if 48 <= examples <= _LARGEST:
        sizes.append(math.ceil(1.05 * examples / 3))
    if examples <= _LARGEST:
        sizes.append(2 ** math.ceil(math.log2(1.25 * examples)))
    return [sizes[0], *sorted(sizes[1:], key=lambda size: abs(math.log2(size / _MIDDLING)))]


def _right_with_channels_last(rules: LayerRules, setup: Setup, x: Any, y: Any) -> bool:
    """Some convolutions of torch 2.13 on a CPU are wrong in that layout (one input channel, one column out)."""
    rules.channels_last = True
    try:
        return agrees(rules, setup, x, y, tolerance=_LOOSE)
    except (NoRuleError, RuntimeError):  # a layout that the model's own code does not take
        return False
    finally:
        rules.channels_last = False


def _has_images(model: nn.Module, x: Any) -> bool:
    images = any(isinstance(leaf, Tensor) and leaf.ndim == 4 for leaf in pytree.tree_leaves(x))
    return images and any(isinstance(layer, nn.Conv2d) for layer in model.modules())


def _available_bytes(device: torch.device) -> float:
    """Bytes that are still free; infinity where that is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return memory.available()


def _peak_bytes(device: torch.device) -> float:
    """The most bytes that this process has held so far."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _saved_bytes(setup: Setup, x: Any, y: Any) -> float:
    """What autograd saves of one example between the passes."""
    count, kept = 5, dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    few, targets = sample_examples(x, y, setup.views, count)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        batches.losses_of(setup.model, setup.loss, few, targets, count, setup.views)
    for constant in (*setup.model.parameters(), *setup.model.buffers()):
        kept.pop(constant.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / count
