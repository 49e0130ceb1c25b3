"""The white-box adversary: sees every noisy gradient that the real loop releases, and knows every other record.

Its score for a canary is the likelihood ratio of what was claimed to happen, which no other test beats at telling a
claimed mechanism's arms apart. A lower bound from it is valid whatever mechanism really ran, if canaries do not
influence each other: if the loop treats coordinates apart (`noise_test` looks for noise that they share) and records
join independently, as in Poisson and full batches. In shuffled epochs canaries share out the places. A whole epoch's
score has one law whatever the place is, so trials are independent all the same; in a begun epoch places are drawn
without replacement, and hits vary less than the intervals allow for.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.audit.canaries import CanaryTrainee, by_record
from sordino.audit.driving import driven
from sordino.audit.findings import Finding
from sordino.budget import Event, Gaussian, Ledger, PoissonGaussian, ShuffledGaussian
from sordino.mechanisms import ChannelMoments, Streams, ThresholdQuantiles
from sordino.training import LinearClassifier, Plan, Weights

Scores = NDArray[np.float64]

_CLASSES, _FAR, _SLOWLY = 4, 30.0, 1e-3
"""Of a linear model: classes, the size of a canary's input, and steps so small that no canary is ever learnt."""
_CHANNELS = 256
_QUANTILES = 4000
"""Trials of thresholds, which are drawn one by one."""


class _Likelihood:
    """Σ over releases of ln(density with the canary / density without), each release in units of the sensitivity."""

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
                # The record was in one of the epoch's batches, each as likely as the other.
                ratio = _gaussian(released, sigma) - math.log(steps_per_epoch)
                self._epoch = np.logaddexp(self._epoch, ratio)
                self._steps += 1
                if self._steps % steps_per_epoch == 0:
                    self._total, self._epoch = self.scores(), np.full_like(self._epoch, -np.inf)

    def scores(self) -> Scores:
        """What is left of a begun epoch is the chance that the record's batch is still to come."""
        if not isinstance(self._event, ShuffledGaussian) or self._steps % self._event.steps_per_epoch == 0:
            return np.asarray(self._total + np.where(np.isfinite(self._epoch), self._epoch, 0.0))
        left = 1 - (self._steps % self._event.steps_per_epoch) / self._event.steps_per_epoch
        return np.asarray(self._total + np.logaddexp(self._epoch, math.log(left)))


def _gaussian(released: Scores, sigma: float) -> Scores:
    return (2 * released - 1) / (2 * sigma**2)


def _mixture(ratio: Scores, rate: float) -> Scores:
    return ratio if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)


class Attack(NamedTuple):
    """Each canary's score after an execution of the plan's steps by the real `fit`, and what its folder shows."""

    scores: Scores
    findings: tuple[Finding, ...]


def training_attack(plan: Plan, coins: NDArray[np.bool_], streams: Streams) -> Attack:
    """Canaries in parameters of their own, scored by every noisy gradient."""
    likelihood = _likelihood(plan)

    def see(parameters: Weights, gradient: Weights, step: int, noise_deviation: float) -> None:
        clip = _clip(plan, noise_deviation)
        likelihood.add(by_record(gradient).double().numpy() * (plan.sampler.expected_batch_size / clip))

    found = driven(plan, CanaryTrainee(coins, plan.l2_clip), see, streams)
    return Attack(likelihood.scores(), found.findings)


def linear_attack(plan: Plan, coins: NDArray[np.bool_], streams: Streams) -> Attack:
    """Canaries through the closed form of a linear model: each has an input of its own, so its gradient is there.

    An absent one is zero there, and what it adds to the bias nobody looks at. Whoever sees the weights knows in which
    direction a canary's gradient points.
    """
    likelihood, batch = _likelihood(plan), plan.sampler.expected_batch_size
    labels = np.arange(len(coins)) % _CLASSES
    trainee = LinearClassifier(np.diag(_FAR * coins).astype(np.float32), labels, _CLASSES, double=plan.exact)

    def see(parameters: Weights, gradient: Weights, step: int, noise_deviation: float) -> None:
        logits = (_FAR * parameters["weight"] + parameters["bias"][:, None]).T
        residuals = torch.softmax(logits.double(), 1) - torch.nn.functional.one_hot(torch.from_numpy(labels), _CLASSES)
        directions = torch.nn.functional.normalize(residuals, dim=1)
        seen = (gradient["weight"].T.double() * directions).sum(1)
        likelihood.add(seen.numpy() * (batch / _clip(plan, noise_deviation)))

    found = driven(plan, trainee, see, streams, rate=_SLOWLY * batch / plan.l2_clip)
    return Attack(likelihood.scores(), found.findings)


def training_scores(plan: Plan, coins: NDArray[np.bool_], streams: Streams) -> Scores:
    return training_attack(plan, coins, streams).scores


def _likelihood(plan: Plan) -> _Likelihood:
    if not plan.private:
        raise ValueError("a plan without noise claims nothing, so there is nothing to audit: its ε is ∞")
    event = plan.sampler.event(plan.noise_multiplier)
    if not isinstance(event, Gaussian | PoissonGaussian | ShuffledGaussian):
        raise ValueError(f"no audit is known for a step of {type(event).__name__}")
    return _Likelihood(plan.sampler.n, event)


def _clip(plan: Plan, noise_deviation: float) -> float:
    """Of the step: a quantile clip moves."""
    if plan.quantile_clip is None:
        return plan.l2_clip
    return noise_deviation * plan.sampler.expected_batch_size / plan.noise_multiplier


def threshold_scores(thresholds: ThresholdQuantiles, coins: NDArray[np.bool_]) -> Scores:
    """A score for each of the first canaries: how far up the real thresholds lie beside one other, small record."""
    ledger = Ledger()  # of nothing real; `paid` keeps it empty
    mean, square = thresholds.mean_bounds[0], thresholds.square_bounds[0]
    scores = []
    for present in coins[:_QUANTILES]:
        canary = 1e300 if present else np.nan
        told = thresholds.release(np.array([[mean], [canary]]), np.array([[square], [canary]]), ledger, paid=True)
        scores.append(math.log(told.mean_clip / mean) + math.log(told.square_clip / square))
    return np.array(scores)


def statistics_scores(moments: ChannelMoments, coins: NDArray[np.bool_]) -> Scores:
    """Each canary's score after a release of the real private statistics, in which it alone moves its channel."""
    ledger = Ledger()  # of nothing real; `paid` keeps it empty
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
