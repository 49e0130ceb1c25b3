"""`sordino reproduce` as a function: a paper's table or figure in, its record (and drawing) out."""

from dataclasses import replace
from pathlib import Path

from sordino.papers import better_features, imagenet_scale, privacy_aware, sampling_rates, weight_distributions
from sordino.papers.declarations import Item, declared
from sordino.papers.records import Record, draw
from sordino.papers.trials import Experiment

PAPERS: dict[str, dict[str, Item]] = {
    "better-features": better_features.ITEMS,
    "sampling-rates": sampling_rates.ITEMS,
    "weight-distributions": weight_distributions.ITEMS,
    "privacy-aware": privacy_aware.ITEMS,
    "imagenet-scale": imagenet_scale.ITEMS,
}


def items_of(paper: str) -> dict[str, Item]:
    if paper not in PAPERS:
        raise ValueError(f"there is no paper {paper!r}; papers: {', '.join(PAPERS)}")
    return PAPERS[paper]


def reproduce(paper: str, item: str, experiment: Experiment, out: Path) -> Record:
    """Run an item's trials, as far as they were not run before, and write its record into the folder."""
    items = items_of(paper)
    if item not in items:
        raise ValueError(f"{paper} has no item {item!r}; items: {', '.join(items)}")
    record = items[item](experiment, declared(paper)[item])
    record = replace(record, paper=paper, item=item, trials=list(experiment.ran.values()))
    if experiment.quick:
        record = replace(record, reduced="tried out on a few records: its figures mean nothing")
    path = record.write(out)
    if record.series:
        draw(record, path.with_suffix(".png"))
    return record
