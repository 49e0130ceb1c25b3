"""The privacy-aware workflow (PAW, 2022): simple networks and few features under noise, complex ones without.

Ours draw Poisson batches and are calibrated by PLD; PAW prices by RDP and shuffles.
"""

from sordino.papers.declarations import Item
from sordino.papers.privacy_aware import (
    architecture_search,
    best_adult_model,
    feature_counts,
    feature_selection,
    logistic_regression,
    network_figures,
    network_tables,
    split_inputs,
)

ITEMS: dict[str, Item] = {
    "choices": network_tables.choices,
    "table-1": network_tables.table_1,
    "table-2": feature_counts.table,
    "table-3": split_inputs.table_3,
    "table-4": network_tables.table_4,
    "table-5": network_tables.table_5,
    "table-6": network_tables.table_6,
    "table-7": network_tables.table_7,
    "table-8": architecture_search.table_8,
    "table-9": architecture_search.table_9,
    "table-10": feature_selection.table_10,
    "table-13": network_tables.table_13,
    "table-14": network_tables.regression,
    "table-15": network_tables.regression,
    "table-16": logistic_regression.table_16,
    "table-17": network_tables.table_17,
    "table-18": feature_counts.table,
    "figure-1": network_figures.figure_1,
    "figure-3": feature_counts.figure,
    "figure-4": feature_counts.figure,
    "figure-5": split_inputs.figure_5,
    "figure-6": network_figures.figure_6,
    "figure-7": network_figures.figure_7,
    "figure-8": network_figures.figure_8,
    "figure-9": network_figures.figure_9,
    "figure-10": network_figures.figure_10,
    "figure-12": network_figures.figure_12,
    "appendix-e": network_tables.appendix_e,
    "adult-best": best_adult_model.adult_best,
    "ridges": logistic_regression.ridges,
}
