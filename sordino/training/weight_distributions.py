"""Noise through weight distributions (SI-DPSGD: Davody et al. 2020, Algorithm 1), charged what it costs.

The parameters are means, which stay secret; each step draws weights around them, takes clipped gradients at the drawn
weights, and moves the means. Only the last draw is released.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from sordino.budget import (
    Composed,
    Event,
    Except,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    Repeated,
    ShuffledGaussian,
    printed,
    rdp,
    weight_trajectories,
)
from sordino.data import (
    FullBatchSampler,
    PoissonSampler,
    Records,
    Sampler,
    ShuffledSampler,
    sampler_from_json,
    sampler_to_json,
)
from sordino.mechanisms import Stream, Streams, gaussian_noise
from sordino.training.dpsgd import Trainable, check_count, check_finite, refuse_mixing
from sordino.training.fitting import Fitted, Job
from sordino.training.hidden import HiddenTraining
from sordino.training.optimisers import Weights
from sordino.training.planning import OneReleasePlan, Target, check_positive, check_whole
from sordino.training.schedules import Schedule, Staircase, rate_at, schedule_from_json, schedule_to_json

EXCESS_SHARE = 0.1
"""Of δ, for records that Poisson sampling draws more often than is charged."""


@dataclass(frozen=True)
class WeightDistributionPlan(OneReleasePlan):
    """What a training by weight distributions may do to the data, with the price of exactly that.

    Guarantee: all drawn weights θ_1, …, θ_T together, and so the last one, are the plan's `event`: every example's
    gradient clipped to l2_clip, noise of deviation η·l2_clip·noise_multiplier/expected_batch_size on each draw
    (`budget.weight_trajectories`). Under Poisson sampling a record joins more often than is charged with at most the
    `excess_probability`. Where `examples_mix` (batch norm), there is no guarantee, and the event says that.
    """

    sampler: Sampler
    l2_clip: float
    noise_multiplier: float
    steps: int
    learning_rate: float | Schedule
    momentum: float = 0.0
    excess_probability: float | None = None
    """For Poisson sampling, and no other; well below δ."""
    examples_mix: bool = False
    """Algorithm 2: one example may change another's gradient (`MixingModule`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, PoissonSampler | FullBatchSampler | ShuffledSampler):
            raise ValueError(
                f"weight distributions have no price for {type(self.sampler).__name__}: sample by Poisson, in shuffled "
                "epochs, or take full batches"
            )
        check_positive("l2_clip", self.l2_clip)
        check_whole("steps", self.steps)
        if isinstance(self.sampler, PoissonSampler) != (self.excess_probability is not None):
            raise ValueError("Poisson sampling, and no other, needs an excess_probability (a tenth of δ is usual)")
        _ = self.sound  # checks rates, momentum and noise

    @classmethod
    def calibrated(
        cls,
        sampler: Sampler,
        *,
        l2_clip: float,
        steps: int,
        learning_rate: float | Schedule,
        momentum: float = 0.0,
        target_epsilon: float,
        target_delta: float,
        before: Event | None = None,
        adjacency: str = "zero-out",
    ) -> "WeightDistributionPlan":
        """The plan with the least noise whose sound ε meets the target, after what is spent `before`.

        A tenth of δ goes to records that Poisson sampling draws more often than is charged.
        """
        target = Target.of(sampler.n, target_epsilon, target_delta, adjacency, before=before)
        excess = EXCESS_SHARE * target_delta if isinstance(sampler, PoissonSampler) else None
        return cls(sampler, l2_clip, 1.0, steps, learning_rate, momentum, excess).with_least_noise(target)

    def with_least_noise(self, target: Target) -> "WeightDistributionPlan":
        """The same plan with the least noise whose sound ε meets the target."""
        return replace(self, noise_multiplier=target.noise_multiplier(self._sound_at))

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every step, fixed in advance."""
        return tuple(float(rate_at(self.learning_rate, step)) for step in range(self.steps))

    @cached_property
    def norm(self) -> float:
        """What the trajectory of drawn weights reveals of a record, times the noise multiplier: μ·z of μ-GDP."""
        match self.sampler:
            case ShuffledSampler():
                return weight_trajectories.epochs_norm(self.rates, self.momentum, self.sampler.steps_per_epoch)
            case FullBatchSampler():
                return weight_trajectories.full_batch_norm(self.rates, self.momentum)
            case _:
                excess = self.excess_probability or 0.0
                return weight_trajectories.poisson_norm(self.rates, self.momentum, self.sampler.sample_rate, excess)

    @property
    def event(self) -> Event:
        return NonPrivate() if self.examples_mix else self.sound

    @property
    def sound(self) -> Event:
        """The price of the trajectory if no example changes another's gradient."""
        return self._sound_at(self.noise_multiplier)

    def _sound_at(self, noise_multiplier: float) -> Event:
        sigma = noise_multiplier / self.norm
        if isinstance(self.sampler, ShuffledSampler):
            # Composed, so that it repeats as a whole training: shuffled steps by themselves would share an epoch.
            return Composed((ShuffledGaussian(self.sampler.steps_per_epoch, sigma),))
        return Gaussian(sigma) if self.excess_probability is None else Except(Gaussian(sigma), self.excess_probability)

    @property
    def claimed(self) -> Event:
        """What the paper charges: as if each step's means were released before the next."""
        return Repeated(PoissonGaussian(self.sampler.sample_rate, self.noise_multiplier), self.steps)

    def claimed_epsilon(self, delta: float) -> float:
        """As the paper has it, by its own accountant (RDP, the old conversion): a claim, and not sound."""
        return rdp.classic_epsilon(self.claimed, delta, "zero-out", "old")

    def final_epsilon(self, delta: float) -> float:
        """At least what the last weights alone reveal of some record (`final_release_epsilon`): to be shown only."""
        shifts, probabilities = self._final_shifts()
        return weight_trajectories.final_release_epsilon(shifts / self.noise_multiplier, probabilities, delta)

    def event_after(self, steps: int) -> Event:
        """All of it from the first step on: the last draw is charged in full before."""
        return self.event

    def claims(self, delta: float) -> dict[str, float]:
        """Figures that are shown beside the sound ε."""
        return {"claimed_epsilon": self.claimed_epsilon(delta), "last_weights_at_least": self.final_epsilon(delta)}

    def notes(self, delta: float) -> list[str]:
        """What the privacy statement has to say about this way to train."""
        claimed, last = self.claimed_epsilon(delta), self.final_epsilon(delta)
        return [
            f"charged for all weights that were drawn; the paper of this method claims ε={printed(claimed)} (RDP, the "
            f"old conversion), which is not sound; the last weights alone reveal at least ε={last:.3g} of some record"
        ]

    def _final_shifts(self) -> tuple[weight_trajectories.Array, weight_trajectories.Array]:
        if isinstance(self.sampler, PoissonSampler):
            return weight_trajectories.final_shifts(self.rates, self.momentum, self.sampler.sample_rate)
        every = self.sampler.steps_per_epoch if isinstance(self.sampler, ShuffledSampler) else 1
        return weight_trajectories.final_shifts_of_epochs(self.rates, self.momentum, every)

    def fitted(self, job: Job) -> Fitted:
        model = job.trainable
        check_count(self.sampler.n, job.records)
        refuse_mixing(model, private=not self.examples_mix)
        return _HiddenMeans(self, model, job).fitted(self.sampler.expected_batch_size)

    def to_json(self) -> dict[str, Any]:
        document = {"sampling": sampler_to_json(self.sampler), **asdict(self)}
        del document["sampler"]
        return document | {"learning_rate": schedule_to_json(self.learning_rate)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "WeightDistributionPlan":
        fields = {**document, "learning_rate": schedule_from_json(document["learning_rate"])}
        return cls(sampler_from_json(fields.pop("sampling")), **fields)


@dataclass
class Means:
    """The state of a training. All of it is secret: no release has paid for it."""

    done: int
    means: Weights
    velocity: Weights

    @classmethod
    def start(cls, parameters: Weights) -> "Means":
        """At these parameters, which must not depend on the data."""
        means = {name: value.detach().double().clone() for name, value in parameters.items()}
        return cls(0, means, {name: torch.zeros_like(value) for name, value in means.items()})


@torch.no_grad()
def train_means(
    plan: WeightDistributionPlan, model: Trainable, records: Records, state: Means, streams: Streams, last: int
) -> None:
    """Steps of the plan from where it is up to the last, which is left out; the model then has the weights θ.

    Guarantee: all θ that the model goes through are the plan's event, which the ledger must hold before.
    """
    batch, parameters = plan.sampler.expected_batch_size, model.parameters
    draw_weights(plan, state, streams, parameters)
    for step in range(state.done, last):
        indices = plan.sampler.draw(streams, step)
        sums = model.clipped_sum(records, indices, plan.l2_clip, streams.generator(Stream.AUGMENTATION, step)).sums
        for name, mean in state.means.items():
            velocity = state.velocity[name].mul_(plan.momentum).add_(sums[name], alpha=1 / batch)
            mean.add_(velocity, alpha=-plan.rates[step])
        state.done = step + 1
        draw_weights(plan, state, streams, parameters)


@torch.no_grad()
def draw_weights(plan: WeightDistributionPlan, state: Means, streams: Streams, parameters: Weights) -> None:
    """θ of this state, into the parameters: the same again if asked again. θ_0 is the start itself."""
    if state.done == 0:
        for name, value in parameters.items():
            value.copy_(state.means[name])
        return
    rate = plan.rates[state.done - 1]
    deviation = rate * plan.l2_clip * plan.noise_multiplier / plan.sampler.expected_batch_size
    generator = streams.generator(Stream.NOISE, state.done - 1)
    for name in sorted(parameters):  # one order, so that the same key gives the same noise to the same parameter
        mean = state.means[name]
        noise = torch.from_numpy(gaussian_noise(generator, tuple(mean.shape), deviation))
        parameters[name].copy_(mean + noise.to(mean.device))


class _HiddenMeans(HiddenTraining):
    """Releases θ_T, with the paper's claim beside the plan's event.

    What `on_trained` is shown, and whatever it makes of it, is paid for by nothing: for experiments on public data.
    """

    plan: WeightDistributionPlan
    kind, what, file = "weight distributions", "training by weight distributions", "means.safetensors"

    def begin(self, streams: Streams, kept: Weights | None) -> None:
        self.model.initialise(streams)
        if kept is None:
            self._means = Means.start(self.model.parameters)
            return
        kinds: dict[str, Weights] = {"mean": {}, "velocity": {}, "fixed": {}}
        for name, value in kept.items():
            kind, _, rest = name.partition(".")
            kinds[kind][rest] = value
        self.model.load(self.model.weights() | kinds["fixed"])
        self._means = Means(self.done, kinds["mean"], kinds["velocity"])

    def state(self) -> Weights:
        fixed = {name: value for name, value in self.model.weights().items() if name not in self._means.means}
        kinds = {"mean": self._means.means, "velocity": self._means.velocity, "fixed": fixed}
        return {f"{kind}.{name}": value for kind, values in kinds.items() for name, value in values.items()}

    def advance(self, streams: Streams, last: int) -> None:
        train_means(self.plan, self.model, self.job.records, self._means, streams, last)
        check_finite(self.model.parameters)

    def released(self, streams: Streams) -> Weights:
        self.job.on_trained(self._means)
        draw_weights(self.plan, self._means, streams, self.model.parameters)
        return {name: value.clone() for name, value in self.model.weights().items()}


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
    """The ε that the last weights alone have for some record: no bound from above."""


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
    if noise_multiplier is None and epsilon is None:
        raise ValueError("give a noise multiplier or an ε")
    samplers: dict[str, Sampler] = {
        "Poisson": PoissonSampler(n, batch),
        "epochs": ShuffledSampler(n, batch),
        "full batch": FullBatchSampler(n, n),
    }
    rate: float | Schedule = learning_rate if decay == 1 else Staircase(learning_rate, decay, math.ceil(n / batch))
    prices = []
    for name, sampler in samplers.items():
        # The clip scales noise and gradients alike: no price depends on it.
        excess = EXCESS_SHARE * delta if isinstance(sampler, PoissonSampler) else None
        noise = 1.0 if noise_multiplier is None else noise_multiplier
        plan = WeightDistributionPlan(sampler, 1.0, noise, steps, rate, momentum, excess)
        if noise_multiplier is None:
            plan = plan.with_least_noise(Target.of(n, epsilon, delta, "zero-out"))
        sound, last = plan.epsilon(delta), plan.final_epsilon(delta)
        prices.append(Price(name, plan.noise_multiplier, plan.claimed_epsilon(delta), sound, last))
    return prices
