"""Fully connected networks on stored vectors, whose clipped gradients cost little more than plain ones.

They have a closed form (`dense_sums`). It is for small batches, where the hooks by which the general engine
(`ModuleTrainee`) finds its rules take most of a step.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.mechanisms import Streams
from sordino.training.building import built, load_into, require_memory, seed_of, tensors, words
from sordino.training.dense_sums import ACTIVATIONS, Examples, Layer, Slope, Sums, clipped_sums, size_of
from sordino.training.dpsgd import ClippedSum
from sordino.training.optimisers import Weights

_PIECE = 2048
"""Rows at a time: a batch of any size takes bounded memory."""
_ARITHMETIC = 2
"""Raised with every change of what rounds: a lost step may be repeated by the same arithmetic only."""
_MOST_WEIGHTS, _LARGEST_BATCH = 2**15, 512
"""Where one call for several networks saves more than it costs; beyond, the products themselves take the time."""


class DenseTrainee:
    """The network that `build()` makes and inputs (n, …) with a target each; in place of a `ModuleTrainee`.

    The network is an nn.Sequential that ends in dense layers with ReLU, Tanh, Sigmoid or nothing between them. What
    comes before the first layer that is trained (reshaping, frozen layers of any kind) looks at one example at a time
    and does not change in a run, so it is computed once for each example and kept in memory.

    `place` is its own number, and the number of places, among trainings that run side by side (`side_by_side`).
    """

    def __init__(
        self,
        build: Callable[[], nn.Sequential],
        slope: Slope,
        x: NDArray[Any],
        y: NDArray[Any],
        *,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"inputs and targets must have one row for each record, not {len(x)} and {len(y)}")
        if not 0 <= place[0] < place[1]:
            raise ValueError(f"a place is a number from 0 and below the number of places, not {place}")
        self._build, self.slope, self.place = build, slope, place
        self._x, self._y = _tensor(x), _tensor(y)
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
        self._kept: tuple[Tensor, Tensor] | None = None
        shape = tuple(self._before(self._x[:1]).shape[1:])
        if len(shape) != 1:
            raise ValueError(f"the first trained layer takes vectors, not {shape}: flatten before it")

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

    def data(self) -> tuple[NDArray[Any], ...]:
        return self._x.numpy(), self._y.numpy()

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """The closed form is the only way; what its rounding may hang on is told.

        Beside others there are always as many places, empty or not, and every piece has the same number of rows: so a
        step is repeated bit for bit whatever the others do meanwhile, and whether they are still there.
        """
        require_memory(self.model, "the model")
        if self.place[1] > 1:
            usual = expected_batch_size + 3 * math.isqrt(expected_batch_size)
            self.rows = math.ceil(usual / math.ceil(usual / _PIECE))
        return {"closed form": _ARITHMETIC, "place": list(self.place), "rows": self.rows}

    @property
    def company(self) -> tuple[Any, ...]:
        """What those have in common whose sums can be made together."""
        targets = self._y.dtype, self._y.shape[1:]
        return self.place[1], self.rows, self._words, tuple(self._names), self._x.shape[1:], self.slope, targets

    def clipped_sum(
        self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator | None = None
    ) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖), g over all trained layers; zeros for an empty batch.

        Guarantee: that of `dense_sums.clipped_sums`.
        """
        return sums_together([Asked(self, indices, l2_clip)])[0]

    def layers(self, beside: Sequence["DenseTrainee | None"]) -> list[Layer]:
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

    def examples(self, rows: NDArray[np.int64]) -> Examples:
        """These, as those of the only place."""
        wanted, (vectors, sizes) = torch.from_numpy(rows), self._prepared()
        inputs, targets = vectors.index_select(0, wanted), self._y.index_select(0, wanted)
        return Examples(inputs[None], sizes.index_select(0, wanted)[None], targets[None], None)

    def room(self, counts: Sequence[int]) -> Examples:
        """For a piece of each place, of which so many examples will be there."""
        vectors, sizes = self._prepared()
        shape = len(counts), self.rows
        return Examples(
            vectors.new_zeros(*shape, vectors.shape[1]),
            sizes.new_zeros(shape),
            self._y.new_zeros(*shape, *self._y.shape[1:]),
            torch.arange(self.rows) < torch.tensor(counts)[:, None],
        )

    def fill(self, room: Examples, rows: NDArray[np.int64]) -> None:
        """With these examples, in this trainee's place."""
        wanted, (vectors, sizes) = torch.from_numpy(rows), self._prepared()
        for source, all_of in ((vectors, room.inputs), (sizes, room.sizes), (self._y, room.targets)):
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

    def _prepared(self) -> tuple[Tensor, Tensor]:
        """What the first trained layer sees of every example, and its size; kept until other weights are loaded."""
        if self._kept is None:
            vectors = self._before(self._x)
            self._kept = vectors, size_of(vectors, biased=self._names[0][1] is not None)
        return self._kept


class Asked(NamedTuple):
    """A draw of a trainee's examples, and the clip for them."""

    trainee: DenseTrainee
    indices: NDArray[np.int64]
    l2_clip: float


@torch.no_grad()
def sums_together(asked: Sequence[Asked]) -> list[ClippedSum]:
    """For each of these, whose trainees are of one company, the sum of its examples' clipped gradients.

    Guarantee: that of `dense_sums.clipped_sums`.
    """
    first = asked[0].trainee
    places: list[Asked | None] = [None] * first.place[1]
    for each in asked:
        if each.trainee.company != first.company or places[each.trainee.place[0]] is not None:
            raise ValueError("trainings side by side must be of one network, each with a place of its own")
        places[each.trainee.place[0]] = each
    layers = first.layers([None if each is None else each.trainee for each in places])
    clips = torch.tensor([[1.0 if each is None else each.l2_clip] for each in places], dtype=torch.float64)
    longest = max(len(each.indices) for each in asked)
    parts: list[list[ClippedSum]] = [[] for _ in asked]
    for start in range(0, max(1, longest), first.rows):
        pieces = [each.indices[start : start + first.rows] for each in asked]
        if len(places) == 1:
            examples = first.examples(pieces[0])
        else:
            counts = [0] * len(places)
            for each, piece in zip(asked, pieces, strict=True):
                counts[each.trainee.place[0]] = len(piece)
            examples = first.room(counts)
            for each, piece in zip(asked, pieces, strict=True):
                each.trainee.fill(examples, piece)
        sums = clipped_sums(layers, first.slope, examples, clips)
        for each, piece, own in zip(asked, pieces, parts, strict=True):
            place = each.trainee.place[0]
            own.append(ClippedSum(first.named(sums, place), sums.norms[place, : len(piece)]))
    return [_total(own) for own in parts]


def _total(parts: Sequence[ClippedSum]) -> ClippedSum:
    first, *others = parts
    for other in others:
        for name, value in other.sums.items():
            first.sums[name].add_(value)
    return ClippedSum(first.sums, torch.cat([part.norms for part in parts]))


def is_dense(model: nn.Module) -> bool:
    """Whether a `DenseTrainee` can train it."""
    try:
        _divided(model)
    except ValueError:
        return False
    return True


def gains_by_company(model: nn.Module, expected_batch_size: int) -> bool:
    """Whether trainings of this dense network are faster side by side, as `benchmarks.side_by_side` has it."""
    weights = sum(value.numel() for value in model.parameters() if value.requires_grad)
    return weights <= _MOST_WEIGHTS and expected_batch_size <= _LARGEST_BATCH


def _tensor(rows: NDArray[Any]) -> Tensor:
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
            raise ValueError(f"{module} is not a trained dense layer or its ReLU, Tanh or Sigmoid: use a ModuleTrainee")
    if layers[-1][1] is not None:
        raise ValueError("the network must end in a dense layer: losses are of its scores")
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise ValueError("the network must be of float32: use a ModuleTrainee for other precisions")
    fixed = modules[: trained[0]]
    return (nn.Sequential(*fixed).eval() if fixed else None), layers


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"expected an nn.Sequential, not a {type(model).__name__}: use a ModuleTrainee")
    for child in model:
        if isinstance(child, nn.Sequential):
            yield from _in_order(child)
        else:
            yield child


def _names(model: nn.Module, linear: nn.Linear) -> tuple[str, str | None]:
    of = {id(value): name for name, value in model.named_parameters()}
    return of[id(linear.weight)], None if linear.bias is None else of[id(linear.bias)]
