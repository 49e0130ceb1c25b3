"""Learning rates over the steps of a run. A constant rate is a plain number."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from sordino.training.planning import check_positive, check_whole


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


@dataclass(frozen=True)
class Staircase:
    """Multiplied by `factor` after every so many steps."""

    start: float
    factor: float
    every: int

    def __post_init__(self) -> None:
        check_rate(self.start)
        check_positive("the factor of a stair", self.factor)
        check_whole("the steps of a stair", self.every)

    def rate(self, step: int) -> float:
        return self.start * self.factor ** (step // self.every)


@dataclass(frozen=True)
class OneCycle:
    """As torch's OneCycleLR: up to `peak` over three tenths of the steps, then down to next to nothing."""

    peak: float
    steps: int

    def __post_init__(self) -> None:
        check_rate(self.peak)
        check_whole("the steps of one cycle", self.steps, 7)

    def rate(self, step: int) -> float:
        top, start = 0.3 * self.steps - 1, self.peak / 25
        if step <= top:
            return _half_cosine(start, self.peak, step / top)
        return _half_cosine(self.peak, start / 1e4, min(1.0, (step - top) / (self.steps - 1 - top)))


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


_SCHEDULES: dict[str, type[WarmupCosine | Staircase | OneCycle]] = {
    "warmup-cosine": WarmupCosine,
    "staircase": Staircase,
    "one-cycle": OneCycle,
}


def schedule_to_json(learning_rate: float | Schedule) -> float | dict[str, Any]:
    """The learning rate as plain JSON values."""
    if isinstance(learning_rate, int | float):
        return learning_rate
    for name, cls in _SCHEDULES.items():
        if isinstance(learning_rate, cls):
            return {"schedule": name, **asdict(learning_rate)}
    raise ValueError(f"{type(learning_rate).__name__} is not one of sordino's schedules: {', '.join(_SCHEDULES)}")


def schedule_from_json(document: Any) -> float | Schedule:
    if not isinstance(document, dict):
        check_rate(document)
        return float(document)
    return _SCHEDULES[document["schedule"]](**{name: value for name, value in document.items() if name != "schedule"})


def check_rate(rate: float) -> None:
    check_positive("the learning rate", rate)


def rate_at(learning_rate: float | Schedule, step: int) -> float:
    return learning_rate if isinstance(learning_rate, int | float) else learning_rate.rate(step)
