"""Kurakin et al. 2022, "Toward Training at ImageNet Scale with Differential Privacy" (INS)."""

from sordino.papers.declarations import Item
from sordino.papers.imagenet_scale import accounting, sweeps

ITEMS: dict[str, Item] = {
    "epsilon": accounting.epsilon,
    "noise": accounting.noise,
    "table-5": sweeps.batches,
    "table-8": sweeps.longer,
    "table-9": sweeps.batches,
    "figure-1": sweeps.longer,
    "figure-2": accounting.figure_2,
    "figure-3": sweeps.clips,
    "figure-4": sweeps.clips,
    "figure-7": accounting.figure_7,
    "averages": sweeps.averages,
}
