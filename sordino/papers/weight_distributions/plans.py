"""Plans of SI's Tables 4 to 6, and what they cost: as claimed, soundly, from the last weights alone, and as audited."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from sordino.audit import Audit, audit_plan, audit_weight_distributions
from sordino.budget import steps_for
from sordino.data import PoissonSampler, ShuffledSampler
from sordino.mechanisms import Streams
from sordino.papers.tables import classic_noise
from sordino.papers.trials import Result, Say, Trial
from sordino.training import SGD, Plan, Schedule, WeightDistributionPlan

DELTA = 1e-5
_EXCESS = 0.1 * DELTA
_TUNED_AT, _TUNED_WITH = 3.0, 60_000
"""The ε and the number of records that learning rates are for: with less of either they shrink in proportion."""


@dataclass(frozen=True)
class PaperSettings:
    """How SI trains on a dataset."""

    n: int
    batch: int
    epochs: float
    l2_clip: float
    schedule: Callable[[int, int], Schedule]
    """From the steps of an epoch and of the training."""
    momentum: float = 0.0

    def plan(self, epsilon: float, mixing: bool = False) -> WeightDistributionPlan:
        """With the noise for which the paper would claim this ε, which is not what it costs."""
        steps = steps_for(self.epochs, self.n, self.batch)
        schedule = self.schedule(max(1, round(self.n / self.batch)), steps)
        z = claimed_noise(self.batch / self.n, steps, epsilon)
        sampler = PoissonSampler(self.n, self.batch)
        return WeightDistributionPlan(sampler, self.l2_clip, z, steps, schedule, self.momentum, _EXCESS, mixing)


@lru_cache(maxsize=256)
def claimed_noise(sample_rate: float, steps: int, epsilon: float) -> float:
    """The noise multiplier for which SI's accountant (RDP, the old conversion) gives this ε."""

    found = classic_noise(sample_rate, steps, epsilon, DELTA)
    if found is None:
        raise ValueError(f"SI's accountant gives no ε as small as {epsilon:g}, however much noise there is")
    return found


@dataclass(frozen=True)
class SoundSettings:
    """How a network is trained at a sound ε, by DP-SGD or by weight distributions."""

    batches: int
    """In an epoch."""
    epochs: float
    learning_rate: float

    def shrunk(self, n: int, epsilon: float) -> "SoundSettings":
        """With a rate that was tuned at ε=3 on 60,000 records, and that shrinks with less of either."""
        return replace(self, learning_rate=self.learning_rate * min(1.0, (n / _TUNED_WITH) * (epsilon / _TUNED_AT)))


@lru_cache(maxsize=64)
def sound_plan(n: int, epsilon: float, settings: SoundSettings) -> WeightDistributionPlan:
    """Weight distributions that cost the asked ε: few steps, large batches."""
    batch = max(1, n // settings.batches)
    return WeightDistributionPlan.calibrated(
        ShuffledSampler(n, batch),
        l2_clip=1.0,
        steps=steps_for(settings.epochs, n, batch),
        learning_rate=settings.learning_rate,
        target_epsilon=epsilon,
        target_delta=DELTA,
    )


@lru_cache(maxsize=64)
def dpsgd_plan(n: int, epsilon: float, settings: SoundSettings) -> Plan:
    """DP-SGD in the comparison: a share of all records a step, by Poisson sampling."""
    return Plan.calibrated(
        n=n,
        expected_batch_size=max(1, n // settings.batches),
        epochs=settings.epochs,
        l2_clip=0.1,
        target_epsilon=epsilon,
        target_delta=DELTA,
    )


def dpsgd_optimiser(settings: SoundSettings) -> SGD:
    return SGD(settings.learning_rate, 0.9)


@dataclass(frozen=True)
class PlanAudit(Trial):
    """What a plan costs: claimed, sound (None: ∞), final (at least, of θ_T alone), and audited at 95 % confidence.

    An audit runs the plan's own loop on canaries, whatever the network; where examples mix, canaries do not.
    """

    kind: ClassVar[str] = "audit"
    revision: ClassVar[int] = 3

    plan: WeightDistributionPlan | Plan
    canaries: int
    repetition: int = 0
    """Another audit of the same plan, with draws of its own."""

    def description(self) -> dict[str, Any]:
        return super().description() | {"plan": self.plan.to_json(), "delta": DELTA}

    def listed(self, result: Result) -> Result:
        return {"trial": str(self), **result}

    def compute(self, folder: Path, say: Say) -> Result:
        say(str(self))
        streams = Streams(bytes.fromhex(self.key))
        audit: Audit
        claimed: float | None
        if isinstance(self.plan, Plan):
            audit = audit_plan(self.plan, DELTA, runs=self.canaries, streams=streams)
            claimed, final = None, None
        else:
            audit = audit_weight_distributions(self.plan, DELTA, runs=self.canaries, streams=streams)
            claimed = self.plan.claimed_epsilon(DELTA)
            final = self.plan.final_epsilon(DELTA)
        sound = self.plan.epsilon(DELTA)
        return {
            "claimed": claimed,
            "sound": sound if math.isfinite(sound) else None,
            "final": final,
            "audited": audit.lower_bound,
            "canaries": audit.runs,
            "sound_verdict": audit.sound_verdict,
            "failed": [
                *(f"{test.name} (p={test.p_value:.2g})" for test in audit.failed()),
                *(f"{part.name} (ε ≥ {part.lower_bound:.3g})" for part in audit.parts if part.lower_bound > sound),
            ],
        }

    def __str__(self) -> str:
        again = ", repeated" if self.repetition else ""
        return f"audit of {self.plan.steps:,} steps at z={self.plan.noise_multiplier:.4g}{again}"
