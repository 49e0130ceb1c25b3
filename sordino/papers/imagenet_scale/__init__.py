"""Kurakin et al. 2022, "Toward Training at ImageNet Scale with Differential Privacy" (INS)."""

from sordino.papers.declarations import Item
from sordino.papers.imagenet_scale import accounting

ITEMS: dict[str, Item] = {
    "epsilon": accounting.epsilon,
    "noise": accounting.noise,
    "figure-2": accounting.figure_2,
    "figure-7": accounting.figure_7,
}
