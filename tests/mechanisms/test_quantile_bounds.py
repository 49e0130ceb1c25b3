"""Private bounds cost what they say, and come from quantiles between the wide ones."""

import numpy as np
import pytest

from sordino.budget import Ledger, Pure, Repeated
from sordino.mechanisms import quantile as module
from sordino.mechanisms.quantile import private_bounds
from sordino.mechanisms.streams import Streams

WIDE = [(-100.0, 100.0), (0.0, 1000.0)]


def test_all_columns_are_one_charge_before_the_values_are_read(monkeypatch):
    ledger = Ledger(5.0, 1e-6)
    asked = []

    def watched(values, quantile, wide, epsilon, adjacency, generator):
        assert ledger.entries, "charged first"
        asked.append((quantile, wide, epsilon))
        return {0.01: 3.0, 0.99: 4.0}[quantile]

    monkeypatch.setattr(module, "draw_quantile", watched)
    assert private_bounds(np.zeros((5, 2)), ledger, 2.0, WIDE) == [(3.0, 4.0)] * 2
    assert asked == [(q, wide, 0.5) for wide in WIDE for q in (0.01, 0.99)]
    [entry] = ledger.entries
    assert entry.spent == Repeated(Pure(0.5), 4)
    assert ledger.epsilon() == pytest.approx(2.0, abs=1e-3)


def test_they_find_where_most_values_lie():
    rows = np.random.default_rng(0).uniform([10, 200], [20, 300], (50_000, 2))
    found = private_bounds(rows, Ledger(1.0, 1e-6), 1.0, WIDE, streams=Streams(bytes(16)))
    np.testing.assert_allclose(found, [(10, 20), (200, 300)], rtol=0.05)


def test_the_wide_bounds_stand_where_noise_turns_them_around(monkeypatch):
    monkeypatch.setattr(module, "draw_quantile", lambda _, q, *rest: -q)
    assert private_bounds(np.zeros((5, 2)), Ledger(5.0, 1e-6), 2.0, WIDE) == WIDE


@pytest.mark.parametrize(
    ("shape", "epsilon", "wide", "tail"),
    [
        ((5,), 1.0, WIDE[:1], 0.01),
        ((5, 1), 1.0, WIDE, 0.01),
        ((0, 2), 1.0, WIDE, 0.01),
        ((5, 2), 0.0, WIDE, 0.01),
        ((5, 2), 1.0, [(1.0, 1.0), (0.0, 1.0)], 0.01),
        ((5, 2), 1.0, WIDE, 0.5),
        ((5, 0), 1.0, [], 0.01),
    ],
)
def test_what_makes_no_bounds_is_refused_before_it_is_charged(shape, epsilon, wide, tail):
    ledger = Ledger(5.0, 1e-6)
    with pytest.raises(ValueError, match=r"."):
        private_bounds(np.zeros(shape), ledger, epsilon, wide, tail=tail)
    assert not ledger.entries
