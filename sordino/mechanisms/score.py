"""The noised accuracy by which private candidates are compared."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Gaussian, Laplace
from sordino.mechanisms.exact import laplace_counts, noisy_counts

ScoreNoise = Laplace | Gaussian


def deviation(noise: ScoreNoise) -> float:
    """The standard deviation of this noise, in records."""
    return noise.noise_multiplier * (sqrt(2) if isinstance(noise, Laplace) else 1.0)


def noised_accuracy(correct: NDArray[np.bool_], noise: ScoreNoise, generator: np.random.Generator) -> float:
    """The share of correct predictions on private records, with this noise on their number; it may leave [0, 1].

    Guarantee: one record zeroed out moves the number by at most 1, so this is the event `noise` (its multiplier is in
    units of 1), in finite precision too (`exact`), charged by the caller before the records are read. The number of
    records is public: a ledger under add-remove must refuse it. Left as it is where it leaves [0, 1]: cut off, scores
    would tie at the ends.
    """
    if len(correct) == 0:
        raise ValueError("an accuracy needs at least one record")
    noised = laplace_counts if isinstance(noise, Laplace) else noisy_counts
    return float(noised(generator, np.array(np.count_nonzero(correct)), noise.noise_multiplier)) / len(correct)
