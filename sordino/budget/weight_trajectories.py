"""What noise through weight distributions costs (SI-DPSGD: Davody et al. 2020): sound, where the paper's claim is not.

The mechanism. From public means μ₀ = θ₀, step s = 0, …, T − 1 takes g_s, the sum of the gradients at θ_s over its
batch, each clipped to C, divided by the public L; then v_s = β·v_{s−1} + g_s and μ_{s+1} = μ_s − η_s·v_s, and it draws
θ_{s+1} = μ_{s+1} + N(0, (η_s·C·z/L)²). Rates and β are fixed in advance; the means stay secret. The paper prices each
draw of θ as if the means before it were known. But the noise of θ_s is not in μ_{s+1}: a record that has joined once
has moved all means from then on, and every later θ reveals it again.

Theorem. Let S be the steps that a record joins. θ₁, …, θ_T together are μ-GDP under zero-out (2μ-GDP under
replace-one),
    μ² = (1/z²)·Σ_t (N_t/η_{t−1})²,  N_t = Σ_{s∈S, s<t} w(t, s),  w(t, s) = Σ_{r=s}^{t−1} η_r·β^{r−s}.
Proof. Unrolled, v_r = Σ_{s≤r} β^{r−s}·g_s, so that μ_t = μ₀ − Σ_{r<t} η_r·v_r = μ₀ − Σ_{s<t} w(t, s)·g_s. Condition on
the same outputs θ₁, …, θ_{t−1} for both datasets, and on the same batches, whose law does not depend on the data. Any
other record's gradient at step s depends on θ_s and on that record alone, so it is the same for both: the secret means
differ, but gradients are taken at outputs. So g_s differs by the record's own clipped gradient, at most C/L, if s ∈ S,
and else not at all; and μ_t by at most (C/L)·N_t. Given the outputs before it, θ_t is then a Gaussian mechanism of
that sensitivity with deviation η_{t−1}·C·z/L, which is N_t/(η_{t−1}·z)-GDP: a number fixed in advance. Such mechanisms
compose by the squares of their numbers, adaptively (Dong, Roth & Su 2019, Corollary 3.3). ∎
It is attained: where all others' gradients are zero and the record's aligned, means differ by exactly (C/L)·N_t.

Which steps a record joins. *All of them*: the theorem. *One an epoch*: if rates never rise, w(t, s) falls with s, and
the first step of each epoch is the worst for every t. Where rates rise, N_t is at most what it would be had they been
replaced, in w, by the largest yet to come; and since w(t, s) grows with t, at most the sum over epochs of the largest
w(T, s) so far. The smaller is taken, for every t.
*Poisson*: S has one law whatever the data, and δ(ε) is at most its mean over that law. If the norm √Σ_t (N_t/η_{t−1})²
exceeds a bound with probability p at most, then δ(ε) is at most that of the bound plus p: `Except`. Two bounds hold:
(a) N_t grows with t, so N̄_j with P(N_{t_j} > N̄_j) ≤ p/M at M checkpoints t_j bounds it between t_{j−1} and t_j;
(b) the triangle inequality over the joined steps, norm ≤ Σ_{s∈S} √Σ_{t>s} (w(t, s)/η_{t−1})²: one independent sum.
The smaller is taken. Tails of such sums are exact where all weights are equal, else Chernoff's with exact moments.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.signal import lfilter
from scipy.special import log_ndtr, logsumexp, ndtr
from scipy.stats import binom

Array = NDArray[np.float64]
Rates = tuple[float, ...]

_CHECKPOINTS = 64
# Beyond so small a power of the momentum a velocity has forgotten; what is left of it is added on top.
_FORGOTTEN = 1e-12
_ROUNDING = 1 + 1e-9
_LARGEST_EXPONENT = 700.0
_GRID = 2048
_FREQUENCIES = np.exp(-1j * np.pi * np.arange(_GRID + 1) / _GRID)


def displacements(joined: NDArray[Any], rates: Rates, momentum: float) -> Array:
    """N_1, …, N_T for the steps a record joins (ones and zeros, along the last axis): heavy ball on unit gradients."""
    velocity = lfilter([1.0], [1.0, -momentum], np.asarray(joined, dtype=np.float64), axis=-1)
    return np.asarray(np.cumsum(np.asarray(rates) * velocity, axis=-1))


def trajectory_norm(joined: NDArray[Any], rates: Rates, momentum: float) -> Array:
    """√Σ_t (N_t/η_{t−1})²: μ is this over z."""
    return np.asarray(np.sqrt(np.square(displacements(joined, rates, momentum) / rates).sum(axis=-1)))


@lru_cache(maxsize=64)
def full_batch_norm(rates: Rates, momentum: float) -> float:
    """The norm of a record that joins every step."""
    _check(rates, momentum)
    return float(trajectory_norm(np.ones(len(rates)), rates, momentum)) * _ROUNDING


@lru_cache(maxsize=64)
def epochs_norm(rates: Rates, momentum: float, steps_per_epoch: int) -> float:
    """The largest norm of a record that joins one step of every epoch, begun ones too."""
    _check(rates, momentum)
    joined = np.zeros(len(rates))
    joined[::steps_per_epoch] = 1
    falling = tuple(np.maximum.accumulate(rates[::-1])[::-1])
    moved = np.minimum(displacements(joined, falling, momentum), _epoch_by_epoch(rates, momentum, steps_per_epoch))
    return float(np.linalg.norm(moved / rates)) * _ROUNDING


def _epoch_by_epoch(rates: Rates, momentum: float, steps_per_epoch: int) -> Array:
    """For each t, Σ over epochs of the largest w(T, s) among the epoch's steps s < t."""
    weights = _weights(rates, momentum, len(rates))
    rows = np.pad(weights, (0, -len(weights) % steps_per_epoch)).reshape(-1, steps_per_epoch)
    so_far = np.maximum.accumulate(rows, axis=1)
    before = np.cumsum(so_far[:, -1]) - so_far[:, -1]
    return np.asarray((before[:, None] + so_far).reshape(-1)[: len(weights)])


@lru_cache(maxsize=64)
def poisson_norm(rates: Rates, momentum: float, sample_rate: float, excess_probability: float) -> float:
    """A norm that a record which joins each step with this probability exceeds with at most the other."""
    _check(rates, momentum)
    if not (0 < sample_rate <= 1 and 0 < excess_probability < 1):
        raise ValueError(
            "the sample rate and the probability of an excess are probabilities above 0, not "
            f"{sample_rate!r} and {excess_probability!r}"
        )
    by_sum = tail(_column_norms(rates, momentum), sample_rate, excess_probability)
    most = float(trajectory_norm(np.ones(len(rates)), rates, momentum))
    return min(by_sum, _by_checkpoints(rates, momentum, sample_rate, excess_probability), most) * _ROUNDING


def _by_checkpoints(rates: Rates, momentum: float, sample_rate: float, probability: float) -> float:
    ends, bounds = checkpoint_bounds(rates, momentum, sample_rate, probability)
    inverse = np.concatenate([[0.0], np.cumsum(np.asarray(rates) ** -2.0)])
    return math.sqrt(float(bounds**2 @ np.diff(inverse[np.concatenate([[0], ends])])))


def checkpoint_bounds(
    rates: Rates, momentum: float, sample_rate: float, probability: float
) -> tuple[NDArray[np.int64], Array]:
    """Numbers t of steps, the last one all of them, with bounds that all N_t keep to, but with this probability."""
    ends = np.unique(np.linspace(0, len(rates), min(len(rates), _CHECKPOINTS) + 1).round().astype(int)[1:])
    each = probability / len(ends)
    return ends, np.array([tail(_weights(rates, momentum, end), sample_rate, each) for end in ends])


def _column_norms(rates: Rates, momentum: float) -> Array:
    """√Σ_{t>s} (w_{t,s}/η_{t−1})² for each step s, never too small."""
    eta = np.asarray(rates)
    later = np.append(np.cumsum(eta[::-1] ** -2.0)[::-1], 0.0)  # Σ_{r≥s} η_r⁻²
    memory = min(len(eta), 1 + (math.ceil(math.log(_FORGOTTEN) / math.log(momentum)) if momentum else 0))
    weight, squares = np.zeros(len(eta)), np.zeros(len(eta))
    for lag in range(memory):
        left = len(eta) - lag
        weight[:left] += momentum**lag * eta[lag:]
        squares[:left] += np.square(weight[:left] / eta[lag:])
    rest = momentum**memory / (1 - momentum) * eta.max()
    squares[: len(eta) - memory] += np.square(weight[: len(eta) - memory] + rest) * later[memory:-1]
    return np.asarray(np.sqrt(squares))


def tail(weights: Array, sample_rate: float, probability: float) -> float:
    """An x with P(Σ_s b_s·weights_s > x) ≤ probability, the b_s independent ones with this rate and else zeros."""
    total, largest = float(weights.sum()), float(weights.max())
    if np.ptp(weights) <= 1e-12 * largest:
        return float(binom.isf(probability, len(weights), sample_rate)) * largest
    scaled = weights / largest

    def bound(log_slope: float) -> float:  # of any slope, by Markov's inequality for exp(slope·sum)
        slope = math.exp(log_slope)
        cumulants = np.log1p(sample_rate * np.expm1(slope * scaled)).sum()
        return float(cumulants - math.log(probability)) / slope

    best = minimize_scalar(bound, bounds=(math.log(1e-6), math.log(_LARGEST_EXPONENT)), method="bounded")
    return min(total, float(best.fun) * largest)


def final_release_epsilon(shifts: Array, probabilities: Array, delta: float) -> float:
    """The least ε of θ_T alone, for a record with aligned gradients beside others without any: for display only.

    It is then N(shift, 1) with these probabilities of the shifts, all from 0, against N(0, 1). No bound from above but
    where the loss is convex and smooth, steps do not expand, and there is no momentum.
    """

    def log_ratio(x: float) -> float:
        return float(logsumexp(x * shifts - shifts**2 / 2, b=probabilities))

    def excess(x: float) -> float:  # the ratio grows with x, so the worst set is all above some x
        return float(probabilities @ ndtr(shifts - x)) - math.exp(log_ratio(x) + float(log_ndtr(-x))) - delta

    low, high = -40.0, float(shifts.max()) + 40.0
    return max(0.0, log_ratio(brentq(excess, low, high))) if excess(low) > 0 else 0.0


def final_shifts(rates: Rates, momentum: float, sample_rate: float) -> tuple[Array, Array]:
    """N_T/η_{T−1} under Poisson sampling, never too large, with its probabilities.

    Weights are rounded down to a grid: the figure of a record that scales its gradients down a little.
    """
    _check(rates, momentum)
    weights = _weights(rates, momentum, len(rates)) / rates[-1]
    if np.ptp(weights) <= 1e-12 * weights.max():
        counts = np.arange(int(binom.isf(1e-15, len(weights), sample_rate)) + 1)
        return counts * weights.min(), binom.pmf(counts, len(weights), sample_rate)
    interval = max(tail(weights, sample_rate, 1e-15) / _GRID, weights.max() / _GRID)
    places, counts = np.unique((weights / interval).astype(int), return_counts=True)
    logs = sum(
        count * np.log1p(sample_rate * (_FREQUENCIES**place - 1)) for place, count in zip(places, counts, strict=True)
    )
    return _on_grid(np.exp(logs), interval)


def final_shifts_of_epochs(rates: Rates, momentum: float, steps_per_epoch: int) -> tuple[Array, Array]:
    """N_T/η_{T−1} of a record that joins one step of every epoch, each as likely: never too large, as `final_shifts`.

    In an epoch that was begun and not ended, the record's step may not have come.
    """
    _check(rates, momentum)
    weights = _weights(rates, momentum, len(rates)) / rates[-1]
    epochs = np.pad(weights, (0, -len(weights) % steps_per_epoch)).reshape(-1, steps_per_epoch)
    alike = np.ptp(epochs, axis=1) <= 1e-12 * epochs.max()
    certain, chance = float(epochs[alike].min(axis=1).sum()), epochs[~alike]
    if not len(chance):
        return np.array([certain]), np.ones(1)
    interval = float(chance.max(axis=1).sum()) / _GRID
    transform = np.ones(_GRID + 1, dtype=complex)
    for epoch in chance:
        places, counts = np.unique((epoch / interval).astype(int), return_counts=True)
        transform *= sum(c * _FREQUENCIES**place for place, c in zip(places, counts, strict=True)) / steps_per_epoch
    shifts, probabilities = _on_grid(transform, interval)
    return certain + shifts, probabilities


def _on_grid(transform: NDArray[np.complex128], interval: float) -> tuple[Array, Array]:
    """The multiples of an interval with the probabilities that this is the Fourier transform of."""
    places: Array = np.arange(2.0 * _GRID)
    probabilities: Array = np.maximum(np.fft.irfft(transform), 0)
    return places * interval, probabilities


def _weights(rates: Rates, momentum: float, end: int) -> Array:
    """w(end, s) for each s < end."""
    return np.asarray(lfilter([1.0], [1.0, -momentum], np.asarray(rates[:end])[::-1]))[::-1]


def _check(rates: Rates, momentum: float) -> None:
    if not rates or not all(1e-15 <= rate <= 1e15 for rate in rates):
        raise ValueError("every step needs a learning rate from 1e-15 to 1e15: without one there is no noise either")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), not {momentum!r}")
