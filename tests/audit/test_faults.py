"""Every planted fault is caught, and the correct code passes the same audit.

Faults are planted in the real functions, or, where there is nothing in them to change (a sampler of another kind, a
model whose examples mix, what a known sum is divided by), in a stand-in. How often each is caught under fresh keys:
`python -m benchmarks.audit_power`, which repeats these tests as they stand (figures in docs/auditing.md).
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sordino.audit import Audit, audit_plan, audit_weight_distributions, sensitivity_probe
from sordino.audit.canaries import resized
from sordino.audit.noise import KnownSums
from sordino.audit.sensitivity import adversarial_rows
from sordino.audit.weight_distributions import drawn_noise_test
from sordino.budget import Event, PoissonGaussian
from sordino.data.samplers import FullBatchSampler, PoissonSampler, ShuffledSampler
from sordino.gradients import Flat
from sordino.mechanisms import moments as private_moments
from sordino.mechanisms import thresholds
from sordino.mechanisms.moments import ChannelMoments
from sordino.mechanisms.streams import Stream, Streams
from sordino.mechanisms.thresholds import ThresholdQuantiles
from sordino.training import dpsgd, weight_distributions
from sordino.training.dpsgd import ClippedSum
from sordino.training.heads import cross_entropy
from sordino.training.linear import LinearClassifier
from sordino.training.module import ModuleTrainee
from sordino.training.plan import Plan
from sordino.training.weight_distributions import WeightDistributionPlan

DELTA = 1e-5
PLAN = Plan(PoissonSampler(1000, 100), l2_clip=0.5, noise_multiplier=1.5, steps=20)  # ε=2.9
MOMENTS = ChannelMoments(0.2, 0.05, noise_multiplier=8)
AUDITED = partial(audit_plan, PLAN, DELTA, runs=8000)


def linear() -> LinearClassifier:
    rows = adversarial_rows((6,), 24, Streams.fresh())
    return LinearClassifier(rows, np.arange(24) % 3, 3)


def network(norm: nn.Module | None = None, trainee: type[ModuleTrainee] = ModuleTrainee) -> ModuleTrainee:
    rows = adversarial_rows((6,), 24, Streams.fresh())
    if trainee is Mixing:  # ordinary records, so that nothing but what is mixed can show
        rows = np.random.default_rng(0).normal(size=rows.shape).astype(np.float32)

    def build() -> nn.Module:
        layers = (nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 8, 1), norm or nn.Identity(), nn.Tanh(), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(24, 3))

    return trainee(build, cross_entropy, rows, np.arange(24) % 3)


def failed(audit: Audit) -> set[str]:
    return {finding.name for finding in audit.failed()}


def beaten(audit: Audit) -> set[str]:
    return {part.name for part in audit.parts if part.lower_bound > part.sound_epsilon}


def test_the_correct_code_passes_everything() -> None:
    audit = AUDITED(moments=MOMENTS, trainee=linear())
    assert audit.verdict == audit.sound_verdict == "consistent"
    assert {finding.name for finding in audit.findings} == {"sampler", "noise", "sensitivity"}
    assert 0.1 < audit.lower_bound < audit.claimed_epsilon
    assert sensitivity_probe(network(), 0.5, Streams.fresh()).p_value == 1


@pytest.mark.parametrize("times", [1e9, 2.0], ids=["no clipping", "twice the clip"])
@pytest.mark.parametrize("build", [network, linear], ids=["engine", "linear"])
def test_a_clip_that_is_missing_or_too_large(
    monkeypatch: pytest.MonkeyPatch, times: float, build: Callable[[], Any]
) -> None:
    plant_clip(monkeypatch, times)
    probed = sensitivity_probe(build(), 0.5, Streams.fresh())
    assert probed.p_value == 0, probed.seen


@pytest.mark.parametrize("times", [1e9, 2.0], ids=["no clipping", "twice the clip"])
def test_a_missing_clip_shows_in_the_lower_bound(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    plant_clip(monkeypatch, times)
    audit = AUDITED()
    assert beaten(audit) == {"training"}
    assert audit.verdict == audit.sound_verdict == "violated"


def plant_clip(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    factors, summed = Flat.factors, LinearClassifier.clipped_sum
    monkeypatch.setattr(Flat, "factors", lambda self, norms, l2_clip: factors(self, norms, times * l2_clip))
    monkeypatch.setattr(
        LinearClassifier, "clipped_sum", lambda self, rows, l2_clip, _=None: summed(self, rows, times * l2_clip)
    )


def plant_half_the_noise(monkeypatch: pytest.MonkeyPatch, where: Any = dpsgd) -> None:
    real = where.gaussian_noise
    monkeypatch.setattr(where, "gaussian_noise", lambda generator, shape, sigma: real(generator, shape, sigma / 2))


def test_half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_half_the_noise(monkeypatch)
    audit = AUDITED()
    assert "noise" in failed(audit)
    assert beaten(audit) == {"training"}


def plant_reused_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Streams.generator

    def stuck(self: Streams, stream: Stream, step: int = 0) -> np.random.Generator:
        return real(self, stream, 0 if stream is Stream.NOISE else step)

    monkeypatch.setattr(Streams, "generator", stuck)


def test_noise_reused_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_reused_noise(monkeypatch)
    audit = AUDITED(runs=1000)
    assert "noise" in failed(audit)
    assert audit.verdict == "violated"


def plant_realised_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dpsgd.release

    def divided(clipped: ClippedSum, l2_clip: float, plan: Plan, streams: Streams, step: int) -> Any:
        mean, clip = real(clipped, l2_clip, plan, streams, step)
        scale = plan.sampler.expected_batch_size / max(1, len(clipped.norms))
        return {name: value * scale for name, value in mean.items()}, clip

    monkeypatch.setattr(dpsgd, "release", divided)


def test_division_by_the_realised_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_realised_batch(monkeypatch)
    assert failed(AUDITED(runs=1000)) == {"noise"}


DISTRIBUTIONS = WeightDistributionPlan.calibrated(
    FullBatchSampler(500, 500),
    l2_clip=0.5,
    steps=20,
    learning_rate=1.0,
    momentum=0.5,
    target_epsilon=3,
    target_delta=DELTA,
)


def audited_distributions() -> Audit:
    return audit_weight_distributions(DISTRIBUTIONS, DELTA, runs=4000)


def test_the_correct_loop_of_weight_distributions_passes() -> None:
    audit = audited_distributions()
    assert audit.sound_verdict == "consistent"
    assert audit.parts[0].lower_bound > 0.3 * audit.parts[0].sound_epsilon


def test_half_the_noise_in_weight_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_half_the_noise(monkeypatch, weight_distributions)
    audit = audited_distributions()
    assert failed(audit) == {"noise"}
    assert beaten(audit) == {"trajectory"}


def test_noise_reused_between_draws_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_reused_noise(monkeypatch)
    assert failed(audited_distributions()) == {"noise"}


def test_weight_distributions_without_a_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_clip(monkeypatch, 1e9)
    audit = audited_distributions()
    assert beaten(audit) == {"trajectory"}
    assert audit.sound_verdict == "violated"


def test_means_that_move_by_the_realised_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise itself is right then, and the means that it lies around are not."""
    plan = WeightDistributionPlan(PoissonSampler(500, 100), 0.5, 5.0, 20, 1.0, 0.0, 1e-6)
    assert drawn_noise_test(plan, Streams.fresh()).p_value > 1e-3
    summed, batch = KnownSums.clipped_sum, resized(plan.sampler, 2000).expected_batch_size

    def divided(self: KnownSums, indices: np.ndarray, l2_clip: float, _: Any = None) -> ClippedSum:
        sums, norms = summed(self, indices, l2_clip)
        return ClippedSum({name: value * (batch / len(indices)) for name, value in sums.items()}, norms)

    monkeypatch.setattr(KnownSums, "clipped_sum", divided)
    assert drawn_noise_test(plan, Streams.fresh()).p_value < 1e-6


@dataclass(frozen=True)
class ShuffledAsPoisson(ShuffledSampler):
    """Accounts for what it does not do."""

    def event(self, noise_multiplier: float) -> Event:
        return PoissonGaussian(self.sample_rate, noise_multiplier)

    def claimed(self, noise_multiplier: float) -> Event | None:
        return None


def test_shuffled_batches_accounted_as_poisson() -> None:
    plan = Plan(ShuffledAsPoisson(1000, 100), 0.5, 1.5, 20)
    audit = audit_plan(plan, DELTA, runs=1000)
    assert failed(audit) == {"sampler"}
    assert audit.sound_verdict == "violated"


def test_honest_shuffled_batches_refute_the_claim_and_not_the_charge() -> None:
    audit = audit_plan(Plan(ShuffledSampler(1000, 100), 0.5, 4.0, 20), DELTA, runs=1000)
    assert failed(audit) == {"sampler, as claimed"}
    assert (audit.verdict, audit.sound_verdict) == ("violated", "consistent")
    assert audit.claimed_epsilon < audit.sound_epsilon


def plant_bare_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_moments, "noisy_sum", lambda generator, total, unit, deviation: total * unit)


def test_statistics_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_bare_statistics(monkeypatch)
    audit = AUDITED(moments=MOMENTS, runs=2000)
    assert beaten(audit) == {"statistics"}
    assert audit.verdict == audit.sound_verdict == "violated"
    assert not audit.failed()


def test_thresholds_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ThresholdQuantiles((0.01, 10.0), (0.01, 10.0), epsilon=0.5)
    honest = AUDITED(moments=asked, runs=2000)
    assert honest.verdict == "consistent"
    assert {part.name for part in honest.parts} == {"everything", "training", "statistics", "thresholds"}

    def exact(values: np.ndarray, quantile: float, bounds: tuple[float, float], *_: Any) -> float:
        return float(np.nanquantile(np.clip(values, *bounds), quantile))

    monkeypatch.setattr(thresholds, "draw_quantile", exact)
    audit = AUDITED(moments=asked, runs=2000)
    assert beaten(audit) == {"thresholds"}
    assert audit.verdict == audit.sound_verdict == "violated"


def test_where_nothing_is_promised_nothing_is_violated() -> None:
    plan = WeightDistributionPlan(ShuffledSampler(24, 8), 0.5, 3.0, 6, 0.1, examples_mix=True)
    audit = audit_weight_distributions(plan, DELTA, trainee=network(nn.BatchNorm1d(8), Mixing), runs=200)
    assert "sensitivity" in failed(audit)
    assert audit.sound_epsilon == math.inf
    assert json.loads(json.dumps(audit.to_json(), allow_nan=False))["sound_epsilon"] == "infinity"
    assert (audit.verdict, audit.sound_verdict) == ("violated", "consistent")


class Mixing(ModuleTrainee):
    """Per-example gradients through statistics that the whole batch shares, each clipped: what others would do."""

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        return {}

    def clipped_sum(self, indices: np.ndarray, l2_clip: float, augmentation: np.random.Generator) -> ClippedSum:
        x, y = self._rows(indices)
        with torch.enable_grad():
            losses = cross_entropy(self.model(x), y)
        shares = torch.eye(len(indices))
        found = torch.autograd.grad(losses, list(self.parameters.values()), shares, is_grads_batched=True)
        norms = torch.cat([value.flatten(1) for value in found], 1).norm(dim=1)
        factors = torch.where(norms.isfinite(), Flat().factors(norms[:, None], l2_clip)[:, 0], 0)
        sums = [torch.einsum("i,i...->...", factors, value.nan_to_num()) for value in found]
        return ClippedSum(dict(zip(self.parameters, sums, strict=True)), norms)


def test_batch_norm_in_training_mode() -> None:
    refused = sensitivity_probe(network(nn.BatchNorm1d(8)), 0.5, Streams.fresh())
    assert refused.p_value == 1
    assert "BatchNorm1d in training mode" in refused.seen
    probed = sensitivity_probe(network(nn.BatchNorm1d(8), Mixing), 0.5, Streams.fresh())
    assert probed.p_value == 0, probed.seen
    assert sensitivity_probe(network(nn.GroupNorm(2, 8), Mixing), 0.5, Streams.fresh()).p_value == 1
