"""Recipes: everything about a training that is not privacy, fixed before the data is seen.

A new recipe is one `Recipe` in `RECIPES`, at the end of this file.

Images follow T&B, whose best settings (Table 13) are kept as they are for the three datasets they were chosen on. T&B
chose them by test accuracy at ε=3; for other datasets they are settings fixed in advance. The averaging of weights was
chosen on held-out images of Fashion-MNIST, transfer's settings on held-out images of CIFAR-10, those of the network on
MNIST's scattering on held-out images of MNIST (docs/results.md). The recipes lsr-… are LSR's nine (large_rates.py).
"""

from functools import partial
from typing import Any

from torch import nn

from sordino import models
from sordino.data import DataError, Facts
from sordino.features import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    Feature,
    OneHot,
    OrientedGradients,
    Pixels,
    Pretrained,
    Scaled,
    Scattering,
    SentenceVectors,
    is_installed,
)
from sordino.mechanisms import ChannelMoments
from sordino.training.augmentation import RandomCrops
from sordino.training.dataset_recipes import (
    LINEAR,
    SMALL,
    DatasetRecipe,
    Recipe,
    Settings,
    cropped_side,
    weight_distributions,
)
from sordino.training.heads import NetworkHead
from sordino.training.large_rates import LARGE_RATES, USUAL_SCALE, LargeRate
from sordino.training.optimisers import SGD

BEST = "best"
"""Stands for whichever recipe is strongest for the data and the budget."""
_TRANSFER = "efficientnet-lite2"
_LARGE = 64
_SCATTERED, _MOST_SCATTERED = 81, 3 * 2**30
"""Channels of scattering features for each of the image's."""
_NETWORK_FROM = 2.2
"""The ε from which a network on scattered colour images is ahead of a linear model (T&B's figure 2, reproduced)."""


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
    raise DataError(f"the recipe {LINEAR!r} has no features for examples of kind {facts.kind}")


def _pixels(facts: Facts) -> Feature:
    colour = len(facts.shape) == 3
    return Pixels(IMAGENET_MEAN, IMAGENET_DEVIATION, _white(facts)) if colour else Pixels(white=_white(facts))


def _scattering(facts: Facts) -> Feature:
    return _pixels(facts) >> Scattering()


def _pretrained(facts: Facts) -> Feature:
    white = _white(facts)
    return Pretrained(_TRANSFER, mean=127 / 255 * white, deviation=128 / 255 * white)


def _from_scratch(facts: Facts) -> NetworkHead:
    return _residual_head(facts, small_images=cropped_side(facts.shape[0]) <= SMALL)


def _residual_head(facts: Facts, small_images: bool = False) -> NetworkHead:
    """INS's network, augmentation and weight decay."""

    def resnet18(classes: int) -> nn.Module:
        return models.resnet18_v2(3 if len(facts.shape) == 3 else 1, classes, small_images=small_images)

    return NetworkHead(resnet18, crops=RandomCrops(cropped_side(facts.shape[0])), l2_penalty=1e-4)


def _sentences(facts: Facts) -> Feature:
    """Settings were chosen on 1,500 held-out training texts, with the noise of all 37,453."""
    if facts.kind != "text":
        raise DataError(f"the recipe 'minilm-linear' is for texts, not for examples of kind {facts.kind}")
    return SentenceVectors()


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

SIMPLE = Recipe(
    LINEAR,
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
_INS: dict[str, Any] = {
    "l2_clip": 1.0,
    "optimiser": partial(SGD, nesterov=True),
    "momentum": 0.9,
    "warm_up": 1 / 70,
    "tuned_at": 10.0,
}
"""Of its best training (section 3.6)."""
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
        SIMPLE,
        Recipe(
            "transfer-linear",
            "a linear model on the features of a network that was trained on public images",
            _pretrained,
            {"cifar-10": Settings(50_000, 1024, 3.0, 20)},
            sides=(32, 224),
            slow_features=True,
        ),
        Recipe(
            "minilm-linear",
            "a linear model on the sentence vectors of MiniLM, a public language model: texts",
            _sentences,
            {"ag-news": Settings(37_453, 8192, 16.0, 40)},
            images_only=False,
            tuned_at=1.0,
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
        Recipe(
            "resnet18",
            "INS's ResNet-18 on pixels, from random weights: for very many images",
            _pixels,
            {"imagenet": Settings(1_281_167, 65_536, 0.0625, 70, averaged=0.0)},
            head=_from_scratch,
            sides=(32, 224),
            framed=True,
            **_INS,
        ),
        Recipe(
            "resnet18-finetune",
            "INS's best: the same from public weights (--weights), its first layers frozen",
            _pixels,
            {"imagenet": Settings(1_281_167, 65_536, 0.03, 70, averaged=0.0)},
            head=_residual_head,
            sides=(224, 224),
            framed=True,
            needs_weights=True,
            **_INS,
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
        return LINEAR
    return _strongest_on(facts.shape, epsilon)


def _strongest_on(shape: tuple[int, ...], epsilon: float) -> str:
    return SCATTER_CNN.name if shape == COLOUR and epsilon >= _NETWORK_FROM else SCATTER_LINEAR.name


def strongest_for_files(side: int, channels: int, n: int, epsilon: float) -> str:
    """The same for images in files, of which the first has this side.

    Features of a public network are ahead of all others on colour images (docs/results.md), and are taken for large
    grey ones too; without the `pretrained` extra, what is ahead without public images. Scattering features that would
    take more than 3 GiB give way to simple ones.
    """
    if (channels == 3 or side >= _LARGE) and is_installed(_TRANSFER):
        return "transfer-linear"
    shape = GREY if channels == 1 else COLOUR
    numbers = channels * _SCATTERED * (shape[0] // 4) ** 2
    return LINEAR if 4.0 * numbers * n > _MOST_SCATTERED else _strongest_on(shape, epsilon)


def recipe(name: str, dataset: str, facts: Facts, **changes: Any) -> DatasetRecipe:
    """The recipe of this name for this dataset, from public facts alone; `changes` are to its settings."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; recipes: {', '.join(RECIPES)}")
    return RECIPES[name].on(dataset, facts, **changes)
