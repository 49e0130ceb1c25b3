"""The noised accuracy: the noise that its event says, on a number that one record moves by one."""

import numpy as np
import pytest
from scipy import stats

from sordino.budget import Gaussian, Laplace
from sordino.mechanisms.score import ScoreNoise, noised_accuracy


@pytest.mark.parametrize(
    ("noise", "law"),
    [(Laplace(50.0), stats.laplace(scale=50.0)), (Gaussian(7.0), stats.norm(scale=7.0))],
    ids=["laplace", "gaussian"],
)
def test_noise_on_the_number_of_correct_records_is_the_events(noise: ScoreNoise, law: stats.rv_continuous) -> None:
    correct, generator = np.arange(200) < 150, np.random.default_rng(1)
    numbers = np.array([noised_accuracy(correct, noise, generator) * 200 - 150 for _ in range(3000)])
    assert stats.kstest(numbers, law.cdf).pvalue > 1e-3


def test_one_record_moves_the_number_by_one() -> None:
    correct = np.ones(40, dtype=bool)
    for changed in range(3):
        other = correct.copy()
        other[changed] = False
        scores = [noised_accuracy(c, Laplace(2.0), np.random.default_rng(9)) * 40 for c in (correct, other)]
        assert scores[0] - scores[1] == pytest.approx(1)


def test_no_records_have_no_accuracy() -> None:
    with pytest.raises(ValueError, match="at least one"):
        noised_accuracy(np.zeros(0, dtype=bool), Laplace(1.0), np.random.default_rng(0))
