"""Verdicts on features follow from the figures, searches stay within their ε and away from test records."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sordino.budget import Composed, RepeatAndSelect, Repeated, cost
from sordino.data.schema import Schema
from sordino.features import neutral_cuts
from sordino.papers.declarations import declared
from sordino.papers.privacy_aware import best_adult_model, feature_counts, feature_selection, logistic_regression
from sordino.papers.privacy_aware.feature_counts import claimed
from sordino.papers.privacy_aware.feature_selection import charged_search
from sordino.papers.privacy_aware.feature_tables import DELTA, PURE, UNCOUNTED, benchmark, budgeted, generator_of
from sordino.papers.privacy_aware.intervals import Interval
from sordino.papers.privacy_aware.logistic_regression import crossing, few_columns
from sordino.papers.privacy_aware.networks import loaded
from sordino.papers.trials import Experiment
from sordino.training import convex

FEW_WIN = {1: [0.7, 0.72], 5: [0.8, 0.81], 10: [0.75, 0.765]}
MANY_WIN = {1: [0.7, 0.72], 5: [0.8, 0.81], 10: [0.85, 0.861]}


def test_a_claim_is_about_the_best_subset() -> None:
    assert claimed(FEW_WIN, 0.786).endswith("at least 78.6 %, and is above all features beyond the interval")
    assert "less than 81 %" in claimed(FEW_WIN, 0.81)
    # All features are no subset, however good they are.
    assert claimed(MANY_WIN, 0.786).startswith("the best subset (5 features) has 80.50")
    assert "not above all features" in claimed(MANY_WIN, 0.786)


def test_rates_are_chosen_on_both_classes_and_in_the_whole_workflow_on_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _, held, labels = feature_counts.held_out("breast-cancer", 20, 0)
    assert (x.shape, held.shape) == ((153, 20), (38, 20))
    assert 0.1 < labels.mean() < 0.5  # the published rows are sorted by class
    made_up = feature_counts.made_up("breast-cancer", 20, 0)
    assert (made_up[0].shape[1], set(made_up[3])) == (20, {0, 1})

    def other(*which: Any) -> Any:
        table = benchmark(*which)
        return replace(table, x=1 - table.x, train=table.train.take(np.arange(len(table.train))[::-1]))

    monkeypatch.setattr(feature_counts, "benchmark", other)
    for one, same in zip(made_up, feature_counts.made_up("breast-cancer", 20, 0), strict=True):
        assert np.array_equal(one, same)


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
    assert trials.cost.score is not None
    for event in (trials.cost.training, trials.cost.score):
        whole = cost(Composed((Repeated(event, 100), final.event)), DELTA).epsilon
        assert whole <= epsilon
        assert whole <= spent
    assert 0.95 * epsilon < spent


def test_a_search_never_looks_at_test_records() -> None:
    table = benchmark("breast-cancer")
    blind = replace(table, test_x=np.full_like(table.test_x, np.nan), test_y=1 - table.test_y)
    masks = np.random.default_rng(0).random((30, table.features)) < 0.5
    seen, unseen = (
        feature_selection._exact_fitness(each, 5.0, generator_of("noise"))(masks) for each in (table, blind)
    )
    assert np.array_equal(seen, unseen)
    (x, _), (held, _) = feature_selection._parts(table)
    assert (len(x), len(held)) == (153, 38)


def test_a_subset_is_scored_with_the_ridge_of_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    table = benchmark("breast-cancer")
    seen: dict[int, float] = {}
    fit = convex.fit_many

    def noted(x: Any, y: Any, masks: Any, plan: Any, *rest: Any) -> Any:
        seen.update({int(width): plan.ridge for width in masks.sum(axis=1)})
        return fit(x, y, masks, plan, *rest)

    monkeypatch.setattr(feature_selection, "fit_many", noted)
    masks = np.arange(table.features) < np.array([[3], [20], [3], [43]])
    found = feature_selection._exact_fitness(table, 1.0, generator_of("noise"))(masks)
    assert found.shape == (4,)
    assert seen == {width: budgeted(PURE, 153, width, 1.0).plan.ridge for width in (3, 20, 43)}
    assert seen[3] < seen[20] < seen[43]


def test_the_best_few_are_scored_again_and_the_best_mean_wins() -> None:
    lucky, good, poor = (np.arange(4) == place for place in range(3))
    means = {lucky.tobytes(): 0.6, good.tobytes(): 0.8, poor.tobytes(): 0.9}

    def fitness(masks: Any) -> Any:
        return np.array([means[mask.tobytes()] for mask in masks])

    noted: list[tuple[float, Any]] = []
    feature_selection._noted(fitness, noted)(np.stack([good, lucky]))
    assert [score for score, _ in noted] == [0.8, 0.6]
    ranked = [(0.99, lucky), (0.95, good), (0.5, poor)]
    effort = feature_selection.Effort(finalists=2, rescores=3)
    assert feature_selection._scored_again(fitness, ranked, effort).tobytes() == good.tobytes()


def test_whether_a_search_found_anything_is_said_of_the_intervals() -> None:
    def said(*signs: str) -> str:
        return feature_selection._found_anything({10.0**place: each for place, each in enumerate(signs)})

    apart = "not apart from 0"
    assert said("above 0", "above 0", apart).endswith("nowhere: it found more than chance does")
    assert "at ε=1, 10 (2 of 3 budgets)" in said("above 0", "above 0", apart)
    assert said(apart, "above 0", "below 0").endswith("below them at ε=100: it found next to nothing")
    assert said(*["above 0"] * 2, *[apart] * 3).endswith("it found little")


ENCODINGS = {
    name: learn
    for name, learn in (best_adult_model.candidates() | best_adult_model.counted()).items()
    if isinstance(learn, best_adult_model.Logistic)
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_no_row_of_a_candidate_is_longer_than_its_norm(name: str) -> None:
    x, held, norm = ENCODINGS[name].encoded(*best_adult_model._parts(True))
    for part in (x, held):
        assert (np.sqrt((part**2).sum(axis=1) + 1) <= norm * (1 + 1e-6)).all()


def test_what_is_fixed_in_advance_follows_from_the_documentation() -> None:
    schema = Schema.of(loaded("adult").facts)
    fixed = best_adult_model.counted()[best_adult_model.IN_ADVANCE]
    assert isinstance(fixed, best_adult_model.Logistic)
    assert fixed.columns == schema.columns
    assert fixed.cuts == neutral_cuts(schema.columns)
    learns = list(best_adult_model.counted().values())
    chosen = [learn for learn in learns if isinstance(learn, best_adult_model.ChosenLogistic)]
    for encoding in (
        *chosen[0].encodings,
        *(learn for learn in learns if isinstance(learn, best_adult_model.Logistic)),
    ):
        assert encoding.cuts in ({}, fixed.cuts)


def test_a_charged_choice_pays_for_its_dearest_encoding_within_the_target() -> None:
    plans, training, score = best_adult_model.chosen_plans(2000, ((60, 3.0), (10, 2.0)), 1.0)
    for event in (*(plan.event for plan in plans), score):
        assert cost(RepeatAndSelect(event, 5.0), DELTA).epsilon <= 1.0
    assert training == plans[1].event
    assert plans[1].ridge < plans[0].ridge
    outcome = best_adult_model.ChosenLogistic(tuple(ENCODINGS.values())[:2])(
        *best_adult_model._parts(True), 1.0, 3, "noise"
    )
    assert 0.95 < outcome["epsilon"] <= 1.0
    assert len(outcome["accuracies"]) == 3


def test_the_best_model_is_chosen_by_held_out_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def measure(_: Any, name: str, learn: Any, epsilon: float, repeats: int, validate: bool) -> dict[str, Any]:
        asked.append((name, validate))
        good = ("numbers in bins" in name) == validate
        return {"accuracies": [0.8 + 0.1 * good, 0.81 + 0.1 * good], "epsilon": epsilon, "accountant": "pld"}

    monkeypatch.setattr(best_adult_model, "_measure", measure)
    record = best_adult_model.adult_best(Experiment(), declared("privacy-aware")["adult-best"])
    chosen = [row[2] for row in record.rows if row[-1] == "chosen"]
    assert chosen == ["logistic, all columns, centred, numbers in bins"] * 2
    assert {name for name, validate in asked if not validate} == {*best_adult_model.counted(), chosen[0]}
    # What ε covers stands in every row, and the answer is one that looked at nothing more.
    assert {row[1] for row in record.rows} == {"whole workflow counted", "choice uncounted"}
    assert [row[1] for row in record.rows if row[-1] == "the answer"] == ["whole workflow counted"] * 2
    assert {row[1] for row in record.rows if row[-1] == "chosen"} == {"choice uncounted"}
    assert {row[record.columns.index("accountant")] for row in record.rows} == {"pld"}


def test_made_up_tables_are_the_same_each_time_and_have_both_classes() -> None:
    for seed in range(5):
        table, again = logistic_regression.planted(500, seed), logistic_regression.planted(500, seed)
        assert np.array_equal(table.x, again.x)
        assert np.array_equal(table.y, again.y)
        assert 0.1 < table.y.mean() < 0.6
        assert np.linalg.norm(table.x, axis=1).max() <= np.sqrt(table.attributes) + 1e-9
    plans = [logistic_regression.planned(1000, 20, 2.0, 1.0, UNCOUNTED, multiple) for multiple in (3.0, 6.0)]
    assert plans[1].ridge == pytest.approx(2 * plans[0].ridge)
    assert all(plan.epsilon(DELTA) <= 1.0 for plan in plans)
