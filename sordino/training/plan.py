"""The plan: sampler, clip, noise and steps in one frozen object, with the event that prices exactly them."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sordino.budget import Event, Ledger, NonPrivate, Repeated, steps_for
from sordino.data import PoissonSampler, Sampler, sampler_from_json, sampler_to_json
from sordino.mechanisms import check_noise
from sordino.training.planning import BasePlan, Target, check_positive, check_whole

if TYPE_CHECKING:
    from sordino.training.dpsgd import Steps
    from sordino.training.fitting import Fitted, Job

_UNIT_BITS, _MOST_PARAMETERS = 30, 2**50
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
            check_positive(f"{name} of a quantile clip", getattr(self, name))
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
        """The count as a whole number of UNITs."""
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


@dataclass(frozen=True)
class Plan(BasePlan):
    """What DP-SGD may do to the data. The loop takes everything from here, so what is accounted is what runs.

    Guarantee: `steps` releases of a sum of per-example gradients, each clipped to l2_clip, over the sampler's draw,
    with N(0, (noise_multiplier·l2_clip)²) added to every coordinate: the plan's `event`. With a `quantile_clip`,
    l2_clip is the first step's, and each draw also releases a noisy count; the two are one Gaussian release with the
    `effective_noise_multiplier`, and that is what the event says. noise_multiplier stays the gradient's own. Without
    noise (`without_noise`) there is no guarantee, and the event says that: a ledger with a target refuses it.

    With `exact` that is meant of the numbers as a computer has them: sums in double precision, rounded to whole units
    of l2_clip·2⁻³⁰, with exactly rounded noise on a public grid (`mechanisms.exact`), scaled up by `sensitivity`, which
    counts what rounding may add. Otherwise noise is drawn and added in double precision, and cast to the model's type.

    Parameters
    ----------
    sampler : how batches are drawn, such as PoissonSampler(n, expected_batch_size).
    l2_clip : the bound on the norm of each example's gradient.
    noise_multiplier : the noise's standard deviation in units of l2_clip; `Plan.calibrated` finds it for a budget.
    steps : how many batches are drawn.
    quantile_clip : adapts the clip to a private quantile of the norms.
    private : False only by `without_noise`.
    exact : as above; needs a model and records in double precision.

    >>> plan = Plan.calibrated(
    ...     n=1000, expected_batch_size=100, epochs=2, l2_clip=1.0, target_epsilon=3.0, target_delta=1e-5
    ... )
    >>> plan.steps, round(plan.noise_multiplier, 2), plan.epsilon(1e-5) <= 3
    (20, 1.1, True)
    """

    sampler: Sampler
    l2_clip: float
    noise_multiplier: float
    steps: int
    quantile_clip: QuantileClip | None = None
    private: bool = True
    """False only of a plan that is `without_noise`."""
    exact: bool = False

    def __post_init__(self) -> None:
        check_positive("l2_clip", self.l2_clip)
        check_whole("steps", self.steps)
        if self.private:
            self.sampler.event(self.noise_multiplier)  # checks the noise multiplier
            self.sampler.event(self.effective_noise_multiplier)
            self._check_noise()
        elif self.noise_multiplier != 0 or self.quantile_clip is not None:
            raise ValueError("a plan without noise has a noise multiplier of 0 and a fixed l2_clip")
        elif self.exact:
            raise ValueError("a plan without noise has none to draw exactly: leave exact out")

    def _check_noise(self) -> None:
        """Refuse noise that no step can draw exactly, at any clip that it may come to and of any model."""
        if self.exact:
            factor = self.noise_multiplier * self.sensitivity(_MOST_PARAMETERS)
            for clip in (self.l2_clip,) if self.quantile_clip is None else clips_from(self.l2_clip):
                check_noise(clip * self.unit, clip * factor)
        if self.quantile_clip is not None:
            check_noise(UNIT, self.quantile_clip.noise_multiplier * SENSITIVITY * self.sensitivity_of_count)

    @classmethod
    def calibrated(
        cls,
        *,
        n: int,
        expected_batch_size: int,
        epochs: float,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        l2_clip: float,
        ledger: Ledger | None = None,
        before: Event | None = None,
        sampling: Callable[[int, int], Sampler] = PoissonSampler,
        quantile_clip: QuantileClip | None = None,
        adjacency: str = "zero-out",
        exact: bool = False,
    ) -> "Plan":
        """The plan with the least noise that meets the target; with a ledger, after all that it already holds.

        Targets and adjacency are the ledger's where one is given. `before` is what will be spent besides, planned too.
        """
        if ledger is not None and before is not None:
            raise ValueError("give a ledger or what comes before, not both: the ledger holds what came before")
        if ledger is not None and target_delta not in (None, ledger.terms.target_delta):
            raise ValueError(f"the ledger was opened at δ={ledger.terms.target_delta!r}, not {target_delta!r}")
        target = Target.of(n, target_epsilon, target_delta, adjacency, ledger, before)
        sampler = sampling(n, expected_batch_size)
        steps = steps_for(epochs, n, expected_batch_size)
        sigma = target.noise_multiplier(lambda sigma: Repeated(sampler.event(sigma), steps))
        own = sigma if quantile_clip is None else quantile_clip.beside(sigma)
        return cls(sampler, l2_clip, own, steps, quantile_clip, exact=exact)

    @classmethod
    def without_noise(cls, sampler: Sampler, l2_clip: float, epochs: float) -> "Plan":
        """To see what noise costs in accuracy: clipped gradients without any, so ε = ∞."""
        return cls(sampler, l2_clip, 0.0, steps_for(epochs, sampler.n, sampler.expected_batch_size), private=False)

    @property
    def effective_noise_multiplier(self) -> float:
        """The noise multiplier of everything that a step releases, taken together."""
        return self.noise_multiplier if self.quantile_clip is None else self.quantile_clip.joint(self.noise_multiplier)

    def sensitivity(self, parameters: int) -> float:
        """How far one record moves an exact plan's sums of so many numbers in all, in clips; 1 but for rounding.

        - Rounding to units of 2⁻³⁰ moves each number by half a unit, in either dataset: √parameters·2⁻³⁰.
        - Adding up to n vectors of norm ≤ 1 in double precision is off by n·2⁻⁵³ of their n norms: n²·2⁻⁵³, twice.
        - What is added for an example must be within 2⁻³⁰ of a vector of norm ≤ 1 that depends on that example alone,
          as passes in double precision give it unless they lose 23 of 53 bits: n·2⁻³⁰, twice. This one is an assumption
          about the model and torch's kernels, not a proof: a ReLU may switch where an input is 0 to the last bit.
        """
        n = self.sampler.n
        return 1 + (math.sqrt(parameters) + 2 * n) * 2.0**-_UNIT_BITS + n**2 * 2.0**-52

    @property
    def sensitivity_of_count(self) -> float:
        """The same for the count of a quantile clip, in its own sensitivity of ½: others' norms move it by rounding.

        The record itself adds at most ½, a whole number of units, and nothing where it is not there. Under the
        assumption that norms are within 2⁻³⁰ clips of what their example alone decides, the part of any other, with a
        slope of 100 a clip, moves by 200·2⁻³⁰ between two datasets; rounded to units of 2⁻³⁰ by one more, and by far
        less than one for the double precision of the quotient. That is below 202·2⁻³⁰ for each of n records, 404·2⁻³⁰
        in units of ½, and 2⁻²¹ is more. In single precision there is no such bound.
        """
        return 1 + self.sampler.n * 2.0**-21 if self.exact else 1.0

    @property
    def unit(self) -> float:
        """The unit, in clips, to which an exact plan rounds its sums."""
        return 2.0**-_UNIT_BITS

    @property
    def step_event(self) -> Event:
        return self.sampler.event(self.effective_noise_multiplier) if self.private else NonPrivate()

    @property
    def claimed_step(self) -> Event | None:
        """What others would charge for a step without proof."""
        return self.sampler.claimed(self.effective_noise_multiplier) if self.private else None

    @property
    def event(self) -> Event:
        return Repeated(self.step_event, self.steps)

    def event_after(self, steps: int) -> Event:
        """What so many steps have cost."""
        return Repeated(self.step_event, steps)

    def claims(self, delta: float) -> dict[str, float]:
        """Figures that are shown beside the sound ε: none."""
        return {}

    def notes(self, delta: float) -> list[str]:
        """What the privacy statement has to say about this way to train."""
        return []

    def train(self, job: "Job") -> "Steps[Fitted]":
        from sordino.training.fitting import train_by_gradients  # a plan is priced without the loops

        return train_by_gradients(self, job)

    def to_json(self) -> dict[str, Any]:
        document = {"sampling": sampler_to_json(self.sampler), **asdict(self)}
        # Exact only where it is so: unfinished runs from before are bound to plans without the word.
        return {name: value for name, value in document.items() if name != "sampler" and (name != "exact" or value)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Plan":
        clip = document["quantile_clip"] and QuantileClip(**document["quantile_clip"])
        fields = {**document, "quantile_clip": clip}
        return cls(sampler_from_json(fields.pop("sampling")), **fields)


cached_plan = lru_cache(maxsize=256)(Plan.calibrated)
"""`Plan.calibrated`, for what asks for the same plan many times."""

_PLANS = {
    "quantile_clip": "Plan",
    "excess_probability": "WeightDistributionPlan",
    "data_clip": "LastIteratePlan",
    "perturbation": "LogisticPlan",
    "target_range": "LinearPlan",
}
"""Every kind of plan, by an entry that no other kind's JSON has."""


def plan_from_json(document: dict[str, Any]) -> Any:
    """A plan of any kind from its `to_json`."""
    name = next((name for entry, name in _PLANS.items() if entry in document), None)
    if name is None:
        raise ValueError("this version of sordino knows no such plan: upgrade sordino, or restore the file")
    return getattr(import_module("sordino.training"), name).from_json(document)
