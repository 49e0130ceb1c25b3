"""Perturbations of a private convex fit: where its noise is added, how much, and the event that prices exactly that.

Everything here is for rows of norm at most 1 and a ridge λ on the SUM of losses; the caller divides rows by their
public norm. The proofs of objective perturbation are about the exact minimiser θ*. A solver that stops at a gradient
norm of γ is within γ/λ of it, since the objective is λ-strongly convex; so what is released is θ* and, given θ*, the
solver's error plus noise: an error of norm at most γ/λ on either of two neighbouring datasets, hence a second release,
of sensitivity 2γ/λ (approximate-minima perturbation, Iyengar et al. 2019), priced beside the first.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from sordino.budget import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    LogisticPerturbation,
    Pure,
    largest_gaussian_loss,
    worst_loss,
)
from sordino.mechanisms import check_noise, gaussian_noise, noisy_sum

Array = NDArray[np.float64]
Masks = NDArray[np.bool_]

_GAP_MULTIPLE = 32.0
"""The noise multiplier on the solver's error, relative to that on the objective: it takes 1/1000 of the budget, and the
noise is tiny all the same."""
_GAP_SHARE = 1e-3


@dataclass(frozen=True)
class GaussianObjective:
    """A linear term b·θ with b ~ N(0, noise_multiplier²·I) in the objective.

    Guarantee: (ε, δ) by `LogisticPerturbation`, whose docstring has the proof, and one Gaussian release of the solver's
    error with 32 times this multiplier. Zero-out and add-remove; not replace-one.
    """

    noise_multiplier: float

    def event(self, ridge: float, adjacency: Adjacency) -> Event:
        gap = Gaussian(_GAP_MULTIPLE * self.noise_multiplier)
        return Composed((LogisticPerturbation(self.noise_multiplier, 1 / ridge), gap))

    def objective_noise(self, generator: np.random.Generator, masks: Masks) -> Array:
        return gaussian_noise(generator, masks.shape, self.noise_multiplier) * masks

    def output_noise(self, generator: np.random.Generator, masks: Masks, ridge: float, tolerance: float) -> Array:
        deviation = _GAP_MULTIPLE * self.noise_multiplier * 2 * tolerance / ridge
        return gaussian_noise(generator, masks.shape, deviation) * masks

    def released(self, generator: np.random.Generator, solved: Array, ridge: float, tolerance: float) -> Array:
        """The minimiser with its noise, both in floating point: see docs/exact-noise.md."""
        return solved + self.output_noise(generator, np.ones(solved.shape, dtype=bool), ridge, tolerance)

    def expected_norm(self, width: int) -> float:
        return self.noise_multiplier * math.sqrt(width)


@dataclass(frozen=True)
class PureObjective:
    """A linear term b·θ whose b has a density proportional to exp(−rate·‖b‖) (Chaudhuri, Monteleoni & Sarwate 2011).

    Guarantee: pure ε. As for `LogisticPerturbation`, a present record adds t·x to b(θ) and t(1−t)xxᵀ to the Hessian, so
    the loss is at most log(1 + t(1−t)/λ) + rate·t ≤ G(rate) under zero-out: no more than the rate itself once
    λ ≥ 1/rate. A replaced record's successor moves b by up to 1 more: G(rate) + rate. The solver's error is released
    with a density proportional to exp(−gap_rate·‖·‖·λ/2γ), which costs gap_rate more.
    """

    rate: float
    gap_rate: float

    @classmethod
    def calibrated(cls, epsilon: float, ridge: float, adjacency: Adjacency) -> "PureObjective":
        gap = _GAP_SHARE * epsilon
        left, curvature = (epsilon - gap) * (1 - 1e-12), 1 / ridge
        rate = float(largest_gaussian_loss(np.array([left]), curvature)[0])
        if adjacency == "replace-one" and float(worst_loss(0.0, curvature)) < left:
            rate = brentq(lambda r: float(worst_loss(r, curvature)) + r - left, 0, left, xtol=1e-14 * left)
            rate *= 1 - 1e-12
        elif adjacency == "replace-one":
            rate = 0.0
        if rate <= 0:
            raise ValueError(f"a ridge of {ridge:g} on rows of norm 1 is too small for ε={epsilon:g}: raise it")
        return cls(rate, gap)

    def event(self, ridge: float, adjacency: Adjacency) -> Event:
        replaced = self.rate if adjacency == "replace-one" else 0.0
        return Pure(float(worst_loss(self.rate, 1 / ridge)) + replaced + self.gap_rate)

    def objective_noise(self, generator: np.random.Generator, masks: Masks) -> Array:
        return _radial(generator, masks, 1 / self.rate)

    def output_noise(self, generator: np.random.Generator, masks: Masks, ridge: float, tolerance: float) -> Array:
        return _radial(generator, masks, 2 * tolerance / ridge / self.gap_rate)

    def released(self, generator: np.random.Generator, solved: Array, ridge: float, tolerance: float) -> Array:
        """The minimiser with its noise, both in floating point: see docs/exact-noise.md."""
        return solved + self.output_noise(generator, np.ones(solved.shape, dtype=bool), ridge, tolerance)

    def expected_norm(self, width: int) -> float:
        return width / self.rate


@dataclass(frozen=True)
class GaussianOutput:
    """Gaussian noise on the minimiser itself.

    Guarantee: at the minimiser with a record, the gradient without it has norm at most 1, so the two minimisers lie
    within 1/λ; with the solver's error on both sides the sensitivity is (1+2γ)/λ, and twice 1/λ for a replaced record.
    `released` rounds the minimiser to units of 2⁻³⁰/λ, counts what that adds, and draws its noise exactly.
    """

    noise_multiplier: float

    def event(self, ridge: float, adjacency: Adjacency) -> Event:
        check_noise(2.0**-30 / ridge, 4 * self.noise_multiplier / ridge)
        return Gaussian(self.noise_multiplier)

    def objective_noise(self, generator: np.random.Generator, masks: Masks) -> Array:
        return np.zeros(masks.shape)

    def output_noise(self, generator: np.random.Generator, masks: Masks, ridge: float, tolerance: float) -> Array:
        deviation = self.noise_multiplier * (1 + 2 * tolerance) / ridge
        return gaussian_noise(generator, masks.shape, deviation) * masks

    def released(self, generator: np.random.Generator, solved: Array, ridge: float, tolerance: float) -> Array:
        """The minimiser with its noise, in finite precision too (`exact`).

        Rounding to units moves each number by half a unit in either dataset; the division's own rounding adds a little.
        """
        unit = 2.0**-30 / ridge
        deviation = self.noise_multiplier * (1 + 2 * tolerance + (1 + math.sqrt(solved.size)) * 2.0**-29) / ridge
        return noisy_sum(generator, np.rint(solved / unit).astype(np.int64), unit, deviation)

    def expected_norm(self, width: int) -> float:
        return 0.0


Perturbation = GaussianObjective | PureObjective | GaussianOutput


def _radial(generator: np.random.Generator, masks: Masks, scale: float) -> Array:
    """Vectors on the masks' coordinates with density proportional to exp(−‖·‖/scale): Gamma norm, uniform direction."""
    directions = generator.normal(size=masks.shape) * masks
    lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
    norms = generator.gamma(masks.sum(axis=-1, keepdims=True), scale)
    return np.asarray(norms * directions / np.where(lengths > 0, lengths, 1.0))
