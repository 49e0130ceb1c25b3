"""Sums of clipped per-example gradients of any model, at nearly the price of plain gradients."""

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients import batches, fallback, mixing, tuning
from sordino.gradients.batches import Loss, Setup
from sordino.gradients.clipping import Clipping, Flat
from sordino.gradients.dry_runs import keep_buffers, without_side_effects
from sordino.gradients.fallback import WholeGradients
from sordino.gradients.layer_rules import Strategy
from sordino.gradients.per_example_gradients import MeasuredGradient, WholeGradient
from sordino.gradients.precision import full_precision, without_autocast
from sordino.gradients.tracked_parameters import NoRuleError
from sordino.gradients.tuning import Choices

_LEAST_FACTOR = 1e-20
_PROBED = 64


@dataclass(frozen=True)
class Clipped:
    """The clipped sums of a batch by parameter name, and each example's gradient norm before the clip and its loss.

    Only the sums have a bounded sensitivity. Norms and losses are private: release nothing of them without noise.
    """

    sums: dict[str, Tensor]
    norms: Tensor
    losses: Tensor


class ClippedGradients:
    """Σ over a batch's examples of g·min(1, l2_clip/‖g‖), where g is the gradient of the example's loss.

    Guarantee: one example more or less moves the sums, taken together, by at most l2_clip, up to rounding. A model that
    mixes examples is refused; an example with a non-finite gradient adds nothing, and once sealed (`seal`) neither does
    one on which the model or its loss raises.

    Parameters
    ----------
    model
        Any module; parameters that require no gradient stay out.
    loss
        ``loss(output, target)`` returns one loss for each example: use ``reduction="none"``.
    l2_clip
        The bound on the norm of an example's gradient; a call may give another.
    clipping
        `Flat` (the default), `Automatic` or `PerLayer`.
    l2_penalty
        Adds l2_penalty·w to each example's gradient before the clip.
    views
        With K views, inputs are (examples, K, …) and an example's gradient is the mean over its views.
    physical_batch
        How many examples pass the model at a time; without it, what is timed to be fastest.
    fixed_shape
        Every pass has a whole physical batch, the last one filled up with copies that count for nothing: for devices
        that compile for each shape.

    Call it with a batch of any size: a tensor, a tuple (the model's arguments) or a dict (its keyword arguments), and
    the targets.

    Examples
    --------
    >>> import torch, sordino
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(4, 3)
    >>> clipped = sordino.ClippedGradients(model, torch.nn.CrossEntropyLoss(reduction="none"), l2_clip=0.5)
    >>> batch = clipped(torch.randn(100, 4), torch.randint(0, 3, (100,)))
    >>> {name: tuple(total.shape) for name, total in batch.sums.items()}
    {'weight': (3, 4), 'bias': (3,)}
    >>> batch.norms.shape
    torch.Size([100])
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
        fixed_shape: bool = False,
    ) -> None:
        self.l2_clip = _positive("l2_clip", l2_clip)
        if not 0 <= l2_penalty < float("inf"):
            raise ValueError(f"l2_penalty must be a finite number from 0, not {l2_penalty!r}")
        for name, count in (("views", views), ("physical_batch", physical_batch)):
            if count is not None and (type(count) is not int or count < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {count!r}")
        self._model, self._loss, self._views, self._penalty = model, loss, views, l2_penalty
        self._parameters = batches.trained(model)
        if not self._parameters:
            raise ValueError("the model has no parameter to train: set requires_grad on some")
        self.clipping = clipping or Flat()
        groups = self.clipping.groups(list(self._parameters))
        self._group = dict(zip(self._parameters, groups, strict=True))
        self._groups = max(groups) + 1
        self._physical_batch, self._fixed_shape = physical_batch, fixed_shape
        self.choices: Choices | None = None
        """What was timed to be fastest. A run is bound to it, because other choices round differently."""
        self._strategy: Strategy | None = None
        self._layers: list[tuple[nn.Module, bool]] = []
        self._probed = 0
        self._checked: Any = None
        self._sealed = False
        self._moving: Any = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, x: Any, y: Any, *, l2_clip: float | None = None) -> Clipped:
        x, y = batches.plain(x), batches.plain(y)
        l2_clip = self.l2_clip if l2_clip is None else _positive("l2_clip", l2_clip)
        examples = batches.size(x)
        if examples != batches.size(y):
            raise ValueError(f"there are {examples} examples but {batches.size(y)} targets")
        if self._views > 1 and batches.views(x) != {self._views}:
            raise ValueError(f"with views={self._views} every input must have the shape (examples, {self._views}, …)")
        self._follow()
        sums: dict[str, Tensor] = {}
        found = [self._empty()]
        if examples:
            strategy, physical_batch = self._ready(x, y)
            for start in range(0, examples, physical_batch):
                rows = slice(start, start + physical_batch)
                part = self._rows(batches.select(x, rows)), batches.select(y, rows)
                with nullcontext() if self._moving is None else keep_buffers(self._model):
                    found.append(self._add(strategy, sums, *part, l2_clip, physical_batch if self._fixed_shape else 0))
        if self._moving is not None:
            batches.run(self._model, self._moving)
        sums = {name: sums[name] if name in sums else _zeros(value) for name, value in self._parameters.items()}
        norms, losses = zip(*found, strict=True)
        return Clipped(sums, torch.cat(norms), torch.cat(losses))

    @torch.inference_mode(False)
    @torch.no_grad()
    def prepare(self, x: Any, y: Any) -> None:
        """Check that the model does not mix examples, and choose what is fastest for batches like this one.

        The first call does this by itself; `choices` that are already set are kept. The check takes a few examples, and
        batches of up to a full physical batch, or up to twice this one if that is less.
        """
        x, y = batches.plain(x), batches.plain(y)
        self._follow()
        rows, setup = self._rows(x), self._setup()
        buffers_move = mixing.refuse_mixing(setup, rows, y)
        with without_side_effects(self._model):
            fallback.check_parameters(setup, rows, y)
            if self.choices is None:
                strategy, self.choices = tuning.fastest(setup, rows, y, self._physical_batch)
            else:
                strategy, self.choices = tuning.repeated(setup, rows, y, self.choices)
        self._probe(strategy, rows, y, min(self.choices.physical_batch, max(_PROBED, 2 * batches.size(y))))
        self._moving = self._blank(rows) if buffers_move else None
        self._checked = batches.take(rows, y, torch.zeros(1, dtype=torch.int64, device=self._device()), self._views)
        self._strategy, self._layers = strategy, self._modes()

    @torch.inference_mode(False)
    @torch.no_grad()
    def refuse_mixing(self, x: Any, y: Any) -> None:
        """Raise if the model mixes a few of these examples."""
        mixing.refuse_mixing(self._setup(), self._rows(batches.plain(x)), batches.plain(y))

    def seal(self) -> None:
        """Check no further batches, so that no error or warning can depend on them.

        An example on which the model or its loss raises adds nothing: an error may quote it. If they raise on one that
        was checked, too, they are broken, and that is shown. Physical batches are at most as large as those that were
        checked for mixing; a model that has changed since is refused (`refuse_changes`) until it is prepared again.
        """
        self._sealed = True

    def refuse_changes(self) -> None:
        """Raise if the model has other layers, or layers in another mode, than when it was prepared."""
        if self._strategy is None or self._layers != self._modes():
            raise ValueError(
                "the model's layers, or their training or evaluation mode, have changed since they were checked: put "
                "them back with model.train() or model.eval(), or start again in the mode in which the model trains"
            )

    def _setup(self) -> Setup:
        return Setup(self._model, self._loss, self._parameters, self._views)

    def _follow(self) -> None:
        """Follow parameters that were replaced; refuse a change of which are trained, and gradient hooks."""
        now = batches.trained(self._model)
        if now.keys() != self._parameters.keys():
            names = ", ".join(sorted(now.keys() ^ self._parameters.keys())[:3])
            raise ValueError(
                f"the model's trainable parameters have changed since ClippedGradients was made ({names}): freeze or "
                "unfreeze first, then make a new one"
            )
        for name, value in now.items():
            if value._backward_hooks or value._post_accumulate_grad_hooks:
                raise ValueError(
                    f"parameter {name} has a gradient hook, which per-example gradients do not pass through: remove it"
                )
            if value is not self._parameters[name]:
                self._strategy = None
        self._parameters = now

    def _blank(self, rows: Any) -> Any:
        """An example of zeros that advances the model's buffers once a call, whatever data is in it."""
        blank = batches.map_tensors(lambda leaf: torch.zeros_like(leaf[: self._views]), rows)
        try:
            with without_side_effects(self._model):
                batches.run(self._model, blank)
        except (RuntimeError, ValueError, IndexError) as reason:
            raise ValueError(
                "the model has buffers that change in each pass, but does not run on an example of zeros, which keeps "
                f"them independent of the data: {reason}"
            ) from reason
        return blank

    def _probe(self, strategy: Strategy, rows: Any, y: Any, examples: int) -> None:
        try:
            channels_last = self.choices is not None and self.choices.channels_last
            mixing.refuse_mixing_in_bulk(self._setup(), rows, y, examples, channels_last)
        except mixing.ExamplesMixError:
            raise
        except (RuntimeError, ValueError, IndexError):
            if not isinstance(strategy, WholeGradients):  # which needs no batch to run
                raise
        self._probed = examples

    def _modes(self) -> list[tuple[nn.Module, bool]]:
        return [(layer, layer.training) for layer in self._model.modules()]

    def _ready(self, x: Any, y: Any) -> tuple[Strategy, int]:
        if self._sealed:
            self.refuse_changes()
        elif self._strategy is None or self._layers != self._modes():  # other layers or modes may mix
            self._strategy = None
            try:
                self.prepare(x, y)
            except mixing.NoFiniteLossError:  # a batch of broken examples: one by one, until a better batch comes
                return _no_strategy, batches.size(x)
        assert self._strategy is not None
        assert self.choices is not None
        if self._sealed:
            return self._strategy, min(self.choices.physical_batch, self._probed)
        together = min(self.choices.physical_batch, batches.size(x))
        if together > self._probed:
            self._probe(self._strategy, self._rows(x), y, together)
        return self._strategy, self.choices.physical_batch

    def _empty(self) -> tuple[Tensor, Tensor]:
        like = next(iter(self._parameters.values()))
        return like.new_zeros(0, dtype=self._norm_type()), like.new_zeros(0)

    def _norm_type(self) -> torch.dtype:
        double = any(value.dtype == torch.float64 for value in self._parameters.values())
        return torch.float64 if double else torch.float32

    def _rows(self, x: Any) -> Any:
        return batches.flatten_views(x) if self._views > 1 else x

    def _add(
        self, strategy: Strategy, sums: dict[str, Tensor], x: Any, y: Any, l2_clip: float, least: int
    ) -> tuple[Tensor, Tensor]:
        """Add the clipped gradients of a physical batch to the sums; returns its norms and losses.

        The batch is filled up to `least` examples with copies of its first one, which have factor 0.

        Guarantee: an example that is formed alone, because its numbers are not sound or the fast pass raises on it,
        does not change what the others add. In the pass that counts, a sound example stands in its place with factor 0,
        so that the batch keeps its shape: a batch of another shape rounds differently, and large scores turn rounding
        into any other gradient.
        """
        own = batches.size(y)
        places = torch.arange(max(own, least))
        counted = places < own
        if least > own:
            x, y = batches.take(x, y, torch.where(counted, places, 0).to(self._device()), self._views)
        examples, batch = places, (x, y)
        while True:
            try:
                losses, parts = strategy(*batch)
            except Exception:  # a case that the first batch did not contain
                unsound = self._raising(strategy, x, y, counted.nonzero().flatten())
            else:
                with without_autocast(losses.device.type), full_precision():
                    norms = self._norms(parts, losses)
                factors = self.clipping.factors(norms, l2_clip)
                sound = self._sound(norms, factors).cpu()
                if bool(sound.all()):
                    break
                unsound = examples[~sound]
            counted[unsound] = False
            if not len(unsound) or not bool(counted.any()):
                return self._add_one_by_one(sums, *batches.between(x, y, 0, own, self._views), l2_clip)
            examples = torch.where(counted, places, counted.nonzero()[0])
            batch = batches.take(x, y, examples.to(self._device()), self._views)
        factors[(~counted).to(factors.device)] = 0
        alone = (~counted[:own]).nonzero().flatten().to(losses.device)
        columns = factors.unbind(1)  # in double precision: each gradient casts them to its own type
        with without_autocast(losses.device.type), full_precision():
            for name, part in parts.items():
                _accumulate(sums, name, part.weighted_sum(columns[self._group[name]]))
            if self._penalty:
                for name, parameter in self._parameters.items():
                    _accumulate(sums, name, parameter.detach() * (self._penalty * columns[self._group[name]].sum()))
        whole = norms[:, 0] if self._groups == 1 else torch.linalg.vector_norm(norms, dim=1)
        whole, losses = whole[:own].to(self._norm_type()), losses[:own]
        if len(alone):
            found = self._add_one_by_one(sums, *batches.take(x, y, alone, self._views), l2_clip)
            whole[alone], losses[alone] = found[0], found[1].to(losses.dtype)
        return whole, losses

    def _raising(self, strategy: Strategy, x: Any, y: Any, examples: Tensor) -> Tensor:
        """Those of the examples on which the fast pass raises, found by halving; none if both halves of some pass.

        The model does not mix, so a batch raises if, and only if, one of its examples does.
        """
        try:
            strategy(*batches.take(x, y, examples.to(self._device()), self._views))
        except Exception:
            if len(examples) == 1:
                return examples
            halves = examples.split((len(examples) + 1) // 2)
            return torch.cat([self._raising(strategy, x, y, half) for half in halves])
        return examples[:0]

    def _device(self) -> torch.device:
        return next(iter(self._parameters.values())).device

    def _norms(self, parts: dict[str, MeasuredGradient], losses: Tensor) -> Tensor:
        """Norms of the examples' gradients with the penalty, a column for each group of parameters."""
        columns: list[list[Tensor]] = [[] for _ in range(self._groups)]
        for name, part in parts.items():
            columns[self._group[name]].append(part.squares)
        none = losses.new_zeros(len(losses), dtype=torch.float64)
        squares = torch.stack([torch.stack(column).sum(0) if column else none for column in columns], 1)
        return (self._penalised(squares, parts) if self._penalty else squares).sqrt()

    def _penalised(self, squares: Tensor, parts: dict[str, MeasuredGradient]) -> Tensor:
        """‖g + λw‖² from ‖g‖²; NaN where the two cancel beyond the precision of ‖g‖."""
        crossed, added = torch.zeros_like(squares), torch.zeros_like(squares)
        for name, parameter in self._parameters.items():
            weight, column = parameter.detach(), self._group[name]
            added[:, column] += self._penalty**2 * weight.double().square().sum()
            if name in parts:
                crossed[:, column] += 2 * self._penalty * parts[name].inner(weight)
        total = squares + crossed + added
        return torch.where(total >= 0.1 * (squares + added), total, torch.nan)

    def _sound(self, norms: Tensor, factors: Tensor) -> Tensor:
        """Which examples' norms and sums are accurate enough."""
        return (torch.isfinite(norms + factors) & (factors > _LEAST_FACTOR)).all(1)

    def _add_one_by_one(self, sums: dict[str, Tensor], x: Any, y: Any, l2_clip: float) -> tuple[Tensor, Tensor]:
        """Each gradient formed alone and measured in double precision; one that is not finite adds nothing."""
        norms, losses = [], []
        for place in range(batches.size(y)):
            example = batches.between(x, y, place, place + 1, self._views)
            loss, gradients = self._formed(*example)
            parts: dict[str, MeasuredGradient] = {}
            for name, value in gradients.items():
                formed = value.double() + self._penalty * self._parameters[name].detach()
                parts[name] = WholeGradient(formed).measure("whole")
            squares = torch.zeros(1, self._groups, dtype=torch.float64, device=loss.device)
            for name, part in parts.items():
                squares[:, self._group[name]] += part.squares
            factors = self.clipping.factors(squares.sqrt(), l2_clip)
            finite = bool(torch.isfinite(squares).all())
            for name, part in parts.items() if finite else ():
                total = part.weighted_sum(factors[:, self._group[name]])
                _accumulate(sums, name, total.to(_sum_type(self._parameters[name])))
            norms.append(squares.sum(1).sqrt() if finite else torch.full_like(squares[:, 0], torch.inf))
            losses.append(loss)
        return torch.cat(norms).to(self._norm_type()), torch.cat(losses)

    def _formed(self, x: Any, y: Any) -> fallback.PerExample:
        """An example's loss and gradients; once sealed, no numbers where the model or its loss raises on it."""
        if not self._sealed:
            return fallback.by_loop(self._setup(), x, y)
        with suppress(Exception):
            return fallback.by_loop(self._setup(), x, y)
        fallback.by_loop(self._setup(), *self._checked)  # raises if the model is broken, whatever the example
        nothing = {name: torch.full_like(value, torch.nan)[None] for name, value in self._parameters.items()}
        return self._empty()[1].new_full((1,), torch.nan), nothing


def _no_strategy(x: Any, y: Any) -> tuple[Tensor, dict[str, MeasuredGradient]]:
    raise NoRuleError("the model has not been checked yet")


def _accumulate(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    if name in sums:
        sums[name] += value
    else:  # the first is taken as it is, which saves a pass over zeros
        sums[name] = value


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=_sum_type(parameter), requires_grad=False)


def _sum_type(value: Tensor) -> torch.dtype:
    """Sums are never kept in less than single precision."""
    return torch.promote_types(value.dtype, torch.float32)


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")
    return float(value)
