"""How ε or σ moves along one setting of DP-SGD while the others stay: what a plan is chosen by.

Computed from public numbers alone, so it costs nothing. INS draws ε along the batch at a fixed ratio of noise to batch
(its Figure 2) and along δ (Figure 7); LSR and T&B draw σ along the sampling rate at a fixed ε.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.budget import rdp
from sordino.budget.accountant import cost
from sordino.budget.calibration import noise_against_sample_rate
from sordino.budget.events import Event, PoissonGaussian, Repeated
from sordino.budget.events.base import Adjacency, check_adjacency

_PLD, _RDP, _CLASSIC = "PLD", "RDP", "RDP, TF-Privacy's orders"


@dataclass(frozen=True)
class PriceCurve:
    """A line for each accountant; None where it has no figure."""

    title: str
    x: str
    y: str
    points: tuple[float, ...]
    lines: Mapping[str, tuple[float | None, ...]]

    def draw(self, path: str | Path) -> None:
        """As a PNG; an axis that spans more than a factor of ten is on a scale of ratios."""
        from matplotlib.figure import Figure  # half a second that other commands need not wait for

        figure = Figure(figsize=(5.6, 3.8), dpi=120, layout="constrained")
        axis = figure.subplots()
        for (label, values), style in zip(self.lines.items(), ("o-", "s--", "^:"), strict=False):
            axis.plot(self.points, [math.nan if y is None else y for y in values], style, markersize=4, label=label)
        known = [y for values in self.lines.values() for y in values if y is not None]
        axis.set(xscale="log", yscale="log" if max(known) > 10 * min(known) else "linear", xlabel=self.x, ylabel=self.y)
        axis.set_title(self.title, fontsize=10)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
        figure.savefig(path, format="png")


def spaced(least: float, most: float, count: int = 11) -> list[float]:
    """Points from `least` to `most` at equal ratios.

    >>> [round(point, 3) for point in spaced(0.01, 1.0, 3)]
    [0.01, 0.1, 1.0]
    """
    if not 0 < least <= most < math.inf:
        raise ValueError(f"points lie between two positive numbers, the first no larger, not {least!r} and {most!r}")
    ratio = (most / least) ** (1 / (count - 1))
    return [min(most, least * ratio**place) for place in range(count - 1)] + [most]


def curve_over_delta(event: Event, deltas: Sequence[float], adjacency: str = "zero-out") -> PriceCurve:
    """ε of one event at each δ (INS Fig. 7): the same noise promises all of these at once.

    >>> from sordino import events
    >>> curve = curve_over_delta(events.Repeated(events.PoissonGaussian(0.01, 1.0), 100), [1e-5, 1e-6])
    >>> [round(epsilon, 2) for epsilon in curve.lines["PLD"]]
    [0.72, 0.95]
    """
    return _priced("ε of the plan at each δ", "δ", [(delta, event, delta) for delta in deltas], adjacency)


def curve_over_batch(
    n: int, batches: Sequence[int], noise_per_example: float, steps: int, delta: float, adjacency: str = "zero-out"
) -> PriceCurve:
    """ε at each batch size, with noise in proportion to it and the steps fixed (INS Fig. 2, Tables 5 and 9).

    The noise of each step's mean gradient is then the same, so accuracy should be as well, while the epochs grow with
    the batch. `noise_per_example` is the noise multiplier divided by the batch size.
    """
    events = [(b, Repeated(PoissonGaussian(b / n, noise_per_example * b), steps), delta) for b in batches]
    return _priced(f"ε of {steps:,} steps with σ = {noise_per_example:.4g}·batch", "batch size", events, adjacency)


def curve_over_sample_rate(
    sample_rates: Sequence[float], epochs: float, target_epsilon: float, target_delta: float
) -> PriceCurve:
    """σ for a fixed budget after so many epochs, at each sampling rate (LSR Fig. 2, T&B Fig. 6)."""
    noise = noise_against_sample_rate(sample_rates, epochs, target_epsilon, target_delta)
    title = f"σ for ε={target_epsilon:g} at δ={target_delta:g} after {epochs:g} epochs"
    lines: dict[str, tuple[float | None, ...]] = {_PLD: tuple(float(sigma) for sigma in noise)}
    return PriceCurve(title, "sampling rate", "noise multiplier σ", tuple(sample_rates), lines)


def epsilons(event: Event, delta: float, adjacency: Adjacency = "zero-out") -> dict[str, float | None]:
    """ε by each accountant: PLD, RDP at our orders, and RDP at those of TF-Privacy, which INS prints."""
    priced = cost(event, delta, adjacency)
    return {_PLD: priced.pld, _RDP: priced.rdp, _CLASSIC: rdp.classic_epsilon(event, delta, adjacency)}


def _priced(title: str, x: str, settings: Sequence[tuple[float, Event, float]], adjacency: str) -> PriceCurve:
    relation = check_adjacency(adjacency)
    found = [epsilons(event, delta, relation) for _, event, delta in settings]
    lines = {name: tuple(each[name] for each in found) for name in (_PLD, _RDP, _CLASSIC)}
    return PriceCurve(title, x, "ε", tuple(point for point, _, _ in settings), lines)
