"""A recipe: everything about a training that is not privacy, as it is written down and as it trains on one dataset.

The recipes themselves are in recipes.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino import models
from sordino.budget import steps_for
from sordino.data import DataError, Facts, ShuffledSampler
from sordino.features import Feature, GroupNorm, StoredImages
from sordino.mechanisms import ChannelMoments, ThresholdQuantiles
from sordino.training import normalising
from sordino.training.augmentation import Shifts
from sordino.training.heads import Head, LinearHead, NetworkHead
from sordino.training.optimisers import SGD, Averaging, Weights
from sordino.training.plan import Plan
from sordino.training.schedules import WarmupCosine
from sordino.training.weight_distributions import WeightDistributionPlan

AnyPlan = Plan | WeightDistributionPlan
Shape = tuple[int, ...]
Network = Callable[[int], nn.Module]
"""From the number of classes to a network."""
LINEAR = "linear"
"""What suits all that is no image."""
_LEAST_BATCH = 256
_RATE_FOR = 256
_BLOCK = 500
SMALL, _FRAME = 64, 8 / 7
_FROZEN, _FROZEN_OF_MANY, _MANY = 4, 3, 200_000
"""Groups of blocks that fine-tuning freezes: all but the last layer, and one less for many images (INS, Table 7)."""


def as_sequential(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, nn.Sequential), "a network in groups"
    return model


def cropped_side(side: int) -> int:
    """Of the crops of decoded images: larger ones have a frame, which is left out when they are evaluated."""
    return side if side <= SMALL else round(side / _FRAME)


_SUBSETS = {"mnist-5k": "mnist"}


@dataclass(frozen=True)
class Settings:
    """Batch and learning rate for a dataset of `n` records at the ε that the recipe was tuned at."""

    n: int
    batch: int
    learning_rate: float
    epochs: float
    groups: int | None = None
    """Normalise each example's features in so many groups."""
    moments: ChannelMoments | ThresholdQuantiles | None = None
    """Private normalisation of the features."""
    averaged: float = 0.1
    """The share of the steps, at the end, that the released weights are averaged over: at no cost. `Averaging` forgets
    its start so fast that more than a ninth is a ninth."""
    input_scale: float = field(default=1.0, repr=False)
    orthogonal: bool = field(default=False, repr=False)
    shifts: Shifts | None = field(default=None, repr=False)
    """All three are of a network, which names them in its own description (`NetworkHead`)."""


@dataclass(frozen=True)
class DatasetRecipe:
    """A recipe as it trains on one dataset."""

    recipe: "Recipe"
    features: Feature
    head: Head
    settings: Settings
    tuned_on: tuple[str, ...]

    def __repr__(self) -> str:
        """Runs and kept trials are found under this text: it must not change."""
        named = {"name": self.name, "features": self.features, "head": self.head, "settings": self.settings}
        named |= {"tuned_on": self.tuned_on, "l2_clip": self.l2_clip, "momentum": self.momentum}
        named |= {"slow_features": self.slow_features, "least_batch": _LEAST_BATCH}
        return f"Recipe({', '.join(f'{name}={value!r}' for name, value in named.items())})"

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def l2_clip(self) -> float:
        return self.recipe.l2_clip

    @property
    def momentum(self) -> float:
        return self.recipe.momentum

    @property
    def slow_features(self) -> bool:
        return self.recipe.slow_features

    @property
    def moments(self) -> ChannelMoments | ThresholdQuantiles | None:
        """Private normalisation of the features, if any."""
        return self.settings.moments

    def expected_batch_size(self, n: int) -> int:
        return min(n, max(_LEAST_BATCH, round(self.settings.batch / self.settings.n * n)))

    def learning_rate(self, n: int, epsilon: float) -> float:
        """Fewer records or a smaller ε mean more noise a step: the learning rate shrinks in proportion."""
        return self.settings.learning_rate * min(1.0, (n / self.settings.n) * (epsilon / self.recipe.tuned_at))

    def optimiser(self, n: int, epsilon: float) -> Any:
        warm_up = self.recipe.warm_up
        if warm_up is None:
            return self.recipe.optimiser(self.learning_rate(n, epsilon), self.momentum)
        batch = self.expected_batch_size(n)
        steps = steps_for(self.settings.epochs, n, batch)
        peak = self.settings.learning_rate * batch / _RATE_FOR
        return self.recipe.optimiser(WarmupCosine(peak, round(warm_up * steps), steps), self.momentum)

    def scores(
        self, weights: Weights, features: Any, classes: int, scaled: Callable[[Any], NDArray[np.float32]]
    ) -> NDArray[np.floating]:
        """Of each class for each example: of images on disk block by block."""
        block = _BLOCK if isinstance(features, StoredImages) else max(1, len(features))
        starts = range(0, len(features), block)
        return np.concatenate(
            [self.head.scores(weights, scaled(features[at : at + block]), classes).numpy() for at in starts]
        )

    def averaging(self, steps: int) -> Averaging | None:
        horizon = self.settings.averaged * steps
        return Averaging(1 - 1 / horizon) if horizon > 1 else None

    def plan(self, n: int, epsilon: float, delta: float, *, exact: bool = False) -> AnyPlan:
        """The plan with the least noise that, the recipe's normalisation included, meets the target."""
        if exact and not self.recipe.noisy_gradients:
            raise ValueError(f"exact noise is for noisy gradients, which {self.name} does not have: leave it out")
        return self.recipe.plan(self, n, epsilon, delta, exact)

    def starting_from(self, weights: str | None, facts: Facts, say: Callable[[str], None]) -> "DatasetRecipe":
        """The same, from public weights; says what of them is loaded.

        Weights that only fit in part have nothing frozen.
        """
        if not isinstance(self.head, NetworkHead) or not self.recipe.needs_weights:
            if weights is not None:
                raise ValueError(f"the recipe {self.name!r} starts from no weights: leave --weights out")
            return self
        if weights is None:
            raise DataError(
                f"the recipe {self.name!r} starts from public weights: give --weights FILE, a .safetensors or .pth "
                "file of a ResNet-v2-18 that was trained on public images"
            )
        classes = len(facts.classes or ())
        found = models.load_public(as_sequential(self.head.build(classes)), weights)
        say(str(found))
        frozen = 0 if found.caveat else _FROZEN_OF_MANY if facts.n_train >= _MANY else _FROZEN

        def begin(model: nn.Module) -> None:
            models.load_public(as_sequential(model), weights)
            models.freeze(models.replace_head(as_sequential(model), classes), frozen)

        return replace(self, head=replace(self.head, begin=begin))

    def tuning(self, dataset: str) -> str:
        """What the privacy statement has to say about where these settings come from."""
        if dataset in self.tuned_on:
            return "NOT counted, though the recipe's settings were chosen on this very dataset"
        return f"not counted: the recipe's settings were fixed in advance, on {' and '.join(self.tuned_on)}"


def dp_sgd(chosen: DatasetRecipe, n: int, epsilon: float, delta: float, exact: bool) -> Plan:
    """Noisy gradients of Poisson samples."""
    return Plan.calibrated(
        n=n,
        expected_batch_size=chosen.expected_batch_size(n),
        epochs=chosen.settings.epochs,
        target_epsilon=epsilon,
        target_delta=delta,
        l2_clip=chosen.l2_clip,
        before=normalising.spent_before(chosen.moments),
        exact=exact,
    )


def weight_distributions(
    chosen: DatasetRecipe, n: int, epsilon: float, delta: float, exact: bool
) -> WeightDistributionPlan:
    """Noise through weight distributions, in shuffled epochs."""
    batch = chosen.expected_batch_size(n)
    return WeightDistributionPlan.calibrated(
        ShuffledSampler(n, batch),
        l2_clip=chosen.l2_clip,
        steps=steps_for(chosen.settings.epochs, n, batch),
        learning_rate=chosen.learning_rate(n, epsilon),
        momentum=chosen.momentum,
        target_epsilon=epsilon,
        target_delta=delta,
        before=normalising.spent_before(chosen.moments),
    )


@dataclass(frozen=True)
class Recipe:
    """How to train on any dataset that it suits."""

    name: str
    what: str
    """One line for those who choose."""
    features: Callable[[Facts], Feature]
    """From the public facts of a dataset; refuses, by a DataError, what it cannot describe."""
    settings: Mapping[str, Settings]
    """By the dataset that they were tuned on; others take those of the dataset that is most like them."""
    networks: Mapping[Shape, Network] = field(default_factory=dict)
    """By the shape of an image; none: a linear model."""
    head: Callable[[Facts], NetworkHead] | None = None
    """A network for images of any shape, in place of those."""
    sides: tuple[int, int] | None = None
    """The least and the largest side of images in files, within which that of the first image is taken; without, they
    have 28 pixels if grey, else 32."""
    framed: bool = False
    """Whether images are decoded with the frame that `cropped_side` leaves out."""
    needs_weights: bool = False
    """Whether the network starts from public weights that are given."""
    images_only: bool = True
    alone_on: str | None = None
    """The one dataset that it is made for, if it is."""
    instead: str = "scatter-linear"
    """What to use where it has no network for the shape."""
    l2_clip: float = 0.1
    optimiser: Callable[[Any, float], Any] = SGD
    """From learning rate and momentum: SGD, Adam, or what makes an optimiser of torch.optim."""
    momentum: float = 0.9
    warm_up: float | None = None
    """This share of the steps the learning rate rises, and then falls by a cosine; its peak is the settings' for every
    256 examples of a batch. None: it is constant."""
    plan: Callable[[DatasetRecipe, int, float, float, bool], AnyPlan] = dp_sgd
    noisy_gradients: bool = True
    """Whether a step releases noisy gradients, which canaries and exact noise need."""
    charged_as: str = "training"
    tuned_at: float = 3.0
    """The ε that the settings were chosen at."""
    slow_features: bool = False
    """Whether they take so long that they are kept on disk."""

    def on(self, dataset: str, facts: Facts, **changes: Any) -> DatasetRecipe:
        """For this dataset, from public facts alone; `changes` are to its settings."""
        self._check(dataset, facts)
        known = self._most_like(dataset, facts)
        settings = replace(self.settings[known], **changes)
        features = self.features(facts)
        if settings.groups is not None:
            features = features >> GroupNorm(settings.groups)
        views = settings.input_scale, settings.orthogonal, settings.shifts
        if not self.networks and views != (1.0, False, None):
            raise ValueError(f"the recipe {self.name!r} takes no input_scale, orthogonal or shifts: leave them out")
        head: Head = LinearHead()
        if self.head is not None:
            head = self.head(facts)
        elif self.networks:
            head = NetworkHead(self.networks[facts.shape], *views)
        tuned_on = (known, *(part for part, whole in _SUBSETS.items() if whole == known))
        return DatasetRecipe(self, features, head, settings, tuned_on)

    def side(self, asked: int | None, first: int, channels: int) -> int:
        """What images in files are decoded to."""
        usual = 28 if channels == 1 else 32
        if self.sides is not None:
            usual = min(max(first, self.sides[0]), self.sides[1])
        side = asked or usual
        return round(side * _FRAME) if self.framed and side > SMALL else side

    def _check(self, dataset: str, facts: Facts) -> None:
        if self.alone_on not in (None, dataset, _SUBSETS.get(dataset)):
            raise DataError(
                f"the recipe {self.name!r} is made for {self.alone_on} alone, not for {dataset}; use {self.instead}"
            )
        if self.images_only and (facts.kind != "image" or facts.value_range is None):
            raise DataError(
                f"the recipe {self.name!r} is for images, not for examples of kind {facts.kind}; use {LINEAR}"
            )
        if self.networks and facts.shape not in self.networks:
            shapes = " and ".join(_in_words(shape) for shape in self.networks)
            found = _in_words(facts.shape)
            raise DataError(f"the recipe {self.name!r} has networks for {shapes} only, not {found}; use {self.instead}")

    def _most_like(self, dataset: str, facts: Facts) -> str:
        alike = "cifar-10" if len(facts.shape) == 3 else "fashion-mnist"
        choices = (dataset, _SUBSETS.get(dataset, alike), alike, *self.settings)
        return next(name for name in choices if name in self.settings)


def _sides(shape: Shape) -> str:
    return "×".join(str(side) for side in shape)


def _in_words(shape: Shape) -> str:
    return f"{'colour' if len(shape) == 3 else 'grey'} images of {_sides(shape[:2])}"
