"""Subsets of features: public norms, one ε for selection and training, and differences said from intervals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from sordino.papers.privacy_aware.feature_tables import (
    DELTA,
    PURE,
    UNCOUNTED,
    WHOLE,
    Benchmark,
    benchmark,
    budgeted,
    generator_of,
    measured,
    selection_event,
)
from sordino.papers.trials import Experiment, TrialStore
from sordino.selection import cfs_greedy, exact_uncertainties
from sordino.training.convex import GaussianObjective
from sordino.training.convex.logistic import with_bias


@pytest.fixture(scope="module")
def table() -> Benchmark:
    return benchmark("breast-cancer")


def test_the_table_has_the_papers_sizes(table: Benchmark) -> None:
    assert table.x.shape == (191, 43)
    assert table.test_x.shape == (95, 43)


def test_the_whole_workflow_has_every_documented_category(table: Benchmark) -> None:
    assert UNCOUNTED.benchmark("breast-cancer") is PURE.benchmark("breast-cancer")
    for regime in (WHOLE, WHOLE.without_selection):
        whole = regime.benchmark("breast-cancer")
        assert whole.features == 53
        assert set(table.attributes.names) < set(whole.attributes.names)


def test_no_row_of_a_subset_is_longer_than_its_norm_and_some_are_as_long(table: Benchmark) -> None:
    masks = np.random.default_rng(0).random((40, table.features)) < 0.3
    lengths = np.sqrt((table.x[None] ** 2 * masks[:, None]).sum(axis=2) + 1)
    assert (lengths.max(axis=1) <= table.norms(masks)).all()
    assert table.norms(table.every) == pytest.approx(math.sqrt(10))
    one = np.zeros((1, table.features), dtype=bool)
    one[0, 3] = True
    assert table.norms(one) == pytest.approx(math.sqrt(2))


def _gaussian_epsilon(mu: float) -> float:
    """By the exact formula of Balle and Wang, independently of the accountant."""

    def delta(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    return float(brentq(lambda epsilon: delta(epsilon) - DELTA, 0, 200))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_tables_and_training_together_cost_no_more_than_the_target(epsilon: float) -> None:
    found = budgeted(WHOLE, 191, 10, epsilon)
    noise = found.plan.perturbation
    assert isinstance(noise, GaussianObjective)
    assert found.tables_noise == selection_event(epsilon).noise_multiplier
    assert 0.98 * epsilon < found.epsilon <= epsilon
    both = _gaussian_epsilon(math.hypot(1 / float(found.tables_noise or 0), 1 / noise.noise_multiplier))
    # Without the price of curvature and of the solver's error, both of them small.
    assert 0.9 * epsilon < both <= epsilon
    alone = budgeted(UNCOUNTED, 191, 10, epsilon)
    assert alone.tables_noise is None
    assert isinstance(alone.plan.perturbation, GaussianObjective)
    assert alone.plan.perturbation.noise_multiplier < noise.noise_multiplier
    assert budgeted(WHOLE.without_selection, 191, 10, epsilon).plan == alone.plan


def test_the_papers_promise_is_pure() -> None:
    found = budgeted(PURE, 191, 10, 1e-4)
    assert found.plan.adjacency == "replace-one"
    assert found.epsilon == pytest.approx(1e-4, rel=1e-6)


def test_orders_are_exact_without_noise_and_differ_with_much(table: Benchmark) -> None:
    exact = cfs_greedy(exact_uncertainties(table.attributes, table.train)).order
    (uncounted,) = table.greedy_orders(None, 5, generator_of("a"))
    assert np.array_equal(uncounted.order, exact)
    for order in table.greedy_orders(1e-9, 2, generator_of("b")):
        assert set(order.order[:8]) == set(exact[:8])  # two of them are level
    first, second = table.greedy_orders(50.0, 2, generator_of("c"))
    assert not np.array_equal(first.order, second.order)


def test_hardly_any_noise_gives_the_accuracy_without(table: Benchmark) -> None:
    masks = np.random.default_rng(1).random((4, table.features)) < 0.2
    plain = table.plain_accuracies(masks)
    assert plain.shape == (4,)
    for mask, accuracy in zip(masks, plain, strict=True):
        rows, tested = with_bias(table.x[:, mask]), with_bias(table.test_x[:, mask])
        model = LogisticRegression(fit_intercept=False, tol=1e-8, max_iter=1000).fit(rows, table.y)
        assert accuracy == pytest.approx(model.score(tested, table.test_y))
    noisy = table.accuracies(masks, replace(budgeted(PURE, 191, 10, 1e6).plan, ridge=0.1), 2, generator_of("d"))
    assert noisy.shape == (4, 2)
    assert np.allclose(noisy, plain[:, None], atol=0.03)


def test_what_was_measured_is_kept(tmp_path) -> None:
    experiment = Experiment(store=TrialStore(tmp_path))
    first = measured(experiment, "words", lambda words: {"accuracy": 0.5})
    assert measured(experiment, "words", lambda words: {"accuracy": 0.6}) == first
    assert measured(experiment, "others", lambda words: {"accuracy": 0.6})["accuracy"] == 0.6
    assert set(experiment.ran) == {"words", "others"}
