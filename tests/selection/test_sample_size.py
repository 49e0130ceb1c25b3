"""ε = ln(α + β/n): fitted to what made it, and inverted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.selection.sample_size import SampleSizeLaw

SIZES = np.geomspace(1e4, 1e6, 9)


@given(st.floats(1, 3), st.floats(1e2, 1e6))
def test_fit_finds_the_law(alpha: float, beta: float) -> None:
    law = SampleSizeLaw(alpha, beta)
    found = SampleSizeLaw.fitted(SIZES, [max(law.epsilon(n), 1e-9) for n in SIZES])
    for n in SIZES:
        assert found.epsilon(n) == pytest.approx(law.epsilon(n), abs=1e-5)
    assert found.residual < 1e-5


def test_fit_under_noise_is_least_squares_in_epsilon() -> None:
    rng = np.random.default_rng(0)
    law = SampleSizeLaw(1.1, 8922.4)
    measured = [law.epsilon(n) + rng.normal(0, 0.01) for n in np.repeat(SIZES, 10)]
    found = SampleSizeLaw.fitted(np.repeat(SIZES, 10), measured)
    assert found.alpha == pytest.approx(1.1, abs=0.01)
    assert found.beta == pytest.approx(8922, rel=0.05)
    assert found.residual == pytest.approx(0.01, rel=0.2)


@given(st.floats(1, 3), st.floats(1e2, 1e6), st.floats(1e2, 1e7))
def test_inverse(alpha: float, beta: float, n: float) -> None:
    law = SampleSizeLaw(alpha, beta)
    assert law.records(law.epsilon(n)) == pytest.approx(n, rel=1e-3)


def test_no_number_of_records_is_enough_below_ln_alpha() -> None:
    assert SampleSizeLaw(2, 100).records(0.5) == np.inf
    assert SampleSizeLaw(1, 100).records(1e9) == pytest.approx(0)


def test_papers_fit_misses_the_papers_point() -> None:
    """Why it is to be refitted: Fig. 6 says ε = 1 at 13,574 records."""
    assert SampleSizeLaw(1.1, 8922.4).epsilon(13_574) == pytest.approx(0.564, abs=1e-3)


@pytest.mark.parametrize(
    ("records", "epsilons"),
    [([1], [1]), ([1, 1], [1, 2]), ([1, 2], [1]), ([0, 1], [1, 1]), ([1, 2], [np.nan, 1]), ([1, 2], [1, -1])],
)
def test_bad_points(records: list[float], epsilons: list[float]) -> None:
    with pytest.raises(ValueError, match=r"a fit needs|must be positive"):
        SampleSizeLaw.fitted(records, epsilons)


def test_bad_law() -> None:
    with pytest.raises(ValueError, match="alpha"):
        SampleSizeLaw(0.5, 1)
    with pytest.raises(ValueError, match="records"):
        SampleSizeLaw(1, 1).epsilon(0)
    with pytest.raises(ValueError, match="ε must"):
        SampleSizeLaw(1, 1).records(np.nan)
