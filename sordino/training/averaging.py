"""A running average of the parameters, to be released in place of the last ones: free, and often better."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from sordino.training.optimisers import Weights


@dataclass(frozen=True)
class Averaging:
    """Exponential: average ← decay·average + (1 − decay)·parameters after each step.

    Early on the decay is held to (1 + t)/(10 + t), so that the start is soon forgotten. Guarantee: a function of
    parameters that are paid for, so it costs nothing.
    """

    decay: float = 0.9999

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must lie in [0, 1), not {self.decay!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def start(self, parameters: Weights) -> Weights:
        return {name: value.detach().clone() for name, value in parameters.items()}

    @torch.no_grad()
    def step(self, average: Weights, parameters: Weights, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in parameters.items():
            average[name].lerp_(value, 1 - decay)
