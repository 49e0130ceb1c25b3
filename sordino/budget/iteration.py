"""Privacy amplification by iteration (Feldman et al. 2018; Tramèr & Boneh 2021, D.3): the price of a last iterate.

Data is clipped instead of gradients, examples come in a fixed order, the loss is convex and smooth, steps are
non-expansive (learning rate ≤ 2/β), there is no momentum, and no intermediate model, metric or average is released.
"""

import math

from sordino.budget.events import Adjacency, Iteration


def rho(event: Iteration, adjacency: Adjacency) -> float:
    """RDP(α) = α·rho for every record: that of the last step of an epoch, whose noise nothing later covers."""
    return _rho(event, adjacency, place=event.steps_per_epoch)


def claimed_rho(event: Iteration, adjacency: Adjacency, share: float = 0.99) -> float:
    """What the paper's figure takes: the record at the ⌈share·S⌉-th step. It holds for that share of records only."""
    if not 0 < share <= 1:
        raise ValueError(f"share of the records must lie in (0, 1], not {share!r}")
    return _rho(event, adjacency, place=max(1, math.ceil(share * event.steps_per_epoch)))


def _rho(event: Iteration, adjacency: Adjacency, place: int) -> float:
    steps = event.steps_per_epoch
    # A replaced record moves the gradient sum by twice the clip (its square: ×4) as against one zeroed out.
    factor = 2.0 if adjacency == "replace-one" else 0.5
    return factor / event.noise_multiplier**2 * ((event.epochs - 1) / steps + 1 / (steps - place + 1))
