"""Davody et al. 2020, "Robust Differentially Private Training of Deep Neural Networks" (SI-DPSGD)."""

from sordino.papers.trials import Item
from sordino.papers.weight_distributions import noise, private
from sordino.papers.weight_distributions.noise import PAPER

ITEMS: dict[str, Item] = {
    "table-1": noise.table_1,
    "table-2": noise.table_2,
    "table-3": noise.table_3,
    "table-4": private.table_4,
    "table-5": private.table_5,
    "table-6": private.table_6,
    "figure-1": noise.figure_1,
}

__all__ = ["ITEMS", "PAPER"]
