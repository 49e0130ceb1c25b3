"""Every planted fault is caught, and the correct code passes the same audit.

Faults are planted in the real functions, or, where there is nothing in them to change (a sampler of another kind, a
model whose examples mix, what a known sum is divided by), in a stand-in. How often each is caught under fresh keys:
`python -m benchmarks.audit_power`, which repeats these tests as they stand (figures in docs/auditing.md).
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sordino.audit import Audit, Finding, audit_plan, audit_weight_distributions, noise_test, sensitivity_probe
from sordino.audit.sensitivity import adversarial_rows
from sordino.audit.synthetic import KnownSums, resized
from sordino.audit.weight_distributions import drawn_noise_test
from sordino.budget import Ledger
from sordino.data import ArrayRecords
from sordino.data.samplers import FullBatchSampler, PoissonSampler, ShuffledSampler
from sordino.gradients import ClippedGradients, Flat, batches
from sordino.mechanisms import moments as private_moments
from sordino.mechanisms.moments import ChannelMoments, ThresholdQuantiles
from sordino.mechanisms.streams import Stream, Streams
from sordino.runs import Run, key
from sordino.training import dpsgd, weight_distributions
from sordino.training.dpsgd import ClippedSum, Trainable
from sordino.training.heads import cross_entropy
from sordino.training.linear import LinearClassifier
from sordino.training.modules import TrainableModule
from sordino.training.plan import Plan
from sordino.training.weight_distributions import WeightDistributionPlan

DELTA = 1e-5
PLAN = Plan(PoissonSampler(1000, 100), l2_clip=0.5, noise_multiplier=1.5, steps=20)  # ε=2.9
MOMENTS = ChannelMoments(0.2, 0.05, noise_multiplier=8)
AUDITED = partial(audit_plan, PLAN, DELTA, runs=8000)


Probed = tuple[Trainable, ArrayRecords]


def linear() -> Probed:
    rows = adversarial_rows((6,), 24, Streams.fresh())
    return LinearClassifier(6, 3), ArrayRecords(rows, np.arange(24) % 3)


def network(norm: nn.Module | None = None, kind: type[TrainableModule] = TrainableModule) -> Probed:
    rows = adversarial_rows((6,), 24, Streams.fresh())
    if kind is Mixing:  # ordinary records, so that nothing but what is mixed can show
        rows = np.random.default_rng(0).normal(size=rows.shape).astype(np.float32)

    def build() -> nn.Module:
        layers = (nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 8, 1), norm or nn.Identity(), nn.Tanh(), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(24, 3))

    return kind(build, cross_entropy), ArrayRecords(rows, np.arange(24) % 3)


def failed(audit: Audit) -> set[str]:
    return {finding.name for finding in audit.failed()}


def beaten(audit: Audit) -> set[str]:
    return {part.name for part in audit.parts if part.lower_bound > part.sound_epsilon}


def test_the_correct_code_passes_everything() -> None:
    audit = AUDITED(moments=MOMENTS, probed=linear())
    assert audit.verdict == audit.sound_verdict == "consistent"
    assert {finding.name for finding in audit.findings} == {
        "weights",
        "charge",
        "sampler",
        "noise",
        "keys",
        "sensitivity",
    }
    assert 0.1 < audit.lower_bound < audit.claimed_epsilon
    assert sensitivity_probe(*network(), 0.5, Streams.fresh()).p_value == 1


@pytest.mark.parametrize("times", [1e9, 2.0], ids=["no clipping", "twice the clip"])
@pytest.mark.parametrize("build", [network, linear], ids=["engine", "linear"])
def test_a_clip_that_is_missing_or_too_large(
    monkeypatch: pytest.MonkeyPatch, times: float, build: Callable[[], Any]
) -> None:
    plant_clip(monkeypatch, times)
    probed = sensitivity_probe(*build(), 0.5, Streams.fresh())
    assert probed.p_value == 0, probed.seen


@pytest.mark.parametrize("times", [1e9, 2.0], ids=["no clipping", "twice the clip"])
def test_a_missing_clip_shows_in_the_lower_bound(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    plant_clip(monkeypatch, times)
    audit = AUDITED()
    assert beaten(audit) == {"training"}
    assert audit.verdict == audit.sound_verdict == "violated"


REAL_FACTORS = Flat.factors


def plant_clip(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    factors, summed = Flat.factors, LinearClassifier.clipped_sum
    monkeypatch.setattr(Flat, "factors", lambda self, norms, l2_clip: factors(self, norms, times * l2_clip))

    def larger(self: Any, records: Any, indices: Any, l2_clip: float, augmentation: Any = None) -> ClippedSum:
        return summed(self, records, indices, times * l2_clip)

    monkeypatch.setattr(LinearClassifier, "clipped_sum", larger)


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

    def divided(self: KnownSums, records: Any, indices: np.ndarray, l2_clip: float, _: Any = None) -> ClippedSum:
        sums, norms = summed(self, records, indices, l2_clip)
        return ClippedSum({name: value * (batch / len(indices)) for name, value in sums.items()}, norms)

    monkeypatch.setattr(KnownSums, "clipped_sum", divided)
    assert drawn_noise_test(plan, Streams.fresh()).p_value < 1e-6


def test_shuffled_batches_accounted_as_poisson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShuffledSampler, "event", PoissonSampler.event)
    monkeypatch.setattr(ShuffledSampler, "claimed", lambda self, noise_multiplier: None)
    audit = audit_plan(Plan(ShuffledSampler(1000, 100), 0.5, 1.5, 20), DELTA, runs=1000)
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

    monkeypatch.setattr(private_moments, "draw_quantile", exact)
    audit = AUDITED(moments=asked, runs=2000)
    assert beaten(audit) == {"thresholds"}
    assert audit.verdict == audit.sound_verdict == "violated"


def test_where_nothing_is_promised_nothing_is_violated() -> None:
    plan = WeightDistributionPlan(ShuffledSampler(24, 8), 0.5, 3.0, 6, 0.1, examples_mix=True)
    audit = audit_weight_distributions(plan, DELTA, probed=network(nn.BatchNorm1d(8), Mixing), runs=200)
    assert "sensitivity" in failed(audit)
    assert audit.sound_epsilon == math.inf
    assert json.loads(json.dumps(audit.to_json(), allow_nan=False))["sound_epsilon"] == "infinity"
    assert (audit.verdict, audit.sound_verdict) == ("violated", "consistent")


class Mixing(TrainableModule):
    """Per-example gradients through statistics that the whole batch shares, each clipped: what others would do."""

    def choose(self, records: Any, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        return {}

    def clipped_sum(self, records: Any, indices: np.ndarray, l2_clip: float, augmentation: Any) -> ClippedSum:
        x, y = self._rows(records, indices)
        with torch.enable_grad():
            losses = cross_entropy(self.model(x), y)
        shares = torch.eye(len(indices))
        found = torch.autograd.grad(losses, list(self.parameters.values()), shares, is_grads_batched=True)
        norms = torch.cat([value.flatten(1) for value in found], 1).norm(dim=1)
        factors = torch.where(norms.isfinite(), Flat().factors(norms[:, None], l2_clip)[:, 0], 0)
        sums = [torch.einsum("i,i...->...", factors, value.nan_to_num()) for value in found]
        return ClippedSum(dict(zip(self.parameters, sums, strict=True)), norms)


def test_batch_norm_in_training_mode() -> None:
    refused = sensitivity_probe(*network(nn.BatchNorm1d(8)), 0.5, Streams.fresh())
    assert refused.p_value == 1
    assert "BatchNorm1d in training mode" in refused.seen
    probed = sensitivity_probe(*network(nn.BatchNorm1d(8), Mixing), 0.5, Streams.fresh())
    assert probed.p_value == 0, probed.seen
    assert sensitivity_probe(*network(nn.GroupNorm(2, 8), Mixing), 0.5, Streams.fresh()).p_value == 1


def plant_in_release(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str, torch.Tensor, torch.Tensor, int], torch.Tensor]
) -> None:
    """What a step shows of each tensor, from its name, its clean mean, the noise on it and the step."""
    real = dpsgd.release

    def changed(clipped: ClippedSum, l2_clip: float, plan: Plan, streams: Streams, step: int) -> Any:
        mean, clip = real(clipped, l2_clip, plan, streams, step)
        found = {}
        for name, value in mean.items():
            clean = clipped.sums[name].to(value) / plan.sampler.expected_batch_size
            found[name] = clean + change(name, clean, value - clean, step)
        return found, clip

    monkeypatch.setattr(dpsgd, "release", changed)


def test_no_noise_on_tensors_of_two_dimensions_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_release(monkeypatch, lambda name, clean, noise, step: noise * (clean.ndim < 2))
    audit = AUDITED(runs=1000)
    assert "noise" in failed(audit)
    assert beaten(audit) == {"training"}


def test_less_noise_from_step_256_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_release(monkeypatch, lambda name, clean, noise, step: noise * (0.7 if step >= 256 else 1.0))
    assert failed(audit_plan(replace(PLAN, steps=300), DELTA, runs=500)) == {"noise"}


def test_less_noise_at_the_end_of_a_long_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes so many steps: the last ones are looked at all the same."""
    late = replace(PLAN, steps=20_000)
    plant_in_release(monkeypatch, lambda name, clean, noise, step: noise * (0.7 if step >= 19_900 else 1.0))
    found = noise_test(late, Streams.fresh())
    assert found.p_value < 1e-6
    assert "model" in found.seen or "19,915" in found.seen


def test_only_the_first_physical_batch_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 200
    rows = adversarial_rows((6,), size, Streams.fresh())

    def probed() -> Finding:
        model, records = (
            TrainableModule(lambda: nn.Linear(6, 3), cross_entropy),
            ArrayRecords(rows, np.arange(size) % 3),
        )
        return sensitivity_probe(model, records, 0.5, Streams.fresh(), size)

    assert probed().p_value == 1
    real = ClippedGradients._add

    def first_alone(self: Any, strategy: Any, sums: dict[str, Any], x: Any, y: Any, l2_clip: float, least: int) -> Any:
        return real(self, strategy, sums, x, y, 1e9 if sums else l2_clip, least)

    monkeypatch.setattr(ClippedGradients, "_add", first_alone)
    found = probed()
    assert found.p_value == 0, found.seen


def test_a_linear_model_without_a_clip_is_attacked_through_its_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_clip(monkeypatch, 2.0)
    monkeypatch.setattr(Flat, "factors", REAL_FACTORS)  # in the closed form alone
    audit = AUDITED(probed=linear(), runs=2000)
    assert beaten(audit) == {"closed form"}
    assert failed(audit) == {"sensitivity"}


# Ten further faults, in the order of the table in docs/auditing.md.


def test_noise_that_forgets_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_release(monkeypatch, lambda name, clean, noise, step: noise / 2)  # where the clip is 2
    assert "noise" in failed(audit_plan(replace(PLAN, l2_clip=2.0), DELTA, runs=500))


def test_noise_that_cancels_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[str, torch.Tensor] = {}

    def difference(name: str, clean: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
        last, before[name] = before.get(name), noise
        return noise if last is None or last.shape != noise.shape else (noise - last) / math.sqrt(2)

    plant_in_release(monkeypatch, difference)
    assert "noise" in failed(AUDITED(runs=500))


def test_one_secret_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key, "new_secret", lambda: bytes(16))
    assert failed(AUDITED(runs=500)) == {"keys"}


def test_a_record_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PoissonSampler.draw
    monkeypatch.setattr(
        PoissonSampler, "draw", lambda self, streams, step: np.union1d(real(self, streams, step), [self.n - 1])
    )
    assert failed(AUDITED(runs=500)) == {"sampler"}


def test_weights_that_hold_more_than_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean sum beside the noisy gradients, in what the folder keeps: one bit of a float of it is enough."""
    real = Run.write_tensors

    def with_more(self: Run, path: Any, tensors: dict[str, torch.Tensor], *facts: Any, **others: Any) -> Any:
        if path == self.model:
            tensors = {name: value + value.abs().mean() * 1e-3 for name, value in tensors.items()}
        return real(self, path, tensors, *facts, **others)

    monkeypatch.setattr(Run, "write_tensors", with_more)
    assert failed(AUDITED(runs=500)) == {"weights"}


def test_steps_that_are_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ledger.raise_count
    monkeypatch.setattr(Ledger, "raise_count", lambda self, number, count: real(self, number, min(count, 15)))
    assert failed(AUDITED(runs=500)) == {"charge"}


def test_rounding_that_depends_on_the_shape_of_a_batch_is_no_violation() -> None:
    """With record 281 out of its batch, matrix products round the scores of 661 otherwise, by 1.9e-4 clips."""
    streams = Streams((24).to_bytes(16, "little"))
    records = ArrayRecords(adversarial_rows((3969,), 1024, streams), np.arange(1024) % 10)
    found = sensitivity_probe(LinearClassifier(3969, 10), records, 0.1, streams)
    assert found.p_value == 1, found.seen
    assert float(found.seen.rpartition(" ")[2]) < 1e-6


def test_a_clip_that_forgets_the_bias() -> None:
    model, records = linear()
    known = model.prepared(records)  # type: ignore[attr-defined]
    known.norms.copy_((known.norms.square() - 1).clamp(min=0).sqrt())
    assert sensitivity_probe(model, records, 0.5, Streams.fresh()).p_value == 0


def test_physical_batches_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record at each boundary counts twice, and only where there are boundaries."""
    real = batches.select

    def one_more(batch: Any, rows: Any) -> Any:
        overlaps = isinstance(rows, slice) and rows.start and rows.stop - rows.start > 1
        return real(batch, slice(rows.start - 1, rows.stop) if overlaps else rows)

    monkeypatch.setattr(batches, "select", one_more)
    rows = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    model = TrainableModule(lambda: nn.Linear(6, 3), cross_entropy, physical_batch=5)
    assert sensitivity_probe(model, ArrayRecords(rows, np.arange(60) % 3), 0.05, Streams.fresh(), 60).p_value == 0


def test_no_noise_on_tensors_of_some_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_release(monkeypatch, lambda name, clean, noise, step: noise * ("norm" not in name))
    shapes = {"weight": (20, 10), "norm.weight": (7,)}
    assert noise_test(PLAN, Streams.fresh()).p_value > 1e-3
    assert noise_test(PLAN, Streams.fresh(), shapes).p_value < 1e-6


def test_noise_on_the_first_million_parameters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def beyond(name: str, clean: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
        return torch.where(torch.arange(noise.numel()).view(noise.shape) < 2**20, noise, 0.0)

    plant_in_release(monkeypatch, beyond)
    assert noise_test(PLAN, Streams.fresh(), {"weight": (2**20 + 64,)}).p_value < 1e-6
