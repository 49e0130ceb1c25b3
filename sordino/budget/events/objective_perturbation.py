"""The privacy loss of logistic regression whose objective carries a Gaussian linear term (objective perturbation).

Rows have norm at most 1 (divide by the public norm), θ minimises Σ log(1+exp(−θ·x)) + (λ/2)‖θ‖² + b·θ with the label's
sign inside x and b ~ N(0, σ²I), and k = 1/λ. *Proof of the bound.* θ determines b: b(θ) = Σ t·x − λθ with t in (0, 1)
the probability of the wrong label, so log-densities of θ differ by those of b and of the Jacobian's determinant. A
record that is present adds −t·x to the gradient and t(1−t)xxᵀ to the Hessian, which is at least λ without it. So, with
V = 1/(2σ²) + Z/σ the loss of a Gaussian release of x itself (Z standard normal: x is fixed, and b is drawn apart from
it), the loss of present against absent is at most

    log(1 + k·t(1−t)) + t²/(2σ²) + t·Z/σ  ≤  log(1 + k·t(1−t)) + t·V  ≤  G(V),    G(v) = max over t in [0, 1],

since t² ≤ t; t depends on θ, hence on Z, but the maximum covers that. (A shorter row, of norm r, is a row of norm 1
with τ = r·t in place of t: its gradient is τ, its curvature τ(r−τ) ≤ τ(1−τ).) Absent against present lacks the
logarithm, so G(V) bounds it too. Its law is the same whatever the data, so it composes like any loss. G(v) = v from
v = k on: where the noise is worth more than the curvature, the curvature is free. Kifer, Smith & Thakurta 2012 and
Redberg, Koskela & Wang 2023 add the two worst cases instead, at different t, and lose the sign of the gradient.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from sordino.budget.events.base import Adjacency, Array, Event, UnsupportedEvent, moved_by
from sordino.budget.losses import Losses

# Beyond so many standard deviations lies less than e⁻⁵⁰, which counts as an infinite loss.
_FARTHEST = 10.0
_KNOTS = 513


@dataclass(frozen=True)
class LogisticPerturbation(Event, name="logistic-perturbation"):
    """The exact minimiser of a logistic loss with a ridge and a Gaussian linear term.

    With R the norm that rows are clipped to: noise_multiplier is the linear term's deviation over R, curvature is R²/λ
    for the objective Σ log(1+exp(−θ·x)) + (λ/2)‖θ‖².
    """

    noise_multiplier: float
    curvature: float
    words = "perturbed logistic regression, σ={noise_multiplier:.5g}, curvature {curvature:.5g}"

    def check_adjacency(self, adjacency: Adjacency) -> None:
        if adjacency == "replace-one":
            raise UnsupportedEvent(
                "a perturbed objective with Gaussian noise under replace-one: the change of the gradient has no fixed "
                "direction; use zero-out, or the pure version"
            )

    def precision(self, adjacency: Adjacency, count: int) -> float:
        return float(count * (moved_by(adjacency) / self.noise_multiplier) ** 2)

    def loss_range(self) -> float:
        return 20 / self.noise_multiplier + 1 / self.noise_multiplier**2 + math.log1p(self.curvature / 4)

    def losses(self, adjacency: Adjacency, interval: float) -> tuple[Losses, Losses]:
        """A pessimistic distribution of G(V) on multiples of the interval, the same in both directions.

        Between two points of the grid, G lies below its chord; the probability in between goes to the two ends so that
        the chord's E[e^−loss] is kept, which connects the dots of a privacy curve that lies above the true one.
        """
        mu, k = 1 / self.noise_multiplier, self.curvature
        top = max(1, math.ceil(float(worst_loss(mu * mu / 2 + _FARTHEST * mu, k)) / interval))
        knots = np.concatenate([[-k], largest_gaussian_loss(interval * np.arange(1.0, top + 1), k)])
        knots = np.maximum.accumulate(np.maximum(knots, -k))
        z = (knots - mu * mu / 2) / mu
        inside = _between(z[:-1], z[1:])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            slope = np.minimum(interval / np.diff(knots), 1.0) * mu
            kept = np.exp(slope * z[:-1] + slope**2 / 2) * _between(z[:-1] + slope, z[1:] + slope) / inside
            upward = (1 - kept) / -math.expm1(-interval)
        upward = np.where(np.isfinite(upward), np.clip(upward, 0, 1), 1.0)
        probabilities = np.zeros(top + 1)
        probabilities[0] = ndtr(z[0])
        probabilities[:-1] += inside * (1 - upward)
        probabilities[1:] += inside * upward
        alike = Losses(interval, 0, probabilities, infinite=float(ndtr(-z[-1])))
        return alike, alike

    def rdp(self, adjacency: Adjacency, orders: Array) -> Array:
        """log E[e^((α−1)·G(V))] / (α−1) at each order, with chords in place of G below v = k, where G(v) is not v."""
        mu, k, s = 1 / self.noise_multiplier, self.curvature, orders[:, None] - 1
        knots = np.sinh(np.linspace(-math.asinh(k), math.asinh(k), _KNOTS))
        losses = worst_loss(knots, k)
        slope = np.diff(losses) / np.diff(knots)
        offset = losses[:-1] - slope * (knots[:-1] - mu * mu / 2)
        z = (knots - mu * mu / 2) / mu
        tilt = s * slope * mu
        chords = s * offset + tilt**2 / 2 + _log_between(z[:-1] - tilt, z[1:] - tilt)
        nothing = np.broadcast_to(log_ndtr(z[0]), s.shape)
        beyond = s * mu * mu / 2 + (s * mu) ** 2 / 2 + log_ndtr(s * mu - z[-1])
        total: Array = logsumexp(np.concatenate([nothing, chords, beyond], axis=1), axis=1)
        return total / s[:, 0]


def worst_loss(gaussian_loss: Array | float, curvature: float) -> Array:
    """G(v): the largest log(1 + k·t(1−t)) + t·v over t from 0 to 1, in closed form; convex and increasing in v."""
    v = np.abs(np.asarray(gaussian_loss, dtype=np.float64))
    root = np.sqrt(1 + v**2 * (0.25 + 1 / curvature))
    t = np.maximum(curvature - v, 0) / curvature / (1 + v / 2 + root)  # the best t of −|v|; of |v| it is 1 − t
    below = np.maximum(np.log1p(curvature * t * (1 - t)) - v * t, 0)
    return np.where(np.asarray(gaussian_loss) > 0, below + v, below)


def largest_gaussian_loss(worst: Array, curvature: float) -> Array:
    """The largest v with G(v) ≤ worst for positive losses, never above it but for the last digits.

    Newton's iteration from the right: G is convex and increasing, so it comes down to the root without passing it.
    """
    v = np.array(worst, dtype=np.float64)
    for _ in range(200):
        t = np.maximum(curvature - np.abs(v), 0) / curvature
        t = t / (1 + np.abs(v) / 2 + np.sqrt(1 + v**2 * (0.25 + 1 / curvature)))
        slope = np.where(v > 0, 1 - t, t)
        excess = worst_loss(v, curvature) - worst
        step = np.where(excess > 0, excess / np.maximum(slope, 1e-300), 0)
        v = np.maximum(v - step, -curvature)
        if (step <= 1e-14 * (1e-3 * np.abs(worst) + np.abs(v))).all():
            break
    return v - 1e-13 * (np.abs(v) + worst)


def _between(low: Array, high: Array) -> Array:
    """P(low < Z ≤ high), on the side of zero where no digits are lost."""
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return np.maximum(ndtr(high) - ndtr(low), 0)


def _log_between(low: Array, high: Array) -> Array:
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    larger, smaller = log_ndtr(high), log_ndtr(low)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = larger + np.log(-np.expm1(np.minimum(smaller - larger, 0)))
    return np.where(np.isnan(found), -np.inf, found)
