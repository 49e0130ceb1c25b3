"""The number of trials follows the law that is charged, and is never zero."""

import math

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial
from scipy import stats
from scipy.special import gammaln

from sordino.mechanisms.trial_counts import number_of_trials


def law(mean: float, shape: float, most: int) -> np.ndarray:
    """P(K=k) for k=1…most, from the definition (Papernot & Steinke 2021, Definition 1)."""
    gamma, k = _gamma_truncated_negative_binomial(shape, mean), np.arange(1, most + 1)
    if shape == 0:
        return (1 - gamma) ** k / (k * math.log(1 / gamma))
    weights = np.exp(gammaln(k + shape) - gammaln(k + 1) - gammaln(shape) + k * math.log(1 - gamma))
    return weights / (gamma**-shape - 1)


@pytest.mark.parametrize(("mean", "shape"), [(3.0, 1.0), (8.0, 1.0), (5.0, 0.0), (6.0, 0.5), (6.0, 2.0)])
def test_counts_follow_the_law(mean: float, shape: float) -> None:
    generator, draws, cells = np.random.default_rng(5), 4000, 12
    counts = np.array([number_of_trials(mean, shape, generator) for _ in range(draws)])
    assert counts.min() == 1
    expected = law(mean, shape, cells) * draws
    observed = np.array([(counts == k).sum() for k in range(1, cells + 1)])
    rest = draws - expected.sum(), draws - observed.sum()
    assert stats.chisquare([*observed, rest[1]], [*expected, rest[0]]).pvalue > 1e-3
    assert counts.mean() == pytest.approx(mean, rel=0.1)


def test_a_mean_of_one_is_one_trial() -> None:
    assert {number_of_trials(1.0, 1.0, np.random.default_rng(seed)) for seed in range(50)} == {1}


@pytest.mark.parametrize(("mean", "shape"), [(0.5, 1), (math.nan, 1), (math.inf, 1), (2, math.inf), (2, -1)])
def test_laws_that_are_none_or_may_be_zero_are_refused(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match="finite shape"):
        number_of_trials(mean, shape, np.random.default_rng(0))
