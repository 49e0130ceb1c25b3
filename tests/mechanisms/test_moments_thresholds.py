"""Thresholds from private quantiles: what they cost, what they find, and that they are charged first."""

import math
from typing import Any

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Ledger, Pure, Repeated, cost
from sordino.mechanisms.moments import ChannelMoments, ThresholdQuantiles, _log_norms
from sordino.mechanisms.quantile import CELLS
from sordino.mechanisms.streams import Streams

BOUNDS = {"mean_bounds": (1e-3, 1e3), "square_bounds": (1e-3, 1e4)}


def examples(n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    means = generator.lognormal(0, 0.3, size=(n, 5)).astype(np.float32)
    return means, means**2 + generator.exponential(size=(n, 5)).astype(np.float32)


def test_they_are_near_the_true_quantiles_of_the_norms() -> None:
    means, squares = examples()
    for quantile in (0.5, 0.9):
        asked = ThresholdQuantiles(**BOUNDS, epsilon=0.2, quantile=quantile, noise_multiplier=3.0, sample_rate=0.5)
        found = asked.release(means, squares, Ledger())
        for clip, rows in ((found.mean_clip, means), (found.square_clip, squares)):
            norms = np.linalg.norm(rows, axis=1)
            # As for one quantile: so many ranks off with a probability of at most 1e-9.
            most = 2 * max(quantile, 1 - quantile) / 0.2 * (math.log(CELLS) + math.log(1e9)) + 20
            assert abs((norms < clip).sum() - quantile * len(norms)) <= most < 0.02 * len(norms)
        assert found == ChannelMoments(found.mean_clip, found.square_clip, 3.0, 0.5)


def test_the_cost_is_that_of_two_quantiles_and_is_known_beforehand() -> None:
    asked = ThresholdQuantiles(**BOUNDS, epsilon=0.1)
    assert asked.event == Repeated(Pure(0.1), 2)
    assert cost(asked.event, 1e-5).epsilon == pytest.approx(0.2, rel=1e-3)
    moments = asked.moments_with(1.0, 1.0)
    ledger = Ledger(
        1.0,
        1e-5,
        planned=[(asked.event, "thresholds of the normalisation"), (moments.event, "normalisation")],
    )
    means, squares = examples(100)
    asked.release(means, squares, ledger).release(means, squares, ledger)
    assert not ledger.adaptive
    assert len(ledger.entries) == 2
    assert ledger.entries[0].spent == asked.event
    assert cost(moments.event, 1e-5).epsilon < ledger.epsilon() < 0.2 + cost(moments.event, 1e-5).epsilon + 1e-3


def test_the_two_quantiles_share_no_randomness_and_repeat_under_one_key() -> None:
    means, _ = examples(50)
    asked = ThresholdQuantiles((1e-3, 1e3), (1e-3, 1e3), epsilon=0.01)
    first, again = (asked.release(means, means, Ledger(), streams=Streams(bytes(16))) for _ in range(2))
    assert first == again
    assert first.mean_clip != first.square_clip
    assert asked.release(means, means, Ledger()) != asked.release(means, means, Ledger())


def test_rows_that_are_not_finite_are_empty_and_others_keep_to_the_bounds() -> None:
    rows = np.array([[3.0, 4.0], [np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0], [1e200, 1e200]])
    np.testing.assert_allclose(_log_norms(rows), [math.log(5), np.nan, np.nan, -np.inf, np.inf])
    asked = ThresholdQuantiles((0.5, 2.0), (0.5, 2.0), epsilon=1.0)
    nothing, much = np.zeros((1000, 3)), np.full((1000, 3), 1e300)
    found = asked.release(nothing, much, Ledger())
    assert (found.mean_clip, found.square_clip) == pytest.approx((0.5, 2.0))
    empty = np.full((1000, 3), np.nan)
    assert 0.5 < asked.release(empty, empty, Ledger()).mean_clip < 2


def test_they_are_charged_before_anything_is_read() -> None:
    asked, rows = ThresholdQuantiles(**BOUNDS, epsilon=0.5), np.ones((10, 2))
    ledger = Ledger(target_epsilon=0.9, target_delta=1e-5)
    with pytest.raises(BudgetExceeded):
        asked.release(rows, rows, ledger)
    with pytest.raises(ValueError, match="two arrays"):
        asked.release(rows, rows[:5], ledger)
    with pytest.raises(ValueError, match="at least one record"):
        asked.release(rows[:0], rows[:0], ledger)
    assert ledger.entries == ()
    other = Ledger(adjacency="add-remove")
    with pytest.raises(ValueError, match="add-remove"):
        asked.release(rows, rows, other)
    assert other.entries == ()
    asked.release(rows, rows, other := Ledger(), "clips", "validation", Streams(bytes(16)))
    (entry,) = other.entries
    assert (entry.what, entry.part, entry.seeded) == ("clips", "validation", True)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"mean_bounds": (0.0, 1.0)}, r"mean_bounds must be two positive finite numbers.*not \(0.0, 1.0\)"),
        ({"square_bounds": (2.0, 1.0)}, "square_bounds"),
        ({"square_bounds": (1.0, math.inf)}, "square_bounds"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"quantile": 2.0}, "quantile"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"sample_rate": 1.5}, "sample_rate"),
    ],
)
def test_what_makes_no_thresholds_is_refused_at_once(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        ThresholdQuantiles(**(BOUNDS | {"epsilon": 0.1} | wrong))
