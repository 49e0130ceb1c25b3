"""Dörmann et al. 2021, "Not All Noise Is Accounted Equally" (LSR): large sampling rates with much noise.

They price by RDP and draw a batch in twenty parts, in which a record can come twice; ours draw once at the whole rate,
and are calibrated by PLD to the ε that they report.
"""

from sordino.papers.sampling_rates import figures, tables
from sordino.papers.sampling_rates.common import PAPER
from sordino.papers.trials import Item

ITEMS: dict[str, Item] = {
    "table-1": tables.table_1,
    "table-2": tables.table_2,
    "choices": tables.choices,
    "figure-1": figures.figure_1,
    "figure-2": figures.figure_2,
    "figure-3": figures.figure_3,
}

__all__ = ["ITEMS", "PAPER"]
