"""How many records an accuracy takes at which ε: ε = ln(α + β/n), fitted and inverted (PAW, Section VI-B, Fig. 6).

The paper's own fit (α = 1.1, β = 8922.4) does not pass through its own ε = 1 at n = 13,574: refit on measured points.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares


@dataclass(frozen=True)
class SampleSizeLaw:
    """The ε at which one accuracy is reached with n records: large tables need less, down to ln α."""

    alpha: float
    beta: float
    residual: float = 0.0
    """Root mean square of ε − fit over the points fitted."""

    def __post_init__(self) -> None:
        if not (1 <= self.alpha < np.inf and 0 < self.beta < np.inf):
            raise ValueError(f"the law needs alpha ≥ 1 and beta > 0, not {self.alpha!r} and {self.beta!r}")

    @classmethod
    def fitted(cls, records: ArrayLike, epsilons: ArrayLike) -> "SampleSizeLaw":
        """By least squares in ε, over the records n and the ε that reached the accuracy with them."""
        n, epsilon = np.asarray(records, dtype=np.float64), np.asarray(epsilons, dtype=np.float64)
        if n.ndim != 1 or n.shape != epsilon.shape or len(np.unique(n)) < 2:
            raise ValueError("a fit needs an ε for each n, and at least two different n")
        if not ((n > 0) & np.isfinite(n) & (epsilon > 0) & np.isfinite(epsilon)).all():
            raise ValueError("records and ε must be positive and finite; leave out sizes that never got there")
        slope, intercept = np.polyfit(1 / n, np.exp(np.minimum(epsilon, 50)), 1)
        scale = 1 / n.mean()  # in this unit both parameters are of the size of e^ε
        start = max(intercept, 1 + 1e-9), max(slope * scale, 1e-9)

        def misfit(parameters: np.ndarray) -> np.ndarray:
            return np.asarray(np.log(parameters[0] + parameters[1] / (n * scale)) - epsilon)

        found = least_squares(misfit, start, bounds=((1, 1e-12), np.inf), x_scale=start, xtol=1e-14, ftol=1e-14)
        return cls(float(found.x[0]), float(found.x[1] / scale), float(np.sqrt(np.mean(found.fun**2))))

    def epsilon(self, records: float) -> float:
        """The ε that this many records need."""
        if not 0 < records < np.inf:
            raise ValueError(f"records must be a positive number, not {records!r}")
        return float(np.log(self.alpha + self.beta / records))

    def records(self, epsilon: float) -> float:
        """The records that this ε needs; ∞ where no number suffices."""
        if not 0 < epsilon < np.inf:
            raise ValueError(f"ε must be a positive finite number, not {epsilon!r}")
        room = np.exp(min(epsilon, 700)) - self.alpha
        return float(self.beta / room) if room > 0 else float(np.inf)
