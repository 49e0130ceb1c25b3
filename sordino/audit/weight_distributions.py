"""Audits of loops that release their final weights only, such as noise through weight distributions.

Its claim is about the final weights. All weights drawn along the way are charged, so the audit has a part about them:
faults that barely show at the end show there.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from sordino.audit.bounds import epsilon_lower_bound
from sordino.audit.noise import FEW, MOST_COMPARED, MOST_STEPS, standard_normal
from sordino.audit.result import SHARE, WIDE_DELTA, Audit, Finding, ReleaseBound
from sordino.audit.sampler import sampler_findings
from sordino.audit.sensitivity import sensitivity_probe
from sordino.audit.synthetic import Array, CanaryModel, KnownSums, by_record, half_of, in_a_row, resized
from sordino.budget import displacements
from sordino.data import PoissonSampler, Records
from sordino.mechanisms import Streams
from sordino.training import Means, Staircase, Trainable, WeightDistributionPlan, Weights, train_means

Loop = Callable[[Trainable, Records, Streams], Weights]
"""Trains the model on the records and returns the released weights."""
SI_MNIST = WeightDistributionPlan(PoissonSampler(60_000, 32), 3.1, 7.1, 18_750, Staircase(0.1, 0.9, 1875), 0.9, 1e-6)
"""How Davody et al. (2020) train MNIST, for a claimed ε=0.05 at δ=1e-5."""
_TESTED_RECORDS = 2000


def audit_final_weights(
    loop: Loop,
    *,
    records: int,
    l2_clip: float,
    claimed_epsilon: float,
    sound_epsilon: float,
    delta: float,
    confidence: float = 0.95,
    streams: Streams | None = None,
) -> Audit:
    """Audit any loop that releases its final weights only: one execution on `records` canaries, half of them present.

    A canary's gradient is always the clip along its own parameter, where every other record's is zero; its score is how
    far the released parameter moved against it.
    """
    streams = Streams.fresh() if streams is None else streams
    coins = half_of(records, streams)
    canaries = CanaryModel(coins, l2_clip)
    scores = -by_record(loop(canaries, canaries.records, streams)).double().numpy()
    bound = epsilon_lower_bound(scores[coins], scores[~coins], delta, confidence)
    return Audit(bound, confidence, claimed_epsilon, sound_epsilon, delta, records)


def audit_weight_distributions(
    plan: WeightDistributionPlan,
    delta: float,
    *,
    probed: tuple[Trainable, Records] | None = None,
    runs: int,
    confidence: float = 0.95,
    streams: Streams | None = None,
) -> Audit:
    """The plan's claimed and sound ε beside a lower bound from one execution on `runs` canaries.

    The headline is about the last weights; the part is about the whole trajectory, at a larger δ and a higher
    confidence. The assumptions of the sound ε are tested: sampler, noise, and the sensitivity of the `probed` model.
    """
    streams = Streams.fresh() if streams is None else streams
    small = replace(plan, sampler=resized(plan.sampler, runs))
    coins = half_of(small.sampler.n, streams)
    # The likelihood ratio of a record that joins every step; others move the same way, only less far.
    weights = displacements(np.ones(plan.steps), plan.rates, plan.momentum) / np.square(plan.rates)
    trajectory = np.zeros(len(coins))
    for weight, drawn in zip(weights, _drawn(small, CanaryModel(coins, plan.l2_clip), streams), strict=True):
        last = -by_record(drawn).double().numpy()
        trajectory += weight * last
    wide, level = max(delta, WIDE_DELTA), 1 - confidence
    bound = epsilon_lower_bound(trajectory[coins], trajectory[~coins], wide, 1 - SHARE * level)
    sampler = resized(plan.sampler, _TESTED_RECORDS)
    findings = [*sampler_findings(sampler, streams), drawn_noise_test(plan, streams)]
    if probed is not None:
        findings.append(sensitivity_probe(*probed, plan.l2_clip, streams, plan.sampler.expected_batch_size))
    return Audit(
        lower_bound=epsilon_lower_bound(last[coins], last[~coins], delta, confidence),
        confidence=confidence,
        claimed_epsilon=plan.claimed_epsilon(delta),
        sound_epsilon=plan.epsilon(delta),
        delta=delta,
        runs=len(coins),
        parts=(ReleaseBound("trajectory", wide, bound, plan.claimed_epsilon(wide), plan.epsilon(wide)),),
        findings=tuple(findings),
        last_weights_at_least=plan.final_epsilon(delta),
    )


def drawn_noise_test(plan: WeightDistributionPlan, streams: Streams) -> Finding:
    """Test the real loop's draws around its means, which are known because the sums are, against the plan's noise."""
    steps = min(plan.steps, MOST_COMPARED)
    plan = replace(plan, sampler=resized(plan.sampler, _TESTED_RECORDS), steps=steps)
    model = KnownSums(plan.sampler.n)
    drawn = []
    for step, theta in enumerate(_drawn(plan, model, streams)):
        weights = in_a_row(theta)
        drawn.append(weights if step < MOST_STEPS else weights[:FEW].copy())
    unit = plan.l2_clip / plan.sampler.expected_batch_size
    moved = unit * displacements(np.array(model.batch_sizes), plan.rates, plan.momentum)

    def noise(rows: list[Array]) -> Array:
        residuals: Array = np.stack(rows)
        residuals[:, 0] += moved[: len(rows)]
        return residuals / (unit * plan.noise_multiplier * np.array(plan.rates[: len(rows)])[:, None])

    return standard_normal(noise(drawn[:MOST_STEPS]), noise([row[:FEW] for row in drawn]))


def _drawn(plan: WeightDistributionPlan, model: CanaryModel | KnownSums, streams: Streams) -> Iterator[Weights]:
    """θ_1, …, θ_T as the real loop draws them."""
    state = Means.start(model.parameters)
    for step in range(plan.steps):
        train_means(plan, model, model.records, state, streams, step + 1)
        yield model.parameters
