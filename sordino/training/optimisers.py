"""How noisy gradients become weights. All of it is computed from releases, so none of it costs privacy.

Ours are frozen descriptions; a `TorchOptimiser` wraps one of torch's. A step changes parameters and state in place, and
depends on nothing but its arguments: a run resumed from a checkpoint continues as if it had never stopped.
"""

import copy
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from sordino.gradients import keep_random_state
from sordino.training.schedules import Schedule, check_rate, rate_at
from sordino.training.sharding import cut_as, local

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
    """Stochastic gradient descent as torch.optim.SGD does it, with heavy-ball or Nesterov momentum.

    `learning_rate` is a number or a schedule. `weight_decay` adds weight_decay·w to the noisy gradient (an L2 penalty
    outside the clip).

    >>> SGD(0.5, momentum=0.9).to_json()["momentum"]
    0.9
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

    The noise inflates the second moment by its own, known variance. With a `noise_floor` that variance is subtracted
    again, down to this floor (DP-AdamBC: Tang, Shpilevskiy & Lécuyer 2023); `stability` then has no part.

    >>> Adam(1e-3, noise_floor=1e-8).second_decay
    0.999
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


class OptimiserError(ValueError):
    """A torch optimizer that cannot train this model privately."""


@dataclass(eq=False)
class TorchOptimiser:
    """Any torch.optim optimizer that needs one gradient a step: it is given the noisy one.

    `make(parameters)` returns the optimizer. Its state and hyperparameters are part of every checkpoint, by the names
    of the parameters. An optimizer that draws random numbers draws the same ones when a step is repeated.
    """

    make: Callable[[list[Tensor]], Optimizer]
    _optimizer: Optimizer | None = field(default=None, init=False, repr=False)
    _of: tuple[Weights, State] | None = field(default=None, init=False, repr=False)
    _facts: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def check(self, parameters: Weights, all_of_model: Iterable[Tensor] | None = None) -> None:
        """Refuse, before anything is charged, an optimizer that lacks parameters or cannot step."""
        optimizer = self._made(parameters)
        check_parameters(optimizer, parameters.values(), all_of_model or parameters.values())
        _rehearse(optimizer)
        names = {id(value): name for name, value in parameters.items()}
        groups = [
            {name: _described(value) for name, value in group.items() if name != "params"}
            | {"params": sorted(names.get(id(value), "frozen") for value in group["params"])}
            for group in optimizer.param_groups
        ]
        self._facts = {"optimiser": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}", "groups": groups}

    def to_json(self) -> dict[str, Any]:
        return self._facts

    @property
    def keeps_all_in_its_state(self) -> bool:
        """Whether a checkpoint holds all that it remembers: torch's own do; others may keep more elsewhere."""
        return str(self._facts.get("optimiser")).startswith("torch.optim.")

    def start(self, parameters: Weights) -> State:
        optimizer, state = self._made(parameters), State()
        self._optimizer, self._of = optimizer, (parameters, state)
        self.export(parameters, state)
        return state

    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        optimizer = self.over(parameters, state)
        for name, value in parameters.items():
            value.grad = gradient[name].to(value.dtype)
        with keep_random_state({value.device for value in parameters.values()}, _seed(gradient)), torch.enable_grad():
            optimizer.step()
        self.export(parameters, state)

    def over(self, parameters: Weights, state: State) -> Optimizer:
        """The optimizer of these parameters in this state: a new one if the state comes from a checkpoint."""
        known = self._of is not None and self._of[1] is state
        if not known or any(self._of[0][name] is not value for name, value in parameters.items()):  # type: ignore[index]
            self._optimizer = _restored(self._made(parameters), parameters, state)
            self._of = parameters, state
        assert self._optimizer is not None
        return self._optimizer

    def export(self, parameters: Weights, state: State) -> None:
        """What the optimizer remembers, as named tensors for a checkpoint; without copies of what are tensors."""
        assert self._optimizer is not None
        state.clear()
        for name, value in parameters.items():
            for slot, kept in self._optimizer.state.get(value, {}).items():
                if isinstance(kept, Tensor):
                    state.setdefault(slot, {})[name] = kept
                elif isinstance(kept, bool | int | float):
                    state.setdefault(f"{type(kept).__name__}:{slot}", {})[name] = torch.tensor(kept, dtype=torch.double)
                elif kept is not None:
                    raise OptimiserError(
                        f"the optimizer keeps {slot!r}, which is neither a tensor nor a number: no run could resume it"
                    )
        for place, group in enumerate(self._optimizer.param_groups):
            numbers = {name: _number(value) for name, value in group.items() if name != "params"}
            state[f"group:{place}"] = {name: value for name, value in numbers.items() if value is not None}

    def _made(self, parameters: Weights) -> Optimizer:
        optimizer = self.make(list(parameters.values()))
        if not isinstance(optimizer, Optimizer):
            raise OptimiserError(
                "an optimiser is one of torch.optim, a function of parameters that makes one, or one of sordino's, not "
                f"{type(optimizer).__name__}"
            )
        return optimizer


def as_optimiser(optimiser: Any, parameters: Weights) -> Optimiser:
    """One of ours as it is; a torch optimizer over the model's parameters, or a function that makes one, wrapped."""
    if hasattr(optimiser, "to_json"):
        ours: Optimiser = optimiser
        return ours
    if not callable(optimiser) and not isinstance(optimiser, Optimizer):
        raise OptimiserError("give an optimiser, such as SGD(0.5) or lambda p: torch.optim.AdamW(p, lr=1e-3)")
    wrapped = TorchOptimiser((lambda parameters: optimiser) if isinstance(optimiser, Optimizer) else optimiser)
    wrapped.check(parameters)
    return wrapped


def check_parameters(optimizer: Optimizer, trained: Iterable[Tensor], all_of_model: Iterable[Tensor]) -> None:
    """Refuse an optimizer that does not hold exactly the parameters that the model trains."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptimiserError("LBFGS reads the data several times a step: use an optimizer that needs one gradient")
    held = {id(value) for value in held_by(optimizer)}
    missing = {id(value) for value in trained} - held
    foreign = held - {id(value) for value in all_of_model}
    if missing or foreign:
        raise OptimiserError(
            "the optimizer must hold exactly the parameters that the model trains (it lacks "
            f"{len(missing)} and holds {len(foreign)} of others): make it from model.parameters()"
        )


def held_by(optimizer: Optimizer) -> list[Tensor]:
    return [value for group in optimizer.param_groups for value in group["params"]]


def _rehearse(optimizer: Optimizer) -> None:
    """Step a copy of the optimizer on gradients of zero: what it cannot do is known before anything is charged."""
    try:
        twin = copy.deepcopy(optimizer)  # with copies of its parameters, without its hooks
    except (TypeError, RuntimeError, AttributeError):  # one that cannot be copied cannot be tried
        return
    for value in held_by(twin):
        value.grad = torch.zeros_like(value) if value.requires_grad else None
    try:
        twin.step()
    except AttributeError:  # torch copies param_groups and state only: an optimizer that keeps more cannot be tried
        pass
    except Exception as reason:
        why = str(reason).partition("\n")[0]
        raise OptimiserError(
            f"{type(optimizer).__name__} cannot step on the noisy gradient, one dense tensor for each parameter: {why}"
        ) from reason


def _restored(optimizer: Optimizer, parameters: Weights, state: State) -> Optimizer:
    for value in parameters.values():
        optimizer.state.pop(value, None)  # an optimizer that was interrupted remembers steps after the checkpoint
    for slot, values in state.items():
        kind, _, name = slot.rpartition(":")
        if kind == "group":
            group = optimizer.param_groups[int(name)]
            for setting, number in values.items():
                group[setting] = _as_before(number, group.get(setting))
            continue
        for parameter, kept in values.items():
            value = {"bool": bool, "int": int, "float": float}[kind](kept.item()) if kind else kept
            optimizer.state[parameters[parameter]][name] = cut_as(value, parameters[parameter])
    return optimizer


def _number(setting: Any) -> Tensor | None:
    """A hyperparameter that may change along a run, as a tensor; None for anything but numbers."""
    if isinstance(setting, Tensor):
        return setting
    numbers = setting if isinstance(setting, tuple | list) else [setting]
    if not numbers or not all(isinstance(each, bool | int | float) for each in numbers):
        return None
    return torch.tensor(setting, dtype=torch.double)


def _as_before(number: Tensor, usual: Any) -> Any:
    """A hyperparameter from its tensor, of the kind that the optimizer has."""
    if isinstance(usual, Tensor):
        return number.to(usual)
    if isinstance(usual, tuple | list):
        return type(usual)(type(one)(each) for one, each in zip(usual, number.tolist(), strict=True))
    return type(usual)(number.item()) if isinstance(usual, bool | int | float) else number.item()


def _seed(gradient: Weights) -> int:
    """From the release itself: alike when a step is repeated, and else not."""
    first = local(next(iter(gradient.values()))).flatten()[:2].detach().cpu().contiguous()
    return int.from_bytes(first.view(torch.uint8).numpy().tobytes()[:8], "little") >> 1


def _described(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_described(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return re.sub(r"0x[0-9a-f]+", "", repr(value))


@dataclass(frozen=True)
class Averaging:
    """A running average of the parameters, released in place of the last ones: average ← decay·average + (1 − decay)·w.

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


@dataclass(frozen=True)
class MeanOfIterates(Averaging):
    """The plain mean of the parameters after every step (INS, Algorithm 1), released in place of the last ones.

    It never forgets its start, so it suits long runs at a constant rate; an `Averaging` forgets it. Guarantee: a
    function of parameters that are paid for, so it costs nothing.
    """

    decay: float = field(default=0.0, init=False)

    def to_json(self) -> dict[str, Any]:
        return {"average": "mean of iterates"}

    @torch.no_grad()
    def step(self, average: Weights, parameters: Weights, step: int) -> None:
        for name, value in parameters.items():
            average[name].lerp_(value, 1 / (step + 1))


def _zeros(parameters: Weights) -> Weights:
    return {name: torch.zeros_like(value, requires_grad=False) for name, value in parameters.items()}


def _check(learning_rate: float | Schedule, weight_decay: float) -> None:
    if not hasattr(learning_rate, "rate"):
        check_rate(learning_rate)
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay must be a finite number from 0, not {weight_decay!r}")
