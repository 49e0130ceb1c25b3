"""Verdicts on features follow from the figures, searches stay within their ε and away from test records."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sordino.budget import Composed, Repeated, cost
from sordino.papers.experiment import Experiment
from sordino.papers.privacy_aware import adult_best, feature_methods, feature_sgd
from sordino.papers.privacy_aware.comparing import Interval
from sordino.papers.privacy_aware.feature_methods import charged_search
from sordino.papers.privacy_aware.feature_numbers import best_size, claimed, phenomenon
from sordino.papers.privacy_aware.one_hot import crossing, few_columns
from sordino.papers.privacy_aware.subsets import DELTA, benchmark, generator_of

FEW_WIN = {1: [0.7, 0.72], 5: [0.8, 0.81], 10: [0.75, 0.765]}
MANY_WIN = {1: [0.7, 0.72], 5: [0.8, 0.81], 10: [0.85, 0.861]}


def test_the_phenomenon_needs_both_halves() -> None:
    assert best_size(FEW_WIN) == 5
    assert phenomenon({0.1: FEW_WIN}, MANY_WIN).endswith("the phenomenon shows")
    assert phenomenon({0.1: FEW_WIN}, FEW_WIN).endswith("does not show in full")
    assert phenomenon({0.1: MANY_WIN}, MANY_WIN).endswith("all features are best: the phenomenon does not show")
    assert phenomenon({1.0: MANY_WIN, 0.1: FEW_WIN}, MANY_WIN).startswith("at ε=0.1 ")


def test_a_claim_is_about_the_best_subset() -> None:
    assert claimed(FEW_WIN, 0.786).endswith("at least 78.6 %, and is above all features beyond the interval")
    assert "less than 81 %" in claimed(FEW_WIN, 0.81)
    assert "not above all features" in claimed(MANY_WIN, 0.786)


def test_dp_sgd_has_the_same_phenomenon() -> None:
    assert feature_sgd.phenomenon(FEW_WIN, MANY_WIN).endswith("the phenomenon shows")
    assert feature_sgd.phenomenon(MANY_WIN, MANY_WIN).endswith("does not show in full")


def test_a_crossing_needs_both_sides() -> None:
    low, high = Interval(0.6, 0.01), Interval(0.7, 0.01)
    assert crossing([(0.1, low, high), (0.01, high, low)]).endswith(", shows in this range")
    assert "better with intervals apart at ε=0.1, worse nowhere" in crossing([(0.1, low, high)])
    assert "does not show" in crossing([(0.1, low, high), (0.01, low, low)])


def test_dropping_categories_leaves_the_papers_seven_features() -> None:
    table = benchmark("adult", 0, quick=True)
    names = np.array(table.attributes.names)[few_columns(table)]
    assert len(names) == 7
    assert "fnlwgt" not in names
    assert {"sex = Female", "sex = Male", "age"} <= set(names)


@pytest.mark.parametrize("epsilon", [0.1, 5.0])
def test_neither_part_of_a_charged_search_costs_more_than_the_target(epsilon: float) -> None:
    trials, final, spent = charged_search((191, 38), (9, 43), epsilon)
    assert trials.trial.score is not None
    for event in (trials.trial.training, trials.trial.score):
        whole = cost(Composed((Repeated(event, 100), final.event)), DELTA).epsilon
        assert whole <= epsilon
        assert whole <= spent
    assert 0.95 * epsilon < spent


def test_a_search_never_looks_at_test_records() -> None:
    table = benchmark("breast-cancer")
    blind = replace(table, test_x=np.full_like(table.test_x, np.nan), test_y=1 - table.test_y)
    masks = np.random.default_rng(0).random((30, table.features)) < 0.5
    seen, unseen = (feature_methods._exact_fitness(each, 5.0, generator_of("noise"))(masks) for each in (table, blind))
    assert np.array_equal(seen, unseen)
    (x, _), (held, _) = feature_methods._parts(table)
    assert (len(x), len(held)) == (153, 38)


@pytest.mark.parametrize("name", [name for name in adult_best.candidates() if name.startswith("logistic")])
def test_no_row_of_a_candidate_is_longer_than_its_norm(name: str) -> None:
    learn: Any = adult_best.candidates()[name]
    x, held, norm = learn.encoded(*adult_best._parts(True))
    for part in (x, held):
        assert (np.sqrt((part**2).sum(axis=1) + 1) <= norm * (1 + 1e-6)).all()


def test_the_best_model_is_chosen_by_held_out_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def measure(_: Any, name: str, learn: Any, epsilon: float, repeats: int, validate: bool) -> dict[str, Any]:
        asked.append((name, validate))
        good = ("numbers in bins" in name) == validate
        return {"accuracies": [0.8 + 0.1 * good, 0.81 + 0.1 * good], "epsilon": epsilon}

    monkeypatch.setattr(adult_best, "_measure", measure)
    record = adult_best.adult_best(Experiment())
    chosen = [row[1] for row in record.rows if row[-1] == "chosen"]
    assert chosen == ["logistic, all columns, centred, numbers in bins"] * 2
    assert {name for name, validate in asked if not validate} == {"logistic, all columns", chosen[0]}
