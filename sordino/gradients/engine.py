"""Sums of clipped per-example gradients of any model, at nearly the price of plain gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients import batches, fallback, probing, tuning
from sordino.gradients.batches import Loss
from sordino.gradients.clipping import Clipping, Flat
from sordino.gradients.pieces import Measured
from sordino.gradients.strategies import Strategy
from sordino.gradients.tuning import Choices, Setup

_CANCELLATION = 1e3
"""How many times l2_clip an example may add and take away again, before its sum would round too coarsely."""
_LEAST_FACTOR = 1e-20


@dataclass(frozen=True)
class Clipped:
    """What a batch gives: the clipped sum by parameter name, and of each example its norm before the clip and its loss.

    Only the sums have a bounded sensitivity. Norms and losses are private: show nothing of them without noise.
    """

    sums: dict[str, Tensor]
    norms: Tensor
    losses: Tensor


class ClippedGradients:
    """Σ over a batch's examples of g·min(1, l2_clip/‖g‖), g the gradient of the example's loss at the model's weights.

    `loss(output, target)` gives one loss for each example. A tuple of inputs is the model's arguments, a dict its keyword
    arguments. With `views` of K, inputs are (examples, K, …) and an example's gradient is the mean over its K views.
    `l2_penalty` adds l2_penalty·w to each example's gradient before the clip. Any batch size works: batches are
    worked through in physical batches of a size that is measured to be fastest (or `physical_batch`).

    Guarantee: one example more or less moves the sums, taken together, by at most l2_clip, but for rounding. A model
    whose examples mix is refused; an example with a non-finite gradient adds nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        l2_clip: float = 1.0,
        *,
        clipping: Clipping | None = None,
        l2_penalty: float = 0.0,
        views: int = 1,
        physical_batch: int | None = None,
    ) -> None:
        self.l2_clip = _positive("l2_clip", l2_clip)
        if not 0 <= l2_penalty < float("inf"):
            raise ValueError(f"l2_penalty must be a finite number from 0, not {l2_penalty!r}")
        for name, count in (("views", views), ("physical_batch", physical_batch)):
            if count is not None and (type(count) is not int or count < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {count!r}")
        self._model, self._loss, self._views, self._penalty = model, loss, views, l2_penalty
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no parameter to train: set requires_grad on some")
        self.clipping = clipping or Flat()
        groups = self.clipping.groups(list(self._parameters))
        self._group = dict(zip(self._parameters, groups, strict=True))
        self._groups = max(groups) + 1
        self._physical_batch = physical_batch
        self.choices: Choices | None = None
        """What was measured to be fastest: part of what a run is bound to, because other rules round otherwise."""
        self._strategy: Strategy | None = None

    @torch.no_grad()
    def __call__(self, x: Any, y: Any, *, l2_clip: float | None = None) -> Clipped:
        l2_clip = self.l2_clip if l2_clip is None else _positive("l2_clip", l2_clip)
        examples = batches.size(x)
        if examples != batches.size(y):
            raise ValueError(f"there are {examples} examples but {batches.size(y)} targets")
        sums = {name: _zeros(value) for name, value in self._parameters.items()}
        if examples == 0:
            like = next(iter(self._parameters.values()))
            return Clipped(sums, like.new_zeros(0), like.new_zeros(0))
        if self._strategy is None:
            self.prepare(x, y)
        assert self.choices is not None
        norms, losses = [], []
        for start in range(0, examples, self.choices.physical_batch):
            rows = slice(start, start + self.choices.physical_batch)
            found = self._add(
                self._strategy, sums, self._rows(batches.select(x, rows)), batches.select(y, rows), l2_clip
            )
            norms.append(found[0])
            losses.append(found[1])
        return Clipped(sums, torch.cat(norms), torch.cat(losses))

    @torch.no_grad()
    def prepare(self, x: Any, y: Any) -> None:
        """Check that examples do not mix, and find the fastest way for batches like this one.

        The first call does it by itself.
        """
        rows, setup = self._rows(x), Setup(self._model, self._loss, self._parameters, self._views)
        probing.refuse_mixing(self._model, self._loss, rows, y, self._views)
        if self.choices is None:
            self._strategy, self.choices = tuning.fastest(setup, rows, y, self._physical_batch)
        else:
            self._strategy = tuning.strategy_for(setup, rows, y, self.choices.strategy)[1]
            tuning.apply(self._strategy, self.choices)

    def _rows(self, x: Any) -> Any:
        return batches.flatten_views(x) if self._views > 1 else x

    def _add(
        self, strategy: Strategy, sums: dict[str, Tensor], x: Any, y: Any, l2_clip: float
    ) -> tuple[Tensor, Tensor]:
        """Add the clipped gradients of a physical batch to the sums; its norms and losses."""
        losses, parts = strategy(x, y)
        norms = self._norms(parts, len(losses), losses.device)
        factors = self.clipping.factors(norms, l2_clip)
        sound = self._sound(parts, norms, factors, l2_clip)
        total = torch.linalg.vector_norm(norms, dim=1)
        if bool(sound.all()):
            self._add_parts(sums, parts, factors)
        else:
            total = self._add_carefully(strategy, sums, x, y, l2_clip, sound, total)
        return total.to(losses.dtype), losses

    def _norms(self, parts: dict[str, Measured], examples: int, device: torch.device) -> Tensor:
        """Norms of the examples' gradients in each group of parameters, penalty included."""
        squares = torch.zeros(examples, self._groups, dtype=torch.float64, device=device)
        for name, part in parts.items():
            squares[:, self._group[name]] += part.squares
        if self._penalty:
            squares = self._penalised(squares, parts)
        return squares.sqrt()

    def _penalised(self, squares: Tensor, parts: dict[str, Measured]) -> Tensor:
        """‖g + λw‖² from ‖g‖²; NaN where the two cancel beyond what single precision leaves of ‖g‖."""
        crossed, added = torch.zeros_like(squares), torch.zeros_like(squares)
        for name, parameter in self._parameters.items():
            weight, column = parameter.detach(), self._group[name]
            added[:, column] += self._penalty**2 * weight.double().square().sum()
            if name in parts:
                crossed[:, column] += 2 * self._penalty * parts[name].inner(weight)
        total = squares + crossed + added
        return torch.where(total > 0.1 * (squares + added), total, torch.nan)

    def _sound(self, parts: dict[str, Measured], norms: Tensor, factors: Tensor, l2_clip: float) -> Tensor:
        """Which examples' norms and sums are known well enough."""
        sound = (torch.isfinite(norms) & torch.isfinite(factors) & (factors > _LEAST_FACTOR)).all(1)
        for name, part in parts.items():
            if part.mass is not None:
                sound &= part.mass * factors[:, self._group[name]] <= _CANCELLATION * l2_clip
        return sound

    def _add_parts(self, sums: dict[str, Tensor], parts: dict[str, Measured], factors: Tensor) -> None:
        with torch.autocast(factors.device.type, enabled=False):
            for name, part in parts.items():
                sums[name] += part.weighted_sum(factors[:, self._group[name]])
            if self._penalty:
                for name, parameter in self._parameters.items():
                    sums[name] += self._penalty * float(factors[:, self._group[name]].sum()) * parameter.detach()

    def _add_carefully(
        self,
        strategy: Strategy,
        sums: dict[str, Tensor],
        x: Any,
        y: Any,
        l2_clip: float,
        sound: Tensor,
        norms: Tensor,
    ) -> Tensor:
        """Sound examples once more without the others, then the others one by one in double precision."""
        views = torch.arange(self._views, device=sound.device)
        for kind in (True, False):
            places = (sound == kind).nonzero().flatten()
            while len(places):
                now, places = (places, places[:0]) if kind else (places[:1], places[1:])
                rows = (now[:, None] * self._views + views).flatten()
                inputs, targets = batches.select(x, rows), batches.select(y, now)
                if kind:
                    norms[now] = self._add(strategy, sums, inputs, targets, l2_clip)[0].double()
                else:
                    norms[now] = self._add_alone(sums, inputs, targets, l2_clip)
        return norms

    def _add_alone(self, sums: dict[str, Tensor], x: Any, y: Any, l2_clip: float) -> Tensor:
        """One example whose gradient is formed; infinity and no addition if it is not finite."""
        _, gradients = fallback.by_loop(self._model, self._loss, self._parameters, x, y, self._views)
        whole = {
            name: value.double() + self._penalty * self._parameters[name].detach() for name, value in gradients.items()
        }
        squares = torch.zeros(1, self._groups, dtype=torch.float64, device=next(iter(whole.values())).device)
        for name, value in whole.items():
            squares[0, self._group[name]] += value.square().sum()
        norms = squares.sqrt()
        if not bool(torch.isfinite(norms).all()):
            return torch.tensor(torch.inf, dtype=torch.float64)
        factors = self.clipping.factors(norms, l2_clip)
        for name, value in whole.items():
            sums[name] += (value[0] * factors[0, self._group[name]]).to(sums[name].dtype)
        return torch.linalg.vector_norm(norms)


def _zeros(parameter: Tensor) -> Tensor:
    """To sum in: sums are never kept in less than single precision."""
    return torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32), requires_grad=False)


def _positive(name: str, value: float) -> float:
    if not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")
    return float(value)
