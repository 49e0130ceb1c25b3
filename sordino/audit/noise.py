"""Whether the noise of the real loop is the plan's: variance, normality, independence of steps and parameters.

The loop of weight distributions has its own (`weight_distributions.drawn_noise_test`), by the same tests.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from sordino.audit.findings import Finding
from sordino.mechanisms.streams import Streams
from sordino.training.dpsgd import ClippedSum, Training, train_steps
from sordino.training.optimisers import State, Weights
from sordino.training.plan import Plan
from sordino.training.quantile_clip import SENSITIVITY, QuantileClip

_STILL = 1023
_FEWEST_STEPS, MOST_STEPS = 64, 256
"""Steps whose noise is tested in full."""
MOST_COMPARED, FEW = 5000, 64
"""Steps of which any two are compared, by so many of their parameters: noise may come back after any time."""
_BLOCK = 512

Array = NDArray[np.float64]


class KnownSums:
    """A trainee whose sums are known: every record adds the whole clip to one parameter, nothing to all others.

    Norms are 0, within any clip, so that a quantile clip's count is known, too.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        zeros = torch.zeros(1 + _STILL, dtype=torch.float64)
        self.parameters: Weights = {"aligned": zeros[:1].clone(), "still": zeros[1:].clone()}
        self.batch_sizes: list[int] = []

    def weights(self) -> Weights:
        return self.parameters

    def load(self, weights: Weights) -> None:
        self.parameters = weights

    def initialise(self, streams: Streams) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {"model": "known sums"}

    def data(self) -> tuple[NDArray[Any], ...]:
        return (np.zeros(self._records),)

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        return {}

    def clipped_sum(
        self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator | None = None
    ) -> ClippedSum:
        self.batch_sizes.append(len(indices))
        aligned = torch.full((1,), len(indices) * l2_clip, dtype=torch.float64)
        return ClippedSum({"aligned": aligned, "still": torch.zeros(_STILL)}, torch.zeros(len(indices)))


class _Residuals:
    """An optimiser that takes the known sums off again: what is left is the noise, in units of its deviation."""

    def __init__(self, plan: Plan, trainee: KnownSums) -> None:
        self._plan, self._trainee = plan, trainee
        self.rows: list[Array] = []
        self.few: list[Array] = []
        self.clips: list[float] = []

    def to_json(self) -> dict[str, Any]:
        return {"optimiser": "residuals"}

    def start(self, parameters: Weights) -> State:
        return {}

    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        batch, plan = self._plan.sampler.expected_batch_size, self._plan
        clip = plan.l2_clip if plan.quantile_clip is None else noise_deviation * batch / plan.noise_multiplier
        known = self._trainee.batch_sizes[-1] * clip
        left = torch.cat([gradient["aligned"].double() * batch - known, gradient["still"] * batch])
        noise = left.numpy() / (plan.noise_multiplier * clip)
        self.few.append(noise[:FEW].copy())
        self.clips.append(clip)
        if step < MOST_STEPS:
            self.rows.append(noise)


def noise_test(plan: Plan, streams: Streams) -> Finding:
    """The noise of the real loop on sums that are known, against N(0, (noise_multiplier·l2_clip)²) on every coordinate.

    It takes at least 64 steps, of a shorter plan too. The noise on a quantile clip's count is found from how the clip
    moves, and tested as if the count were one more parameter.
    """
    steps = int(np.clip(plan.steps, _FEWEST_STEPS, MOST_COMPARED))
    plan = replace(plan, steps=steps, quantile_clip=_with_small_moves(plan))
    trainee = KnownSums(plan.sampler.n)
    residuals = _Residuals(plan, trainee)
    training = Training(plan, trainee, residuals)
    standing = training.start()
    train_steps(training, standing, streams, steps)
    noise = np.stack(residuals.rows)
    if plan.quantile_clip is not None:
        clips = np.array([*residuals.clips, standing.l2_clip])
        noise = np.column_stack([noise, _count_noise(clips, plan, plan.quantile_clip, trainee)[: len(noise)]])
    return standard_normal(noise, np.stack(residuals.few))


def _with_small_moves(plan: Plan) -> QuantileClip | None:
    """The rule by which a count moves the clip, which is post-processing, so gentle that no limit cuts a count off."""
    batch, rule = plan.sampler.expected_batch_size, plan.quantile_clip
    if rule is None:
        return None
    return replace(rule, quantile=1.0, learning_rate=1e-3 * batch / max(batch, rule.noise_multiplier))


def _count_noise(clips: Array, plan: Plan, rule: QuantileClip, trainee: KnownSums) -> Array:
    """What the rule's move from each clip to the next was for, less the known count; in units of its deviation."""
    share = rule.quantile - np.diff(np.log(clips)) / rule.learning_rate
    counts = (share - SENSITIVITY) * plan.sampler.expected_batch_size
    return (counts - SENSITIVITY * np.array(trainee.batch_sizes)) / (SENSITIVITY * rule.noise_multiplier)


def standard_normal(noise: Array, few: Array) -> Finding:
    """Of numbers, a row a step and a column a parameter, that should be independent of each other and N(0, 1).

    `few` has some parameters of many more steps, to compare any two of these. p-values are combined by a union bound.
    What it cannot see: noise that others could predict, and dependence between more than two numbers.
    """
    steps, parameters = noise.shape
    found = _p_values(noise) | {f"correlation of any two of {len(few):,} steps": _correlations(few)}
    worst, value = min(found.items(), key=lambda item: item[1])
    seen = f"least probable of {len(found)}: {worst} over {steps:,} steps of {parameters:,} parameters"
    return Finding("noise", min(1.0, len(found) * value), seen)


def _p_values(noise: Array) -> dict[str, float]:
    steps, parameters = noise.shape
    squares = np.square(noise)
    return {
        "variance": _two_sided(stats.chi2(noise.size), squares.sum()),
        "variance of a step": _union(_two_sided_of(stats.chi2(parameters), squares.sum(1))),
        "variance of a parameter": _union(_two_sided_of(stats.chi2(steps), squares.sum(0))),
        "mean": _two_sided(stats.norm(), noise.sum() / np.sqrt(noise.size)),
        "normality": float(stats.kstest(noise.ravel(), "norm").pvalue),
        "correlation of two steps": _correlations(noise),
        "correlation of two parameters": _correlations(noise.T),
        "neighbouring parameters": _two_sided(
            stats.norm(), (noise[:, 1:] * noise[:, :-1]).sum() / np.sqrt(noise[:, 1:].size)
        ),
    }


def _correlations(rows: Array) -> float:
    """Of the two rows that agree most; the law is exact for independent normal numbers of mean zero."""
    count, length = rows.shape
    if count < 2 or length < 2:
        return 1.0
    norms = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(norms > 0, norms, 1.0)[:, None]
    most = min(max(_largest_product(unit, start) for start in range(0, count, _BLOCK)), 1 - 1e-15)
    pairs = count * (count - 1) // 2
    return float(min(1.0, pairs * 2 * stats.t.sf(most * np.sqrt((length - 1) / (1 - most**2)), length - 1)))


def _largest_product(unit: Array, start: int) -> float:
    """Of a block of rows with themselves and all rows after them; a block at a time, as all of them would be large."""
    block = unit[start : start + _BLOCK]
    among, later = np.triu(block @ block.T, 1), block @ unit[start + _BLOCK :].T
    return float(max(among.max(), -among.min(), later.max(initial=0.0), -later.min(initial=0.0)))


def _union(values: Array) -> float:
    return float(min(1.0, len(values) * values.min(initial=1.0)))


def _two_sided(law: Any, value: float) -> float:
    return float(_two_sided_of(law, np.array([value]))[0])


def _two_sided_of(law: Any, values: Array) -> Array:
    return np.asarray(np.minimum(1.0, 2 * np.minimum(law.cdf(values), law.sf(values))))
