"""Choosing what is fastest for a model and a batch: rules or fallback, layout, physical batch, a route for each layer.

Choices are measured once and then fixed: other rules or chunks would round otherwise, and a repeated step must not.
"""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients import batches, fallback, probing
from sordino.gradients.batches import Loss
from sordino.gradients.strategies import Formed, Ruled, Strategy
from sordino.gradients.watching import Unruled

_SMALLEST, _LARGEST = 16, 4096
_WORSE = 1.15
_WHOLE_BYTES = 2**28


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


@dataclass(frozen=True)
class Setup:
    """What is to be differentiated."""

    model: nn.Module
    loss: Loss
    parameters: dict[str, Tensor]
    views: int


def strategy_for(setup: Setup, x: Any, y: Any, wanted: str | None = None) -> tuple[str, Strategy]:
    """The first of rules, vectorised and one-by-one gradients that gives what plain autograd gives."""
    if wanted in (None, "rules"):
        try:
            ruled = Ruled(setup.model, setup.loss, setup.parameters, setup.views)
            if _learn_layouts(ruled, setup, x, y) and _agrees(ruled, setup, x, y):
                return "rules", ruled
            why = "its layer rules disagree with autograd"
        except Unruled as reason:
            why = str(reason)
        warnings.warn(f"the model's gradients are formed example by example, which is slow: {why}", stacklevel=4)
    if wanted in (None, "rules", "vmap"):
        vectorised = Formed(fallback.by_vmap, setup.model, setup.loss, setup.parameters, setup.views)
        try:
            if _agrees(vectorised, setup, x, y):
                return "vmap", vectorised
        except (RuntimeError, ValueError, NotImplementedError):
            pass
    return "loop", Formed(fallback.by_loop, setup.model, setup.loss, setup.parameters, setup.views)


def fastest(setup: Setup, x: Any, y: Any, physical_batch: int | None) -> tuple[Strategy, Choices]:
    """A strategy that holds for this model, and the choices that are fastest on batches like (x, y)."""
    name, strategy = strategy_for(setup, x, y)
    if not isinstance(strategy, Ruled):
        bytes_each = sum(value.numel() * value.element_size() for value in setup.parameters.values())
        most = physical_batch or max(1, min(64, _WHOLE_BYTES // max(bytes_each, 1)))
        return strategy, Choices(name, most, False, {})
    sizes = [physical_batch] if physical_batch else _candidates(batches.size(y))
    layouts = (False, True) if _has_images(setup.model, x) else (False,)
    best: tuple[float, Choices] | None = None
    for last in layouts:
        slower = 0
        for size in sizes:
            choices = Choices(name, size, last, {})
            try:
                seconds, choices = _seconds_an_example(strategy, choices, setup, x, y)
            except (
                RuntimeError
            ):  # a layout that the model's own code does not take, or a batch that does not fit memory
                break
            slower = slower + 1 if best is not None and seconds > _WORSE * best[0] else 0
            if best is None or seconds < best[0]:
                best = seconds, choices
            if slower == 2:
                break
    if best is None:
        return strategy, Choices(name, 1, False, {})
    apply(strategy, best[1])
    return strategy, best[1]


def apply(strategy: Strategy, choices: Choices) -> None:
    """Make the strategy do as chosen."""
    if isinstance(strategy, Ruled):
        strategy.layout_of_images = batches.channels_last if choices.channels_last else None
        strategy.routes.known = dict(choices.routes)
        strategy.routes.learning = False


def _seconds_an_example(ruled: Ruled, choices: Choices, setup: Setup, x: Any, y: Any) -> tuple[float, Choices]:
    size = min(choices.physical_batch, batches.size(y))
    x = batches.select(x, slice(0, size * setup.views))
    y = batches.select(y, slice(0, size))
    apply(ruled, choices)
    ruled.routes.learning = True
    _run(ruled, x, y)
    ruled.routes.learning = False
    seconds = min(_timed(lambda: _run(ruled, x, y)) for _ in range(3))
    return seconds / size, replace(choices, routes=dict(ruled.routes.known))


def _run(strategy: Strategy, x: Any, y: Any) -> None:
    losses, parts = strategy(x, y)
    ones = torch.ones(len(losses), dtype=torch.float64, device=losses.device)
    for part in parts.values():
        part.weighted_sum(ones)
    if losses.is_cuda:
        torch.cuda.synchronize(losses.device)


def _timed(action: Callable[[], None]) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


def _candidates(examples: int) -> list[int]:
    sizes = []
    size = _SMALLEST
    while size < min(examples, _LARGEST):
        sizes.append(size)
        size *= 2
    return [*sizes, min(examples, _LARGEST)]


def _has_images(model: nn.Module, x: Any) -> bool:
    images = any(isinstance(leaf, Tensor) and leaf.ndim == 4 for leaf in torch.utils._pytree.tree_leaves(x))
    return images and any(isinstance(layer, nn.Conv2d) for layer in model.modules())


def _learn_layouts(ruled: Ruled, setup: Setup, x: Any, y: Any) -> bool:
    ruled.layouts.learning = True
    try:
        for count in (2, 3):
            with probing.untouched(setup.model):
                ruled(*probing.some(x, y, setup.views, count))
    finally:
        ruled.layouts.learning = False
    return True


def _agrees(strategy: Strategy, setup: Setup, x: Any, y: Any) -> bool:
    return probing.agrees(strategy, setup.model, setup.loss, setup.parameters, x, y, setup.views)
