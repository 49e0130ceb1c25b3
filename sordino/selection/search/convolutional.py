"""Small convolutional networks and their search space (PAW Table XII, with the frozen layers of its random search)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from sordino.selection.search.space import another, one_of


@dataclass(frozen=True)
class Convolutional:
    """Pooling, blocks of a convolution with pooling between them, a dense layer with dropout, and the classes.

    The first convolution is 5×5 without padding, later ones 3×3 with. PAW's text doubles the filters from block to
    block, its network of three blocks (Table XIX) has 16, 32 and 48: block i has i times the first one's, as there.
    """

    blocks: int
    filters: int
    units: int
    trainable: tuple[bool, ...]
    """Of each convolution, and last of the dense layer; the layer to the classes always is."""
    learning_rate: float
    dropout: float = 0.3
    l2_clip: float | None = None

    def __post_init__(self) -> None:
        if self.blocks < 1 or len(self.trainable) != self.blocks + 1:
            raise ValueError(
                "a network has at least one block, and says of each and of its dense layer if it is trained"
            )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        if len(shape) != 3 or _last_side(min(shape[1:]), self.blocks) < 1:
            raise ValueError(f"examples of shape {shape} are no images large enough for {self.blocks} blocks")
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
            raise ValueError("a space needs one value or more for each choice")

    def draw(self, generator: np.random.Generator) -> Convolutional:
        blocks, filters, units = (one_of(v, generator) for v in (self.blocks, self.filters, self.units))
        trainable = tuple(self._trainable(generator) for _ in range(blocks + 1))
        return Convolutional(blocks, filters, units, trainable, one_of(self.learning_rates, generator), self.dropout)

    def crossover(self, one: Convolutional, other: Convolutional, generator: np.random.Generator) -> Convolutional:
        parents = (one, other)
        blocks, filters, units, rate = (one_of(parents, generator) for _ in range(4))
        trainable = []
        for place in range(blocks.blocks):
            donors = [parent.trainable[place] for parent in parents if parent.blocks > place]
            trainable.append(one_of(donors, generator))
        trainable.append(one_of(parents, generator).trainable[-1])
        return Convolutional(
            *(blocks.blocks, filters.filters, units.units, tuple(trainable), rate.learning_rate, self.dropout)
        )

    def mutate(self, candidate: Convolutional, generator: np.random.Generator) -> Convolutional:
        gene = int(generator.integers(4 + (len(candidate.trainable) if self.freezing else 0)))
        if gene == 0:
            blocks = another(self.blocks, candidate.blocks, generator)
            *convolutions, dense = candidate.trainable
            more = [self._trainable(generator) for _ in range(blocks - candidate.blocks)]
            return replace(candidate, blocks=blocks, trainable=(*convolutions[:blocks], *more, dense))
        if gene == 1:
            return replace(candidate, filters=another(self.filters, candidate.filters, generator))
        if gene == 2:
            return replace(candidate, units=another(self.units, candidate.units, generator))
        if gene == 3:
            rate = another(self.learning_rates, candidate.learning_rate, generator)
            return replace(candidate, learning_rate=rate)
        flipped = [trained != (place == gene - 4) for place, trained in enumerate(candidate.trainable)]
        return replace(candidate, trainable=tuple(flipped))

    def widest(self) -> Iterator[Convolutional]:
        sizes = max(self.filters), max(self.units)
        return (Convolutional(b, *sizes, (True,) * (b + 1), self.learning_rates[0]) for b in self.blocks)

    def read(self, document: dict[str, Any]) -> Convolutional:
        return Convolutional.from_json(document)

    def to_json(self) -> dict[str, Any]:
        return {"space": "convolutional", **vars(self)}

    def _trainable(self, generator: np.random.Generator) -> bool:
        return not self.freezing or bool(generator.integers(2))


def _last_side(side: int, blocks: int) -> int:
    """Of the last convolution's output: pooled, 5×5 without padding, and pooled before each later block."""
    return max(0, side // 2 - 4) >> (blocks - 1)
