"""Davody et al. 2020, "Robust Differentially Private Training of Deep Neural Networks" (SI-DPSGD)."""

from sordino.papers.trials import Item
from sordino.papers.weight_distributions.noisy_weights import TABLE_1, TABLE_2, TABLE_3, figure_1
from sordino.papers.weight_distributions.private_tables import TABLE_4, TABLE_5, TABLE_6

PAPER = "weight-distributions"
ITEMS: dict[str, Item] = {
    "table-1": TABLE_1,
    "table-2": TABLE_2,
    "table-3": TABLE_3,
    "table-4": TABLE_4,
    "table-5": TABLE_5,
    "table-6": TABLE_6,
    "figure-1": figure_1,
}

__all__ = ["ITEMS", "PAPER"]
