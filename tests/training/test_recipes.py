"""Recipes from public facts alone: which is strongest, what its settings are, and whom it refuses."""

from dataclasses import replace

import pytest

from sordino.data import DataError, Facts, load
from sordino.features.normalisation import GroupNorm
from sordino.mechanisms.moments import ChannelMoments
from sordino.training.recipes import BEST, NAMES, check_name, recipe, strongest


@pytest.fixture(scope="module")
def grey() -> Facts:
    return load("mnist-5k").facts


@pytest.fixture(scope="module")
def colour(grey: Facts) -> Facts:
    return replace(grey, shape=(32, 32, 3))


def test_the_strongest_recipe_depends_on_data_and_budget(grey: Facts, colour: Facts) -> None:
    assert strongest(grey, 3.0) == strongest(grey, 0.1) == "scatter-linear"
    assert strongest(colour, 3.0) == "scatter-cnn"
    assert strongest(colour, 0.5) == "scatter-linear"
    assert strongest(replace(colour, shape=(64, 64, 3)), 3.0) == "scatter-linear"
    assert strongest(replace(grey, kind="vector"), 3.0) == "linear"


def test_settings_are_the_papers_and_can_be_changed(grey: Facts) -> None:
    chosen = recipe("scatter-linear", "mnist", grey)
    assert (chosen.settings.batch, chosen.settings.learning_rate, chosen.settings.epochs) == (4096, 8.0, 40)
    assert chosen.moments == ChannelMoments(0.2, 0.05)
    assert chosen.slow_features
    changed = recipe("scatter-linear", "mnist", grey, groups=9, moments=None, batch=512)
    assert changed.moments is None
    assert GroupNorm(9) in changed.features.steps
    assert changed.settings.batch == 512
    assert changed.features.identity != chosen.features.identity


def test_the_learning_rate_shrinks_with_the_budget_and_never_grows(grey: Facts) -> None:
    chosen = recipe("scatter-linear", "mnist", grey)
    assert chosen.optimiser(60_000, 3.0).learning_rate == chosen.optimiser(60_000, 9.0).learning_rate == 8.0
    assert chosen.optimiser(60_000, 1.5).learning_rate == pytest.approx(4.0)


def test_names_and_data_that_do_not_fit_are_refused(grey: Facts, colour: Facts) -> None:
    assert check_name(BEST) == BEST
    with pytest.raises(ValueError, match="there is no recipe 'magic'"):
        check_name("magic")
    with pytest.raises(DataError, match="use linear"):
        recipe("scatter-linear", "rows", replace(grey, kind="vector"))
    with pytest.raises(DataError, match="use scatter-linear"):
        recipe("cnn", "large", replace(colour, shape=(64, 64, 3)))
    with pytest.raises(DataError, match="use cnn"):
        recipe("cnn-small", "mnist", grey)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_where_its_settings_come_from(name: str, colour: Facts) -> None:
    chosen = recipe(name, "cifar-10", colour)
    assert "settings" in chosen.tuning("cifar-10")
    assert chosen.tuning("somewhere-else").startswith("not counted: the recipe's settings were fixed in advance")
