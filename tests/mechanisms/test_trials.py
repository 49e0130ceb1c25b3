"""Noisy accuracies have the noise that is charged, and the number of trials follows the law that is charged."""

import math

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial
from scipy import stats
from scipy.special import gammaln

from sordino.budget import Gaussian, Laplace, Ledger
from sordino.mechanisms.streams import Streams, secret_from_seed
from sordino.mechanisms.trials import ScoreNoise, noisy_accuracy, number_of_trials, uncharged_accuracy


@pytest.mark.parametrize(
    ("noise", "law"),
    [(Laplace(50.0), stats.laplace(scale=50.0)), (Gaussian(7.0), stats.norm(scale=7.0))],
    ids=["laplace", "gaussian"],
)
def test_noise_on_the_number_of_correct_records_is_the_events(noise: ScoreNoise, law: stats.rv_continuous) -> None:
    correct, generator = np.arange(200) < 150, np.random.default_rng(1)
    numbers = np.array([uncharged_accuracy(correct, noise, generator) * 200 - 150 for _ in range(3000)])
    assert stats.kstest(numbers, law.cdf).pvalue > 1e-3


def test_one_record_moves_the_number_by_one() -> None:
    correct = np.ones(40, dtype=bool)
    for changed in range(3):
        other = correct.copy()
        other[changed] = False
        scores = [uncharged_accuracy(c, Laplace(2.0), np.random.default_rng(9)) * 40 for c in (correct, other)]
        assert scores[0] - scores[1] == pytest.approx(1)


def test_no_records_have_no_accuracy() -> None:
    with pytest.raises(ValueError, match="at least one"):
        uncharged_accuracy(np.zeros(0, dtype=bool), Laplace(1.0), np.random.default_rng(0))


def test_a_private_accuracy_is_noised_and_charged_to_its_part() -> None:
    ledger = Ledger(2.0, 1e-5)
    correct = np.arange(5000) % 4 != 0
    score = noisy_accuracy(correct, 10.0, ledger, "validation score", "validation")
    assert score == pytest.approx(0.75, abs=6 * 10 / 5000)
    assert ledger.entries[0].part == "validation"
    with pytest.raises(ValueError, match="add-remove"):
        noisy_accuracy(correct, 10.0, Ledger(adjacency="add-remove"), "score", "validation")
    with pytest.raises(ValueError, match="at least one record"):
        noisy_accuracy(np.zeros(0, bool), 1.0, ledger, "none", "validation")


def test_given_streams_repeat_a_noisy_accuracy_and_have_its_noise() -> None:
    correct = np.arange(1000) % 2 == 0

    def score(seed: int) -> float:
        return noisy_accuracy(correct, 20.0, Ledger(), "score", "validation", Streams(secret_from_seed(seed)))

    scores = [score(seed) for seed in range(300)]
    assert scores == [score(seed) for seed in range(300)]
    assert stats.kstest((np.array(scores) - 0.5) * 1000 / 20.0, "norm").pvalue > 1e-3


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
