"""Davody et al. 2020, "Robust Differentially Private Training of Deep Neural Networks" (SI-DPSGD)."""

from sordino.papers.declarations import Item
from sordino.papers.weight_distributions import noisy_weights
from sordino.papers.weight_distributions.private_tables import TABLE_4, TABLE_5, TABLE_6, choices

ITEMS: dict[str, Item] = {
    "table-1": noisy_weights.table,
    "table-2": noisy_weights.table,
    "table-3": noisy_weights.table,
    "table-4": TABLE_4,
    "table-5": TABLE_5,
    "table-6": TABLE_6,
    "choices": choices,
    "figure-1": noisy_weights.figure_1,
}
