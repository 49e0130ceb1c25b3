"""Refusing models that mix examples: one example's input must not change another example's loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from sordino.gradients import batches
from sordino.gradients.batches import Setup
from sordino.gradients.dry_runs import sample_examples, seed_all, without_side_effects


class ExamplesMixError(ValueError):
    """One example's input changes another example's loss, so no clip bounds what an example contributes."""


class NoFiniteLossError(ValueError):
    """The model gives no finite loss on this batch, so that nothing can be checked with it."""


_TOLERANCE = 1e-5
_FEW = 3

Change = Callable[[Tensor, Tensor], Tensor]


def refuse_mixing(setup: Setup, x: Any, y: Any) -> bool:
    """Raise if the model mixes a few examples or keeps statistics of them; returns whether other buffers change."""
    for name, layer in setup.model.named_modules():
        _refuse_layer(name or "model", layer)
    probe = _Probe(setup, *sample_examples(x, y, setup.views, _FEW))
    if not bool(torch.isfinite(probe.losses).all()):
        raise NoFiniteLossError("the model gives no finite loss on these examples")
    for change in (_opposite, _far, _another, _zero):
        for place in range(_FEW):
            probe.refuse(change, [place], [place - 1])
    return probe.buffers_move


def refuse_mixing_in_bulk(setup: Setup, x: Any, y: Any, examples: int, channels_last: bool) -> None:
    """Raise if the model mixes examples in a batch of this size, or of a power of two below.

    With `channels_last` images pass in the layout in which the model will train.

    Some models mix only beyond a size (experts of limited capacity). For every pair of examples there is a pass in
    which one is changed and the other is not: in pass b those whose index has the bit b change, or those without it.
    """
    for count in [2**power for power in range(2, examples.bit_length()) if 2**power < examples] + [examples]:
        probe = _Probe(setup, *sample_examples(x, y, setup.views, count), channels_last=channels_last)
        for stays in (0, count - 1) if count > 1 else ():  # all others become one example; below, half of them do
            places = [place for place in range(count) if place != stays]
            probe.refuse(_another, places, [stays] * len(places))
        bits = range((count - 1).bit_length())
        for bit in bits if count == examples else {*bits[:1], *bits[-1:]}:
            for value in (0, 1):
                places = [place for place in range(count) if place >> bit & 1 == value]
                stays = next(place for place in range(count) if place >> bit & 1 != value)
                probe.refuse(_another, places, [stays] * len(places))  # many of one kind overflow a limited capacity
                for change in (_opposite, _far, _zero) if bit == 0 and count == examples else ():
                    probe.refuse(change, places, [place - 1 for place in places])


def _refuse_layer(name: str, layer: nn.Module) -> None:
    if isinstance(layer, _BatchNorm) and layer.training:
        raise ExamplesMixError(
            f"layer {name} ({type(layer).__name__} in training mode) mixes examples: use "
            "sordino.repair(model), which replaces it by a group norm, or put it in evaluation mode"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.scale_grad_by_freq or layer.max_norm is not None):
        raise ExamplesMixError(
            f"layer {name} ({type(layer).__name__}) mixes examples: set max_norm=None and scale_grad_by_freq=False"
        )
    if isinstance(layer, torch.jit.ScriptModule):
        raise TypeError(f"layer {name} is scripted, which hides its parameters: pass the module it was made from")


class _Probe:
    """A batch on which the model is tried, as it is and with some examples changed."""

    def __init__(self, setup: Setup, x: Any, y: Any, *, channels_last: bool = False) -> None:
        self._setup, self._x, self._y, self._examples = setup, x, y, batches.size(y)
        self._channels_last = channels_last
        before = _values(setup.model)
        self.losses, self._buffers = self._run(x, y)
        self.buffers_move = _first_unlike(before, self._buffers) is not None
        self._finite = torch.isfinite(self.losses)

    def refuse(self, change: Change, places: list[int], sources: list[int]) -> None:
        """Raise if changing the examples at these indices changes the losses of the rest, or the buffers."""
        x = _changed(self._x, change, places, sources, self._setup.views)
        y = _changed(self._y, _another, places, sources, 1)
        try:
            losses, buffers = self._run(x, y)
        except Exception:  # by an assertion, say: the model does not take such an input
            return
        kept = _first_unlike(self._buffers, buffers)
        if kept is not None:
            raise ExamplesMixError(
                f"buffer {kept} changes with the examples that pass: it would keep statistics of private data; "
                "sordino.repair(model) removes those of norms"
            )
        others = torch.ones(self._examples, dtype=torch.bool, device=self._finite.device)
        others[places] = False
        others &= self._finite
        if not _same(self.losses[others], losses[others]):
            culprit = self._first_difference(x, y, others)
            raise ExamplesMixError(
                f"{culprit} mixes examples: another example's input changes an example's loss, so no clip bounds what "
                "one example contributes; compute each example's output from that example alone"
            )

    @torch.no_grad()
    def _run(self, x: Any, y: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The examples' losses, and the buffers after the pass; every pass has the same random state."""
        setup = self._setup
        x = batches.channels_last(x) if self._channels_last else x
        with without_side_effects(setup.model):
            seed_all(0)
            losses = batches.losses_of(setup.model, setup.loss, x, y, self._examples, setup.views)
            return losses, _values(setup.model)

    def _first_difference(self, x: Any, y: Any, others: Tensor) -> str:
        """The first layer whose output for the other examples depends on the changed ones."""
        runs = [self._outputs(*batch) for batch in ((self._x, self._y), (x, y))]
        for (name, left), (_, right) in zip(*runs, strict=False):
            if left.shape != right.shape or not _same(left[others], right[others]):
                return name
        return f"the {type(self._setup.model).__name__} model or its loss"

    def _outputs(self, x: Any, y: Any) -> list[tuple[str, Tensor]]:
        """Each layer's output by example, in the order of their calls."""
        found: list[tuple[str, Tensor]] = []
        shape = self._examples, self._setup.views

        def note(name: str) -> Callable[..., None]:
            def hook(layer: nn.Module, args: Any, output: Any) -> None:
                if isinstance(output, Tensor) and output.ndim and len(output) == shape[0] * shape[1]:
                    found.append((f"layer {name} ({type(layer).__name__})", output.detach().unflatten(0, shape)))

            return hook

        layers = self._setup.model.named_modules()
        handles = [layer.register_forward_hook(note(name)) for name, layer in layers if name]
        try:
            self._run(x, y)
        finally:
            for handle in handles:
                handle.remove()
        return found


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def _first_unlike(left: dict[str, Tensor], right: dict[str, Tensor]) -> str | None:
    for name in left | right:
        before, after = left.get(name), right.get(name)
        if before is None or after is None or not torch.equal(before.nan_to_num(), after.nan_to_num()):
            return name
    return None


def _same(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left.double(), right.double(), rtol=_TOLERANCE, atol=_TOLERANCE * 1e-3, equal_nan=False)


def _changed(batch: Any, change: Change, places: list[int], sources: list[int], views: int) -> Any:
    """The batch with the examples at these indices changed, each given another one."""

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        parts = leaf.unflatten(0, (-1, views))
        values = change(parts[places], parts[sources])
        parts = parts.clone()
        parts[places] = values
        return parts.flatten(0, 1)

    return pytree.tree_map(changed, batch)


def _opposite(own: Tensor, other: Tensor) -> Tensor:
    return 0.3 - 1.7 * own if own.dtype.is_floating_point else other


def _far(own: Tensor, other: Tensor) -> Tensor:
    return 1e3 * own + 1e3 if own.dtype.is_floating_point else other


def _another(own: Tensor, other: Tensor) -> Tensor:
    return other


def _zero(own: Tensor, other: Tensor) -> Tensor:
    return torch.zeros_like(own)
