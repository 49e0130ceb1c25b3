"""What a reproduction found, as a small JSON file from which pages and figures are made."""

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from textwrap import fill
from typing import Any

Cell = str | float | int | None
_COLOURS = ("#0b6e99", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e0b", "#555555", "#17becf", "#b5651d")


@dataclass
class Series:
    """A line of a figure, or its points."""

    label: str
    x: list[float]
    y: list[float]
    panel: str = ""
    spread: list[float] = field(default_factory=list)
    """Standard deviations over seeds, where there are several."""
    points: bool = False
    """Drawn apart: the paper's figures, or what they are compared with."""

    def add(self, x: float, shares: list[float]) -> None:
        """Their mean in per cent, and their standard deviation."""
        self.x.append(x)
        self.y.append(100 * mean(shares))
        self.spread.append(100 * stdev(shares) if len(shares) > 1 else 0.0)

    @classmethod
    def along(cls, results: list[dict[str, Any]], label: str, panel: str, place: str) -> "Series":
        """The accuracy along the runs of one trial under several seeds, by "epoch" or "epsilon"."""
        line = cls(label, [], [], panel)
        for points in zip(*(result["curve"] for result in results), strict=True):
            line.add(points[0][place], [point["accuracy"] for point in points])
        return line


@dataclass
class Record:
    """One table or figure: the paper's figures beside ours."""

    paper: str
    item: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    reduced: str | None = None
    """How it falls short of the paper's own experiment."""
    tuning: str = ""
    """Where the settings come from, and whether choosing them is counted."""
    x: str = ""
    y: str = ""
    logarithmic: str = ""
    """Axes on a scale of ratios: "", "x" or "xy"."""
    series: list[Series] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)
    """Plan, price and outcome of every training behind the rows."""
    made: dict[str, str] = field(default_factory=lambda: _circumstances())

    def write(self, folder: Path) -> Path:
        path = folder / self.paper / f"{self.item}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> "Record":
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(**content | {"series": [Series(**line) for line in content["series"]]})


def percent(values: Iterable[float]) -> str:
    """Mean ± standard deviation of shares, in per cent; the mean alone of one."""
    found = [100 * value for value in values]
    return f"{mean(found):.2f} ± {stdev(found):.2f}" if len(found) > 1 else f"{mean(found):.2f}"


def as_text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def in_words(record: Record) -> str:
    """The record as a table of plain text."""
    lines = [record.columns, *[[as_text(cell) for cell in row] for row in record.rows]]
    widths = [max(len(line[place]) for line in lines) for place in range(len(record.columns))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    notes = [*record.notes, *([f"Reduced: {record.reduced}"] if record.reduced else [])]
    return "\n".join([record.title, "", *table, "", *notes])


def _circumstances() -> dict[str, str]:
    return {
        "on": datetime.now(UTC).strftime("%Y-%m-%d"),
        "sordino": version("sordino"),
        "torch": version("torch"),
        "processor": platform.machine(),
    }


def draw(record: Record, path: Path) -> None:
    """One panel for each panel of the record's series, side by side."""
    from matplotlib.figure import Figure  # half a second that other commands need not wait for

    panels = list(dict.fromkeys(line.panel for line in record.series))
    labels = list(dict.fromkeys(line.label for line in record.series))
    alike = len(panels) > 1 and all(
        {line.label for line in record.series if line.panel == panel} == set(labels) for panel in panels
    )
    figure = Figure(figsize=(4.6 * len(panels) + 0.6, 3.7), dpi=110, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        for line in (line for line in record.series if line.panel == panel):
            look = {"color": _COLOURS[labels.index(line.label) % len(_COLOURS)], "label": line.label}
            if line.points:
                axis.plot(line.x, line.y, "x", markersize=7, markeredgewidth=1.8, **look)
            else:
                axis.errorbar(line.x, line.y, line.spread or None, marker="o", markersize=3.5, **look)
        axis.set(title=panel, xlabel=record.x, ylabel=record.y)
        if "x" in record.logarithmic:
            axis.set_xscale("log")
        if "y" in record.logarithmic:
            axis.set_yscale("log")
        axis.grid(alpha=0.25)
        if not alike:
            axis.legend(fontsize=7.5)
    if alike:  # once, where it hides nothing
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7.5, loc="outside right center")
    figure.suptitle(fill(record.title, 60 * len(panels)), fontsize=11)
    figure.savefig(path)
