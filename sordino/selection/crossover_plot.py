"""Accuracy against ε of two or more models, with shaded intervals and the crossovers marked, as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sordino.selection.crossover import Crossover, Curve

_COLOURS = ("#0b6e99", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e0b", "#555555", "#17becf", "#b5651d")


def draw_crossover(
    curves: Sequence[Curve], crossovers: Mapping[tuple[str, str], Crossover], path: str | Path, title: str = ""
) -> None:
    """One panel like PAW's Figure 8; a crossover of 0 or ∞ lies outside of it and is told in the legend only."""
    from matplotlib.figure import Figure  # half a second that other commands need not wait for

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
        label = f"{simple} → {complex_}: {in_words(found)}"
        if not 0 < found.epsilon < np.inf:
            axis.plot([], [], " ", label=label)
            continue
        style = ("--", ":", "-.")[number % 3]
        axis.axvline(found.epsilon, color="#333333", linestyle=style, linewidth=1.1, label=label)
        axis.axvspan(max(found.low, least), min(found.high, most), color="#333333", alpha=0.07, linewidth=0)
    axis.set(xscale="log", xlabel="ε", ylabel="accuracy", title=title)
    axis.margins(x=0.02)
    axis.grid(alpha=0.25)
    shading = f"shaded: {100 * curves[0].confidence:g} % intervals, and those of the crossovers"
    figure.legend(fontsize=7.5, loc="outside lower center", title=shading, title_fontsize=7.5)
    figure.savefig(path)


def in_words(found: Crossover) -> str:
    """The crossover with its interval, for people."""
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
