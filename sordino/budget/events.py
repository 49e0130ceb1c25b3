"""What was done to private data, as pure descriptions that an accountant can price.

Noise multipliers are relative to the sensitivity under zero-out (the clip): standard deviation of the noise on the
SUM, divided by the most that one present record can add to it. An event says nothing about its cost; `accountant`
prices it under the adjacency of the ledger.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

Adjacency = Literal["zero-out", "add-remove", "replace-one"]
ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)


class UnsupportedEvent(ValueError):  # noqa: N818 (the name says what it is)
    """No sound price is known for this event under this adjacency."""


def check_adjacency(adjacency: str) -> Adjacency:
    for known in ADJACENCIES:
        if adjacency == known:
            return known
    raise ValueError(f"unknown adjacency {adjacency!r}; use one of {', '.join(ADJACENCIES)}")


def refuse_add_remove(adjacency: str) -> None:
    """Called by all that uses the number of records n: sample rate, steps, parts of the data, ridge, division by n.

    Under add-remove neighbouring datasets differ in n, so that a plan or a mean made with it is not private at any ε.
    """
    if check_adjacency(adjacency) == "add-remove":
        raise ValueError("under add-remove the number of records is private: use a zero-out or replace-one ledger")


def check_delta(delta: float) -> float:
    if not (isinstance(delta, int | float) and 0 < delta < 1):
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}; well below 1/n is usual")
    return float(delta)


def _positive(name: str, value: float) -> None:
    # bool is an int to Python, but True is never a noise multiplier.
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")
    # Squares of such numbers, a few million times over, stay far from the ends of floating point.
    if not 1e-30 <= value <= 1e30:
        raise ValueError(f"{name} must lie between 1e-30 and 1e30 to be priced, not {value!r}")


def _whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise on a sum over all records: a full batch, a statistic, one histogram."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class PoissonGaussian:
    """Gaussian noise on a sum over a secret sample that each record joins on its own with probability sample_rate."""

    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive("sample_rate", self.sample_rate)
        if self.sample_rate > 1:
            raise ValueError(f"sample_rate is a probability and cannot exceed 1, found {self.sample_rate!r}")
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class FixedSizeGaussian:
    """Gaussian noise on a sum over a secret sample of exactly sample_size records, drawn without replacement."""

    dataset_size: int
    sample_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _whole("dataset_size", self.dataset_size, 1)
        _whole("sample_size", self.sample_size, 1)
        if self.sample_size > self.dataset_size:
            raise ValueError(f"sample_size {self.sample_size} exceeds dataset_size {self.dataset_size}")
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class ShuffledGaussian:
    """One step of an epoch that visits each record in exactly one of steps_per_epoch batches.

    No amplification is claimed for the shuffle: a record takes part once an epoch, begun epochs count in full.
    """

    steps_per_epoch: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _whole("steps_per_epoch", self.steps_per_epoch, 1)
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise of scale noise_multiplier × (L1 sensitivity under zero-out)."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Pure:
    """Any mechanism with pure epsilon-DP under the ledger's adjacency, about which no more is known."""

    epsilon: float

    def __post_init__(self) -> None:
        _positive("epsilon", self.epsilon)


@dataclass(frozen=True)
class LogisticPerturbation:
    """The exact minimiser of a logistic loss with a ridge and a Gaussian linear term (see `logistic_perturbation`).

    With R the norm that rows are clipped to: noise_multiplier is the linear term's deviation over R, curvature is R²/λ
    for the objective Σ log(1+exp(−θ·x)) + (λ/2)‖θ‖².
    """

    noise_multiplier: float
    curvature: float

    def __post_init__(self) -> None:
        _positive("noise_multiplier", self.noise_multiplier)
        _positive("curvature", self.curvature)


@dataclass(frozen=True)
class Iteration:
    """Last iterate of noisy projected SGD over a fixed order on a convex smooth loss (see `iteration`)."""

    epochs: int
    steps_per_epoch: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _whole("epochs", self.epochs, 1)
        _whole("steps_per_epoch", self.steps_per_epoch, 1)
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class NonPrivate:
    """Something without any guarantee: ε = ∞."""


@dataclass(frozen=True)
class Repeated:
    """The same event, count times, each with fresh randomness (adaptively chosen data is fine)."""

    event: "Event"
    count: int

    def __post_init__(self) -> None:
        _nest(self, self.event)
        _whole("count", self.count, 0)


@dataclass(frozen=True)
class Composed:
    """Several events, one after the other."""

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple | list):
            raise UnsupportedEvent(f"Composed takes a tuple of events, not {type(self.events).__name__}")
        object.__setattr__(self, "events", tuple(self.events))
        _nest(self, *self.events)


@dataclass(frozen=True)
class RepeatAndSelect:
    """The best of a random number of runs of one event; the other runs stay secret (Papernot & Steinke 2021).

    The number of runs has this mean and a truncated negative binomial law of this shape: 1 is geometric, 0
    logarithmic, infinity Poisson.
    """

    event: "Event"
    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        _nest(self, self.event)
        _positive("mean", self.mean)
        if self.mean < 1:
            raise ValueError(f"the mean number of runs must be at least 1, not {self.mean!r}")
        if isinstance(self.shape, bool) or not isinstance(self.shape, int | float) or not self.shape >= 0:
            raise ValueError(f"shape must be a number from 0 to infinity, not {self.shape!r}")


@dataclass(frozen=True)
class Except:
    """This event, unless something happens inside the mechanism that has at most this probability.

    What is excepted must be as likely on neighbouring datasets, and without it the mechanism must be the event: then
    δ(ε) is at most the event's δ(ε) plus the probability. Where several are composed, the probabilities add up.
    """

    event: "Event"
    probability: float

    def __post_init__(self) -> None:
        _nest(self, self.event)
        _positive("probability", self.probability)
        if self.probability >= 1:
            raise ValueError(f"the probability of an exception must lie below 1, found {self.probability!r}")


Event = (
    Gaussian
    | PoissonGaussian
    | FixedSizeGaussian
    | ShuffledGaussian
    | Laplace
    | Pure
    | LogisticPerturbation
    | Iteration
    | NonPrivate
    | Repeated
    | Composed
    | RepeatAndSelect
    | Except
)

_NAMES: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson-gaussian": PoissonGaussian,
    "fixed-size-gaussian": FixedSizeGaussian,
    "shuffled-gaussian": ShuffledGaussian,
    "laplace": Laplace,
    "pure": Pure,
    "logistic-perturbation": LogisticPerturbation,
    "iteration": Iteration,
    "non-private": NonPrivate,
    "repeated": Repeated,
    "composed": Composed,
    "repeat-and-select": RepeatAndSelect,
    "except": Except,
}
_TYPES = {cls: name for name, cls in _NAMES.items()}


_DEEPEST = 32
_MOST_REPETITIONS = 2**53


def _nest(outer: object, *events: object) -> None:
    """Check what an event is made of; its depth is bounded, so that what a ledger writes can be read and walked."""
    for event in events:
        if type(event) not in _TYPES:
            raise UnsupportedEvent(f"{type(event).__name__} is not a privacy event; use one of sordino.budget's")
    depth = 1 + max((getattr(event, "_depth", 0) for event in events), default=0)
    if depth > _DEEPEST:
        raise UnsupportedEvent(f"events are nested more than {_DEEPEST} deep; list them side by side in one Composed")
    object.__setattr__(outer, "_depth", depth)


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values; `from_json` gives back an equal event."""
    if type(event) not in _TYPES:
        raise UnsupportedEvent(f"{type(event).__name__} is not a privacy event")
    return {"type": _TYPES[type(event)]} | {f.name: _value_to_json(getattr(event, f.name)) for f in fields(event)}


def _value_to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [to_json(event) for event in value]
    if type(value) in _TYPES:
        return to_json(value)
    return "infinity" if value == math.inf else value


def from_json(document: Any, depth: int = 0) -> Event:
    """Rebuild an event from `to_json`'s form; anything else raises ValueError."""
    if depth > _DEEPEST:
        raise ValueError(f"events are nested more than {_DEEPEST} deep")
    if not isinstance(document, Mapping) or str(document.get("type")) not in _NAMES:
        kind = document.get("type") if isinstance(document, Mapping) else None
        raise ValueError(
            f"not a privacy event: its type is {kind[:40] if isinstance(kind, str) else type(kind).__name__}"
        )
    cls = _NAMES[document["type"]]
    expected = {f.name for f in fields(cls)}
    found = set(document) - {"type"}
    if found != expected:
        raise ValueError(f"a {document['type']} event has the fields {sorted(expected)}, found {sorted(found)}")
    return cls(**{name: _value_from_json(document[name], depth + 1) for name in expected})


def _value_from_json(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return tuple(from_json(event, depth) for event in value)
    if isinstance(value, Mapping):
        return from_json(value, depth)
    return math.inf if value == "infinity" else value


def composed(events: Iterable[Event]) -> Event:
    """Several events as one, without a needless wrapper."""
    events = tuple(events)
    return events[0] if len(events) == 1 else Composed(events)


def exceptions(event: Event) -> float:
    """The probability, at most, that any of an event's exceptions happens: the sum over all of them."""
    match event:
        case Except(inner, probability):
            return probability + exceptions(inner)
        case Repeated(inner, count):
            return exceptions(inner) * min(count, 10**300) if count else 0.0
        case Composed(events):
            return math.fsum(exceptions(part) for part in events)
        case RepeatAndSelect(inner, mean):
            # Wald: so many in expectation. Given that none happens, the number of runs has a law of the same family
            # with a smaller mean (each run more is less likely by the same factor), which costs less.
            return mean * exceptions(inner)
        case _:
            return 0.0


def delta_besides_exceptions(event: Event, delta: float) -> float:
    """What exceptions leave of δ, for what happens without them."""
    return delta_besides(exceptions(event), delta)


def delta_besides(taken: float, delta: float) -> float:
    """What exceptions of this probability leave of δ."""
    left = delta - taken * (1 + 1e-12)  # rounding is never in favour of a smaller price
    if left <= 0:
        raise UnsupportedEvent(
            f"the exceptions of this event have a probability of up to {taken:.3g} and δ is {delta:g}: no ε holds; "
            "choose a larger δ or rarer exceptions"
        )
    return left


def leaves(event: Event) -> dict[Event, int]:
    """The elementary events inside a composition with how often each happens, equal ones counted together.

    Exceptions are left out: whoever prices the leaves takes `delta_besides_exceptions`.
    """
    counts: dict[Event, int] = {}
    for leaf, count in _walk(event):
        if count:
            counts[leaf] = counts.get(leaf, 0) + count
    if any(count > _MOST_REPETITIONS for count in counts.values()):
        raise UnsupportedEvent("an event repeated more than 2^53 times: floating point no longer counts it exactly")
    return counts


def _walk(event: Event) -> Iterable[tuple[Event, int]]:
    if isinstance(event, Composed):
        for part in event.events:
            yield from _walk(part)
    elif isinstance(event, Repeated) and isinstance(event.event, ShuffledGaussian):
        # Steps of one run share its epochs; a separate run starts epochs of its own.
        yield event.event, math.ceil(event.count / event.event.steps_per_epoch)
    elif isinstance(event, Repeated):
        for leaf, count in _walk(event.event):
            yield leaf, count * event.count
    elif isinstance(event, Except):
        yield from _walk(event.event)
    elif isinstance(event, RepeatAndSelect):
        yield replace(event, event=_without_exceptions(event.event)), 1
    else:
        yield event, 1


def _without_exceptions(event: Event) -> Event:
    match event:
        case Except(inner, _):
            return Composed((_without_exceptions(inner),))  # of shuffled steps still one by one
        case Repeated(inner, _) | RepeatAndSelect(inner):
            return replace(event, event=_without_exceptions(inner))
        case Composed(events):
            return Composed(tuple(_without_exceptions(part) for part in events))
        case _:
            return event


def describe(event: Event) -> str:
    """The event in a few words for people."""
    match event:
        case Gaussian(sigma):
            return f"Gaussian, σ={sigma:.5g}"
        case PoissonGaussian(rate, sigma):
            return f"Poisson-sampled Gaussian, q={rate:.5g}, σ={sigma:.5g}"
        case FixedSizeGaussian(n, size, sigma):
            return f"Gaussian on {size} of {n} records without replacement, σ={sigma:.5g}"
        case ShuffledGaussian(steps, sigma):
            return f"Gaussian on shuffled batches ({steps} an epoch, no amplification), σ={sigma:.5g}"
        case Laplace(scale):
            return f"Laplace, scale {scale:.5g}"
        case Pure(epsilon):
            return f"pure {epsilon:.5g}-DP"
        case LogisticPerturbation(sigma, curvature):
            return f"perturbed logistic regression, σ={sigma:.5g}, curvature {curvature:.5g}"
        case Iteration(epochs, steps, sigma):
            return f"last iterate of {epochs} epochs of {steps} steps, σ={sigma:.5g}"
        case NonPrivate():
            return "not private"
        case Repeated(inner, count):
            return f"{count:,} × ({describe(inner)})"
        case Composed(events):
            return "; ".join(describe(part) for part in events) or "nothing"
        case RepeatAndSelect(inner, mean, shape):
            return f"best of a random number of runs (mean {mean:g}, shape {shape:g}) of ({describe(inner)})"
        case Except(inner, probability):
            return f"{describe(inner)}, except with probability {probability:.3g}"
