"""Choosing what is fastest for a model and a batch: rules or fallback, layout, physical batch, a route for each layer.

Choices are measured once and then fixed: other rules or chunks would round otherwise, and a repeated step must not.
"""

import math
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import batches, fallback, memory
from sordino.gradients.agreement import agrees, in_double_precision
from sordino.gradients.batches import Setup
from sordino.gradients.rearranging import InPlace
from sordino.gradients.specimens import Untouched, in_order, specimens
from sordino.gradients.strategies import Formed, Ruled, Strategy
from sordino.gradients.watching import Unruled

_MIDDLING, _LARGEST = 64, 8192
_PATIENCE = 20.0
"""Seconds that may go by before measuring stops with what has been found."""
_SHARE_OF_MEMORY = 0.5
_MOST_BUFFERS = 2**27
_SHARE_OF_PLAIN = 2.0
"""Of what plain training keeps of a whole batch: beyond it, a physical batch is not even tried."""
_FORMED, _WHOLE_BYTES = 64, 2**28
_PROMISING, _TURNS, _AT_LEAST = 1.5, 2, 64
_STRICT, _LOOSE = 1e-6, 0.1


@dataclass(frozen=True)
class Choices:
    """Everything that decides how sums are rounded."""

    strategy: str
    physical_batch: int
    channels_last: bool
    routes: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Choices":
        return cls(**document)


def strategy_for(setup: Setup, x: Any, y: Any, wanted: str = "rules") -> tuple[str, Strategy]:
    """The first of rules, vectorised and one-by-one gradients, from the wanted one on, that agrees with autograd."""
    if wanted == "rules":
        why = _why_not_ruled(setup, x, y)
        if why is None:
            return "rules", learnt(setup, x, y)
        warnings.warn(f"the model's gradients are formed example by example, which is slow: {why}", stacklevel=5)
    if wanted in ("rules", "vmap"):
        vectorised = Formed(fallback.by_vmap, setup.model, setup.loss, setup.parameters, setup.views)
        try:
            if agrees(vectorised, setup, x, y, tolerance=_LOOSE):
                return "vmap", vectorised
        except (RuntimeError, ValueError, NotImplementedError):  # an operation without a vectorised form
            pass
    loop = Formed(fallback.by_loop, setup.model, setup.loss, setup.parameters, setup.views)
    with Untouched(setup.model):
        loop(*specimens(x, y, setup.views, 1))
    return "loop", loop


def learnt(setup: Setup, x: Any, y: Any) -> Ruled:
    """The layer rules, having seen two batches of different size, and no rows that change places in both."""
    ruled = Ruled(setup.model, setup.loss, setup.parameters, setup.views)
    ruled.layouts.learning = True
    moved: list[set[str]] = []
    for count in (5, 7):
        backwards = in_order(*specimens(x, y, setup.views, count), setup.views, list(reversed(range(count))))
        with Untouched(setup.model), InPlace(count) as watch:
            ruled(*backwards)
        moved.append(watch.found)
    if set.intersection(*moved):
        raise Unruled(f"the model picks or moves rows of its batch ({', '.join(set.intersection(*moved))})")
    ruled.layouts.learning = False
    return ruled


def _why_not_ruled(setup: Setup, x: Any, y: Any) -> str | None:
    try:
        learnt(setup, x, y)
        try:
            # In double precision: in single, rounding alone flips a unit now and then, and with it the gradient.
            exact, inputs, targets = in_double_precision(setup, x, y)
            agreed = agrees(learnt(exact, inputs, targets), exact, inputs, targets, tolerance=_STRICT)
        except (RuntimeError, TypeError, ValueError):
            # A model that cannot be copied, or that computes in one precision only.
            agreed = agrees(learnt(setup, x, y), setup, x, y, tolerance=_LOOSE)
    except (Unruled, RuntimeError) as reason:
        return str(reason).partition("\n")[0]
    return None if agreed else "its layer rules disagree with autograd"


def fastest(setup: Setup, x: Any, y: Any, physical_batch: int | None) -> tuple[Strategy, Choices]:
    """A strategy that holds for this model, and the choices that are fastest on batches like (x, y)."""
    name, strategy = strategy_for(setup, x, y)
    if not isinstance(strategy, Ruled):
        bytes_each = sum(value.numel() * value.element_size() for value in setup.parameters.values())
        most = physical_batch or max(1, min(_FORMED, _WHOLE_BYTES // max(bytes_each, 1)))
        return strategy, Choices(name, most, False, {})
    sizes = [physical_batch] if physical_batch else _candidates(batches.size(y))
    layouts = (
        (True, False) if _has_images(setup.model, x) and _right_with_channels_last(strategy, setup, x, y) else (False,)
    )
    candidates = [Choices(name, size, last, {}) for size in sizes for last in layouts]
    device = next(iter(setup.parameters.values())).device
    seconds: dict[int, float] = {}
    saved, formed = memory.saved_bytes(setup, x, y), 0
    began, bytes_an_example, limit = perf_counter(), 0.0, math.inf
    for number, candidate in enumerate(candidates):
        if seconds and perf_counter() - began > _PATIENCE:
            break
        used = min(candidate.physical_batch, batches.size(y))
        too_much = used * bytes_an_example > _SHARE_OF_MEMORY * memory.available(device)
        unlike_plain = seconds and used * (saved + formed) > _SHARE_OF_PLAIN * batches.size(y) * saved
        if physical_batch is None and (too_much or unlike_plain or candidate.physical_batch >= limit):
            continue
        before = memory.peak(device)
        with suppress(RuntimeError):  # a layout that the model's own code does not take
            candidates[number] = _with_routes(strategy, candidate, setup, x, y)
            seconds[number] = _seconds_an_example(strategy, candidates[number], setup, x, y)
        bytes_an_example = max(bytes_an_example, (memory.peak(device) - before) / used)
        formed = max(formed, _formed_bytes(strategy, setup))
        if strategy.buffers.bytes > _MOST_BUFFERS:  # whole gradients so large are nowhere near the cache
            limit = min(limit, candidate.physical_batch)
        strategy.buffers.clear()
    if not seconds:
        return strategy, Choices(name, 1, False, {})
    # Other work on the machine disturbs: what looks good is tried again, in turns.
    promising = [number for number in seconds if seconds[number] < _PROMISING * min(seconds.values())]
    for number in promising * _TURNS if len(promising) > 1 else ():
        seconds[number] = min(seconds[number], _seconds_an_example(strategy, candidates[number], setup, x, y))
    strategy.buffers.clear()
    best = candidates[min(seconds, key=lambda number: seconds[number])]
    apply(strategy, best)
    return strategy, best


def repeated(setup: Setup, x: Any, y: Any, choices: Choices) -> tuple[Strategy, Choices]:
    """The strategy that was chosen before; if it no longer holds, other choices, which the caller can tell apart."""
    name, strategy = strategy_for(setup, x, y, choices.strategy)
    wrong = (
        isinstance(strategy, Ruled) and choices.channels_last and not _right_with_channels_last(strategy, setup, x, y)
    )
    if name != choices.strategy or wrong:
        return fastest(setup, x, y, choices.physical_batch)
    apply(strategy, choices)
    return strategy, choices


def apply(strategy: Strategy, choices: Choices) -> None:
    """Make the strategy do as chosen."""
    if isinstance(strategy, Ruled):
        strategy.channels_last = choices.channels_last
        strategy.routes.known = dict(choices.routes)
        strategy.routes.learning = False


def _with_routes(ruled: Ruled, choices: Choices, setup: Setup, x: Any, y: Any) -> Choices:
    """The choices with the fastest route for each layer."""
    apply(ruled, choices)
    ruled.routes.learning = True
    _run(ruled, *_first(choices, setup, x, y))
    return replace(choices, routes=dict(ruled.routes.known))


def _seconds_an_example(ruled: Ruled, choices: Choices, setup: Setup, x: Any, y: Any) -> float:
    apply(ruled, choices)
    x, y = _first(choices, setup, x, y)
    repeats = max(1, min(4, _AT_LEAST // batches.size(y)))
    start = perf_counter()
    for _ in range(repeats):
        _run(ruled, x, y)
    return (perf_counter() - start) / repeats / batches.size(y)


def _formed_bytes(ruled: Ruled, setup: Setup) -> int:
    """Of an example's gradient, what was formed whole."""
    names = ruled.buffers.names & setup.parameters.keys()
    return sum(setup.parameters[name].nbytes for name in names)


def _first(choices: Choices, setup: Setup, x: Any, y: Any) -> tuple[Any, Any]:
    rows = slice(0, choices.physical_batch * setup.views)
    return batches.select(x, rows), batches.select(y, slice(0, choices.physical_batch))


def _run(strategy: Strategy, x: Any, y: Any) -> None:
    losses, parts = strategy(x, y)
    ones = torch.ones(len(losses), dtype=torch.float64, device=losses.device)
    for part in parts.values():
        part.weighted_sum(ones)
    if losses.is_cuda:
        torch.cuda.synchronize(losses.device)


def _candidates(examples: int) -> list[int]:
    """Powers of two and a third of the batch; the largest takes batches like this one, and somewhat larger, whole.

    The smallest comes first, to see what memory an example needs, then those that usually win.
    """
    sizes = [2**power for power in range(4, 13) if 2 ** (power + 1) <= examples]
    if 48 <= examples <= _LARGEST:
        sizes.append(math.ceil(1.05 * examples / 3))
    if examples <= _LARGEST:
        sizes.append(2 ** math.ceil(math.log2(1.25 * examples)))
    return [sizes[0], *sorted(sizes[1:], key=lambda size: abs(math.log2(size / _MIDDLING)))]


def _right_with_channels_last(ruled: Ruled, setup: Setup, x: Any, y: Any) -> bool:
    """Some convolutions of torch 2.13 on a processor are wrong in that layout (one input channel, one column out)."""
    ruled.channels_last = True
    try:
        return agrees(ruled, setup, x, y, tolerance=_LOOSE)
    except (Unruled, RuntimeError):  # a layout that the model's own code does not take
        return False
    finally:
        ruled.channels_last = False


def _has_images(model: nn.Module, x: Any) -> bool:
    images = any(isinstance(leaf, Tensor) and leaf.ndim == 4 for leaf in pytree.tree_leaves(x))
    return images and any(isinstance(layer, nn.Conv2d) for layer in model.modules())
