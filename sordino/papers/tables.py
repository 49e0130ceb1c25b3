"""Records whose rows are trainings by recipes, and noise as the papers price it.

An item lists its rows, what each says (the paper's figure among it), its trial, and under how many seeds it is run;
`training_record` runs the trials and makes the record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import mean

from scipy.optimize import brentq

from sordino.budget import Composed, Event, PoissonGaussian, Repeated, rdp
from sordino.papers.declarations import Declaration
from sordino.papers.recipe_trials import RecipeTrial
from sordino.papers.records import Cell, Record, Series, percent
from sordino.papers.trials import Experiment, Result

_QUICK_ROWS = 6
"""Of many rows so many, evenly spread, are enough to try a table out."""


def ours(results: list[Result]) -> list[Cell]:
    """Accuracy, noise, price and time of one trial under several seeds: the columns from "ours" to "minutes"."""
    sound, seconds = results[0]["sound"], [sum(result["seconds"].values()) for result in results]
    accuracy = percent(result["accuracy"] for result in results)
    noise = float(results[0]["noise_multiplier"])
    spent = ["∞", "none"] if sound["epsilon"] is None else [sound["epsilon"], sound["accountant"]]
    return [accuracy, noise, *spent, len(results), f"{mean(seconds) / 60:.1f}"]


def accuracy(results: list[Result]) -> list[Cell]:
    """The columns "ours" and "seeds"."""
    return [percent(result["accuracy"] for result in results), len(results)]


@dataclass(frozen=True)
class TrainingRow:
    """What a row says, its trial and under how many seeds; in a figure, the label and panel of its line."""

    cells: tuple[Cell | Callable[[list[Result]], Cell], ...]
    """The first columns; what depends on the results is a function of them."""
    trial: RecipeTrial
    seeds: int = 1
    line: str = ""
    panel: str = ""
    x: float | None = None
    """Where the row's accuracy is a point of the line."""


def training_record(
    experiment: Experiment,
    item: Declaration,
    rows: Sequence[TrainingRow],
    measure: Callable[[list[Result]], list[Cell]] = ours,
    along: str = "",
    words: Mapping[str, str] | None = None,
) -> Record:
    """The record of these rows: `measure` has its last columns, `along` ("epoch", "epsilon") makes each row a line."""
    cells: list[list[Cell]] = []
    lines: dict[tuple[str, str], Series] = {}
    for row in rows[:: ceil(len(rows) / _QUICK_ROWS)] if experiment.quick else rows:
        found = experiment.repeated(row.trial, row.seeds)
        said = [cell(found) if callable(cell) else cell for cell in row.cells]
        cells.append([*said, *measure(found)])
        if along:
            lines[row.line, row.panel] = Series.along(found, row.line, row.panel, along)
        elif row.x is not None:
            line = lines.setdefault((row.line, row.panel), Series(row.line, [], [], row.panel))
            line.add(row.x, [result["accuracy"] for result in found])
    return item.record(experiment, cells, list(lines.values()), words=words)


def classic_noise(
    sample_rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    orders: Sequence[float] = rdp.CLASSIC_ORDERS,
    before: Event | None = None,
) -> float | None:
    """σ for which RDP at these orders with the old conversion gives DP-SGD, and what was spent `before`, this ε.

    None where no noise is enough.
    """

    def excess(log_sigma: float) -> float:
        training = Repeated(PoissonGaussian(sample_rate, exp(log_sigma)), steps)
        values = rdp.rdp(training if before is None else Composed((before, training)), "zero-out", orders)
        return min(float(v) - log(delta) / (order - 1) for v, order in zip(values, orders, strict=True)) - epsilon

    most = log(1e4)
    return None if excess(most) > 0 else exp(float(brentq(excess, log(0.2), most, xtol=1e-4)))
