"""What weight distributions cost under each way to sample: as the paper claims, and soundly."""

from dataclasses import dataclass
from math import ceil

from sordino.data import FullBatchSampler, PoissonSampler, Sampler, ShuffledSampler
from sordino.training.schedules import Schedule, Staircase
from sordino.training.weight_distributions import EXCESS_SHARE, WeightDistributionPlan


@dataclass(frozen=True)
class Price:
    """The ε of one plan."""

    sampling: str
    noise_multiplier: float
    claimed: float
    """As the paper prices it: not a guarantee."""
    sound: float
    """Of all weights drawn on the way, and so of the last ones: what a ledger charges."""
    last_weights_at_least: float
    """What the last weights alone tell of some record: no bound from above."""


def weight_distribution_prices(
    n: int,
    batch: int,
    steps: int,
    delta: float,
    *,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    learning_rate: float = 1.0,
    momentum: float = 0.0,
    decay: float = 1.0,
) -> list[Price]:
    """By Poisson sampling, in shuffled epochs and in full batches, each with so many steps and this noise.

    With an ε in place of the noise each has the noise that is sound at it. Rates shrink by `decay` an epoch.
    """
    samplers: dict[str, Sampler] = {
        "Poisson": PoissonSampler(n, batch),
        "epochs": ShuffledSampler(n, batch),
        "full batch": FullBatchSampler(n, n),
    }
    rate: float | Schedule = learning_rate if decay == 1 else Staircase(learning_rate, decay, ceil(n / batch))
    return [
        _price(name, _plan(sampler, steps, delta, rate, momentum, noise_multiplier, epsilon), delta)
        for name, sampler in samplers.items()
    ]


def _plan(
    sampler: Sampler,
    steps: int,
    delta: float,
    rate: float | Schedule,
    momentum: float,
    noise_multiplier: float | None,
    epsilon: float | None,
) -> WeightDistributionPlan:
    # The clip scales noise and gradients alike: no price depends on it.
    if noise_multiplier is None and epsilon is not None:
        return WeightDistributionPlan.calibrated(
            sampler,
            l2_clip=1.0,
            steps=steps,
            learning_rate=rate,
            momentum=momentum,
            target_epsilon=epsilon,
            target_delta=delta,
        )
    if noise_multiplier is None:
        raise ValueError("give a noise multiplier or an ε")
    excess = EXCESS_SHARE * delta if isinstance(sampler, PoissonSampler) else None
    return WeightDistributionPlan(sampler, 1.0, noise_multiplier, steps, rate, momentum, excess)


def _price(sampling: str, plan: WeightDistributionPlan, delta: float) -> Price:
    return Price(
        sampling, plan.noise_multiplier, plan.claimed_epsilon(delta), plan.epsilon(delta), plan.final_epsilon(delta)
    )
