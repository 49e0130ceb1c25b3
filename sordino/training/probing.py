"""A model is tried before anything is charged, on made-up rows: a refusal or a warning then says nothing of records.

Shapes, dtypes and structure are those of the first record, and are taken as public.
"""

import copy
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import ClippedGradients, ExamplesMixError, Loss, batches, without_side_effects
from sordino.training.augmentation import Views

_MOST_ROWS = 4096
_TRIED = 4
_BYTE, _WIDEST = 2**8, 2**16
_MOST_NUMBERS = 2**25
"""Beyond it, a trial does not ask for the memory of a model that makes room for each value up to its largest."""
_NOTE = (
    "the model does not run on made-up rows, so it was checked on the first private ones: whether it is refused or "
    "warned of depends on these"
)

RowsAt = Callable[[NDArray[np.int64]], tuple[Any, Any]]
"""The private rows at these places, as a batch (x, y)."""
Ranges = list[range]
"""Of each tensor's whole numbers; empty for a tensor of other numbers."""


def prepare(clipped: ClippedGradients, model: nn.Module, loss: Loss, rows: RowsAt, count: int, views: Views) -> None:
    """`ClippedGradients.prepare` on made-up rows like the records, at most `count` of them and no more than 4096 views.

    Numbers are uniform in [0, 1). Whole numbers (token ids, lengths, labels) are uniform from 0, or else from 1, up to
    what the model and its loss take: the size of an embedding, say; a byte where they take anything. Some models mix
    only below a certain size (one that cuts a batch to its longest sequence), so a few rows are tried for mixing below
    each size of a record, and some others, and with one row of large numbers among rows of small ones.

    Where the model, its loss or the augmentation does not take such rows, the first private ones are used instead, with
    a warning: what is refused or warned of then, and nothing else, depends on them. No later batch is looked at
    (`ClippedGradients.seal`).
    """
    count = min(count, max(1, _MOST_ROWS // views.count))
    trial = _Trial(clipped, model, loss, views, *rows(np.arange(1)))
    if not trial.prepare(count):
        try:
            trial.prepare_on(*rows(np.arange(count)))
        except Exception as problem:
            problem.add_note(_NOTE)
            raise
        warnings.warn(_NOTE, stacklevel=4)
    clipped.seal()


@dataclass(frozen=True)
class _Trial:
    """A model, and rows like one record (x, y)."""

    clipped: ClippedGradients
    model: nn.Module
    loss: Loss
    views: Views
    x: Any
    y: Any

    def prepare(self, count: int) -> bool:
        """Prepare the model on so many made-up rows; False if it does not take them."""
        if not all(isinstance(leaf, Tensor) and leaf.layout == torch.strided for leaf in self._leaves):
            return False
        narrow = next((ranges for ranges in map(self._narrow, (0, 1)) if self._takes(self.model, ranges)), None)
        if narrow is None:
            return False
        wide, widest = self._widened(narrow)
        for ranges in self._ranges_tried(narrow, wide, widest):
            x, y = self._rows(ranges, _TRIED)
            self._refuse_mixing(x, y)
            self._refuse_mixing(*_first_and_others((x, y), self._rows(narrow, _TRIED)))
        if wide != narrow and self._takes(self.model, wide):  # each tensor's range is taken, but all of them at once?
            try:
                self.prepare_on(*self._rows(wide, count))
                return True
            except ExamplesMixError:
                raise
            except Exception:  # one of these rows is not taken after all
                pass
        self.prepare_on(*self._rows(narrow, count))
        return True

    def prepare_on(self, x: Any, y: Any) -> None:
        seen = self.views.of(x, np.random.default_rng(0))
        self.views.refuse_mixing(x)
        self.clipped.prepare(seen, y)

    @property
    def _leaves(self) -> list[Any]:
        return pytree.tree_leaves((self.x, self.y))

    def _narrow(self, least: int) -> Ranges:
        """0 and 1; inputs, but not targets, may have to be at least 1, as lengths do."""
        inputs = len(pytree.tree_leaves(self.x))
        return [
            range(least if place < inputs else 0, 2) if _is_whole(leaf) else range(0)
            for place, leaf in enumerate(self._leaves)
        ]

    def _widened(self, narrow: Ranges) -> tuple[Ranges, Ranges]:
        """The ranges up to what ends them, a byte where nothing does; and the widest, each with the others narrow."""
        wide, widest = list(narrow), list(narrow)
        model = _on_processor(self.model)
        if model is None or not self._takes(model, narrow):
            return wide, widest
        for place, leaf in enumerate(self._leaves):
            if not narrow[place]:
                continue

            def widened(size: int, place: int = place) -> Ranges:
                return [*narrow[:place], range(narrow[place].start, size), *narrow[place + 1 :]]

            sizes = self._sizes(leaf)
            found = bisect_left(sizes, True, lo=1, key=lambda size: not self._takes(model, widened(size)))
            widest[place] = range(narrow[place].start, sizes[found - 1])
            unbounded = found == len(sizes)
            wide[place] = range(narrow[place].start, min(_BYTE, sizes[-1])) if unbounded else widest[place]
        return wide, widest

    def _sizes(self, leaf: Tensor) -> list[int]:
        """Below which whole numbers are tried, in order: public sizes, one more than each, and powers of two."""
        weights = {value.shape[0] for value in self.model.parameters() if value.ndim > 1}
        public = {2, _BYTE, *self._lengths(), *weights, *(size + 1 for size in weights)}
        most = min(_WIDEST, _MOST_NUMBERS // (_TRIED * max(1, leaf.numel())))
        powers = {2**power for power in range(2, most.bit_length())}
        limit = 2 if leaf.dtype == torch.bool else torch.iinfo(leaf.dtype).max + 1
        return sorted({min(size, limit) for size in public | powers if size > 1})

    def _lengths(self) -> set[int]:
        """One more than each size of a record's inputs: a length may be as large as the size."""
        return {size + 1 for leaf in pytree.tree_leaves(self.x) for size in leaf.shape[1:]}

    def _ranges_tried(self, narrow: Ranges, wide: Ranges, widest: Ranges) -> Iterator[Ranges]:
        """Ranges of all inputs below each size; none where no input has whole numbers."""
        if not any(narrow[: len(pytree.tree_leaves(self.x))]):
            return
        ends = {each.stop for ranges in (narrow, wide, widest) for each in ranges if each}
        tried: list[Ranges] = []
        for size in sorted({2, _BYTE, *self._lengths(), *ends} - {1}):
            ranges = [range(each.start, min(each.stop, size)) for each in widest]
            if ranges not in tried:
                tried.append(ranges)
                yield ranges

    def _rows(self, ranges: Ranges, count: int) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(0)
        leaves, structure = pytree.tree_flatten((self.x, self.y))
        made = [_filled(leaf, each, count, generator) for leaf, each in zip(leaves, ranges, strict=True)]
        x, y = pytree.tree_unflatten(made, structure)
        return x, y

    def _takes(self, model: nn.Module, ranges: Ranges) -> bool:
        """Whether a few rows of these ranges have finite losses."""
        device = next(iter(model.parameters())).device
        x, y = pytree.tree_map(lambda leaf: leaf.to(device), self._rows(ranges, _TRIED))
        try:
            with without_side_effects(model), torch.no_grad():
                seen = self.views.of(x, np.random.default_rng(0))
                seen = batches.flatten_views(seen) if self.views.count > 1 else seen
                losses = batches.losses_of(model, self.loss, seen, y, batches.size(y), self.views.count)
                return bool(torch.isfinite(losses).all())
        except Exception:  # whatever it is, it does not take them
            return False

    def _refuse_mixing(self, x: Any, y: Any) -> None:
        try:
            self.clipped.refuse_mixing(self.views.of(x, np.random.default_rng(0)), y)
        except ExamplesMixError:
            raise
        except Exception:  # rows that are not taken show nothing
            pass


def _is_whole(leaf: Tensor) -> bool:
    return not leaf.dtype.is_floating_point and not leaf.dtype.is_complex


def _filled(leaf: Tensor, numbers: range, count: int, generator: torch.Generator) -> Tensor:
    """So many rows like the first of the tensor: the ends of a range are among them, so that what is taken is known."""
    shape = (count, *leaf.shape[1:])
    if not numbers:
        return torch.rand(shape, generator=generator).to(leaf.device, leaf.dtype)
    made = torch.randint(numbers.start, numbers.stop, shape, generator=generator)
    made[0] = numbers[-1]
    if made.ndim == 1:
        made[1:2] = numbers[0]
    return made.to(leaf.device, leaf.dtype)


def _first_and_others(first: Any, others: Any) -> Any:
    """The first row of one batch before all but the first of another."""
    return pytree.tree_map(lambda one, other: torch.cat([one[:1], other[1:]]), first, others)


def _on_processor(model: nn.Module) -> nn.Module | None:
    """The model, or a copy: elsewhere an index beyond a table ends the process, or shows nothing."""
    if all(value.device.type == "cpu" for value in [*model.parameters(), *model.buffers()]):
        return model
    try:
        return copy.deepcopy(model).cpu()
    except Exception:
        return None
