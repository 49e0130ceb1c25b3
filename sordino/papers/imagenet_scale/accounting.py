"""The ε that INS prints and the noise that its budgets ask for: Tables 4 to 9 and 11, Figures 2 and 7, its best run.

INS prices by RDP at TF-Privacy's orders with the new conversion, at δ=1e-6, over the 1,281,167 images of ImageNet. It
draws batches without replacement from a shuffled stream and prices them as Poisson draws, as everybody did.
"""

import math

import numpy as np
from scipy.special import logsumexp

from sordino.budget import (
    PoissonGaussian,
    PriceCurve,
    Repeated,
    calibration,
    curve_over_batch,
    curve_over_delta,
    epsilons,
    rdp,
    steps_for,
)
from sordino.papers.declarations import Declaration
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment

_N, _DELTA = 1_281_167, 1e-6
_UNIT = 1024
"""Batches are multiples of it."""
_REPLICAS = math.sqrt(8)
"""Each of eight devices adds noise of its own."""
_LOW_ORDERS, _MOST_POINTS = (1.25, 1.5, 1.75, 2.25, 2.5, 3.5, 4.5), 2**20
"""Those of TF-Privacy's orders that are not whole numbers."""
_AS_THEY_DO = "RDP, TF-Privacy's orders"


def epsilon(experiment: Experiment, item: Declaration) -> Record:
    """Published: table, batch in thousands (of 1024), epochs, noise of one replica, ε."""
    rows: list[list[Cell]] = []
    for table, units, epochs, noise, theirs in item.published:
        sigma, steps = _REPLICAS * noise, steps_for(epochs, _N, _UNIT * units)
        step = PoissonGaussian(_UNIT * units / _N, sigma)
        found = epsilons(Repeated(step, steps), _DELTA)
        library = found[_AS_THEY_DO] or math.inf
        ours = min(library, *(_converted(order, steps * _integrated_rdp(step, order)) for order in _LOW_ORDERS))
        off = f"{100 * (ours / theirs - 1):+.1f} %"
        rows.append([table, _UNIT * units, epochs, sigma, theirs, ours, off, library, found["RDP"], found["PLD"]])
    return item.record(experiment, rows)


def _converted(order: float, divergence: float) -> float:
    """ε by one order, with the new conversion."""
    return divergence + rdp.conversion_cost(order, _DELTA)


def _integrated_rdp(step: PoissonGaussian, order: float) -> float:
    """RDP of a step by adding up its integral: log ∫ N(z; 0, σ²)·(1 − q + q·e^((2z−1)/2σ²))^α dz, over α − 1.

    The series in dp_accounting does not converge at low orders where q is large and σ small, and what it says instead
    is valid but far too much.
    """
    q, variance = step.sample_rate, step.noise_multiplier**2
    width = step.noise_multiplier / 40
    z = np.arange(-12 * step.noise_multiplier, order + 12 * step.noise_multiplier, max(width, order / _MOST_POINTS))
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * variance))
    density = -(z**2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)
    if z[1] - z[0] > 2 * width:
        return math.inf  # too coarse to add up
    return float(logsumexp(order * ratio + density) + math.log(z[1] - z[0])) / (order - 1)


def noise(experiment: Experiment, item: Declaration) -> Record:
    """Published: table, batch in thousands (of 1024), epochs, ε, and σ where text or code tell it (else 0)."""
    rows: list[list[Cell]] = []
    for table, units, epochs, target, theirs in experiment.some(item.published, 3):
        rate, steps = _UNIT * units / _N, steps_for(epochs, _N, _UNIT * units)

        def event(sigma: float, rate: float = rate, steps: int = steps) -> Repeated:
            return Repeated(PoissonGaussian(rate, sigma), steps)

        classic = calibration.noise_multiplier(
            event, target, _DELTA, price_of=lambda e: rdp.classic_epsilon(e, _DELTA, "zero-out")
        )
        ours = calibration.noise_multiplier(event, target, _DELTA)
        saved = f"{100 * (1 - ours / classic):.0f} %"
        rows.append([table, _UNIT * units, epochs, target, steps, theirs or None, classic, ours, saved])
    return item.record(experiment, rows)


def figure_2(experiment: Experiment, item: Declaration) -> Record:
    """ε against the batch, with σ in proportion to it and the steps of 10 epochs of batches of 1024."""
    batches = [_UNIT * 2**k for k in range(0, 11, 5 if experiment.quick else 1)]
    steps = steps_for(10, _N, _UNIT)
    return _drawn(experiment, item, curve_over_batch(_N, batches, 0.001 * _REPLICAS / _UNIT, steps, _DELTA))


def figure_7(experiment: Experiment, item: Declaration) -> Record:
    """ε against δ for the best run."""
    deltas = [10.0**-k for k in range(5, 14, 4 if experiment.quick else 1)]
    given = item.given
    event = Repeated(PoissonGaussian(given["batch"] / _N, given["noise_multiplier"]), given["steps"])
    return _drawn(experiment, item, curve_over_delta(event, deltas))


def _drawn(experiment: Experiment, item: Declaration, curve: PriceCurve) -> Record:
    series = []
    for name, values in curve.lines.items():
        known = [(x, y) for x, y in zip(curve.points, values, strict=True) if y is not None]
        series.append(Series(name, [x for x, _ in known], [y for _, y in known]))
    rows: list[list[Cell]] = [list(row) for row in zip(curve.points, *curve.lines.values(), strict=True)]
    return item.record(experiment, rows, series, [curve.x, *curve.lines])
