"""Noise through weight distributions (SI-DPSGD: Davody et al. 2020, Algorithm 1), charged what it costs.

The parameters are means, which stay secret; each step draws weights around them, takes clipped gradients at the drawn
weights, and moves the means. Only the last draw is released.
"""

import math
from dataclasses import dataclass, replace
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
    calibration,
    check_delta_against_n,
    cost,
    printed,
    rdp,
    refuse_add_remove,
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
from sordino.runs import Binding, Key, Run, digest, release_once, whole_number
from sordino.training.dpsgd import Steps, Trainable, check_count, check_finite, refuse_mixing
from sordino.training.fitting import BLOCKS, Fitted, Job
from sordino.training.optimisers import Weights
from sordino.training.schedules import Schedule, Staircase, rate_at, schedule_from_json, schedule_to_json

_HIDDEN = "means.safetensors"
EXCESS_SHARE = 0.1
"""Of δ, for records that Poisson sampling draws more often than is charged."""


@dataclass(frozen=True)
class WeightDistributionPlan:
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
        if isinstance(self.l2_clip, bool) or not (
            isinstance(self.l2_clip, int | float) and 0 < self.l2_clip < math.inf
        ):
            raise ValueError(f"l2_clip must be a positive finite number, not {self.l2_clip!r}")
        if type(self.steps) is not int or self.steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, not {self.steps!r}")
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
        refuse_add_remove(adjacency)
        check_delta_against_n(target_delta, sampler.n)
        excess = EXCESS_SHARE * target_delta if isinstance(sampler, PoissonSampler) else None
        plan = cls(sampler, l2_clip, 1.0, steps, learning_rate, momentum, excess)
        price = calibration.price(target_delta, adjacency, Composed(()) if before is None else before)
        z = calibration.noise_multiplier(plan._sound_at, target_epsilon, target_delta, adjacency, price)
        return replace(plan, noise_multiplier=z)

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every step, fixed in advance."""
        return tuple(float(rate_at(self.learning_rate, step)) for step in range(self.steps))

    @cached_property
    def norm(self) -> float:
        """What the trajectory of drawn weights tells of a record, times the noise multiplier: μ·z of μ-GDP."""
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
        """What the paper charges: as if each step's means were told before the next."""
        return Repeated(PoissonGaussian(self.sampler.sample_rate, self.noise_multiplier), self.steps)

    def epsilon(self, delta: float, adjacency: str = "zero-out") -> float:
        """The sound ε of this plan alone; a ledger's ε covers the whole workflow."""
        return cost(self.event, delta, adjacency).epsilon

    def claimed_epsilon(self, delta: float) -> float:
        """As the paper has it, by its own accountant (RDP, the old conversion): a claim, and not sound."""
        return rdp.classic_epsilon(self.claimed, delta, "zero-out", "old")

    def final_epsilon(self, delta: float) -> float:
        """What the last weights alone tell at least of some record (see `final_release_epsilon`): to be shown only."""
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
            f"old conversion), which is not sound; the last weights alone tell at least ε={last:.3g} of some record"
        ]

    def _final_shifts(self) -> tuple[weight_trajectories.Array, weight_trajectories.Array]:
        if isinstance(self.sampler, PoissonSampler):
            return weight_trajectories.final_shifts(self.rates, self.momentum, self.sampler.sample_rate)
        every = self.sampler.steps_per_epoch if isinstance(self.sampler, ShuffledSampler) else 1
        return weight_trajectories.final_shifts_of_epochs(self.rates, self.momentum, every)

    def train(self, job: Job) -> Steps[Fitted]:
        yield from ()  # its sums are not shared with other trainings
        return train_weight_distributions(self, job)

    def to_json(self) -> dict[str, Any]:
        return {
            "sampling": sampler_to_json(self.sampler),
            "l2_clip": self.l2_clip,
            "noise_multiplier": self.noise_multiplier,
            "steps": self.steps,
            "learning_rate": schedule_to_json(self.learning_rate),
            "momentum": self.momentum,
            "excess_probability": self.excess_probability,
            "examples_mix": self.examples_mix,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "WeightDistributionPlan":
        return cls(
            sampler_from_json(document["sampling"]),
            document["l2_clip"],
            document["noise_multiplier"],
            document["steps"],
            schedule_from_json(document["learning_rate"]),
            document["momentum"],
            document["excess_probability"],
            document["examples_mix"],
        )


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


def train_weight_distributions(plan: WeightDistributionPlan, job: Job) -> Fitted:
    """Train, and keep and release θ_T.

    Guarantee: the plan's event, charged once and in full before the first step, with the paper's claim beside it; see
    `release_once` for runs that were stopped. Means, velocity and key are in RUN/private until the end, then deleted.
    What `on_trained` is shown, and whatever it makes of it, is paid for by nothing: for experiments on public data.
    """
    model, records = job.trainable, job.records
    check_count(plan.sampler.n, records)
    refuse_mixing(model, private=not plan.examples_mix)
    what = "training by weight distributions" if job.what is None else job.what
    binding = Binding(
        digest(["weight distributions", plan.to_json(), model.facts(), what, job.part]),
        records.fingerprint,
        job.seed,
        lambda known: model.choose(records, known, plan.sampler.expected_batch_size),
    )
    weights = release_once(
        job.run,
        binding,
        lambda key: _trained(plan, model, job, key),
        job.ledger,
        event=plan.event,
        what=what,
        part=job.part,
        steps=plan.steps,
        claimed=plan.claimed,
        hidden=_HIDDEN,
    )
    model.load(weights)
    return Fitted(weights, plan.steps, getattr(model, "model", model))


def _trained(plan: WeightDistributionPlan, model: Trainable, job: Job, key: Key) -> Weights:
    state = _begin_or_resume(job.run, model, key)
    block = max(1, plan.steps // BLOCKS)
    job.on_progress(state.done, plan.steps)
    while state.done < plan.steps:
        last = min(plan.steps, (state.done // block + 1) * block)
        train_means(plan, model, job.records, state, key.streams, last)
        check_finite(model.parameters)
        _keep(job.run, model, state, key)
        job.on_progress(state.done, plan.steps)
    job.on_trained(state)
    draw_weights(plan, state, key.streams, model.parameters)
    return {name: value.clone() for name, value in model.weights().items()}


def _begin_or_resume(run: Run | None, model: Trainable, key: Key) -> Means:
    model.initialise(key.streams)
    if run is not None and (run.private / _HIDDEN).exists():
        kept, facts = run.read_tensors(run.private / _HIDDEN)
        if facts.get("run") == key.name:  # another run's is of no use, and is written over
            kinds: dict[str, Weights] = {"mean": {}, "velocity": {}, "fixed": {}}
            for name, value in kept.items():
                kind, _, rest = name.partition(".")
                kinds[kind][rest] = value
            model.load(model.weights() | kinds["fixed"])
            return Means(whole_number(facts, "done", run), kinds["mean"], kinds["velocity"])
    state = Means.start(model.parameters)
    # Kept before the first draw: whatever the model is when the run is resumed, it starts from the same weights.
    _keep(run, model, state, key)
    return state


def _keep(run: Run | None, model: Trainable, state: Means, key: Key) -> None:
    if run is None:
        return
    fixed = {name: value for name, value in model.weights().items() if name not in state.means}
    kinds = {"mean": state.means, "velocity": state.velocity, "fixed": fixed}
    content = {f"{kind}.{name}": value for kind, values in kinds.items() for name, value in values.items()}
    run.write_tensors(run.private / _HIDDEN, content, {"done": state.done, "run": key.name})


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
    samplers: dict[str, Sampler] = {
        "Poisson": PoissonSampler(n, batch),
        "epochs": ShuffledSampler(n, batch),
        "full batch": FullBatchSampler(n, n),
    }
    rate: float | Schedule = learning_rate if decay == 1 else Staircase(learning_rate, decay, math.ceil(n / batch))
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
