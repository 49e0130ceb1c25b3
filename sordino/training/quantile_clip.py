"""A clip that follows the gradients: each step also releases, with noise, how many of them the clip left whole."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

SENSITIVITY = 0.5
UNIT = 2.0**-30
"""Of the count: fine enough that an example's rounding to it is small beside what the norms' own rounding may do."""
_RAMP = 0.01
_FARTHEST = 1e6


@dataclass(frozen=True)
class QuantileClip:
    """l2_clip ← l2_clip·exp(−learning_rate·(b − quantile)), b the noisy share of examples with norm ≤ l2_clip.

    An example counts +½ if its norm is within the clip, −½ if beyond, and 0 if it is not there; `noise_multiplier` is
    the noise on that count in units of its sensitivity ½ (customary: a tenth of the expected batch size, which is a
    deviation of B/20). Guarantee: count and gradient of a draw are one Gaussian release whose noise multiplier is
    `joint` of theirs. Reference: Andrew, Thakkar, McMahan & Ramaswamy 2021.
    """

    noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} of a quantile clip must be a positive finite number, not {getattr(self, name)!r}"
                )
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"a quantile lies in [0, 1], not {self.quantile!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def joint(self, noise_multiplier: float) -> float:
        """The noise multiplier of the gradient (this one) and the count together."""
        return 1 / math.hypot(1 / noise_multiplier, 1 / self.noise_multiplier)

    def beside(self, joint: float) -> float:
        """The noise multiplier of the gradient that makes the two together this private."""
        if not joint < self.noise_multiplier:
            raise ValueError(
                f"the count alone, at noise multiplier {self.noise_multiplier:g}, costs more than the target allows: "
                f"the quantile clip needs one above {joint:.4g}"
            )
        # A hair more noise, so that rounding cannot bring the joint one below what was asked for.
        return (1 + 1e-12) / math.sqrt(
            (1 / joint - 1 / self.noise_multiplier) * (1 / joint + 1 / self.noise_multiplier)
        )

    def count(self, norms: Tensor, l2_clip: float) -> float:
        """Σ over the examples of +½ where the norm is within the clip and −½ where it is beyond, or no number.

        Within half a hundredth of the clip the count runs straight from one to the other: a sharp edge would let
        the rounding of a norm, which other examples in the batch can change, flip a whole count. Each example's part is
        rounded to whole UNITs, so that the sum is exact.
        """
        return self.units(norms, l2_clip) * UNIT

    def units(self, norms: Tensor, l2_clip: float) -> int:
        """The same in UNITs, of which it is a whole number."""
        places = (l2_clip - norms.double()) / (_RAMP * l2_clip)
        parts = torch.nan_to_num(places, nan=-math.inf).clamp(-SENSITIVITY, SENSITIVITY)
        return int((parts / UNIT).round().to(torch.int64).sum())

    def next_clip(self, l2_clip: float, noisy_count: float, expected_batch_size: int, start: float) -> float:
        """The clip of the next step, from what was released and public numbers; within a million times its start."""
        share = noisy_count / expected_batch_size + SENSITIVITY
        moved = l2_clip * math.exp(min(max(-self.learning_rate * (share - self.quantile), -10.0), 10.0))
        least, most = clips_from(start)
        return min(max(moved, least), most)


def clips_from(start: float) -> tuple[float, float]:
    """The least and the largest clip that a quantile clip comes to."""
    return start / _FARTHEST, start * _FARTHEST
