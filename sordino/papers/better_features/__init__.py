"""Tramèr & Boneh 2021, "Differentially Private Learning Needs Better Features (or Much More Data)".

Their runs shuffle and account as Poisson, with RDP and the old conversion; ours sample Poisson and pay for the
normalisation out of the same budget, by PLD.
"""

from sordino.papers.better_features import figures, tables
from sordino.papers.better_features.common import PAPER
from sordino.papers.trials import Item

ITEMS: dict[str, Item] = {
    "table-1": tables.table_1,
    "table-2": tables.table_2,
    "table-3": tables.table_3,
    "table-4": tables.table_4,
    "table-11": tables.table_11,
    "table-19": tables.table_19,
    "table-20": tables.table_20,
    "choices": tables.choices,
    "figure-1": figures.figure_1,
    "figure-2": figures.figure_2,
    "figure-3": figures.figure_3,
    "figure-4": figures.figure_4,
    "figure-5": figures.figure_5,
    "figure-6": figures.figure_6,
    "figure-7": figures.figure_7,
    "figure-8": figures.figure_8,
    "figure-9": figures.figure_9,
    "figure-10": figures.figure_10,
    "figure-11": figures.figure_11,
}

__all__ = ["ITEMS", "PAPER"]
