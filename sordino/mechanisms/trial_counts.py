"""How many times a secret selection tries: a random number, whose law is what makes choosing the best cheap."""

import math

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial
from scipy import stats


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
