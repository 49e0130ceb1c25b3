"""An audit of noise through weight distributions: the real loop on canaries; only the last weights are told."""

from dataclasses import replace

from sordino.audit.canaries import resized
from sordino.audit.final_weights import audit_final_weights
from sordino.audit.findings import Audit
from sordino.audit.sampler import sampler_test
from sordino.audit.sensitivity import sensitivity_probe
from sordino.budget import cost
from sordino.mechanisms.streams import Streams
from sordino.training.dpsgd import Trainee
from sordino.training.optimisers import Weights
from sordino.training.weight_distributions import Means, WeightDistributionPlan, train_steps

_TESTED_RECORDS = 2000


def audit_weight_distributions(
    plan: WeightDistributionPlan,
    delta: float,
    *,
    trainee: Trainee | None = None,
    runs: int,
    confidence: float = 0.95,
    streams: Streams | None = None,
) -> Audit:
    """The plan's claimed and sound ε beside what one execution on so many canaries tells.

    The sampler, and the trainee's sensitivity if one is given, are tested against what the sound ε rests on.
    """
    streams = Streams.fresh() if streams is None else streams
    small = replace(plan, sampler=resized(plan.sampler, runs))

    def loop(canaries: Trainee, streams: Streams) -> Weights:
        train_steps(small, canaries, Means.start(canaries.parameters), streams, small.steps)
        return canaries.weights()

    audit = audit_final_weights(
        loop,
        records=small.sampler.n,
        l2_clip=plan.l2_clip,
        claimed_epsilon=cost(plan.claimed, delta).epsilon,
        sound_epsilon=plan.epsilon(delta),
        delta=delta,
        confidence=confidence,
        streams=streams,
    )
    sampler = resized(plan.sampler, _TESTED_RECORDS)
    findings = [sampler_test(sampler, sampler.event(1.0), streams)]
    if trainee is not None:
        findings.append(sensitivity_probe(trainee, plan.l2_clip, streams))
    return replace(audit, findings=tuple(findings))
