"""What a reproduction found, as a small JSON file from which pages and figures are made."""

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev

Cell = str | float | int | None


@dataclass
class Series:
    """A line of a figure, or its points."""

    label: str
    x: list[float]
    y: list[float]
    panel: str = ""
    spread: list[float] | None = None
    """Standard deviations."""
    published: bool = False
    """Figures of the paper, drawn as points."""


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
    x: str = ""
    y: str = ""
    logarithmic: str = ""
    """Axes on a scale of ratios: "", "x" or "xy"."""
    series: list[Series] = field(default_factory=list)
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
    notes = [*([f"reduced: {record.reduced}"] if record.reduced else []), *record.notes]
    return "\n".join([record.title, "", *table, "", *notes])


def _circumstances() -> dict[str, str]:
    return {
        "on": datetime.now(UTC).strftime("%Y-%m-%d"),
        "sordino": version("sordino"),
        "torch": version("torch"),
        "processor": platform.machine(),
    }
