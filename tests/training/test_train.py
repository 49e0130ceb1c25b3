"""`train` as a function: what it shows while it works."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sordino.features import Pixels
from sordino.training.train import _features


def test_progress_does_not_show_whether_features_were_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    recipe = SimpleNamespace(slow_features=True, features=Pixels())
    shown: list[list[int]] = []
    for _ in range(2):
        progress: list[int] = []
        _features(recipe, np.zeros((7, 4, 4), np.uint8), progress.append)
        shown.append(progress)
    assert [progress[-1:] for progress in shown] == [[7], [7]]
