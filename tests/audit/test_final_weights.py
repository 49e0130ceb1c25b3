"""Of SI-DPSGD only the last weights are told: its claimed ε is refuted, its sound one and plain noise are not."""

from dataclasses import replace

import numpy as np
import torch

from sordino.audit import audit_final_weights
from sordino.audit.canaries import resized
from sordino.budget import Gaussian, PoissonGaussian, Repeated, cost
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.gaussian import gaussian_noise
from sordino.mechanisms.streams import Stream, Streams
from sordino.training.dpsgd import Trainee, Training, train_steps
from sordino.training.optimisers import SGD, Weights
from sordino.training.plan import Plan

CLIP, Z, RATE, DELTA = 3.1, 7.1, 0.1, 1e-5


def weight_distributions(trainee: Trainee, streams: Streams, sampler: PoissonSampler, steps: int) -> Weights:
    """Algorithm 1 with momentum 0.9 and a rate that falls by a tenth an epoch; θ_T is told, the means are not."""
    means = {name: value.clone().double() for name, value in trainee.parameters.items()}
    velocity = {name: torch.zeros_like(value) for name, value in means.items()}
    batch, per_epoch = sampler.expected_batch_size, round(1 / sampler.sample_rate)
    nothing = streams.generator(Stream.AUGMENTATION)
    for step in range(steps):
        rate = RATE * 0.9 ** (step // per_epoch)
        sums = trainee.clipped_sum(sampler.draw(streams, step), CLIP, nothing).sums
        for name, value in means.items():
            value -= rate * velocity[name].mul_(0.9).add_(sums[name] / batch)
    generator, deviation = streams.generator(Stream.NOISE), rate * CLIP * Z / batch
    return {
        name: value + torch.from_numpy(gaussian_noise(generator, tuple(value.shape), deviation))
        for name, value in means.items()
    }


def test_the_claimed_epsilon_of_weight_distributions_is_violated() -> None:
    """The setting of MNIST: B=32 of 60,000, ten epochs. Every canary then is a trial."""
    sampler = resized(PoissonSampler(60_000, 32), 1800)
    assert (sampler.n, sampler.expected_batch_size) == (1875, 1)
    claimed = cost(Repeated(PoissonGaussian(sampler.sample_rate, Z), 18_750), DELTA).epsilon
    audit = audit_final_weights(
        lambda trainee, streams: weight_distributions(trainee, streams, sampler, 18_750),
        records=sampler.n,
        l2_clip=CLIP,
        claimed_epsilon=claimed,
        sound_epsilon=7670.0,
        delta=DELTA,
    )
    assert claimed < 0.06
    assert audit.lower_bound > 2
    assert (audit.verdict, audit.sound_verdict) == ("violated", "consistent")


def test_the_last_weights_of_dp_sgd_are_consistent() -> None:
    plan = Plan(PoissonSampler(2000, 200), 0.5, 1.5, 20)

    def loop(trainee: Trainee, streams: Streams) -> Weights:
        training = Training(plan, trainee, SGD(0.3, momentum=0.5))
        train_steps(training, training.start(), streams, plan.steps)
        return trainee.weights()

    epsilon = plan.epsilon(DELTA)
    ways = {"records": 2000, "l2_clip": 0.5, "claimed_epsilon": epsilon, "sound_epsilon": epsilon, "delta": DELTA}
    audit = audit_final_weights(loop, **ways)
    assert 0 < audit.lower_bound < epsilon
    assert audit.verdict == "consistent"
    assert replace(audit, claimed_epsilon=0.01).verdict == "violated"


def test_a_single_gaussian_release_is_bounded_closely() -> None:
    def loop(trainee: Trainee, streams: Streams) -> Weights:
        sums = trainee.clipped_sum(np.arange(20_000), 1.0, streams.generator(Stream.AUGMENTATION)).sums
        noise = streams.generator(Stream.NOISE)
        return {name: -(value + torch.from_numpy(noise.normal(0, 1.5, value.shape))) for name, value in sums.items()}

    truth = cost(Gaussian(1.5), 0.02).epsilon
    ways = {"records": 20_000, "l2_clip": 1.0, "claimed_epsilon": truth, "sound_epsilon": truth, "delta": 0.02}
    assert 0.7 * truth < audit_final_weights(loop, **ways).lower_bound < truth
