"""One ε divided between selection, tuning, training and the final score, in the terms in which Gaussian noise adds up.

Whatever is released of the same records adds up in squares of 1/σ: a share s of the budget is a Gaussian release with
σ/√s, σ being what the whole budget would buy. A score is of other records than the training, so that it may cost the
whole ε again without raising the maximum over the parts.
"""

from dataclasses import dataclass
from math import isclose, sqrt

from sordino.budget import Gaussian, calibration, cost

SELECTION_SHARE, TUNING_SHARE = 0.15, 0.15


@dataclass(frozen=True)
class BudgetSplit:
    """Shares of what the records of the part train may tell; they add up to 1."""

    target_epsilon: float
    target_delta: float
    selection: float
    tuning: float
    training: float

    def __post_init__(self) -> None:
        shares = (self.selection, self.tuning, self.training)
        if min(shares) < 0 or self.training <= 0 or not isclose(sum(shares), 1):
            raise ValueError(f"shares of selection, tuning and training must add up to 1, not {shares}")
        calibration.check_target(self.target_epsilon)

    @classmethod
    def proposed(cls, target_epsilon: float, target_delta: float, *, selects: bool, tunes: bool) -> "BudgetSplit":
        """What is not done privately leaves its share to the training."""
        selection, tuning = SELECTION_SHARE * selects, TUNING_SHARE * tunes
        return cls(target_epsilon, target_delta, selection, tuning, 1 - selection - tuning)

    @property
    def whole_noise(self) -> float:
        """The noise multiplier of one release that takes the whole ε."""
        return calibration.noise_multiplier(Gaussian, self.target_epsilon, self.target_delta)

    def noise(self, share: float) -> float:
        """The noise multiplier of one release that takes this share."""
        return self.whole_noise / sqrt(share)

    def epsilon(self, share: float) -> float:
        """ε of this share on its own; the shares' ε add up to more than the target, which they cost together."""
        return cost(Gaussian(self.noise(share)), self.target_delta).epsilon if share > 0 else 0.0
