"""The privacy-aware workflow (PAW, 2022): simple networks and few features under noise, complex ones without.

Ours draw Poisson batches and are calibrated by PLD; PAW prices by RDP and shuffles.
"""

from sordino.papers.privacy_aware import (
    adult_best,
    feature_methods,
    feature_numbers,
    feature_sgd,
    frozen_layers,
    network_costs,
    network_figures,
    network_tables,
    noise,
    one_hot,
    ridges,
    search_tables,
)
from sordino.papers.privacy_aware.network_rows import PAPER
from sordino.papers.trials import Item

ITEMS: dict[str, Item] = {
    "choices": network_tables.choices,
    "table-1": network_tables.table_1,
    "table-2": feature_sgd.table_2,
    "table-3": noise.table_3,
    "table-4": network_tables.table_4,
    "table-5": network_tables.table_5,
    "table-6": frozen_layers.table_6,
    "table-7": frozen_layers.table_7,
    "table-8": search_tables.table_8,
    "table-9": search_tables.table_9,
    "table-10": feature_methods.table_10,
    "table-13": network_tables.table_13,
    "table-14": network_tables.table_14,
    "table-15": network_tables.table_15,
    "table-16": one_hot.table_16,
    "table-17": network_costs.table_17,
    "table-18": feature_sgd.table_18,
    "figure-1": network_figures.figure_1,
    "figure-3": feature_numbers.figure_3,
    "figure-4": feature_numbers.figure_4,
    "figure-5": noise.figure_5,
    "figure-6": network_costs.figure_6,
    "figure-7": network_figures.figure_7,
    "figure-8": network_figures.figure_8,
    "figure-9": network_figures.figure_9,
    "figure-10": frozen_layers.figure_10,
    "figure-12": network_figures.figure_12,
    "appendix-e": network_tables.appendix_e,
    "adult-best": adult_best.adult_best,
    "ridges": ridges.ridges,
}

__all__ = ["ITEMS", "PAPER"]
