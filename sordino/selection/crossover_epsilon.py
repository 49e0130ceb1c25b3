"""The crossover ε of a simple and a complex model: below it the simple one is the better choice (PAW, Definition 2).

Curves are means over repeats, interpolated linearly in log ε. As printed, the definition gives ∞ if the simple model is
never better, which contradicts the rule beside it (simple whenever ε ≤ ε×): here that is 0, and ∞ means that the simple
model is still better at the largest ε measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
_COLOURS = ("#0b6e99", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e0b", "#555555", "#17becf", "#b5651d")

FIGURES_CONFIDENCE = 0.999
"""Confidence of the intervals around the curves of PAW's figures."""


@dataclass(frozen=True)
class Crossover:
    """Where the complex model overtakes the simple one for good, with an interval of this confidence around it.

    0: the simple model is better nowhere among the ε measured; ∞: it is still better at the largest of them.
    """

    epsilon: float
    low: float
    high: float
    confidence: float
    crossings: int
    """How often the two mean curves cross; the definition takes the last time."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with "infinity" for ∞, which JSON lacks."""
        return {name: "infinity" if value == np.inf else value for name, value in asdict(self).items()}


@dataclass(frozen=True, eq=False)
class Curve:
    """A model's mean accuracy at each ε, with 99.9 % t-intervals that hold at one ε each."""

    name: str
    epsilons: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Range:
    """The ε from low to high, in which this model has the best mean; `clear` where its interval stands alone."""

    model: str
    low: float
    high: float
    clear: bool
    """Whether at one ε measured in the range its interval lies above those of all other models."""


def crossover(epsilons: ArrayLike, simple: ArrayLike, complex_: ArrayLike, confidence: float = 0.95) -> Crossover:
    """Definition 2 on accuracies (ε, repeats) of two models; they may have different numbers of repeats.

    The interval holds the crossover of the true (interpolated) means with at least this confidence, if each mean is
    about normal, whatever the curves' shape and however often they cross. Let D be the difference of the means and ε×
    the last ε with D > 0. Its upper end is the last ε where an upper confidence bound of D is positive; it lies below
    ε× only if the bound at ε× itself, one fixed place, fails: probability (1 − confidence)/2. The lower end is the last
    ε where a lower bound is positive; that lies above ε× if the bound fails anywhere beyond, so these bounds hold for
    all ε at once (Šidák). Bounds are t-bounds (Welch), interpolated like the means, which errs on the wide side.
    A bootstrap would be narrower, but fails with few repeats and where the answer is 0 or ∞.
    """
    grid = _check_epsilons(epsilons)
    few, many = (_check_accuracies(each, grid) for each in (simple, complex_))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1, not {confidence!r}")
    difference = few.mean(axis=1) - many.mean(axis=1)
    error, freedom = _welch(few, many)
    miss = (1 - confidence) / 2
    everywhere = 1 - (1 - miss) ** (1 / len(grid))
    lower = difference - stats.t.isf(everywhere, freedom) * error
    upper = difference + stats.t.isf(miss, freedom) * error
    signs = np.sign(difference[difference != 0])
    return Crossover(
        _last_positive(grid, difference),
        _last_positive(grid, lower),
        _last_positive(grid, upper),
        confidence,
        int((signs[1:] != signs[:-1]).sum()),
    )


def crossovers(
    epsilons: ArrayLike, accuracies: Mapping[str, ArrayLike], confidence: float = 0.95
) -> dict[tuple[str, str], Crossover]:
    """Of every pair of models, which are given from the simplest to the most complex."""
    if len(accuracies) < 2:
        raise ValueError(f"a crossover needs at least two models, not {len(accuracies)}")
    return {
        (first, second): crossover(epsilons, accuracies[first], accuracies[second], confidence)
        for first, second in combinations(accuracies, 2)
    }


def curve(name: str, epsilons: ArrayLike, accuracies: ArrayLike) -> Curve:
    """Means over repeats with t-intervals, as around the curves of PAW's Figures 7, 8 and 10."""
    grid = _check_epsilons(epsilons)
    values = _check_accuracies(accuracies, grid)
    error = stats.sem(values, axis=1) * stats.t.isf((1 - FIGURES_CONFIDENCE) / 2, values.shape[1] - 1)
    mean = values.mean(axis=1)
    return Curve(name, grid, mean, mean - error, mean + error)


def winning_ranges(curves: Sequence[Curve]) -> tuple[Range, ...]:
    """Which model has the best mean at which ε, from the smallest measured to the largest; ties go to the first."""
    if not curves:
        raise ValueError("ranges need the curve of at least one model")
    grid = curves[0].epsilons
    if any(not np.array_equal(each.epsilons, grid) for each in curves):
        raise ValueError("all models must be measured at the same ε; measure the missing ones")
    cuts = sorted({*np.log(grid), *(x for one, other in combinations(curves, 2) for x in _meetings(one, other))})
    found: list[Range] = []
    for left, right in pairwise(cuts):
        middle = [np.interp((left + right) / 2, np.log(grid), each.mean) for each in curves]
        name = curves[int(np.argmax(middle))].name
        if found and found[-1].model == name:
            left = np.log(found.pop().low)
        found.append(Range(name, float(np.exp(left)), float(np.exp(right)), False))
    if not found:  # a single ε
        best = max(curves, key=lambda each: each.mean[0])
        found = [Range(best.name, float(grid[0]), float(grid[0]), False)]
    return tuple(Range(each.model, each.low, each.high, _stands_alone(each, curves)) for each in found)


def _stands_alone(found: Range, curves: Sequence[Curve]) -> bool:
    own = next(each for each in curves if each.name == found.model)
    rivals = [each.high for each in curves if each is not own]
    inside = (own.epsilons >= found.low * (1 - 1e-12)) & (own.epsilons <= found.high * (1 + 1e-12))
    return bool((inside & (own.low > np.max(rivals, axis=0, initial=-np.inf))).any())


def _meetings(one: Curve, other: Curve) -> list[float]:
    """The log ε strictly between two measured ε at which two interpolated means meet."""
    x, difference = np.log(one.epsilons), one.mean - other.mean
    before, after = difference[:-1], difference[1:]
    crossing = before * after < 0
    return list((x[:-1] + np.diff(x) * before / np.where(crossing, before - after, 1))[crossing])


def _last_positive(epsilons: Array, values: Array) -> float:
    """The largest ε at which the values, interpolated in log ε, are positive: 0 if nowhere, ∞ if at the last one."""
    positive = np.flatnonzero(values > 0)
    if len(positive) == 0:
        return 0.0
    last = int(positive[-1])
    if last == len(values) - 1:
        return float(np.inf)
    x, y = np.log(epsilons[last : last + 2]), values[last : last + 2]
    return float(np.exp(x[0] + (x[1] - x[0]) * y[0] / (y[0] - y[1])))


def _welch(one: Array, other: Array) -> tuple[Array, Array]:
    """Standard error of the difference of two means, and its degrees of freedom."""
    parts = [each.var(axis=1, ddof=1) / each.shape[1] for each in (one, other)]
    total = parts[0] + parts[1]
    spread = parts[0] ** 2 / (one.shape[1] - 1) + parts[1] ** 2 / (other.shape[1] - 1)
    # Repeats that all agree have no spread: any number of degrees of freedom gives an interval of no width.
    freedom = np.where(spread > 0, total**2 / np.where(spread > 0, spread, 1), one.shape[1] + other.shape[1] - 2)
    return np.sqrt(total), freedom


def _check_epsilons(epsilons: ArrayLike) -> Array:
    grid = np.asarray(epsilons, dtype=np.float64)
    if grid.ndim != 1 or len(grid) == 0:
        raise ValueError(f"epsilons must be a list of at least one ε, not an array of shape {grid.shape}")
    if not ((grid > 0) & np.isfinite(grid)).all() or not (np.diff(grid) > 0).all():
        raise ValueError("epsilons must be positive, finite and rising; sort them with their accuracies")
    return grid


def _check_accuracies(accuracies: ArrayLike, grid: Array) -> Array:
    values = np.asarray(accuracies, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(grid):
        raise ValueError(f"accuracies must have a row for each of the {len(grid)} ε, not the shape {values.shape}")
    if values.shape[1] < 2:
        raise ValueError("an interval needs at least 2 repeats at each ε; measure again")
    if not np.isfinite(values).all():
        raise ValueError("accuracies must be finite numbers; leave out repeats that failed")
    return values


def draw_crossover(
    curves: Sequence[Curve], crossovers: Mapping[tuple[str, str], Crossover], path: str | Path, title: str = ""
) -> None:
    """One panel like PAW's Figure 8; a crossover of 0 or ∞ lies outside of it and is in the legend only."""
    from matplotlib.figure import Figure  # half a second to import

    if not curves:
        raise ValueError("a figure needs the curve of at least one model")
    figure = Figure(figsize=(6.4, 4.8), dpi=110, layout="constrained")
    axis = figure.subplots()
    for number, each in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        axis.plot(each.epsilons, each.mean, marker="o", markersize=3.5, color=colour, label=each.name)
        axis.fill_between(each.epsilons, each.low, each.high, color=colour, alpha=0.18, linewidth=0)
    least, most = float(curves[0].epsilons[0]), float(curves[0].epsilons[-1])
    for number, ((simple, complex_), found) in enumerate(crossovers.items()):
        label = f"{simple} → {complex_}: {crossover_in_words(found)}"
        if not 0 < found.epsilon < np.inf:
            axis.plot([], [], " ", label=label)
            continue
        style = ("--", ":", "-.")[number % 3]
        axis.axvline(found.epsilon, color="#333333", linestyle=style, linewidth=1.1, label=label)
        axis.axvspan(max(found.low, least), min(found.high, most), color="#333333", alpha=0.07, linewidth=0)
    axis.set(xscale="log", xlabel="ε", ylabel="accuracy", title=title)
    axis.margins(x=0.02)
    axis.grid(alpha=0.25)
    shading = f"shaded: {100 * FIGURES_CONFIDENCE:g} % intervals, and those of the crossovers"
    figure.legend(fontsize=7.5, loc="outside lower center", title=shading, title_fontsize=7.5)
    figure.savefig(path)


def crossover_in_words(found: Crossover) -> str:
    """The crossover with its interval."""
    low, high = (_number(value) for value in (found.low, found.high))
    match found.epsilon:
        case 0:
            best = "the simple model is never better"
        case np.inf:
            best = "ε× above all ε measured"
        case epsilon:
            best = f"ε× = {epsilon:.3g}"
    return f"{best} ({100 * found.confidence:g} %: {low} to {high})"


def _number(value: float) -> str:
    return "∞" if value == np.inf else f"{value:.3g}"
