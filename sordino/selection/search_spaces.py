"""What a search varies: candidates (a network with its learning rate and clip) and the spaces they are drawn from.

The dense and convolutional spaces are PAW's Tables XI and XII, with the frozen layers of its random search.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from sordino.training import require_memory

_T = TypeVar("_T")
_MOST_PARAMETERS = 100_000_000


C = TypeVar("C", bound="Dense | Convolutional")
"""All that a search may vary of a training; equal values are the same candidate.

Sampler, noise multiplier and steps are not part of it: every candidate's training costs the same. A clip of None is the
plan's; noise is in units of the clip, so another one costs the same.
"""


class Space(Protocol, Generic[C]):
    """Where candidates come from: public choices and a generator, so nothing here costs privacy."""

    def draw(self, generator: np.random.Generator) -> C:
        """Uniformly at random."""

    def crossover(self, one: C, other: C, generator: np.random.Generator) -> C:
        """Each choice from one of the parents, at random."""

    def mutate(self, candidate: C, generator: np.random.Generator) -> C:
        """One choice, picked at random, drawn again."""

    def widest(self) -> Iterable[C]:
        """The widest candidate of each kind and depth: if these can be built, all can."""

    def to_json(self) -> dict[str, Any]: ...


def check_buildable(space: Space[C], shape: tuple[int, ...], classes: int) -> None:
    """Refuse a space with candidates that cannot be built for such examples, before a trial is paid for."""
    for candidate in space.widest():
        with torch.device("meta"):  # shapes only: no weights are drawn or allocated
            network = candidate.build(shape, classes)
        size = sum(weights.numel() for weights in network.parameters())
        if size > _MOST_PARAMETERS:
            raise ValueError(
                f"{candidate} would have {size:,} parameters; the limit is {_MOST_PARAMETERS:,}: choose narrower layers"
            )
        require_memory(network, str(candidate))


class Activation(StrEnum):
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    Activation.RELU: nn.ReLU,
    Activation.SIGMOID: nn.Sigmoid,
    Activation.TANH: nn.Tanh,
}


@dataclass(frozen=True)
class DenseLayer:
    units: int
    activation: Activation = Activation.RELU
    trainable: bool = True
    """A frozen layer keeps its random initial weights."""

    def __str__(self) -> str:
        return f"{self.units} {self.activation}{'' if self.trainable else ' frozen'}"


@dataclass(frozen=True)
class Dense:
    """Hidden layers, dropout after each, and a linear layer to the classes; without hidden layers, a linear model."""

    layers: tuple[DenseLayer, ...]
    learning_rate: float
    dropout: float = 0.2
    l2_clip: float | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        parts: list[nn.Module] = [nn.Flatten()]
        width = prod(shape)
        for layer in self.layers:
            parts += [nn.Linear(width, layer.units).requires_grad_(layer.trainable), _ACTIVATIONS[layer.activation]()]
            # Dropout acts on each example alone, so the clip still bounds its gradient.
            parts += [nn.Dropout(self.dropout)] if self.dropout else []
            width = layer.units
        return nn.Sequential(*parts, nn.Linear(width, classes))

    def to_json(self) -> dict[str, Any]:
        return {"network": "dense", **asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Dense":
        facts = {name: value for name, value in document.items() if name not in ("network", "layers")}
        layers = [DenseLayer(**layer | {"activation": Activation(layer["activation"])}) for layer in document["layers"]]
        return cls(tuple(layers), **facts)

    def __str__(self) -> str:
        clip = "" if self.l2_clip is None else f", clip {self.l2_clip:g}"
        return f"{' → '.join(map(str, self.layers)) or 'linear'}, learning rate {self.learning_rate:g}{clip}"


@dataclass(frozen=True)
class DenseSpace:
    """One to three layers, their widths and activations; with `freezing`, each layer may also be frozen (RS in PAW).

    The default learning rates are those that PAW found for DP-SGD on such networks.
    """

    widths: tuple[tuple[int, ...], ...] = ((64, 128, 512, 1024, 2048), (64, 128, 256), (10, 16, 32, 64))
    activations: tuple[Activation, ...] = tuple(Activation)
    learning_rates: tuple[float, ...] = (0.1, 0.2)
    freezing: bool = False
    dropout: float = 0.2

    def __post_init__(self) -> None:
        choices = (self.widths, *self.widths, self.activations, self.learning_rates)
        if not all(choices) or min(min(widths) for widths in self.widths) < 1:
            raise ValueError("a space needs at least one layer, and at least one value for each choice")

    def draw(self, generator: np.random.Generator) -> Dense:
        depth = 1 + int(generator.integers(len(self.widths)))
        layers = tuple(self._layer(place, generator) for place in range(depth))
        return Dense(layers, one_of(self.learning_rates, generator), self.dropout)

    def crossover(self, one: Dense, other: Dense, generator: np.random.Generator) -> Dense:
        parents = (one, other)
        depth = len(one_of(parents, generator).layers)
        layers = []
        for place in range(depth):
            donors = [parent.layers[place] for parent in parents if len(parent.layers) > place]
            units, activation, trainable = (one_of(donors, generator) for _ in range(3))
            layers.append(DenseLayer(units.units, activation.activation, trainable.trainable))
        return Dense(tuple(layers), one_of(parents, generator).learning_rate, self.dropout)

    def mutate(self, candidate: Dense, generator: np.random.Generator) -> Dense:
        depth, choices_a_layer = len(candidate.layers), 3 if self.freezing else 2
        choice = int(generator.integers(2 + depth * choices_a_layer))
        if choice == 0:
            wanted = another(range(1, len(self.widths) + 1), depth, generator)
            more = tuple(self._layer(place, generator) for place in range(depth, wanted))
            return replace(candidate, layers=candidate.layers[:wanted] + more)
        if choice == 1:
            return replace(candidate, learning_rate=another(self.learning_rates, candidate.learning_rate, generator))
        place, gene = divmod(choice - 2, choices_a_layer)
        layer = candidate.layers[place]
        if gene == 0:
            changed = replace(layer, units=another(self.widths[place], layer.units, generator))
        elif gene == 1:
            changed = replace(layer, activation=another(self.activations, layer.activation, generator))
        else:
            changed = replace(layer, trainable=not layer.trainable)
        return replace(candidate, layers=(*candidate.layers[:place], changed, *candidate.layers[place + 1 :]))

    def widest(self) -> Iterator[Dense]:
        layers = tuple(DenseLayer(max(widths)) for widths in self.widths)
        return (Dense(layers[:depth], self.learning_rates[0]) for depth in range(1, len(layers) + 1))

    def to_json(self) -> dict[str, Any]:
        return {"space": "dense", **vars(self)}

    def _layer(self, place: int, generator: np.random.Generator) -> DenseLayer:
        units, activation = one_of(self.widths[place], generator), one_of(self.activations, generator)
        return DenseLayer(units, activation, not self.freezing or bool(generator.integers(2)))


@dataclass(frozen=True)
class Convolutional:
    """Pooling, blocks of a convolution with pooling between them, a dense layer with dropout, and the classes.

    The first convolution is 5×5 without padding, later ones 3×3 with. PAW's text doubles the filters from block to
    block; its network of three blocks (Table XIX) has 16, 32 and 48. Here block i has i times the first one's.
    """

    blocks: int
    filters: int
    units: int
    trainable: tuple[bool, ...]
    """One for each convolution, then one for the dense layer; the layer to the classes is always trained."""
    learning_rate: float
    dropout: float = 0.3
    l2_clip: float | None = None

    def __post_init__(self) -> None:
        if self.blocks < 1 or len(self.trainable) != self.blocks + 1:
            raise ValueError("a network needs at least one block, and `trainable` one value a block and one more")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        if len(shape) != 3 or _last_side(min(shape[1:]), self.blocks) < 1:
            raise ValueError(
                f"examples of shape {shape} are not images large enough for {self.blocks} blocks: "
                "use a fully connected network, or fewer blocks"
            )
        parts: list[nn.Module] = [nn.MaxPool2d(2)]
        channels = shape[0]
        for block in range(self.blocks):
            filters = (block + 1) * self.filters
            kernel, padding = (3, 1) if block else (5, 0)
            convolution = nn.Conv2d(channels, filters, kernel, padding=padding).requires_grad_(self.trainable[block])
            parts += [*([nn.MaxPool2d(2)] if block else []), convolution, nn.ReLU()]
            channels = filters
        rows, columns = (_last_side(side, self.blocks) for side in shape[1:])
        dense = nn.Linear(channels * rows * columns, self.units).requires_grad_(self.trainable[-1])
        parts += [nn.Flatten(), dense, nn.ReLU(), *([nn.Dropout(self.dropout)] if self.dropout else [])]
        return nn.Sequential(*parts, nn.Linear(self.units, classes))

    def to_json(self) -> dict[str, Any]:
        return {"network": "convolutional", **vars(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Convolutional":
        facts = {name: value for name, value in document.items() if name != "network"}
        return cls(**facts | {"trainable": tuple(document["trainable"])})

    def __str__(self) -> str:
        words = [f"{(block + 1) * self.filters} filters" for block in range(self.blocks)] + [f"{self.units} units"]
        layers = [word + ("" if trained else " frozen") for word, trained in zip(words, self.trainable, strict=True)]
        return f"{' → '.join(layers)}, learning rate {self.learning_rate:g}"


@dataclass(frozen=True)
class ConvolutionalSpace:
    """Blocks, filters and units; with `freezing`, each layer but the last may also be frozen (RS in PAW)."""

    blocks: tuple[int, ...] = (2, 3)
    filters: tuple[int, ...] = (16, 32, 48)
    units: tuple[int, ...] = (32, 64, 128, 512)
    learning_rates: tuple[float, ...] = (0.05,)
    freezing: bool = False
    dropout: float = 0.3

    def __post_init__(self) -> None:
        if not all((self.blocks, self.filters, self.units, self.learning_rates)):
            raise ValueError("a space needs at least one value for each choice")

    def draw(self, generator: np.random.Generator) -> Convolutional:
        blocks, filters, units = (one_of(v, generator) for v in (self.blocks, self.filters, self.units))
        trainable = tuple(self._trainable(generator) for _ in range(blocks + 1))
        return Convolutional(blocks, filters, units, trainable, one_of(self.learning_rates, generator), self.dropout)

    def crossover(self, one: Convolutional, other: Convolutional, generator: np.random.Generator) -> Convolutional:
        parents = (one, other)
        blocks, filters, units, rate = (one_of(parents, generator) for _ in range(4))
        trainable = [
            one_of([parent.trainable[place] for parent in parents if parent.blocks > place], generator)
            for place in range(blocks.blocks)
        ]
        dense = one_of(parents, generator).trainable[-1]
        kept = (*trainable, dense)
        return Convolutional(blocks.blocks, filters.filters, units.units, kept, rate.learning_rate, self.dropout)

    def mutate(self, candidate: Convolutional, generator: np.random.Generator) -> Convolutional:
        genes = {
            "blocks": self.blocks,
            "filters": self.filters,
            "units": self.units,
            "learning_rate": self.learning_rates,
        }
        gene = int(generator.integers(len(genes) + (len(candidate.trainable) if self.freezing else 0)))
        if gene >= len(genes):
            flipped = [trained != (place == gene - len(genes)) for place, trained in enumerate(candidate.trainable)]
            return replace(candidate, trainable=tuple(flipped))
        name = list(genes)[gene]
        changed: dict[str, Any] = {name: another(genes[name], getattr(candidate, name), generator)}
        if name == "blocks":
            *convolutions, dense = candidate.trainable
            more = [self._trainable(generator) for _ in range(changed["blocks"] - candidate.blocks)]
            changed["trainable"] = (*convolutions[: changed["blocks"]], *more, dense)
        return replace(candidate, **changed)

    def widest(self) -> Iterator[Convolutional]:
        filters, units, rate = max(self.filters), max(self.units), self.learning_rates[0]
        return (Convolutional(blocks, filters, units, (True,) * (blocks + 1), rate) for blocks in self.blocks)

    def to_json(self) -> dict[str, Any]:
        return {"space": "convolutional", **vars(self)}

    def _trainable(self, generator: np.random.Generator) -> bool:
        return not self.freezing or bool(generator.integers(2))


Network = Dense | Convolutional


@dataclass(frozen=True)
class Grid(Generic[C]):
    """A list of candidates, each equally likely: settings of one network to tune, or a single one to train."""

    candidates: tuple[C, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("a grid needs at least one candidate")

    def draw(self, generator: np.random.Generator) -> C:
        return one_of(self.candidates, generator)

    def crossover(self, one: C, other: C, generator: np.random.Generator) -> C:
        return one_of((one, other), generator)

    def mutate(self, candidate: C, generator: np.random.Generator) -> C:
        return another(self.candidates, candidate, generator)

    def widest(self) -> tuple[C, ...]:
        return self.candidates

    def to_json(self) -> dict[str, Any]:
        return {"space": "grid", "candidates": [candidate.to_json() for candidate in self.candidates]}


def read_candidate(document: dict[str, Any]) -> Network:
    """A network that a search chose, from its JSON."""
    networks: dict[str, type[Dense] | type[Convolutional]] = {"dense": Dense, "convolutional": Convolutional}
    return networks[document["network"]].from_json(document)


def one_of(values: Sequence[_T], generator: np.random.Generator) -> _T:
    if not values:
        raise ValueError("a choice needs at least one value to choose from")
    return values[int(generator.integers(len(values)))]


def another(values: Sequence[_T], present: _T, generator: np.random.Generator) -> _T:
    """One of the other values, or the present one if there is no other."""
    return one_of([value for value in values if value != present] or [present], generator)


def _last_side(side: int, blocks: int) -> int:
    """Of the last convolution's output: pooled, 5×5 without padding, and pooled before each later block."""
    return max(0, side // 2 - 4) >> (blocks - 1)
