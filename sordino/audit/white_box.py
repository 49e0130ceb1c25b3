"""The white-box adversary: sees every noisy gradient that the real loop releases, and knows every other record.

Its score for a canary is the likelihood ratio under the claimed mechanism, the most powerful test of that mechanism. A
lower bound from it is valid whatever mechanism really ran, if canaries do not influence each other: if the loop treats
coordinates separately (`noise_test` looks for noise that they share) and records join independently, as in Poisson and
full batches. In shuffled epochs each canary has a different place. The score of a whole epoch has the same law at every
place, so trials remain independent; in an unfinished epoch places are drawn without replacement, and hits vary less
than the intervals allow for.
"""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.audit.result import Finding
from sordino.audit.synthetic import CanaryModel, by_record
from sordino.budget import Entry, Event, Gaussian, Ledger, PoissonGaussian, ShuffledGaussian
from sordino.data import ArrayRecords, Records
from sordino.mechanisms import ChannelMoments, Stream, Streams, ThresholdQuantiles
from sordino.runs import Run
from sordino.training import LinearClassifier, Plan, State, Trainable, TrainingState, Weights, fit

Scores = NDArray[np.float64]
Watcher = Callable[[Weights, Weights, int, float], None]
"""Called with the parameters, their noisy gradient, the step and the noise's standard deviation."""
Attack = tuple[Scores, tuple[Finding, ...]]
"""Each canary's score after the real `fit` has executed the plan, and findings about its folder."""

_BLOCKS = 3
_CLASSES, _FAR, _SLOWLY = 4, 30.0, 1e-3
"""For a linear model: classes, the size of a canary's input, and a rate so small that no canary is ever learnt."""
_CHANNELS = 256
_QUANTILES = 4000
"""Trials of the thresholds, which are drawn one by one."""


class WatchedSteps:
    """An optimiser that shows every noisy gradient to a watcher, and subtracts it from the parameters, times a rate."""

    def __init__(self, see: Watcher, rate: float = 1.0) -> None:
        self._see, self._rate = see, rate
        self.expected: Weights = {}
        """The parameters if nothing but these gradients moved them."""

    def to_json(self) -> dict[str, Any]:
        return {"optimiser": "watched steps"}

    def start(self, parameters: Weights) -> State:
        return {}

    @torch.no_grad()
    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        self._see(parameters, gradient, step, noise_deviation)
        for name, value in parameters.items():
            before = self.expected.get(name)
            self.expected[name] = (value if before is None else before) - self._rate * gradient[name]
            value.sub_(self._rate * gradient[name])


def fit_watched(
    plan: Plan, model: Trainable, records: Records, see: Watcher, streams: Streams, rate: float = 1.0
) -> tuple[TrainingState, tuple[Finding, ...]]:
    """Fit the plan in a temporary folder; returns the final state and findings about the folder.

    The weights in the folder must be those that the gradients lead to, so that they reveal no more than the gradients
    do; and the ledger in the folder must hold the plan's event.
    """
    optimiser, ends = WatchedSteps(see, rate), list[TrainingState]()
    seed = int(streams.generator(Stream.AUGMENTATION).integers(2**31))  # synthetic records: nothing to protect
    every = math.ceil(plan.steps / _BLOCKS)
    weights, entries = _fit(plan, model, records, optimiser, seed=seed, checkpoint_every=every, on_trained=ends.append)
    same = {*weights} >= {*optimiser.expected} and all(
        torch.equal(weights[name], value) for name, value in optimiser.expected.items()
    )
    paid = [(entry.reserved, entry.count) for entry in entries] == [(plan.event, plan.steps)]
    kept = "are" if same else "are not"
    held = "holds" if paid else "does not hold"
    weights_seen = f"the weights in the audit's own folder {kept} what the noisy gradients lead to"
    charge_seen = f"the ledger in the audit's own folder {held} the plan's {plan.steps:,} steps, once"
    findings = Finding("weights", float(same), weights_seen), Finding("charge", float(paid), charge_seen)
    return ends[0], findings


def keys_differ(plan: Plan, model: Trainable, records: Records) -> Finding:
    """Whether two runs of `fit` with fresh keys have different noise: equal noise would cancel."""
    unwatched = WatchedSteps(lambda parameters, gradient, step, deviation: None)
    first, second = (_fit(plan, model, records, unwatched)[0] for _ in range(2))
    alike = any(torch.equal(first[name], value) for name, value in second.items())
    return Finding("keys", float(not alike), f"two runs have {'the same noise' if alike else 'different noise'}")


def _fit(
    plan: Plan, model: Trainable, records: Records, optimiser: WatchedSteps, **options: Any
) -> tuple[Weights, tuple[Entry, ...]]:
    """Fit the plan in a temporary folder; returns the weights and the ledger entries that it leaves there."""
    with TemporaryDirectory(prefix="sordino-audit-") as folder:
        run = Run.create(Path(folder) / "run", "audit")
        fit(plan, model, records, optimiser=optimiser, ledger=Ledger(path=run.ledger), run=run, **options)
        return run.read_tensors(run.model)[0], Ledger.open(run.ledger).entries


class _Likelihood:
    """Σ over releases of ln(density with the canary / density without); releases are in units of the sensitivity."""

    def __init__(self, records: int, event: Event) -> None:
        self._event, self._total, self._epoch = event, np.zeros(records), np.full(records, -np.inf)
        self._steps = 0

    def add(self, released: Scores) -> None:
        match self._event:
            case Gaussian(sigma):
                self._total += _gaussian(released, sigma)
            case PoissonGaussian(rate, sigma):
                self._total += _mixture(_gaussian(released, sigma), rate)
            case ShuffledGaussian(steps_per_epoch, sigma):
                # The record was in one of the epoch's batches, each equally likely.
                ratio = _gaussian(released, sigma) - math.log(steps_per_epoch)
                self._epoch = np.logaddexp(self._epoch, ratio)
                self._steps += 1
                if self._steps % steps_per_epoch == 0:
                    self._total, self._epoch = self.scores(), np.full_like(self._epoch, -np.inf)

    def scores(self) -> Scores:
        """In an unfinished epoch, the record's batch may still be to come."""
        if not isinstance(self._event, ShuffledGaussian) or self._steps % self._event.steps_per_epoch == 0:
            return np.asarray(self._total + np.where(np.isfinite(self._epoch), self._epoch, 0.0))
        left = 1 - (self._steps % self._event.steps_per_epoch) / self._event.steps_per_epoch
        return np.asarray(self._total + np.logaddexp(self._epoch, math.log(left)))


def _gaussian(released: Scores, sigma: float) -> Scores:
    return (2 * released - 1) / (2 * sigma**2)


def _mixture(ratio: Scores, rate: float) -> Scores:
    return ratio if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)


def training_attack(plan: Plan, coins: NDArray[np.bool_], streams: Streams) -> Attack:
    """Score each canary, which has its own parameter, by every noisy gradient."""
    likelihood = _likelihood(plan)

    def see(parameters: Weights, gradient: Weights, step: int, noise_deviation: float) -> None:
        clip = _clip(plan, noise_deviation)
        likelihood.add(by_record(gradient).double().numpy() * (plan.sampler.expected_batch_size / clip))

    canaries = CanaryModel(coins, plan.l2_clip)
    _, findings = fit_watched(plan, canaries, canaries.records, see, streams)
    return likelihood.scores(), findings


def linear_attack(plan: Plan, coins: NDArray[np.bool_], streams: Streams) -> Attack:
    """Score canaries through the closed form of a linear model: each has its own input, where its gradient lies.

    An absent canary's gradient is zero there; its part of the bias is ignored. The weights determine the direction of a
    canary's gradient.
    """
    likelihood, batch = _likelihood(plan), plan.sampler.expected_batch_size
    labels = np.arange(len(coins)) % _CLASSES
    model = LinearClassifier(len(coins), _CLASSES, double=plan.exact)
    records = ArrayRecords(np.diag(_FAR * coins).astype(np.float32), labels)

    def see(parameters: Weights, gradient: Weights, step: int, noise_deviation: float) -> None:
        logits = (_FAR * parameters["weight"] + parameters["bias"][:, None]).T
        residuals = torch.softmax(logits.double(), 1) - torch.nn.functional.one_hot(torch.from_numpy(labels), _CLASSES)
        directions = torch.nn.functional.normalize(residuals, dim=1)
        seen = (gradient["weight"].T.double() * directions).sum(1)
        likelihood.add(seen.numpy() * (batch / _clip(plan, noise_deviation)))

    _, findings = fit_watched(plan, model, records, see, streams, rate=_SLOWLY * batch / plan.l2_clip)
    return likelihood.scores(), findings


def _likelihood(plan: Plan) -> _Likelihood:
    if not plan.private:
        raise ValueError("a plan without noise has ε=∞ and claims nothing, so there is nothing to audit")
    event = plan.sampler.event(plan.noise_multiplier)
    if not isinstance(event, Gaussian | PoissonGaussian | ShuffledGaussian):
        raise ValueError(f"no audit is known for a step of {type(event).__name__}")
    return _Likelihood(plan.sampler.n, event)


def _clip(plan: Plan, noise_deviation: float) -> float:
    """The clip of a step: a quantile clip moves."""
    if plan.quantile_clip is None:
        return plan.l2_clip
    return noise_deviation * plan.sampler.expected_batch_size / plan.noise_multiplier


def threshold_scores(thresholds: ThresholdQuantiles, coins: NDArray[np.bool_]) -> Scores:
    """A score for each of the first canaries: how high the real thresholds are, beside one other, small record."""
    ledger = Ledger()  # stays empty: `paid`
    mean, square = thresholds.mean_bounds[0], thresholds.square_bounds[0]
    scores = []
    for present in coins[:_QUANTILES]:
        canary = 1e300 if present else np.nan
        found = thresholds.release(np.array([[mean], [canary]]), np.array([[square], [canary]]), ledger, paid=True)
        scores.append(math.log(found.mean_clip / mean) + math.log(found.square_clip / square))
    return np.array(scores)


def statistics_scores(moments: ChannelMoments, coins: NDArray[np.bool_]) -> Scores:
    """Each canary's score after a release of the real private statistics, where only that canary moves its channel."""
    ledger = Ledger()  # stays empty: `paid`
    scores = np.empty(len(coins))
    for start in range(0, len(coins), _CHANNELS):
        present = coins[start : start + _CHANNELS]
        rows = np.diag(present.astype(np.float64))
        far = 8 * max(moments.mean_clip, moments.square_clip)
        mean, variance = moments.release(far * rows, far * rows, ledger, paid=True)
        n = moments.sample_rate * len(present)
        ratio = _gaussian(mean * (n / moments.mean_clip), moments.noise_multiplier)
        ratio += _gaussian((variance + mean**2) * (n / moments.square_clip), moments.noise_multiplier)
        scores[start : start + _CHANNELS] = _mixture(ratio, moments.sample_rate)
    return scores
