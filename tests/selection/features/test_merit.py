"""Hall's merit by its formula, and the greedy order against trying every feature by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.selection.features.merit import cfs_greedy, merits
from sordino.selection.features.uncertainty import Uncertainties


def some(m, seed):
    generator = np.random.default_rng(seed)
    between = generator.random((m, m))
    between = (between + between.T) / 2
    np.fill_diagonal(between, 1.0)
    return Uncertainties(between, generator.random(m), tuple(map(str, range(m))))


def by_formula(found, chosen):
    k = len(chosen)
    pairs = [found.between[i, j] for i in chosen for j in chosen if i != j]
    mean = np.mean(pairs) if pairs else 0.0
    return k * np.mean(found.with_label[chosen]) / np.sqrt(k + k * (k - 1) * mean)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6), st.data())
def test_the_merit_is_equation_7(m, seed, data):
    found = some(m, seed)
    chosen = sorted(data.draw(st.sets(st.integers(0, m - 1), min_size=1)))
    mask = np.isin(np.arange(m), chosen)
    assert merits(found, np.stack([mask, np.zeros(m, bool)])) == pytest.approx([by_formula(found, chosen), 0.0])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_each_step_takes_the_best_next_feature(m, seed):
    found = some(m, seed)
    greedy = cfs_greedy(found)
    assert sorted(greedy.order) == list(range(m))
    for size in range(1, m + 1):
        before = greedy.order[: size - 1].tolist()
        values = [by_formula(found, [*before, i]) for i in range(m) if i not in before]
        assert greedy.merits[size - 1] == pytest.approx(max(values))
        assert by_formula(found, greedy.order[:size].tolist()) == pytest.approx(max(values))
        assert greedy.subset(size).sum() == size
    assert (np.diff(greedy.merits[: greedy.best_size]) > 0).all()
    assert greedy.best_size == m or greedy.merits[greedy.best_size] <= greedy.merits[greedy.best_size - 1]


def test_sizes_that_are_none():
    for size in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            cfs_greedy(some(3, 0)).subset(size)
