"""Crossovers: by hand, on curves with a known crossing, as intervals that hold, and drawn."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib import image

from sordino.selection.crossover_epsilon import (
    Crossover,
    crossover,
    crossover_in_words,
    crossovers,
    curve,
    draw_crossover,
    winning_ranges,
)

GRID = np.geomspace(0.01, 100, 9)


def repeated(means: np.ndarray, repeats: int = 2) -> np.ndarray:
    return np.repeat(means[:, None], repeats, axis=1)


def line(height: float, slope: float) -> np.ndarray:
    """Straight in log ε, so that interpolation is exact."""
    return height + slope * np.log(GRID)


@pytest.mark.parametrize("where", [0.02, 0.3, 1.0, 7.7, 99.0])
def test_exact_without_noise(where: float) -> None:
    simple, complex_ = line(0.7, 0.01), line(0.7 - 0.02 * np.log(where), 0.03)
    found = crossover(GRID, repeated(simple), repeated(complex_))
    assert found.epsilon == pytest.approx(where)
    assert found.low == pytest.approx(where)
    assert found.high == pytest.approx(where)
    assert found.crossings == 1


def test_never_better_is_zero_and_still_better_is_infinite() -> None:
    better, worse = repeated(line(0.8, 0.01)), repeated(line(0.7, 0.01))
    never = crossover(GRID, worse, better)
    assert (never.epsilon, never.low, never.high, never.crossings) == (0, 0, 0, 0)
    always = crossover(GRID, better, worse)
    assert (always.epsilon, always.low, always.high) == (np.inf, np.inf, np.inf)
    assert always.to_json()["epsilon"] == "infinity"
    assert crossover(GRID, better, better).epsilon == 0  # equal is not better


def test_of_several_crossings_the_last_counts() -> None:
    difference = np.array([1, -1, -1, 1, 1, -1, -1, -1, -1]) * 0.1
    found = crossover(GRID, repeated(0.5 + difference), repeated(np.full(9, 0.5)))
    assert found.crossings == 3
    assert found.epsilon == pytest.approx(np.sqrt(GRID[4] * GRID[5]))


def noisy_trials(rng: np.random.Generator, means: np.ndarray, repeats: int) -> np.ndarray:
    # More spread at small ε, as measured curves have.
    spread = 0.05 / (1 + np.arange(len(means)))[:, None]
    return means[:, None] + spread * rng.standard_normal((len(means), repeats))


@pytest.mark.parametrize("repeats", [3, 10])
@pytest.mark.parametrize(
    ("simple", "complex_"),
    [
        pytest.param(line(0.7, 0.01), line(0.7, 0.03), id="one crossing, at 1"),
        pytest.param(line(0.7, 0.01), line(0.69, 0.01), id="still better at the end"),
        pytest.param(line(0.7, 0.01), line(0.7, 0.01), id="equal: never better"),
        pytest.param(
            line(0.7, 0.01), line(0.7, 0.01) + np.array([-1, 2, -1, 2, -1, -1, 1, 1, 1]) * 0.01, id="several crossings"
        ),
        pytest.param(np.full(9, 0.5), 0.5 + np.maximum(0, np.log(GRID) / 50), id="touching until 1"),
    ],
)
def test_interval_covers(simple: np.ndarray, complex_: np.ndarray, repeats: int) -> None:
    rng = np.random.default_rng(5)
    truth = crossover(GRID, repeated(simple), repeated(complex_)).epsilon
    covered, below, above, trials = 0, 0, 0, 400
    for _ in range(trials):
        found = crossover(
            GRID, noisy_trials(rng, simple, repeats), noisy_trials(rng, complex_, repeats), confidence=0.9
        )
        covered += found.low * (1 - 1e-9) <= truth <= found.high * (1 + 1e-9)
        below += truth > found.high * (1 + 1e-9)
        above += truth < found.low * (1 - 1e-9)
        assert found.low <= found.epsilon <= found.high
    # Three standard deviations of chance below what is promised, in total and on each side.
    assert covered / trials >= 0.9 - 3 * np.sqrt(0.09 / trials)
    assert max(below, above) / trials <= 0.05 + 3 * np.sqrt(0.0475 / trials)


def test_interval_narrows_with_repeats() -> None:
    rng = np.random.default_rng(1)
    simple, complex_ = line(0.7, 0.01), line(0.7, 0.03)
    widths = []
    for repeats in (5, 50, 500):
        found = crossover(GRID, noisy_trials(rng, simple, repeats), noisy_trials(rng, complex_, repeats))
        widths.append(np.log(found.high / found.low))
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
    assert widths[2] < 0.2


accuracies = hnp.arrays(float, (9, 3), elements=st.floats(0, 1))


@given(accuracies, accuracies, st.floats(0.01, 100))
def test_shifting_the_curves_shifts_the_crossover(simple: np.ndarray, complex_: np.ndarray, factor: float) -> None:
    here, there = crossover(GRID, simple, complex_), crossover(GRID * factor, simple, complex_)
    for name in ("epsilon", "low", "high"):
        assert getattr(there, name) == pytest.approx(getattr(here, name) * factor, rel=1e-9)
    raised = crossover(GRID, simple + 0.25, complex_ + 0.25)
    # Lifting both curves alike changes nothing but rounding, which may decide a tie.
    if np.abs(simple.mean(1) - complex_.mean(1)).min() > 1e-9:
        assert raised.epsilon == pytest.approx(here.epsilon, rel=1e-6)


@given(accuracies, accuracies, st.floats(0.5, 0.98))
def test_more_confidence_is_never_narrower(simple: np.ndarray, complex_: np.ndarray, confidence: float) -> None:
    narrow, wide = (crossover(GRID, simple, complex_, level) for level in (confidence, confidence + 0.01))
    assert wide.low <= narrow.low <= narrow.epsilon <= narrow.high <= wide.high


def test_intervals_of_the_figures_are_t_intervals() -> None:
    values = np.random.default_rng(0).normal(0.8, 0.02, (2, 10))
    found = curve("a", [1, 2], values)
    # 4.780913: the upper 0.05 % point of t with 9 degrees of freedom, from a table.
    half = 4.780913 * values.std(axis=1, ddof=1) / np.sqrt(10)
    np.testing.assert_allclose(found.high - found.mean, half, rtol=1e-6)
    np.testing.assert_allclose(found.mean - found.low, half, rtol=1e-6)


def test_three_models_win_in_turn() -> None:
    models = {
        "logistic": repeated(line(0.80, 0.00)),
        "dense": repeated(line(0.80 + 0.02, 0.01)),  # meets the first where ln ε = −2
        "convolutional": repeated(line(0.80 + 0.01, 0.02)),  # meets the second where ln ε = 1
    }
    found = winning_ranges([curve(name, GRID, values) for name, values in models.items()])
    assert [each.model for each in found] == list(models)
    assert all(each.clear for each in found)
    assert found[0].low == pytest.approx(0.01)
    assert found[0].high == pytest.approx(np.exp(-2)) == found[1].low
    assert found[1].high == pytest.approx(np.e) == found[2].low
    assert found[2].high == pytest.approx(100)
    pairs = crossovers(GRID, models)
    assert list(pairs) == [("logistic", "dense"), ("logistic", "convolutional"), ("dense", "convolutional")]
    assert pairs["dense", "convolutional"].epsilon == pytest.approx(np.e)


def test_overlapping_intervals_are_no_clear_win() -> None:
    rng = np.random.default_rng(3)
    curves = [
        curve(name, GRID, 0.7 + height + 0.05 * rng.standard_normal((9, 5))) for name, height in (("a", 0), ("b", 0.01))
    ]
    assert not any(each.clear for each in winning_ranges(curves))


@given(st.lists(hnp.arrays(float, (9, 2), elements=st.floats(0, 1)), min_size=1, max_size=4))
def test_ranges_tile_what_was_measured(values: list[np.ndarray]) -> None:
    curves = [curve(str(number), GRID, each) for number, each in enumerate(values)]
    found = winning_ranges(curves)
    assert found[0].low == pytest.approx(GRID[0])
    assert found[-1].high == pytest.approx(GRID[-1])
    for one, other in pairwise(found):
        assert one.high == pytest.approx(other.low)
        assert one.model != other.model
    for each in found:
        middle = (np.log(each.low) + np.log(each.high)) / 2
        means = [np.interp(middle, np.log(GRID), one.mean) for one in curves]
        assert means[int(each.model)] == pytest.approx(max(means), abs=1e-9)


@pytest.mark.parametrize(
    ("epsilons", "shape", "confidence", "word"),
    [
        ([], (0, 2), 0.9, "at least one"),
        ([1, 1], (2, 2), 0.9, "rising"),
        ([2, 1], (2, 2), 0.9, "rising"),
        ([0, 1], (2, 2), 0.9, "positive"),
        ([1, np.nan], (2, 2), 0.9, "finite"),
        ([1, 2], (3, 2), 0.9, "a row for each of the 2"),
        ([1, 2], (2,), 0.9, "a row for each"),
        ([1, 2], (2, 1), 0.9, "2 repeats"),
        ([1, 2], (2, 2), 1.0, "confidence"),
        ([1, 2], (2, 2), np.nan, "confidence"),
    ],
)
def test_bad_input(epsilons: list[float], shape: tuple[int, ...], confidence: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        crossover(epsilons, np.zeros(shape), np.zeros(shape), confidence)


def test_bad_models() -> None:
    with pytest.raises(ValueError, match="two models"):
        crossovers([1], {"a": np.zeros((1, 2))})
    with pytest.raises(ValueError, match="finite"):
        crossover([1], [[np.nan, 1]], [[0, 1]])
    with pytest.raises(ValueError, match="same ε"):
        winning_ranges([curve("a", [1, 2], np.zeros((2, 2))), curve("b", [1, 3], np.zeros((2, 2)))])
    with pytest.raises(ValueError, match="at least one"):
        winning_ranges([])


FIVE = np.geomspace(0.1, 10, 5)


@pytest.mark.parametrize("heights", [(0.6, 0.7, 0.5), (0.7, 0.6, 0.65), (0.6, 0.6, 0.6)])
def test_a_picture_of_three_models(tmp_path: Path, heights: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    slopes = (0.0, 0.02, 0.05)
    accuracies = {
        name: height + slope * np.log(FIVE)[:, None] + 0.01 * rng.standard_normal((5, 4))
        for name, height, slope in zip("abc", heights, slopes, strict=True)
    }
    path = tmp_path / "crossover.png"
    draw_crossover(
        [curve(*item) for item in ((n, FIVE, a) for n, a in accuracies.items())], crossovers(FIVE, accuracies), path
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
    assert crossover_in_words(Crossover(epsilon, low, high, 0.95, 1)) == words
