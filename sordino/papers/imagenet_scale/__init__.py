"""Kurakin et al. 2022, "Toward Training at ImageNet Scale with Differential Privacy" (INS)."""

from sordino.papers.declarations import Item
from sordino.papers.imagenet_scale import accounting, sizes, sweeps, transfer

ITEMS: dict[str, Item] = {
    "epsilon": accounting.epsilon,
    "noise": accounting.noise,
    "table-2": sizes.step_times,
    "table-3": sizes.resnets,
    "table-4": sizes.resnets,
    "table-5": sweeps.batches,
    "table-6": transfer.fine_tuning,
    "table-7": transfer.fine_tuning,
    "table-8": sweeps.longer,
    "table-9": sweeps.batches,
    "table-10": transfer.pretraining,
    "table-11": transfer.fine_tuning,
    "table-12": transfer.fine_tuning,
    "best": transfer.fine_tuning,
    "figure-1": sweeps.longer,
    "figure-2": accounting.figure_2,
    "figure-3": sweeps.clips,
    "figure-4": sweeps.clips,
    "figure-6": sizes.simple_vggs,
    "figure-7": accounting.figure_7,
    "averages": sweeps.averages,
    "procedure": sweeps.procedure,
}
