"""How noisy gradients become weights. All of it is computed from releases, so none of it costs privacy.

An optimiser is a frozen description. Its step changes parameters and state in place, and depends on nothing but its
arguments: a run that goes on from a checkpoint goes on as if it had never stopped.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sordino.training.schedules import Schedule, check_rate, rate_at

Weights = dict[str, Tensor]
State = dict[str, Weights]
"""What an optimiser remembers, by kind and parameter; a checkpoint keeps it."""


class Optimiser(Protocol):
    """`noise_deviation` is the standard deviation of the noise in every coordinate of the gradient: public."""

    def to_json(self) -> dict[str, Any]: ...

    def start(self, parameters: Weights) -> State: ...

    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None: ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as torch.optim.SGD does it, with a heavy ball or Nesterov's.

    `weight_decay` adds weight_decay·w to the noisy gradient (an L2 penalty outside the clip).
    """

    learning_rate: float | Schedule
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum!r}")
        if self.nesterov and not self.momentum:
            raise ValueError("Nesterov's method needs a momentum above 0")

    def to_json(self) -> dict[str, Any]:
        return {"optimiser": "sgd", **asdict(self)}

    def start(self, parameters: Weights) -> State:
        return {"velocity": _zeros(parameters)} if self.momentum else {}

    @torch.no_grad()
    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        rate = rate_at(self.learning_rate, step)
        for name, value in parameters.items():
            direction = gradient[name]
            if self.weight_decay:
                direction = direction.add(value, alpha=self.weight_decay)
            if self.momentum:
                velocity = state["velocity"][name].mul_(self.momentum).add_(direction)
                direction = direction.add(velocity, alpha=self.momentum) if self.nesterov else velocity
            value.add_(direction, alpha=-rate)


@dataclass(frozen=True)
class Adam:
    """Adam as torch.optim.AdamW does it: weight decay is decoupled, w ← w·(1 − rate·weight_decay); 0 is plain Adam.

    The noise inflates the second moment by its own, known variance. With a `noise_floor` that variance is taken off
    again, down to this floor (DP-AdamBC: Tang, Shpilevskiy & Lécuyer 2023); `stability` then has no part.
    """

    learning_rate: float | Schedule
    first_decay: float = 0.9
    second_decay: float = 0.999
    stability: float = 1e-8
    weight_decay: float = 0.0
    noise_floor: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.weight_decay)
        for name in ("first_decay", "second_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), not {getattr(self, name)!r}")
        if not 0 <= self.stability < math.inf:
            raise ValueError(f"stability must be a finite number from 0, not {self.stability!r}")
        if self.noise_floor is not None and not 0 < self.noise_floor < math.inf:
            raise ValueError(f"noise_floor must be a positive finite number or None, not {self.noise_floor!r}")

    def to_json(self) -> dict[str, Any]:
        return {"optimiser": "adam", **asdict(self)}

    def start(self, parameters: Weights) -> State:
        state = {"first": _zeros(parameters), "second": _zeros(parameters)}
        if self.noise_floor is not None:
            # A clip that adapts changes the noise: its variance is averaged as the squares that contain it are.
            state["noise"] = {"variance": torch.zeros((), dtype=torch.float64)}
        return state

    @torch.no_grad()
    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        rate = rate_at(self.learning_rate, step)
        first_share, second_share = 1 - self.first_decay ** (step + 1), 1 - self.second_decay ** (step + 1)
        noise = 0.0
        if self.noise_floor is not None:
            variance = state["noise"]["variance"].mul_(self.second_decay)
            noise = float(variance.add_((1 - self.second_decay) * noise_deviation**2)) / second_share
        for name, value in parameters.items():
            first = state["first"][name].lerp_(gradient[name], 1 - self.first_decay)
            second = state["second"][name].mul_(self.second_decay)
            second.addcmul_(gradient[name], gradient[name], value=1 - self.second_decay)
            if self.weight_decay:
                value.mul_(1 - rate * self.weight_decay)
            if self.noise_floor is None:
                scale = (second.sqrt() / math.sqrt(second_share)).add_(self.stability)
            else:
                scale = (second / second_share).sub_(noise).clamp_(min=self.noise_floor).sqrt_()
            value.addcdiv_(first, scale, value=-rate / first_share)


def _zeros(parameters: Weights) -> Weights:
    return {name: torch.zeros_like(value, requires_grad=False) for name, value in parameters.items()}


def _check(learning_rate: float | Schedule, weight_decay: float) -> None:
    if not hasattr(learning_rate, "rate"):
        check_rate(learning_rate)
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay must be a finite number from 0, not {weight_decay!r}")
