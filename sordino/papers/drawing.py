"""Figures of records, as PNG."""

from pathlib import Path
from textwrap import fill

from sordino.papers.records import Record

_COLOURS = ("#0b6e99", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e0b", "#555555", "#17becf", "#b5651d")


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
