"""`train` as a function: what it shows while it works."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sordino.features import Pixels
from sordino.runs import Run
from sordino.training import RECIPES, Recipe, Request
from sordino.training.description import Description
from sordino.training.recipes import Settings
from sordino.training.train import _features, train


def test_progress_does_not_show_whether_features_were_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    recipe = SimpleNamespace(slow_features=True, features=Pixels())
    shown: list[list[int]] = []
    for _ in range(2):
        progress: list[int] = []
        _features(recipe, np.zeros((7, 4, 4), np.uint8), progress.append)
        shown.append(progress)
    assert [progress[-1:] for progress in shown] == [[7], [7]]


@pytest.mark.parametrize("planted", [0, 20])
def test_a_new_recipe_trains_with_any_optimiser(planted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"mnist": Settings(1437, 256, 0.1, 2)}

    def adagrad(rate: float, momentum: float) -> Any:
        return lambda parameters: torch.optim.Adagrad(parameters, lr=rate)

    mine = Recipe("mine", "for this test", lambda facts: Pixels(white=16), settings, optimiser=adagrad)
    monkeypatch.setitem(RECIPES, mine.name, mine)
    result = train(Request("digits", "mine", 8.0, 1e-4, seed=0, canaries=planted), tmp_path / "run")
    assert result["recipe"] == "mine"
    assert result["test_accuracy"] > 0.2
    assert result["epsilon"] <= 8
    shown = Description.read(Run(tmp_path / "run"))
    assert shown.recipe.recipe == mine
