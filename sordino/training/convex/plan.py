"""The plan of a private logistic regression: norm, ridge and noise in one frozen object, with the event that prices it.

*How budget and ridge are chosen, without a look at the data.* Curvature is free as long as the ridge, on rows of norm
1, is at least 1/ε (`LogisticPerturbation`), so all of ε goes to the noise. Beyond that a ridge keeps the noise from
making the weights long: on made-up tables (200 to 20,000 records, ε from 0.1 to 10, pure and with δ) a ridge of
3·E‖b‖/√n loses least, and 6 or 12 times do about as well (`sordino reproduce privacy-aware ridges`). The rule is the
larger of the two; it is no proof.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sordino.budget import (
    Adjacency,
    Event,
    Gaussian,
    Ledger,
    Pure,
    Repeated,
    calibration,
    check_adjacency,
    check_delta_against_n,
    composed,
    cost,
    leaves,
    refuse_add_remove,
)
from sordino.training.convex.perturbations import GaussianObjective, GaussianOutput, Perturbation, PureObjective
from sordino.training.convex.solver import least_tolerance

if TYPE_CHECKING:
    from sordino.training.dpsgd import Steps
    from sordino.training.fitting import Fitted, Job

RIDGE_PER_NOISE = 3.0
_OUTPUT_RIDGE_PER_NOISE = 40.0


def data_norm(attributes: int) -> float:
    """The norm of a row of so many attributes, each a number in [0, 1] or an indicator of one category, and a 1."""
    return math.sqrt(attributes + 1)


@dataclass(frozen=True)
class LogisticPlan:
    """What a fit may do to the data: rows (with a constant 1 for the bias) are clipped to data_norm and divided by it.

    Guarantee: one release of the weights (for more than two classes, one for each class against the rest), priced by
    `event` under the plan's adjacency; n is public and only the ridge's rule uses it.
    """

    data_norm: float
    ridge: float
    """λ of the sum of losses of rows of norm 1: times data_norm² for rows as they are."""
    perturbation: Perturbation
    tolerance: float = 1e-6
    """The norm of the gradient at which the solver stops, for rows of norm 1."""
    classes: int = 2
    adjacency: Adjacency = "zero-out"

    def __post_init__(self) -> None:
        _check_positive("tolerance", self.tolerance)
        _check_shape(self.data_norm, self.ridge, self.classes)
        check_adjacency(self.adjacency)
        _ = self.event

    @classmethod
    def calibrated(
        cls,
        *,
        n: int,
        width: int,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        data_norm: float,
        ridge: float | None = None,
        classes: int = 2,
        ledger: Ledger | None = None,
        adjacency: str = "zero-out",
    ) -> "LogisticPlan":
        """Objective perturbation with the least noise that meets the target; pure ε where there is no δ.

        `width` is the number of features, `n` that of records. With a ledger, what it holds counts too, its adjacency
        is taken, and its target where it has one; a δ buys Gaussian noise. Pure ε is what the ledger holds, all of it
        pure, and this fit added up.
        """
        if ledger is not None:
            target_epsilon, target_delta, adjacency = targets_with(ledger, target_epsilon, target_delta)
        epsilon, relation = _checked(n, width, target_epsilon, target_delta, adjacency), check_adjacency(adjacency)
        _check_shape(data_norm, ridge, classes)
        releases = 1 if classes == 2 else classes
        if target_delta is None and ledger is not None:
            epsilon = _pure_left(ledger, epsilon)
        least = releases / epsilon
        perturbation: Perturbation
        if target_delta is None:
            share = epsilon / releases
            rate = PureObjective.calibrated(share, least, relation)
            ridge = _ridge(least, rate, n, width) if ridge is None else ridge
            perturbation = PureObjective.calibrated(share, ridge, relation)
        else:
            price = None if ledger is None else price_with(ledger, target_delta)
            terms = (epsilon, target_delta, relation, price)
            rough = calibration.noise_multiplier(lambda s: Repeated(Gaussian(s), releases), *terms)
            chosen = _ridge(least, GaussianObjective(rough), n, width) if ridge is None else ridge
            sigma = calibration.noise_multiplier(
                lambda s: Repeated(GaussianObjective(s).event(chosen, relation), releases), *terms
            )
            ridge, perturbation = chosen, GaussianObjective(sigma)
        return cls(data_norm, ridge, perturbation, _tolerance(n, width, ridge, perturbation), classes, relation)

    @classmethod
    def output_perturbed(
        cls,
        *,
        n: int,
        width: int,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        data_norm: float,
        ridge: float | None = None,
        classes: int = 2,
        ledger: Ledger | None = None,
        adjacency: str = "zero-out",
    ) -> "LogisticPlan":
        """Gaussian noise on the minimiser; it needs several times the ridge, and its weights say less for it."""
        if ledger is not None:
            target_epsilon, target_delta, adjacency = targets_with(ledger, target_epsilon, target_delta)
        epsilon, relation = _checked(n, width, target_epsilon, target_delta, adjacency), check_adjacency(adjacency)
        if target_delta is None:
            raise ValueError("Gaussian noise on the minimiser needs a target_delta")
        _check_shape(data_norm, ridge, classes)
        price = None if ledger is None else price_with(ledger, target_delta)
        releases = 1 if classes == 2 else classes
        sigma = calibration.noise_multiplier(
            lambda s: Repeated(Gaussian(s), releases), epsilon, target_delta, relation, price
        )
        if ridge is None:
            ridge = _OUTPUT_RIDGE_PER_NOISE * sigma * math.sqrt((width + 1) / n)
        noise = GaussianOutput(sigma)
        return cls(data_norm, ridge, noise, _tolerance(n, width, ridge, noise), classes, relation)

    @property
    def event(self) -> Event:
        single = self.perturbation.event(self.ridge, self.adjacency)
        return single if self.classes == 2 else Repeated(single, self.classes)

    def epsilon(self, delta: float, adjacency: str | None = None) -> float:
        """ε of this plan alone, by default under its own adjacency; a ledger's ε covers the whole workflow."""
        return cost(self.event, delta, adjacency or self.adjacency).epsilon

    def train(self, job: "Job") -> "Steps[Fitted]":
        from sordino.training.convex.logistic import train_logistic  # a plan is priced without the solver's room

        yield from ()  # its sums are not shared with other trainings
        return train_logistic(self, job)

    def to_json(self) -> dict[str, Any]:
        noise = {"kind": type(self.perturbation).__name__, **asdict(self.perturbation)}
        return asdict(self) | {"perturbation": noise}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LogisticPlan":
        noise = dict(document["perturbation"])
        kinds = {kind.__name__: kind for kind in (GaussianObjective, PureObjective, GaussianOutput)}
        return cls(**document | {"perturbation": kinds[noise.pop("kind")](**noise)})


def targets_with(
    ledger: Ledger, target_epsilon: float | None, target_delta: float | None
) -> tuple[float | None, float | None, str]:
    """ε, δ and adjacency to plan for: the ledger's δ goes before one that is given, its ε after."""
    terms = ledger.terms
    epsilon = terms.target_epsilon if target_epsilon is None else target_epsilon
    return epsilon, target_delta if terms.target_delta is None else terms.target_delta, terms.adjacency


def price_with(ledger: Ledger, delta: float) -> calibration.Price:
    """ε at this δ of all that the ledger holds and an event after it."""
    return lambda event: ledger.epsilon_if(event, delta=delta)


def _pure_left(ledger: Ledger, target: float) -> float:
    """What the records that are trained on have left of a pure ε, which adds up whatever was chosen when."""
    held = [item.event for item in ledger.plan if item.part == "train"]
    held += [entry.reserved for entry in ledger.entries if entry.part == "train" and not entry.planned]
    counts = leaves(composed(held))
    pure = {event: count for event, count in counts.items() if isinstance(event, Pure)}
    if len(pure) < len(counts) or composed(held).exceptions():
        raise ValueError("the ledger holds what no pure ε covers: give a target_delta")
    spent = sum(count * event.epsilon for event, count in pure.items())
    if spent >= target:
        raise calibration.OutOfReach(f"ε={spent:.4g} is spent already and the target is {target:g}: nothing is left")
    return (target - spent) * (1 - 1e-12)


def _checked(n: int, width: int, target_epsilon: float | None, target_delta: float | None, adjacency: str) -> float:
    refuse_add_remove(adjacency)
    for name, value in (("n", n), ("width", width)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    if target_epsilon is None:
        raise ValueError("give target_epsilon, or a ledger that has one")
    calibration.check_target(target_epsilon)
    if target_delta is not None:
        check_delta_against_n(target_delta, n)
    return float(target_epsilon)


def _ridge(least: float, noise: GaussianObjective | PureObjective, n: int, width: int) -> float:
    return max(least, noise_ridge(noise, n, width))


def noise_ridge(
    noise: GaussianObjective | PureObjective, n: int, width: int, multiple: float = RIDGE_PER_NOISE
) -> float:
    """The ridge that keeps this noise from making the weights of so many features long."""
    return multiple * noise.expected_norm(width + 1) / math.sqrt(n)


def _tolerance(n: int, width: int, ridge: float, noise: Perturbation) -> float:
    """1e-6 wherever floating point can tell so small a gradient from none."""
    return max(1e-6, 4 * least_tolerance(n, width + 1, ridge, 10 * noise.expected_norm(width + 1)))


def _check_shape(data_norm: float, ridge: float | None, classes: int) -> None:
    _check_positive("data_norm", data_norm)
    if ridge is not None:
        _check_positive("ridge", ridge)
    if type(classes) is not int or classes < 2:
        raise ValueError(f"classes must be a whole number of at least 2, not {classes!r}")


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")
