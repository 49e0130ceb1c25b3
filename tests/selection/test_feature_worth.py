"""Lemma 1 and Corollary 1 against simulated noise."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sordino.selection.feature_worth import feature_worth, least_worthwhile_weight


def simulated_gain(
    x: np.ndarray, y: np.ndarray, theta: np.ndarray, feature: int, noise: float, without: float, draws: int = 200_000
) -> tuple[float, float]:
    """Mean over points of the error without the feature less that with it, drawn, and its standard error."""
    rng = np.random.default_rng(0)
    keep = np.arange(len(theta)) != feature
    full = theta + noise * rng.standard_normal((draws, len(theta)))
    less = (theta + without * rng.standard_normal((draws, len(theta)))) * keep
    gains = ((y - less @ x.T) ** 2 - (y - full @ x.T) ** 2).mean(axis=1)
    return float(gains.mean()), float(gains.std() / np.sqrt(draws))


@pytest.mark.parametrize(("noise", "without"), [(0.5, 0.5), (0.5, 0.3), (0.2, 0.4), (0.0, 0.0)])
@pytest.mark.parametrize("feature", [0, 2])
def test_gain_is_what_noise_does(noise: float, without: float, feature: int) -> None:
    rng = np.random.default_rng(1)
    x, theta = rng.uniform(-1, 1, (5, 3)), np.array([0.6, -0.4, 0.2])
    y = x @ theta + rng.normal(0, 0.3, 5)
    mean, error = simulated_gain(x, y, theta, feature, noise, without)
    found = feature_worth(x, y, theta, feature, noise, without)
    assert found.mean_gain == pytest.approx(mean, abs=4.5 * error + 1e-12)
    assert found.gain.shape == (5,)


weights = st.floats(-3, 3)


@given(weights, weights, weights, st.floats(0, 2), st.floats(0, 2), st.floats(-2, 2))
def test_printed_lemma_suffices(a: float, b: float, c: float, noise: float, smaller: float, y: float) -> None:
    x, theta = np.array([0.3, -0.7, 0.9]), np.array([a, b, c])
    without = min(noise, smaller)
    residual = abs(y - x @ theta)
    d = noise**2 * (x**2).sum() - without**2 * (x[:2] ** 2).sum()
    bound = (np.sqrt(residual**2 + d) - residual) / abs(x[2])
    assume(abs(c) <= bound * (1 - 1e-9))
    assert feature_worth(x, y, theta, 2, noise, without).gain[0] <= 1e-9


def test_printed_lemma_is_not_necessary() -> None:
    """y = 0, θ = x = (1, 1): c = −2, u = 1, and dropping halves the prediction's error with or without any noise."""
    x = theta = np.ones(2)
    found = feature_worth(x, 0.0, theta, 1, 0.1)
    assert found.gain[0] < 0
    assert not found.worth_its_noise
    residual, d = 2.0, 0.1**2
    assert abs(theta[1]) > np.sqrt(residual**2 + d) - residual  # the printed lemma says that dropping hurts


@given(weights, st.floats(0.01, 2), st.floats(0.1, 1), weights)
def test_corollary(weight: float, noise: float, value: float, other: float) -> None:
    assume(abs(abs(weight) - noise) > 1e-6)
    x, theta = np.array([0.5, value]), np.array([other, weight])
    found = feature_worth(x, x @ theta, theta, 1, noise)
    assert found.worth_its_noise == (abs(weight) > least_worthwhile_weight(noise))


def test_average_over_points_decides() -> None:
    x, theta = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.5])
    found = feature_worth(x, x @ theta, theta, 1, 0.4, 0.4)
    assert found.gain[0] > 0
    assert found.gain[1] == pytest.approx(0)
    assert found.worth_its_noise
    # The second point pays for the noise that a wider model has everywhere.
    assert not feature_worth(x, x @ theta, theta, 1, 0.4, 0.2).worth_its_noise


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"x": [[1, np.inf]]}, "x must hold finite"),
        ({"weights": [1, 2, 3]}, "expected points"),
        ({"y": [1, 2]}, "expected points"),
        ({"feature": 2}, "numbered from 0"),
        ({"feature": -1}, "numbered from 0"),
        ({"noise": -1}, "standard deviation"),
        ({"noise_without": np.nan}, "noise_without"),
    ],
)
def test_bad_input(change: dict[str, object], word: str) -> None:
    given_ = {"x": [[1.0, 2.0]], "y": [1.0], "weights": [1.0, 1.0], "feature": 0, "noise": 1.0} | change
    with pytest.raises(ValueError, match=word):
        feature_worth(**given_)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="standard deviation"):
        least_worthwhile_weight(-1)
