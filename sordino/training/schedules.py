"""Learning rates over the steps of a run. A constant rate is a plain number."""

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A learning rate for each step, counted from 0."""

    def rate(self, step: int) -> float: ...


@dataclass(frozen=True)
class WarmupCosine:
    """Up in a straight line to `peak` over the warm-up, then down half a cosine, to zero after `steps` steps."""

    peak: float
    warmup_steps: int
    steps: int

    def __post_init__(self) -> None:
        check_rate(self.peak)
        whole = type(self.warmup_steps) is int and type(self.steps) is int
        if not whole or not 0 <= self.warmup_steps < self.steps:
            raise ValueError(
                f"a warm-up is a whole number of steps from 0 and shorter than the run, not {self.warmup_steps!r} of "
                f"{self.steps!r}"
            )

    def rate(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        share = min(1.0, (step - self.warmup_steps) / (self.steps - self.warmup_steps))
        return self.peak * (1 + math.cos(math.pi * share)) / 2


def check_rate(rate: float) -> None:
    if isinstance(rate, bool) or not (isinstance(rate, int | float) and 0 < rate < math.inf):
        raise ValueError(f"the learning rate must be a positive finite number, not {rate!r}")


def rate_at(learning_rate: float | Schedule, step: int) -> float:
    return learning_rate if isinstance(learning_rate, int | float) else learning_rate.rate(step)
