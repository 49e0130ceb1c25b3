"""The plan of a private logistic regression: norm, ridge and noise in one frozen object, with the event that prices it.

Budget and ridge are chosen without looking at the data. Curvature is free as long as the ridge, on rows of norm 1, is
at least 1/ε (`LogisticPerturbation`), so all of ε goes to the noise. A larger ridge keeps the noise from making the
weights long: on synthetic tables (200 to 20,000 records, ε from 0.1 to 10, pure and with δ) a ridge of 3·E‖b‖/√n loses
least accuracy, and 6 or 12 times E‖b‖/√n do about as well (`sordino reproduce privacy-aware ridges`). The rule is the
larger of the two; accuracy depends on it, privacy does not.
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
    composed,
    cost,
    leaves,
)
from sordino.training.convex.perturbations import GaussianObjective, GaussianOutput, Perturbation, PureObjective
from sordino.training.convex.solver import least_tolerance
from sordino.training.planning import OneReleasePlan, Target, check_positive, check_whole

if TYPE_CHECKING:
    from sordino.training.fitting import Fitted, Job

RIDGE_PER_NOISE = 3.0
_OUTPUT_RIDGE_PER_NOISE = 40.0


def data_norm(attributes: int) -> float:
    """The largest norm of a row of this many attributes, each a number in [0, 1] or a one-hot category, and a 1."""
    return math.sqrt(attributes + 1)


@dataclass(frozen=True)
class LogisticPlan(OneReleasePlan):
    """What a fit may do to the data: rows (with a constant 1 for the bias) are clipped to data_norm and divided by it.

    Guarantee: one release of the weights (for more than two classes, one for each class against the rest), priced by
    `event` under the plan's adjacency; n is public and only the ridge's rule uses it.
    """

    data_norm: float
    ridge: float
    """λ on the sum of losses of rows of norm 1; times data_norm² for the original rows."""
    perturbation: Perturbation
    tolerance: float = 1e-6
    """The norm of the gradient at which the solver stops, for rows of norm 1."""
    classes: int = 2
    adjacency: Adjacency = "zero-out"

    def __post_init__(self) -> None:
        for name in ("data_norm", "ridge", "tolerance"):
            check_positive(name, getattr(self, name))
        check_whole("classes", self.classes, 2)
        check_adjacency(self.adjacency)
        _ = self.event  # checks the noise

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

        `width` is the number of features, `n` that of records. A ledger's charges count too, and its adjacency and
        target are taken where it has them; with a δ the noise is Gaussian. Without one, everything in the ledger must
        be pure ε, which adds up.
        """
        target = Target.of(n, target_epsilon, target_delta, adjacency, ledger)
        releases = _releases(n, width, data_norm, ridge, classes)
        perturbation: Perturbation
        if target.delta is None:
            epsilon = target.epsilon if ledger is None else _pure_left(ledger, target.epsilon)
            share, least = epsilon / releases, releases / epsilon
            if ridge is None:
                rough: Perturbation = PureObjective.calibrated(share, least, target.adjacency)
                ridge = max(least, noise_ridge(rough, n, width))
            perturbation = PureObjective.calibrated(share, ridge, target.adjacency)
        else:
            if ridge is None:
                rough = GaussianObjective(target.noise_multiplier(lambda s: Repeated(Gaussian(s), releases)))
                ridge = max(releases / target.epsilon, noise_ridge(rough, n, width))
            chosen = ridge
            perturbation = GaussianObjective(
                target.noise_multiplier(
                    lambda s: Repeated(GaussianObjective(s).event(chosen, target.adjacency), releases)
                )
            )
        tolerance = _tolerance(n, width, ridge, perturbation)
        return cls(data_norm, ridge, perturbation, tolerance, classes, target.adjacency)

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
        """Gaussian noise on the minimiser: needs several times the ridge, so its weights are less accurate."""
        # The arguments are those of `calibrated`, spelled out again for help() and types.
        target = Target.of(n, target_epsilon, target_delta, adjacency, ledger)
        releases = _releases(n, width, data_norm, ridge, classes)
        sigma = target.noise_multiplier(lambda s: Repeated(Gaussian(s), releases))
        if ridge is None:
            ridge = _OUTPUT_RIDGE_PER_NOISE * sigma * math.sqrt((width + 1) / n)
        noise = GaussianOutput(sigma)
        return cls(data_norm, ridge, noise, _tolerance(n, width, ridge, noise), classes, target.adjacency)

    @property
    def event(self) -> Event:
        single = self.perturbation.event(self.ridge, self.adjacency)
        return single if self.classes == 2 else Repeated(single, self.classes)

    def epsilon(self, delta: float, adjacency: str | None = None) -> float:
        """ε of this plan alone, by default under its own adjacency; a ledger's ε covers the whole workflow."""
        return cost(self.event, delta, adjacency or self.adjacency).epsilon

    def fitted(self, job: "Job") -> "Fitted":
        from sordino.training.convex.logistic import train_logistic  # a plan is priced without the training loops

        return train_logistic(self, job)

    def to_json(self) -> dict[str, Any]:
        noise = {"kind": type(self.perturbation).__name__, **asdict(self.perturbation)}
        return asdict(self) | {"perturbation": noise}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LogisticPlan":
        noise = dict(document["perturbation"])
        kinds = {kind.__name__: kind for kind in (GaussianObjective, PureObjective, GaussianOutput)}
        return cls(**document | {"perturbation": kinds[noise.pop("kind")](**noise)})


def _pure_left(ledger: Ledger, target: float) -> float:
    """The training records' remaining budget of pure ε, which adds up even when events are chosen adaptively."""
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


def _releases(n: int, width: int, data_norm: float, ridge: float | None, classes: int) -> int:
    """How many weight vectors are released: one for two classes. Refuses arguments that no plan could have."""
    check_whole("n", n)
    check_whole("width", width)
    check_positive("data_norm", data_norm)
    if ridge is not None:
        check_positive("ridge", ridge)
    check_whole("classes", classes, 2)
    return 1 if classes == 2 else classes


def noise_ridge(noise: Perturbation, n: int, width: int, multiple: float = RIDGE_PER_NOISE) -> float:
    """The ridge that keeps this noise from making the weights of `width` features long."""
    return multiple * noise.expected_norm(width + 1) / math.sqrt(n)


def _tolerance(n: int, width: int, ridge: float, noise: Perturbation) -> float:
    """1e-6 wherever floating point can distinguish so small a gradient from zero."""
    return max(1e-6, 4 * least_tolerance(n, width + 1, ridge, 10 * noise.expected_norm(width + 1)))
