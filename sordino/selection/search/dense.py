"""Fully connected networks and their search space (PAW Table XI, with the frozen layers of its random search)."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from torch import nn

from sordino.selection.search.space import another, one_of


class Activation(Enum):
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"

    def layer(self) -> nn.Module:
        layers: dict[Activation, type[nn.Module]] = {
            Activation.RELU: nn.ReLU,
            Activation.SIGMOID: nn.Sigmoid,
            Activation.TANH: nn.Tanh,
        }
        return layers[self]()


@dataclass(frozen=True)
class DenseLayer:
    units: int
    activation: Activation = Activation.RELU
    trainable: bool = True
    """A layer that is not keeps the random weights that it starts with."""

    def __str__(self) -> str:
        return f"{self.units} {self.activation.value}{'' if self.trainable else ' frozen'}"


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
            parts += [nn.Linear(width, layer.units).requires_grad_(layer.trainable), layer.activation.layer()]
            # Of each example on its own: dropout mixes nothing, and its clipped gradient stays within the clip.
            parts += [nn.Dropout(self.dropout)] if self.dropout else []
            width = layer.units
        return nn.Sequential(*parts, nn.Linear(width, classes))

    def to_json(self) -> dict[str, Any]:
        layers = [asdict(layer) | {"activation": layer.activation.value} for layer in self.layers]
        return {"network": "dense", **vars(self), "layers": layers}

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

    Learning rates are those that PAW found for DP-SGD on such networks.
    """

    widths: tuple[tuple[int, ...], ...] = ((64, 128, 512, 1024, 2048), (64, 128, 256), (10, 16, 32, 64))
    activations: tuple[Activation, ...] = tuple(Activation)
    learning_rates: tuple[float, ...] = (0.1, 0.2)
    freezing: bool = False
    dropout: float = 0.2

    def __post_init__(self) -> None:
        choices = (self.widths, *self.widths, self.activations, self.learning_rates)
        if not all(choices) or min(min(widths) for widths in self.widths) < 1:
            raise ValueError("a space needs at least one layer, and one value or more for each choice")

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
            rate = another(self.learning_rates, candidate.learning_rate, generator)
            return replace(candidate, learning_rate=rate)
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

    def read(self, document: dict[str, Any]) -> Dense:
        return Dense.from_json(document)

    def to_json(self) -> dict[str, Any]:
        return {"space": "dense", **vars(self), "activations": [activation.value for activation in self.activations]}

    def _layer(self, place: int, generator: np.random.Generator) -> DenseLayer:
        units, activation = one_of(self.widths[place], generator), one_of(self.activations, generator)
        return DenseLayer(units, activation, not self.freezing or bool(generator.integers(2)))
