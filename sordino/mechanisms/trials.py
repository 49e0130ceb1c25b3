"""What a choice among private candidates draws: noisy accuracies, and the secret number of trials."""

import math

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial
from numpy.typing import NDArray
from scipy import stats

from sordino.budget import Gaussian, Laplace, Ledger
from sordino.mechanisms.exact import check_count_noise, laplace_counts, noisy_counts
from sordino.mechanisms.streams import Stream, Streams, charge

ScoreNoise = Laplace | Gaussian


def score_deviation(noise: ScoreNoise) -> float:
    """The standard deviation of this noise, in records."""
    return noise.noise_multiplier * (math.sqrt(2) if isinstance(noise, Laplace) else 1.0)


def noisy_accuracy(
    correct: NDArray[np.bool_],
    noise_multiplier: float,
    ledger: Ledger,
    what: str,
    part: str,
    streams: Streams | None = None,
    run: str = "",
    paid: bool = False,
) -> float:
    """The share of correct predictions on private records, with Gaussian noise on their number.

    `run` names the run in the ledger. `paid` repeats a release that was charged and lost: only with the same streams
    and the same records, so that it shows nothing new.

    Guarantee: one record moves the number by at most 1; it is divided by the number of records, which is public under
    every adjacency but add-remove. Streams that are given must be used for nothing else.
    """
    ledger.refuse_add_remove()
    if len(correct) == 0:
        raise ValueError("an accuracy needs at least one record")
    check_count_noise(noise_multiplier)
    generator = charge(ledger, Gaussian(noise_multiplier), what, part, streams, run=run, paid=paid).generator(
        Stream.NOISE
    )
    noisy = noisy_counts(generator, np.array(np.count_nonzero(correct)), noise_multiplier)
    return float(np.clip(noisy / len(correct), 0.0, 1.0))


def uncharged_accuracy(correct: NDArray[np.bool_], noise: ScoreNoise, generator: np.random.Generator) -> float:
    """The share of correct predictions on private records, with this noise on their number: for many candidates.

    Guarantee: one record zeroed out moves the number by at most 1, so this is the event `noise` (its multiplier is in
    units of 1), in finite precision too (`exact`), charged by the caller before the records are read. The number of
    records is public: a ledger under add-remove must refuse it. The score may leave [0, 1]: if it were cut off, scores
    would tie at the ends.
    """
    if len(correct) == 0:
        raise ValueError("an accuracy needs at least one record")
    noised = laplace_counts if isinstance(noise, Laplace) else noisy_counts
    return float(noised(generator, np.array(np.count_nonzero(correct)), noise.noise_multiplier)) / len(correct)


def number_of_trials(mean: float, shape: float, generator: np.random.Generator) -> int:
    """From the truncated negative binomial law of this mean and shape: 1 is geometric, 0 logarithmic; at least 1.

    Guarantee: the law of `RepeatAndSelect(event, mean, shape)`, whose price holds only if the number stays secret:
    the generator must come from a secret key. Poisson counts (shape ∞) are refused: they may be zero, and cost more.
    """
    if not 1 <= mean < math.inf or not 0 <= shape < math.inf:
        raise ValueError(f"trials need a mean of at least 1 and a finite shape from 0, not {mean!r} and {shape!r}")
    if mean == 1:
        return 1
    success = _gamma_truncated_negative_binomial(shape, mean)
    if shape == 0:
        return int(generator.logseries(1 - success))
    # P(K > k) among those above zero: the inverse of the law's own tail, with zero left out.
    none = success**shape
    return max(1, int(stats.nbinom.isf(generator.uniform(0, 1) * (1 - none), shape, success)))
