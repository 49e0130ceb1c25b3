"""A private quantile: its law, exactly between neighbours and against brute force; its accuracy and its charge."""

import math
from bisect import bisect_right
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sordino.budget import BudgetExceeded, Ledger, Pure
from sordino.budget.events import ADJACENCIES, Adjacency
from sordino.mechanisms import quantile as module
from sordino.mechanisms.quantile import CELLS, cell_weights, draw_quantile, private_quantile
from sordino.mechanisms.streams import Streams

# Bounds under which a value is its cell's number, so that tests can place records in cells.
BOUNDS = (0.0, float(CELLS))
GONE = math.nan

# Few cells, many ties, neighbouring cells, both ends, beyond both ends, and records that are not there.
values = st.sampled_from([0.0, 1, 2, 3, 1000, CELLS / 2, CELLS - 2, CELLS - 1, -5, 1e30, -math.inf, math.inf, GONE])
epsilons = st.sampled_from([1e-6, 0.01, 0.5, 1.0, 3.0, 40.0, 1e4])
quantiles = st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 0.9, 1.0]) | st.floats(0, 1)


def largest_log_ratio(
    first: list[float], second: list[float], quantile: float, epsilon: float, adjacency: Adjacency
) -> float:
    """The most that the probability of any answer differs, either way; probabilities are ratios of whole numbers."""
    laws = [cell_weights(np.array(rows), quantile, BOUNDS, epsilon, adjacency) for rows in (first, second)]
    totals = [sum(int(n) * w for n, w in zip(np.diff(edges), weights, strict=True)) for edges, weights in laws]
    starts = sorted({int(edge) for edges, _ in laws for edge in edges[:-1] if edge < CELLS})
    ratios = []
    for start in starts:
        one, other = (weights[bisect_right(edges.tolist(), start) - 1] for edges, weights in laws)
        ratios.append(abs(math.log(one * totals[1]) - math.log(other * totals[0])))
    return max(ratios)


def neighbour(rows: list[float], row: int, other: float, adjacency: Adjacency) -> list[float]:
    if adjacency == "add-remove":
        return rows[:row] + rows[row + 1 :]
    return [*rows[:row], other if adjacency == "replace-one" else GONE, *rows[row + 1 :]]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@given(st.data(), st.lists(values, min_size=1, max_size=12), quantiles, epsilons)
def test_no_answer_tells_more_than_epsilon_of_one_record(
    adjacency: Adjacency, data: st.DataObject, rows: list[float], quantile: float, epsilon: float
) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    near = neighbour(rows, row, data.draw(values), adjacency)
    # math.log of numbers of 400 bits errs by 1e-13
    assert largest_log_ratio(rows, near, quantile, epsilon, adjacency) <= epsilon + 4e-13


# A wide gap, with nearly all the weight, comes nearer by Δ while a cell at the end goes farther by Δ.
WORST: list[tuple[float, list[float], float]] = [
    (0.5, [0.0] * 4 + [CELLS - 2.0] * 5, 0.0),
    (0.25, [0.0] * 2 + [CELLS - 2.0] * 9, 0.0),
    (0.75, [1.0] * 9 + [CELLS - 1.0] * 2, CELLS - 1.0),
]


def assert_tight(rows: list[float], near: list[float], quantile: float, epsilon: float, adjacency: Adjacency) -> None:
    assert 0.99 * epsilon < largest_log_ratio(rows, near, quantile, epsilon, adjacency) <= epsilon
    # A sensitivity that is too small by a tenth, or by half, is the same law at a larger ε.
    assert largest_log_ratio(rows, near, quantile, epsilon / 0.9, adjacency) > epsilon
    assert largest_log_ratio(rows, near, quantile, epsilon / 0.5, adjacency) > 1.9 * epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize(("quantile", "rows", "added"), WORST)
def test_the_bound_is_met_so_a_smaller_sensitivity_would_break_it(
    quantile: float, rows: list[float], added: float, epsilon: float
) -> None:
    assert_tight(rows, [*rows, added], quantile, epsilon, "add-remove")
    assert_tight([*rows, GONE], [*rows, added], quantile, epsilon, "zero-out")


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_bound_is_met_under_replace_one_too(epsilon: float) -> None:
    others = [0.0] * 4 + [CELLS - 4.0] * 5
    assert_tight([*others, CELLS - 1.0], [*others, 0.0], 0.5, epsilon, "replace-one")


def brute_force(points: np.ndarray, rows: np.ndarray, quantile: float, epsilon: float, replaced: bool) -> np.ndarray:
    """The density on a fine grid, from counting anew at each point; ties of records with a point have no width."""
    below = (rows[None, :] < points[:, None]).sum(1)
    above = (rows[None, :] > points[:, None]).sum(1)
    utility = -np.abs((1 - quantile) * below - quantile * above)
    density = np.exp(epsilon * utility / (2 * (1 if replaced else max(quantile, 1 - quantile))))
    return density / density.sum()


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("quantile", [0.5, 0.2])
def test_the_draws_follow_the_law_found_by_brute_force(adjacency: Adjacency, quantile: float) -> None:
    rows, low, high, epsilon = np.array([-0.5, 0.1, 0.1, 0.4, 0.9, 2.5]), -1.0, 3.0, 1.5
    points = np.linspace(low, high, 20_001)[:-1] + (high - low) / 40_000
    density = brute_force(points, rows, quantile, epsilon, adjacency == "replace-one")
    generator = np.random.default_rng(5)
    drawn = [draw_quantile(rows, quantile, (low, high), epsilon, adjacency, generator) for _ in range(4000)]
    edges = np.linspace(low, high, 20_001)
    assert stats.kstest(drawn, lambda x: np.interp(x, edges, np.append(0, np.cumsum(density)))).pvalue > 1e-6
    # and exactly, but for the cells with records in them
    found_edges, weights = cell_weights(rows, quantile, (low, high), epsilon, adjacency)
    mass = np.append(0, np.cumsum([float(n * w) for n, w in zip(np.diff(found_edges).tolist(), weights, strict=True)]))
    cumulated = np.interp(edges, low + (high - low) * found_edges / CELLS, mass / mass[-1])
    np.testing.assert_allclose(np.diff(cumulated), density, rtol=1e-3, atol=1e-6)


def rank_error(rows: np.ndarray, found: float, quantile: float) -> float:
    wanted = quantile * len(rows)
    return max(0.0, float((rows < found).sum()) - wanted, wanted - float((rows <= found).sum()))


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.99])
def test_sixty_thousand_norms_at_a_tenth(quantile: float) -> None:
    norms = np.random.default_rng(0).lognormal(1.0, 0.4, 60_000)
    found = private_quantile(norms, quantile, (0.0, 1000.0), 0.1, Ledger(), "median norm")
    # Beyond this many ranks with a probability of at most 1e-9, and some ranks for a cell's own width.
    most = 2 * max(quantile, 1 - quantile) / 0.1 * (math.log(CELLS) + math.log(1e9)) + 20
    assert most < 0.015 * len(norms)
    assert rank_error(norms, found, quantile) <= most


def test_ties_are_answers_and_not_holes() -> None:
    width = 2 / CELLS
    for same in (0.25, -7.0, 7.0, math.inf, -math.inf):  # also where all are cut to a bound
        found = private_quantile(np.full(2000, same), 0.5, (-1.0, 1.0), 0.5, Ledger(), "ties")
        assert found == pytest.approx(np.clip(same, -1, 1), abs=width)
    halves = np.repeat([0.0, 0.5], 1000)
    assert private_quantile(halves, 0.25, (-1.0, 1.0), 0.5, Ledger(), "lower half") == pytest.approx(0, abs=width)
    assert 0 <= private_quantile(halves, 0.5, (-1.0, 1.0), 0.5, Ledger(), "between") <= 0.5 + width


def test_values_that_are_no_number_count_in_no_rank() -> None:
    rows = np.array([GONE, 3.0, GONE, 5.0, 5.0])
    for adjacency in ADJACENCIES:
        with_them = cell_weights(rows, 0.3, BOUNDS, 1.0, adjacency)
        without = cell_weights(rows[~np.isnan(rows)], 0.3, BOUNDS, 1.0, adjacency)
        assert np.array_equal(with_them[0], without[0])
        assert with_them[1] == without[1]


def test_nothing_to_go_by_is_answered_evenly() -> None:
    edges, weights = cell_weights(np.full(5, GONE), 0.5, (0, 1), 1.0, "zero-out")
    assert edges.tolist() == [0, CELLS]
    assert len(weights) == 1
    # Under add-remove nobody may know that there are no records: the answer is like any other.
    assert 0 < private_quantile(np.zeros(0), 0.5, (0, 1), 1.0, Ledger(adjacency="add-remove"), "nobody") < 1


def test_each_place_of_the_draw_belongs_to_the_right_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([2.0, 3, 3, 1000])  # no gap between the first two cells
    edges, weights = cell_weights(rows, 0.5, BOUNDS, 1.0, "zero-out")
    place = 0
    for first, last, weight in zip(edges[:-1].tolist(), edges[1:].tolist(), weights, strict=True):
        for cell in sorted({first, last - 1}) if first < last else []:
            for within in (0, weight - 1):
                drawn = place + (cell - first) * weight + within
                monkeypatch.setattr(module, "_uniform_below", lambda total, generator, drawn=drawn: drawn)
                found = draw_quantile(rows, 0.5, BOUNDS, 1.0, "zero-out", np.random.default_rng(0))
                assert found == cell + 0.5
        place += (last - first) * weight


@given(st.integers(1, 10**40))
def test_whole_numbers_are_drawn_from_their_range(total: int) -> None:
    generator = np.random.default_rng(0)
    assert all(0 <= module._uniform_below(total, generator) < total for _ in range(5))


def test_whole_numbers_are_drawn_evenly() -> None:
    generator = np.random.default_rng(1)
    counts = np.bincount([module._uniform_below(11, generator) for _ in range(11_000)], minlength=11)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_answers_are_fresh_within_bounds_and_repeat_under_one_key() -> None:
    rows = np.random.default_rng(3).normal(size=500)
    found = [private_quantile(rows, 0.5, (-2.0, 2.0), 0.1, Ledger(), "median") for _ in range(5)]
    assert len(set(found)) == 5
    assert all(-2 < value < 2 for value in found)
    keyed = [private_quantile(rows, 0.5, (-2.0, 2.0), 0.1, Ledger(), "m", streams=Streams(bytes(16))) for _ in range(2)]
    assert keyed[0] == keyed[1]


class Unread:
    """An array that can be read only once the ledger has been charged."""

    ndim, shape = 1, (3,)

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def __len__(self) -> int:
        return 3

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        assert self.ledger.entries, "read before it was charged"
        return np.arange(3.0)


def test_it_is_charged_before_anything_is_read() -> None:
    ledger = Ledger(target_epsilon=1.0, target_delta=1e-5)
    with pytest.raises(BudgetExceeded):
        private_quantile(Unread(ledger), 0.5, (0, 1), 2.0, ledger, "too dear")  # type: ignore[arg-type]
    assert ledger.entries == ()
    unread: Any = Unread(ledger)
    private_quantile(unread, 0.5, (0, 1), 0.5, ledger, "median", "validation", Streams(bytes(16)))
    (entry,) = ledger.entries
    assert (entry.event, entry.what, entry.part, entry.seeded) == (Pure(0.5), "median", "validation", True)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"quantile": 1.1}, r"a quantile lies in \[0, 1\], not 1.1"),
        ({"quantile": math.nan}, "a quantile lies in"),
        ({"bounds": (1, 1)}, r"the lower one first, not \(1, 1\)"),
        ({"bounds": (2, 1)}, "the lower one first"),
        ({"bounds": (0, math.inf)}, "two finite numbers"),
        ({"bounds": (-1.7e308, 1.7e308)}, "two finite numbers"),
        ({"bounds": (math.nan, 1)}, "two finite numbers"),
        ({"epsilon": 0.0}, "epsilon of a quantile must be a finite number from 1e-06, not 0.0"),
        ({"epsilon": 1e-7}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"values": np.zeros(0)}, "at least one record"),
        ({"values": np.zeros((3, 1))}, r"one number per record, not an array \(3, 1\)"),
    ],
)
def test_what_defines_no_quantile_is_refused_and_charges_nothing(wrong: dict[str, Any], line: str) -> None:
    ledger = Ledger()
    asked: dict[str, Any] = {"values": np.ones(3), "quantile": 0.5, "bounds": (0, 2), "epsilon": 1.0} | wrong
    with pytest.raises(ValueError, match=line):
        private_quantile(**asked, ledger=ledger, what="x")
    assert not ledger.entries
