"""The figure of a crossover: written as a picture, whatever the crossovers are."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from sordino.selection.crossover import Crossover, crossovers, curve
from sordino.selection.crossover_plot import draw_crossover, in_words

GRID = np.geomspace(0.1, 10, 5)


@pytest.mark.parametrize("heights", [(0.6, 0.7, 0.5), (0.7, 0.6, 0.65), (0.6, 0.6, 0.6)])
def test_a_picture_of_three_models(tmp_path: Path, heights: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    slopes = (0.0, 0.02, 0.05)
    accuracies = {
        name: height + slope * np.log(GRID)[:, None] + 0.01 * rng.standard_normal((5, 4))
        for name, height, slope in zip("abc", heights, slopes, strict=True)
    }
    path = tmp_path / "crossover.png"
    draw_crossover(
        [curve(*item) for item in ((n, GRID, a) for n, a in accuracies.items())], crossovers(GRID, accuracies), path
    )
    pixels = image.imread(path)
    assert pixels.shape[0] > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 100  # curves, shades and words are there


def test_no_curves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        draw_crossover([], {}, tmp_path / "no.png")


@pytest.mark.parametrize(
    ("epsilon", "low", "high", "words"),
    [
        (0.25, 0.1, 0.5, "ε× = 0.25 (95 %: 0.1 to 0.5)"),
        (0.0, 0.0, 0.5, "the simple model is never better (95 %: 0 to 0.5)"),
        (np.inf, 0.1, np.inf, "ε× above all ε measured (95 %: 0.1 to ∞)"),
    ],
)
def test_words(epsilon: float, low: float, high: float, words: str) -> None:
    assert in_words(Crossover(epsilon, low, high, 0.95, 1)) == words
