"""Whether a feature is worth its noise: PAW's Lemma 1 and Corollary 1, for linear models with Gaussian output noise.

As printed the lemma claims "if and only if", but only one direction holds: small |θ_m| suffices for dropping, yet where
θ_m·x_m and the residual c have opposite signs, larger ones are to be dropped too. The exact condition is u² + 2cu ≤ d.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Worth:
    """What a feature does to the expected squared error of the noisy model, at each point and on average."""

    gain: Array
    """Expected error without the feature less that with it, at each point: positive where the feature is worth it."""

    @property
    def mean_gain(self) -> float:
        return float(self.gain.mean())

    @property
    def worth_its_noise(self) -> bool:
        """On average over the points. A tie goes to the model without the feature, as in the lemma."""
        return self.mean_gain > 0


def feature_worth(
    x: ArrayLike, y: ArrayLike, weights: ArrayLike, feature: int, noise: float, noise_without: float | None = None
) -> Worth:
    """With θ + N(0, noise²·I) against the same θ without this feature and N(0, noise_without²·I) on the others.

    For points x (n, m) or one point (m,) that are public, or whose answer stays inside: nothing here is noised. With
    c = y − θᵀx, u = θ_m·x_m and x' = x without the feature, the expected errors are c² + noise²·‖x‖² and
    (c + u)² + noise_without²·‖x'‖²; dropping is no worse exactly where u² + 2cu ≤ d, d being the difference of the
    two noise terms.
    """
    rows, targets, theta = np.atleast_2d(_finite(x, "x")), np.atleast_1d(_finite(y, "y")), _finite(weights, "weights")
    if rows.ndim != 2 or theta.shape != rows.shape[1:] or targets.shape != (len(rows),):
        raise ValueError(
            f"expected points (n, m), n targets and m weights, not {rows.shape}, {targets.shape} and {theta.shape}"
        )
    if not 0 <= feature < len(theta):
        raise ValueError(f"there are {len(theta)} features, numbered from 0; {feature} is none of them")
    without = noise if noise_without is None else noise_without
    for name, value in (("noise", noise), ("noise_without", without)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be a standard deviation, not {value!r}")
    residual = targets - rows @ theta
    u = theta[feature] * rows[:, feature]
    square = (rows**2).sum(axis=1)
    d = noise**2 * square - without**2 * (square - rows[:, feature] ** 2)
    return Worth(u**2 + 2 * residual * u - d)


def least_worthwhile_weight(noise: float) -> float:
    """Corollary 1: where the model fits exactly and dropping does not change the noise, |θ_m| must exceed it."""
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise must be a standard deviation, not {noise!r}")
    return noise


def _finite(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers only")
    return array
