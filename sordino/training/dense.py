"""Fully connected networks on stored vectors, whose clipped gradients cost little more than plain ones.

They have a closed form (`dense_sums`). It is for small batches, where the hooks by which the general engine
(`TrainableModule`) finds its rules take most of a step.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.data import Records, in_memory
from sordino.mechanisms import Streams
from sordino.training.dense_sums import ACTIVATIONS, Examples, Layer, Slope, Sums, clipped_sums, size_of
from sordino.training.dpsgd import ClippedSum, Steps, T, Wanted
from sordino.training.modules import built, load_into, require_memory, seed_of, tensors, words
from sordino.training.optimisers import Weights

_PIECE = 2048
"""Rows at a time: a batch of any size takes bounded memory."""
_ARITHMETIC = 2
"""Raised with every change of what rounds: a lost step may be repeated by the same arithmetic only."""
_MOST_WEIGHTS, _LARGEST_BATCH = 2**15, 512
"""Where one call for several networks saves more than it costs; beyond, the products themselves take the time."""


class DenseNetwork:
    """The network that `build()` makes, with clipped gradients in closed form; in place of a `TrainableModule`.

    The network is an nn.Sequential that ends in dense layers with ReLU, Tanh, Sigmoid or nothing between them. What
    comes before the first layer that is trained (reshaping, frozen layers of any kind) looks at one example at a time
    and does not change in a run, so it is computed once for each example and kept in memory.

    `place` is its own number, and the number of places, among trainings that run side by side (`side_by_side`).
    """

    def __init__(
        self,
        build: Callable[[], nn.Sequential],
        slope: Slope,
        *,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        if not 0 <= place[0] < place[1]:
            raise ValueError(f"a place is a number from 0 and below the number of places, not {place}")
        self._build, self.slope, self.place = build, slope, place
        self.model = built(build, 0)
        self._words = words(self.model)
        self._fixed, layers = _divided(self.model)
        # Without their requires_grad, which every operation would look at; they share the model's memory.
        self.parameters: Weights = {
            name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad
        }
        self._names = [_names(self.model, linear) for linear, _ in layers]
        self._activations = [None if activation is None else type(activation) for _, activation in layers]
        self.rows = _PIECE
        self._kept: _Seen | None = None

    def weights(self) -> Weights:
        return tensors(self.model)

    def load(self, weights: Weights) -> None:
        load_into(self.weights(), weights)
        self._kept = None

    def initialise(self, streams: Streams) -> None:
        self.load(tensors(built(self._build, seed_of(streams))))

    def facts(self) -> dict[str, Any]:
        return {
            "dense": self._words,
            "weights": {name: list(value.shape) for name, value in self.weights().items()},
            "trained": sorted(self.parameters),
            "slope": words(self.slope),
        }

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """The closed form is the only way; this is what its rounding may depend on.

        Beside others there are always as many places, empty or not, and every piece has the same number of rows: so a
        step is repeated bit for bit whatever the others do meanwhile, and whether they are still there.
        """
        require_memory(self.model, "the model")
        self._check_shape(records)
        if self.place[1] > 1:
            usual = expected_batch_size + 3 * math.isqrt(expected_batch_size)
            self.rows = math.ceil(usual / math.ceil(usual / _PIECE))
        return {"closed form": _ARITHMETIC, "place": list(self.place), "rows": self.rows}

    def _check_shape(self, records: Records) -> None:
        shape = tuple(self._before(_tensor(in_memory(records)[0][:1])).shape[1:])
        if len(shape) != 1:
            raise ValueError(f"the first trained layer takes vectors, not {shape}: flatten before it")

    def company(self, records: Records) -> tuple[Any, ...]:
        """What trainings must have in common for their sums to be computed together."""
        seen = self._prepared(records)
        shapes = seen.vectors.shape[1:], seen.targets.dtype, seen.targets.shape[1:]
        return self.place[1], self.rows, self._words, tuple(self._names), self.slope, shapes

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: Generator | None = None
    ) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖), g over all trained layers; zeros for an empty batch.

        Guarantee: that of `dense_sums.clipped_sums`.
        """
        return sums_together([Asked(self, records, indices, l2_clip)])[0]

    def layers(self, beside: Sequence["DenseNetwork | None"]) -> list[Layer]:
        """Those of all places in one, an empty place's being zeros."""

        def stacked(name: str) -> Tensor:
            own = self.parameters[name]
            if len(beside) == 1:
                return own[None]
            return torch.stack([torch.zeros_like(own) if each is None else each.parameters[name] for each in beside])

        return [
            Layer(stacked(weight), None if bias is None else stacked(bias), activation)
            for (weight, bias), activation in zip(self._names, self._activations, strict=True)
        ]

    def named(self, sums: Sums, place: int) -> Weights:
        """The sums of one place by the names of this network's parameters."""
        found = {}
        for (weight, bias), of_weight, of_bias in zip(self._names, sums.weights, sums.biases, strict=True):
            found[weight] = of_weight[place]
            if bias is not None and of_bias is not None:
                found[bias] = of_bias[place]
        return found

    def examples(self, records: Records, rows: NDArray[np.int64]) -> Examples:
        """These, as those of the only place."""
        wanted, seen = torch.from_numpy(rows), self._prepared(records)
        inputs, targets = seen.vectors.index_select(0, wanted), seen.targets.index_select(0, wanted)
        return Examples(inputs[None], seen.sizes.index_select(0, wanted)[None], targets[None], None)

    def room(self, records: Records, counts: Sequence[int]) -> Examples:
        """For a piece of each place, of which so many examples will be there."""
        seen = self._prepared(records)
        shape = len(counts), self.rows
        return Examples(
            seen.vectors.new_zeros(*shape, seen.vectors.shape[1]),
            seen.sizes.new_zeros(shape),
            seen.targets.new_zeros(*shape, *seen.targets.shape[1:]),
            torch.arange(self.rows) < torch.tensor(counts)[:, None],
        )

    def fill(self, records: Records, room: Examples, rows: NDArray[np.int64]) -> None:
        """Fill this network's place with these examples."""
        wanted, seen = torch.from_numpy(rows), self._prepared(records)
        for source, all_of in ((seen.vectors, room.inputs), (seen.sizes, room.sizes), (seen.targets, room.targets)):
            torch.index_select(source, 0, wanted, out=all_of[self.place[0], : len(rows)])

    @torch.no_grad()
    def _before(self, rows: Tensor) -> Tensor:
        """What the first trained layer sees of these rows."""
        if self._fixed is None:
            return rows
        if all(isinstance(layer, nn.Flatten) for layer in self._fixed):
            flat: Tensor = self._fixed(rows)  # takes no memory: trainings on the same rows share them
            return flat
        return torch.cat([self._fixed(block) for block in rows.split(_PIECE)])

    def _prepared(self, records: Records) -> "_Seen":
        """What the first trained layer sees of every record, and its size; kept until other weights are loaded."""
        if self._kept is None or self._kept.records is not records:
            x, y = in_memory(records)
            vectors = self._before(_tensor(x))
            sizes = size_of(vectors, biased=self._names[0][1] is not None)
            self._kept = _Seen(records, vectors, sizes, _tensor(y))
        return self._kept


class _Seen(NamedTuple):
    records: Records
    vectors: Tensor
    sizes: Tensor
    targets: Tensor


class Asked(NamedTuple):
    """A draw of records for a network, and the clip for them."""

    model: DenseNetwork
    records: Records
    indices: NDArray[np.int64]
    l2_clip: float


@torch.no_grad()
def sums_together(asked: Sequence[Asked]) -> list[ClippedSum]:
    """For each of these, whose networks have all in common that they must, the sum of its clipped gradients.

    Guarantee: that of `dense_sums.clipped_sums`.
    """
    first, records = asked[0].model, asked[0].records
    places: list[Asked | None] = [None] * first.place[1]
    for each in asked:
        alike = len(asked) == 1 or each.model.company(each.records) == first.company(records)
        if not alike or places[each.model.place[0]] is not None:
            raise ValueError("trainings side by side must be of one network, each with a place of its own")
        places[each.model.place[0]] = each
    layers = first.layers([None if each is None else each.model for each in places])
    clips = torch.tensor([[1.0 if each is None else each.l2_clip] for each in places], dtype=torch.float64)
    longest = max(len(each.indices) for each in asked)
    parts: list[list[ClippedSum]] = [[] for _ in asked]
    for start in range(0, max(1, longest), first.rows):
        pieces = [each.indices[start : start + first.rows] for each in asked]
        if len(places) == 1:
            examples = first.examples(records, pieces[0])
        else:
            counts = [0] * len(places)
            for each, piece in zip(asked, pieces, strict=True):
                counts[each.model.place[0]] = len(piece)
            examples = first.room(records, counts)
            for each, piece in zip(asked, pieces, strict=True):
                each.model.fill(each.records, examples, piece)
        sums = clipped_sums(layers, first.slope, examples, clips)
        for each, piece, own in zip(asked, pieces, parts, strict=True):
            place = each.model.place[0]
            own.append(ClippedSum(first.named(sums, place), sums.norms[place, : len(piece)]))
    return [_total(own) for own in parts]


def _total(parts: Sequence[ClippedSum]) -> ClippedSum:
    first, *others = parts
    for other in others:
        for name, value in other.sums.items():
            first.sums[name].add_(value)
    return ClippedSum(first.sums, torch.cat([part.norms for part in parts]))


def is_dense(model: nn.Module) -> bool:
    """Whether a `DenseNetwork` can train it."""
    try:
        _divided(model)
    except ValueError:
        return False
    return True


def gains_by_company(model: nn.Module, expected_batch_size: int) -> bool:
    """Whether trainings of this dense network are faster side by side, as `benchmarks.side_by_side` has it."""
    weights = sum(value.numel() for value in model.parameters() if value.requires_grad)
    return weights <= _MOST_WEIGHTS and expected_batch_size <= _LARGEST_BATCH


def _tensor(rows: Any) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    return tensor.float() if tensor.is_floating_point() else tensor.long()


_Layers = list[tuple[nn.Linear, nn.Module | None]]


def _divided(model: nn.Module) -> tuple[nn.Sequential | None, _Layers]:
    """What is fixed, and the dense layers after it, each with its activation."""
    modules = list(_in_order(model))
    trained = [place for place, module in enumerate(modules) if any(p.requires_grad for p in module.parameters())]
    if not trained:
        raise ValueError("the network has nothing to train")
    layers: _Layers = []
    for module in modules[trained[0] :]:
        if isinstance(module, nn.Linear) and all(p.requires_grad for p in module.parameters()):
            layers.append((module, None))
        elif type(module) in ACTIVATIONS and layers[-1][1] is None:
            layers[-1] = (layers[-1][0], module)
        else:
            raise ValueError(
                f"{module} is not a trained dense layer or its ReLU, Tanh or Sigmoid: use a TrainableModule"
            )
    if layers[-1][1] is not None:
        raise ValueError("the network must end in a dense layer: losses are of its scores")
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise ValueError("the network must be of float32: use a TrainableModule for other precisions")
    fixed = modules[: trained[0]]
    return (nn.Sequential(*fixed).eval() if fixed else None), layers


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"expected an nn.Sequential, not a {type(model).__name__}: use a TrainableModule")
    for child in model:
        if isinstance(child, nn.Sequential):
            yield from _in_order(child)
        else:
            yield child


def _names(model: nn.Module, linear: nn.Linear) -> tuple[str, str | None]:
    of = {id(value): name for name, value in model.named_parameters()}
    return of[id(linear.weight)], None if linear.bias is None else of[id(linear.bias)]


def side_by_side(trainings: Sequence[Steps[T]]) -> list[T]:
    """What each of them comes to, as if it had run alone, but for rounding.

    Each keeps its own run, key, ledger and checkpoints; they share calls, and nothing else. An error in one ends all,
    where a kill would have left them: they can be resumed from their folders.

    Guarantee: each training's own. A sum is of its own draw, and is noised by its own key.
    """
    ends: dict[int, T] = {}
    waiting: dict[int, Wanted] = {}
    with ExitStack() as stack:
        for number, training in enumerate(trainings):
            stack.enter_context(closing(training))
            try:
                waiting[number] = next(training)
            except StopIteration as end:
                ends[number] = end.value
        while waiting:
            for number, clipped in list(_found(waiting)):
                try:
                    waiting[number] = trainings[number].send(clipped)
                except StopIteration as end:
                    ends[number] = end.value
                    del waiting[number]
    return [ends[number] for number in range(len(trainings))]


def _found(waiting: Mapping[int, Wanted]) -> Iterator[tuple[int, ClippedSum]]:
    """The sums that they wait for."""
    alike: dict[Any, dict[int, Asked]] = defaultdict(dict)
    for number, (model, records, indices, l2_clip, _, _) in waiting.items():
        if isinstance(model, DenseNetwork) and model.place[1] > 1:
            alike[model.company(records)][number] = Asked(model, records, indices, l2_clip)
        else:
            yield number, waiting[number].found()
    for members in alike.values():
        yield from zip(members, sums_together(list(members.values())), strict=True)
