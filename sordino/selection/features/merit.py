"""Hall's merit of a subset (PAW Eq. 7), and CFS-Greedy (Algorithm 3): the best next feature, again and again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.selection.features.uncertainty import Uncertainties

Mask = NDArray[np.bool_]


def merits(found: Uncertainties, masks: Mask) -> NDArray[np.float64]:
    """Of each subset (subsets, features): k·(mean with the label) / √(k + k(k−1)·(mean between)), 0 of the empty one.

    Guarantee: post-processing of the uncertainties, so it costs nothing however many subsets are tried.
    """
    chosen = np.asarray(masks, dtype=np.float64)
    size = chosen.sum(axis=1)
    # k(k−1) times the mean over pairs is the sum over ordered pairs; the diagonal of 1 makes it size + that sum.
    together = ((chosen @ found.between) * chosen).sum(axis=1)
    return np.asarray(chosen @ found.with_label / np.sqrt(np.where(size > 0, together, 1.0)))


@dataclass(frozen=True, eq=False)
class GreedyOrder:
    """All features in the order in which CFS-Greedy takes them; the first k are its subset of size k."""

    order: NDArray[np.intp]
    merits: NDArray[np.float64]
    """Of the first 1, 2, …, m features."""

    def subset(self, size: int) -> Mask:
        """CFS-Greedy's subset of this size as a mask."""
        if not 1 <= size <= len(self.order):
            raise ValueError(f"a subset has 1 to {len(self.order)} features, not {size}")
        mask = np.zeros(len(self.order), dtype=bool)
        mask[self.order[:size]] = True
        return mask

    @property
    def best_size(self) -> int:
        """Where the paper's other rule stops: adding any one feature more does not raise the merit."""
        falls = np.flatnonzero(np.diff(self.merits) <= 0)
        return int(falls[0]) + 1 if len(falls) else len(self.merits)


def cfs_greedy(found: Uncertainties) -> GreedyOrder:
    """Algorithm 3 for every size in one pass: each time the feature that makes the merit greatest, the first of equals.

    Guarantee: post-processing of the uncertainties.
    """
    m = len(found.names)
    free = np.ones(m, dtype=bool)
    with_label, together = 0.0, 0.0
    with_chosen = np.zeros(m)
    order, values = [], []
    for _ in range(m):
        # A feature more adds its 1 of the diagonal and, twice, what it shares with those chosen.
        candidates = (with_label + found.with_label) / np.sqrt(together + 1 + 2 * with_chosen)
        best = int(np.where(free, candidates, -np.inf).argmax())
        with_label += float(found.with_label[best])
        together += 1 + 2 * float(with_chosen[best])
        with_chosen += found.between[best]
        free[best] = False
        order.append(best)
        values.append(float(candidates[best]))
    return GreedyOrder(np.array(order), np.array(values))
