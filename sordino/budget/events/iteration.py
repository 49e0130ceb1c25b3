"""Privacy amplification by iteration (Feldman et al. 2018; Tramèr & Boneh 2021, D.3): the price of a last iterate.

Data is clipped instead of gradients, examples come in a fixed order, the loss is convex and smooth, steps are
non-expansive (learning rate ≤ 2/β), there is no momentum, and no intermediate model, metric or average is released.
"""

import math
from dataclasses import dataclass

from dp_accounting import dp_event

from sordino.budget.events.base import (
    Adjacency,
    Array,
    Event,
    check_fixed_order,
    library_rdp,
)


@dataclass(frozen=True)
class Iteration(Event, name="iteration"):
    """The last iterate of noisy projected SGD over a fixed order on a convex smooth loss."""

    epochs: int
    steps_per_epoch: int
    noise_multiplier: float
    words = "last iterate of {epochs} epochs of {steps_per_epoch} steps, σ={noise_multiplier:.5g}"
    sampling = "fixed order"

    def check_adjacency(self, adjacency: Adjacency) -> None:
        check_fixed_order(adjacency)

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        return library_rdp(dp_event.ZCDpEvent(self.rho(adjacency)), adjacency, orders)

    def rho(self, adjacency: Adjacency, share: float = 1.0) -> float:
        """RDP(α) = α·rho for every record: that of the last step of an epoch, whose noise nothing later covers.

        With a share below 1, what the paper's figure claims: the record at the ⌈share·S⌉-th step. It holds for that
        share of records only.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share of the records must lie in (0, 1], not {share!r}")
        return self.rho_at(max(1, math.ceil(share * self.steps_per_epoch)), adjacency)

    def rho_at(self, place: int, adjacency: Adjacency) -> float:
        """`rho` of the record at this place of its epoch, counted from 1."""
        steps = self.steps_per_epoch
        # A replaced record moves the gradient sum by twice the clip (its square: ×4) as against one zeroed out.
        factor = 2.0 if adjacency == "replace-one" else 0.5
        return factor / self.noise_multiplier**2 * ((self.epochs - 1) / steps + 1 / (steps - place + 1))
