"""Recipes: everything about a training that is not privacy, fixed before the data is seen.

A new recipe is one `Recipe` in `RECIPES`, at the end of this file.

Images follow T&B, whose best settings (Table 13) are kept as they are for the three datasets they were chosen on. T&B
chose them by test accuracy at ε=3; for other datasets they are settings fixed in advance. The averaging of weights was
chosen on held-out images of Fashion-MNIST, transfer's settings on held-out images of CIFAR-10, those of the network on
MNIST's scattering on held-out images of MNIST (docs/results.md). The recipes lsr-… are LSR's nine (large_rates.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sordino import models
from sordino.budget import steps_for
from sordino.data import DataError, Facts, ShuffledSampler
from sordino.features import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    Feature,
    GroupNorm,
    OneHot,
    OrientedGradients,
    Pixels,
    Pretrained,
    Scaled,
    Scattering,
)
from sordino.mechanisms import ChannelMoments, ThresholdQuantiles
from sordino.training import normalising
from sordino.training.augmentation import Shifts
from sordino.training.heads import Head, LinearHead, NetworkHead
from sordino.training.large_rates import LARGE_RATES, USUAL_SCALE, LargeRate
from sordino.training.optimisers import SGD, Averaging
from sordino.training.plan import Plan
from sordino.training.weight_distributions import WeightDistributionPlan

AnyPlan = Plan | WeightDistributionPlan
Shape = tuple[int, ...]
Network = Callable[[int], nn.Module]
"""From the number of classes to a network."""
BEST = "best"
"""Stands for whichever recipe is strongest for the data and the budget."""
_LEAST_BATCH = 256
_SUBSETS = {"mnist-5k": "mnist"}
_NETWORK_FROM = 2.2
"""The ε from which a network on scattered colour images is ahead of a linear model (T&B's figure 2, reproduced)."""


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
        return self.recipe.optimiser(self.learning_rate(n, epsilon), self.momentum)

    def averaging(self, steps: int) -> Averaging | None:
        horizon = self.settings.averaged * steps
        return Averaging(1 - 1 / horizon) if horizon > 1 else None

    def plan(self, n: int, epsilon: float, delta: float, *, exact: bool = False) -> AnyPlan:
        """The plan with the least noise that, the recipe's normalisation included, meets the target."""
        if exact and not self.recipe.noisy_gradients:
            raise ValueError(f"exact noise is for noisy gradients, which {self.name} does not have: leave it out")
        return self.recipe.plan(self, n, epsilon, delta, exact)

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
    images_only: bool = True
    alone_on: str | None = None
    """The one dataset that it is made for, if it is."""
    instead: str = "scatter-linear"
    """What to use where it has no network for the shape."""
    l2_clip: float = 0.1
    optimiser: Callable[[float, float], Any] = SGD
    """From learning rate and momentum: SGD, Adam, or what makes an optimiser of torch.optim."""
    momentum: float = 0.9
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
        head = NetworkHead(self.networks[facts.shape], *views) if self.networks else LinearHead()
        tuned_on = (known, *(part for part, whole in _SUBSETS.items() if whole == known))
        return DatasetRecipe(self, features, head, settings, tuned_on)

    def _check(self, dataset: str, facts: Facts) -> None:
        if self.alone_on not in (None, dataset, _SUBSETS.get(dataset)):
            raise DataError(
                f"the recipe {self.name!r} is made for {self.alone_on} alone, not for {dataset}; use {self.instead}"
            )
        if self.images_only and (facts.kind != "image" or facts.value_range is None):
            raise DataError(
                f"the recipe {self.name!r} is for images, not for examples of kind {facts.kind}; use {LINEAR.name}"
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


def _white(facts: Facts) -> float:
    return 1.0 if facts.value_range is None else facts.value_range[1]


def _simple_features(facts: Facts) -> Feature:
    """Chosen, with their settings, on held-out images of Fashion-MNIST."""
    if facts.kind == "image" and facts.value_range is not None:
        return OrientedGradients(white=_white(facts))
    if facts.kind == "vector" and facts.value_range is not None:
        return Scaled(*facts.value_range)
    if facts.kind == "table" and facts.columns is not None:
        return OneHot(facts.columns)
    raise DataError(f"the recipe {LINEAR.name!r} has no features for examples of kind {facts.kind}")


def _pixels(facts: Facts) -> Feature:
    colour = len(facts.shape) == 3
    return Pixels(IMAGENET_MEAN, IMAGENET_DEVIATION, _white(facts)) if colour else Pixels(white=_white(facts))


def _scattering(facts: Facts) -> Feature:
    return _pixels(facts) >> Scattering()


def _pretrained(facts: Facts) -> Feature:
    white = _white(facts)
    return Pretrained("efficientnet-lite2", mean=127 / 255 * white, deviation=128 / 255 * white)


def layer_normalised_lenet5(classes: int) -> nn.Module:
    return models.lenet5(classes, models.layer_norm)


GREY, COLOUR = (28, 28), (32, 32, 3)
TABLE_12 = {
    "mnist": ChannelMoments(0.2, 0.05),
    "fashion-mnist": ChannelMoments(0.3, 0.15),
    "cifar-10": ChannelMoments(1.0, 1.5),
}
"""T&B's public thresholds for the private means and mean squares of scattering features."""
_CNN = {
    "mnist": Settings(60_000, 512, 0.5, 40),
    "fashion-mnist": Settings(60_000, 2048, 4.0, 40),
    "cifar-10": Settings(50_000, 1024, 1.0, 30),
}

LINEAR = Recipe(
    "linear",
    "a linear model on simple features: images, vectors and tables",
    _simple_features,
    {"fashion-mnist": Settings(60_000, 4096, 32.0, 40.0)},
    images_only=False,
)
SCATTER_LINEAR = Recipe(
    "scatter-linear",
    "a linear model on scattering features of images",
    _scattering,
    {
        "mnist": Settings(60_000, 4096, 8.0, 40, moments=TABLE_12["mnist"]),
        "fashion-mnist": Settings(60_000, 8192, 16.0, 40, groups=27),
        "cifar-10": Settings(50_000, 8192, 4.0, 60, moments=TABLE_12["cifar-10"]),
    },
    slow_features=True,
)
SCATTER_CNN = Recipe(
    "scatter-cnn",
    "a small network on scattering features of images",
    _scattering,
    {
        "mnist": Settings(60_000, 2048, 4.0, 40, moments=TABLE_12["mnist"], input_scale=0.3, orthogonal=True),
        "fashion-mnist": Settings(60_000, 2048, 4.0, 40, groups=27),
        "cifar-10": Settings(50_000, 8192, 4.0, 60, moments=TABLE_12["cifar-10"]),
    },
    {GREY: models.mnist_scatter_cnn, COLOUR: models.cifar_scatter_cnn},
    slow_features=True,
)
_CNN_NETWORKS = {GREY: models.mnist_cnn, COLOUR: models.cifar_cnn}
CNN = Recipe("cnn", "a convolutional network on pixels", _pixels, _CNN, _CNN_NETWORKS)


def _large_rate(name: str, made: LargeRate) -> Recipe:
    return Recipe(
        name,
        f"LSR's setting for {made.dataset} at ε={made.epsilon}: large batches, much noise",
        lambda facts: Pixels(*USUAL_SCALE[made.dataset]),
        {made.dataset: Settings(made.n, made.batch, made.learning_rate, made.epochs)},
        {GREY: models.lsr_cnn, COLOUR: models.cifar_cnn},
        alone_on=made.dataset,
        instead=CNN.name,
        l2_clip=made.l2_clip,
        momentum=made.momentum,
        tuned_at=made.epsilon,
    )


RECIPES = {
    entry.name: entry
    for entry in (
        LINEAR,
        Recipe(
            "transfer-linear",
            "a linear model on the features of a network that was trained on public images",
            _pretrained,
            {"cifar-10": Settings(50_000, 1024, 3.0, 20)},
            slow_features=True,
        ),
        SCATTER_LINEAR,
        SCATTER_CNN,
        CNN,
        Recipe(
            "cnn-small",
            "a smaller convolutional network for colour images",
            _pixels,
            _CNN,
            {COLOUR: models.cifar_small_cnn},
            instead=CNN.name,
        ),
        *(_large_rate(name, made) for name, made in LARGE_RATES.items()),
        Recipe(
            "weight-distributions",
            "a network with the noise in its weights (SI), of which only the last draw is released",
            _pixels,
            # Few steps: the noise that one needs grows with their number to the power of 1.5, whether the batch is full
            # or a share of a shuffled epoch. Twelve settings were tried at ε=3, one seed each, on 6,000 training images
            # of MNIST with the noise of 60,000 and 2,000 others to judge; one with more epochs was as good (92.3 to
            # 92.0 %) but takes longer.
            {"mnist": Settings(60_000, 3000, 4.0, 3, averaged=0.0)},
            {GREY: layer_normalised_lenet5},
            l2_clip=1.0,
            momentum=0.0,
            plan=weight_distributions,
            noisy_gradients=False,
            charged_as="training by weight distributions",
        ),
    )
}
NAMES = tuple(RECIPES)


def check_name(name: str) -> str:
    if name != BEST and name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; recipes: {BEST}, {', '.join(RECIPES)}")
    return name


def strongest(facts: Facts, epsilon: float) -> str:
    """The recipe that is ahead for such data and budget (docs/results.md), of those that need no public images."""
    if facts.kind != "image" or facts.value_range is None:
        return LINEAR.name
    return SCATTER_CNN.name if facts.shape == COLOUR and epsilon >= _NETWORK_FROM else SCATTER_LINEAR.name


def recipe(name: str, dataset: str, facts: Facts, **changes: Any) -> DatasetRecipe:
    """The recipe of this name for this dataset, from public facts alone; `changes` are to its settings."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; recipes: {', '.join(RECIPES)}")
    return RECIPES[name].on(dataset, facts, **changes)
