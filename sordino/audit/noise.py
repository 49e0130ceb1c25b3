"""Whether the real loop adds the plan's noise: variance, normality, independence of steps and parameters.

`weight_distributions.drawn_noise_test` applies the same tests to the loop of weight distributions.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.audit.result import Finding
from sordino.audit.synthetic import Array, KnownSums, Shapes, in_a_row
from sordino.audit.white_box import WatchedSteps, fit_watched
from sordino.mechanisms import Streams
from sordino.training import SENSITIVITY, Plan, QuantileClip, Training, Weights, train_steps

_COLUMNS = 1024
"""Parameters tested one by one and against each other; of larger models this many, with some of every tensor."""
_FEWEST_STEPS, MOST_STEPS = 64, 256
"""Steps whose noise is tested for all of these parameters."""
MOST_COMPARED, FEW = 5000, 64
"""Steps compared with each other, and parameters compared per step: noise may be reused after any time."""
_MOST_NUMBERS, _FEWEST_IN_A_WINDOW = 2**24, 8
"""Numbers drawn for a model's own tensors; steps at the beginning, in the middle and at the end of the plan."""
_BLOCK, _TOGETHER = 512, 64


class _Residuals:
    """Subtracts the known sums from the noisy gradients: the rest is the noise, in units of its standard deviation."""

    def __init__(self, plan: Plan, model: KnownSums) -> None:
        self._plan, self._model = plan, model
        self._columns = _some_of_each(model.parameters)
        self.rows: list[Array] = []
        self.few: list[Array] = []
        self.clips: list[float] = []
        self.squares: list[Array] = []
        """For each step, the sum of squares over each tensor."""

    def see(self, parameters: Weights, gradient: Weights, step: int, noise_deviation: float) -> None:
        batch, plan = self._plan.sampler.expected_batch_size, self._plan
        clip = plan.l2_clip if plan.quantile_clip is None else noise_deviation * batch / plan.noise_multiplier
        noise = in_a_row(gradient) * batch
        noise[0] -= self._model.batch_sizes[-1] * clip
        noise /= plan.noise_multiplier * clip
        self.few.append(noise[:FEW].copy())
        self.clips.append(clip)
        if len(self.rows) < MOST_STEPS:
            self.rows.append(noise[self._columns])
            self.squares.append(np.add.reduceat(np.square(noise), _starts(gradient)))


def _starts(weights: Weights) -> NDArray[np.int64]:
    """The index at which each tensor begins in a row."""
    return np.cumsum([0, *(weights[name].numel() for name in sorted(weights))])[:-1]


def _some_of_each(weights: Weights) -> NDArray[np.int64]:
    """Indices of all parameters in a row, or of some of every tensor: its first, its last, and others between."""
    sizes = [weights[name].numel() for name in sorted(weights)]
    if sum(sizes) <= _COLUMNS:
        return np.arange(sum(sizes))
    each = max(2, _COLUMNS // len(sizes))
    places = [start + np.linspace(0, size - 1, each) for start, size in zip(_starts(weights), sizes, strict=True)]
    return np.unique(np.concatenate(places).astype(np.int64))


def noise_test(plan: Plan, streams: Streams, shapes: Shapes | None = None) -> Finding:
    """Test the noise that the real `fit` adds to known sums against N(0, (noise_multiplier·l2_clip)²) per coordinate.

    It runs at least 64 steps, even for a shorter plan. The noise on a quantile clip's count follows from how the clip
    moves, and is tested like one more parameter. `shapes` are a model's tensors by name: their noise is tested at the
    beginning, in the middle and at the end of the plan, however long it is.
    """
    steps = int(np.clip(plan.steps, _FEWEST_STEPS, MOST_COMPARED))
    late = replace(plan, quantile_clip=_with_small_moves(plan))
    plan = replace(late, steps=steps)
    model = KnownSums(plan.sampler.n)
    residuals = _Residuals(plan, model)
    state = fit_watched(plan, model, model.records, residuals.see, streams)[0]
    noise = np.stack(residuals.rows)
    if plan.quantile_clip is not None:
        clips = np.array([*residuals.clips, state.l2_clip])
        counts = _count_noise(clips, plan, plan.quantile_clip, model)
        noise = np.column_stack([noise, counts[: len(noise)]])
    squares = _tensor_variance(residuals, model.parameters)
    if plan.quantile_clip is not None:  # one column of a thousand would have to be far off to show among them
        squares["variance of the noise on counts"] = _two_sided(stats.chi2(len(counts)), float(np.square(counts).sum()))
    windows = _in_windows(late, streams, shapes)
    return standard_normal(noise, np.stack(residuals.few), squares | windows)


def _in_windows(plan: Plan, streams: Streams, shapes: Shapes | None) -> dict[str, float]:
    """p-values of the noise on the model's tensors, or on default ones, in the first, middle and last steps."""
    model = KnownSums(plan.sampler.n, shapes)
    total = sum(value.numel() for value in model.parameters.values())
    length = int(np.clip(_MOST_NUMBERS // total // 3, _FEWEST_IN_A_WINDOW, MOST_STEPS // 3))
    if 3 * length >= plan.steps:
        windows = [(0, plan.steps)]
    else:
        middle = (plan.steps - length) // 2
        windows = [(0, length), (middle, middle + length), (plan.steps - length, plan.steps)]
    residuals = _Residuals(plan, model)
    found: dict[str, float] = {}
    training = Training(plan, model, model.records, WatchedSteps(residuals.see))
    for start, last in windows:
        # The key and the step determine every random number of a step, so earlier steps need not be run.
        state = training.start()
        state.done, taken = start, len(residuals.rows)
        train_steps(training, state, streams, last)
        squares = np.square(np.stack(residuals.rows[taken:]))
        found[f"variance in steps {start:,} to {last:,}"] = _two_sided(stats.chi2(squares.size), squares.sum())
    values = _p_values(np.stack(residuals.rows))
    found |= {f"{name} on the model's tensors": value for name, value in values.items()}
    return found | _tensor_variance(residuals, model.parameters, " of the model")


def _tensor_variance(residuals: _Residuals, parameters: Weights, whose: str = "") -> dict[str, float]:
    """p-value of the variance over all numbers of each tensor, in the steps that were tested in full."""
    sizes = np.array([parameters[name].numel() for name in sorted(parameters)], dtype=np.float64)
    totals = np.stack(residuals.squares).sum(0)
    law = stats.chi2(sizes * len(residuals.squares))
    return {f"variance of a tensor{whose}": _union(_two_sided_of(law, totals))}


def _with_small_moves(plan: Plan) -> QuantileClip | None:
    """The clip's update rule, which is post-processing, with moves so small that no limit truncates a count."""
    batch, rule = plan.sampler.expected_batch_size, plan.quantile_clip
    if rule is None:
        return None
    return replace(rule, quantile=1.0, learning_rate=1e-3 * batch / max(batch, rule.noise_multiplier))


def _count_noise(clips: Array, plan: Plan, rule: QuantileClip, model: KnownSums) -> Array:
    """The noise on each count, inferred from the move of the clip, in units of its standard deviation."""
    share = rule.quantile - np.diff(np.log(clips)) / rule.learning_rate
    counts = (share - SENSITIVITY) * plan.sampler.expected_batch_size
    return (counts - SENSITIVITY * np.array(model.batch_sizes)) / (SENSITIVITY * rule.noise_multiplier)


def standard_normal(noise: Array, few: Array, others: dict[str, float] | None = None) -> Finding:
    """Test that numbers, one row per step and one column per parameter, are independent and N(0, 1).

    `few` holds some parameters of many more steps: any two of these steps are compared, and the variance is tested in
    blocks. All p-values, including `others`, are combined by a union bound. Not detected: noise that someone could
    predict, and dependence among three or more numbers.
    """
    steps, parameters = noise.shape
    found = _p_values(noise) | {
        f"correlation of any two of {len(few):,} steps": _correlations(few),
        f"variance of {_TOGETHER} of {len(few):,} steps": _blocks(few),
        **(others or {}),
    }
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


def _blocks(few: Array) -> float:
    """p-value of the variance in each block of steps: noise may shrink after any time."""
    squares = np.square(few).sum(1)
    blocks = np.add.reduceat(squares, np.arange(0, len(few), _TOGETHER))
    lengths = np.add.reduceat(np.ones(len(few)), np.arange(0, len(few), _TOGETHER)) * few.shape[1]
    return _union(_two_sided_of(stats.chi2(lengths), blocks))


def _correlations(rows: Array) -> float:
    """p-value of the largest correlation of two rows; the law is exact for independent normal numbers of mean zero."""
    count, length = rows.shape
    if count < 2 or length < 2:
        return 1.0
    norms = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(norms > 0, norms, 1.0)[:, None]
    most = min(max(_largest_product(unit, start) for start in range(0, count, _BLOCK)), 1 - 1e-15)
    pairs = count * (count - 1) // 2
    return float(min(1.0, pairs * 2 * stats.t.sf(most * np.sqrt((length - 1) / (1 - most**2)), length - 1)))


def _largest_product(unit: Array, start: int) -> float:
    """The largest product of a block of rows with itself and all rows after it; all at once would take much memory."""
    block = unit[start : start + _BLOCK]
    among, later = np.triu(block @ block.T, 1), block @ unit[start + _BLOCK :].T
    return float(max(among.max(), -among.min(), later.max(initial=0.0), -later.min(initial=0.0)))


def _union(values: Array) -> float:
    return float(min(1.0, len(values) * values.min(initial=1.0)))


def _two_sided(law: Any, value: float) -> float:
    return float(_two_sided_of(law, np.array([value]))[0])


def _two_sided_of(law: Any, values: Array) -> Array:
    return np.asarray(np.minimum(1.0, 2 * np.minimum(law.cdf(values), law.sf(values))))
