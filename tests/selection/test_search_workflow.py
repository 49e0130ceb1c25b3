"""Searches within a budget: calibrated to it on either part, on public records free, and resumable as they were."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sordino.budget import BudgetExceeded, Composed, Gaussian, Laplace, Ledger, NonPrivate, Repeated, cost
from sordino.budget.events import to_json
from sordino.data import Column, DataError, source_fingerprint
from sordino.data.schema import Schema
from sordino.runs import Run, RunError, TableLedger
from sordino.selection import (
    Dense,
    DenseLayer,
    GenerationalSearch,
    GeneticSearch,
    Grid,
    RandomSearch,
    SearchRequest,
    TrialData,
)
from sordino.selection.search_workflow import calibrated, search_within_budget
from sordino.selection.sources import SearchData, check_source, given_schema

GRID = Grid((Dense((), 0.5), Dense((DenseLayer(4, trainable=False),), 0.5)))
REQUEST = SearchRequest(RandomSearch(2.0), GRID, epochs=2, expected_batch_size=20)


def write_table(folder: Path, name: str, data: TrialData) -> Path:
    """All records of the data as a table, with its schema beside it."""
    rows = np.clip(np.concatenate([data.train_x, data.validation_x]), -1, 1)
    labels = np.array(["no", "yes"])[np.concatenate([data.train_y, data.validation_y])]
    pd.DataFrame(rows, columns=list("abcde")).assign(y=labels).to_csv(folder / name, index=False)
    columns = tuple(Column(letter, bounds=(-1.0, 1.0)) for letter in "abcde")
    schema = Schema(columns, Column("y", categories=("no", "yes")))
    (folder / "schema.json").write_text(json.dumps(schema.to_json()))
    return folder / name


@pytest.fixture
def searched(tmp_path: Path, data: TrialData):
    """`search_within_budget` on a table, in the folder `out`."""
    table = write_table(tmp_path, "mine.csv", data)

    def within(request, epsilon: float = 3.0, **options):
        fixed = {"delta": 1e-4, "schema": tmp_path / "schema.json", "out": tmp_path / "out"}
        return search_within_budget(table, request, epsilon=epsilon, **fixed | options)

    return within


@pytest.mark.parametrize("method", [GeneticSearch(2, 3), RandomSearch(4.0), GenerationalSearch((3.0, 2.0))], ids=repr)
def test_either_part_spends_the_target_and_no_more(method) -> None:
    ledger = Ledger(2.0, 1e-4)
    plan, noise = calibrated(ledger, REQUEST, method, 60)
    assert (plan.steps, plan.sampler.expected_batch_size) == (6, 20)
    for part in ("training", "score"):
        events = [Repeated(getattr(stage, part), stage.most) for stage in method.stages(plan.event, noise)]
        assert 1.99 < cost(Composed(tuple(events)), 1e-4).epsilon <= 2.0


def test_the_papers_noise_on_scores_where_it_is_asked_for() -> None:
    assert calibrated(Ledger(2.0, 1e-4), replace(REQUEST, score_epsilon=0.02), RandomSearch(4.0), 60)[1] == Laplace(
        50.0
    )
    with pytest.raises(ValueError, match="target"):
        calibrated(Ledger(), REQUEST, RandomSearch(4.0), 60)


def test_what_was_spent_before_leaves_less() -> None:
    ledger = Ledger(2.0, 1e-4)
    ledger.spend(Gaussian(5.0), "a statistic", "train")
    assert calibrated(ledger, REQUEST, RandomSearch(4.0), 60)[0].noise_multiplier > (
        calibrated(Ledger(2.0, 1e-4), REQUEST, RandomSearch(4.0), 60)[0].noise_multiplier
    )


def test_a_search_states_what_the_whole_cost_and_is_read_again(tmp_path: Path, searched) -> None:
    result = searched(REQUEST)
    ledger = Ledger.open(tmp_path / "out/ledger.json")
    assert result["epsilon"] == ledger.cost(reserved=True).epsilon <= 3.0
    assert result["epsilon_of_one_training"] < result["epsilon"]
    assert 0 <= result["validation_accuracy"] <= 1
    assert result["test_accuracy"] is None
    assert "counted above" in (tmp_path / "out/statement.txt").read_text()
    assert searched(REQUEST) == result
    with pytest.raises(RunError, match="other settings"):
        searched(replace(REQUEST, epochs=3))
    kept = tmp_path / "out/workflow.json"
    known = json.loads(kept.read_text())
    for damage in ({"plan": {}}, {"noise": {}}, {"asked": 1}, {"facts": None}, {"noise": to_json(NonPrivate())}):
        kept.write_text(json.dumps(known | damage))
        with pytest.raises(RunError, match="cannot be read"):
            searched(REQUEST)


def test_a_benchmarks_public_test_records_are_scored_exactly(tmp_path: Path) -> None:
    request = replace(REQUEST, expected_batch_size=200)
    result = search_within_budget("digits", request, epsilon=8.0, delta=1e-4, out=tmp_path / "out", seed=1)
    assert (360 * result["test_accuracy"]) == pytest.approx(round(360 * result["test_accuracy"]))


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, searched) -> None:
    Run.at(tmp_path / "out").write_description({"status": "training"})
    with pytest.raises(RunError, match="not an unfinished run"):
        searched(REQUEST)
    table, advice = str(tmp_path / "mine.csv"), tmp_path / "advice"
    TableLedger(table, source_fingerprint(table), 3.0, 1e-4, None, advice, kind="advice").bind(advice)
    with pytest.raises(RunError, match="something other than a search"):
        searched(REQUEST, out=advice)


def test_scores_that_do_not_fit_are_refused_and_the_folder_is_free_again(searched) -> None:
    for score_epsilon, fits in ((50.0, False), (0.02, True)):
        request = replace(REQUEST, method=RandomSearch(1.0), score_epsilon=score_epsilon)
        if fits:
            assert searched(request, 1.0)["epsilon"] <= 1.0
        else:
            with pytest.raises(BudgetExceeded, match="validation records"):
                searched(request, 1.0)


def test_on_public_records_the_search_is_free_and_one_training_paid(tmp_path: Path, searched, data: TrialData) -> None:
    shown = []
    request = replace(REQUEST, method=GeneticSearch(2, 2))
    public = write_table(tmp_path, "public.csv", replace(data, train_y=1 - data.train_y))
    result = searched(request, public=public, on_result=shown.append)
    assert len(shown) == 2
    ledger = Ledger.open(tmp_path / "out/ledger.json")
    [train] = [entry for entry in ledger.entries if entry.part == "train"]
    assert (train.count, train.committed) == (1, 1)
    assert result["epsilon_of_one_training"] == pytest.approx(3.0, rel=2e-3)
    assert result["in_words"] == str(max(shown, key=lambda result: result.score).candidate)
    assert "free" in (tmp_path / "out/statement.txt").read_text()


def test_records_of_a_table_and_of_named_datasets(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("age,work,rich\n" + "".join(f"{20 + i},{'ab'[i % 2]},{'ny'[i // 20]}\n" for i in range(40)))
    columns = (Column("age", bounds=(20.0, 60.0)), Column("work", categories=("a", "b")))
    schema = Schema(columns, Column("rich", categories=("n", "y")))
    found = SearchData.read(str(table), schema)
    assert found.parts.train_x.shape == (32, 3)
    assert found.parts.validation_x.shape == (8, 3)
    assert found.test is None
    assert found.parts.train_x.max() <= 1
    rows = {tuple(row) for row in np.concatenate([found.parts.train_x, found.parts.validation_x]).tolist()}
    assert len(rows) == 40, "no record is in both parts"
    named = SearchData.read("digits", None)
    assert named.test is not None
    kept = tmp_path / "schema.json"
    kept.write_text(json.dumps(schema.to_json()))
    with pytest.raises(DataError, match="neither a file nor"):
        check_source("nowhere.csv")
    for target, given, message in [("rich", None, "--schema"), (None, None, "--target"), ("age", kept, "target")]:
        with pytest.raises(DataError, match=message):
            given_schema(str(table), target, given, None)
    with pytest.raises(DataError, match="none of digits"):
        SearchData.read("digits", schema)
    table.write_text("age,work,rich\n20,a,n\n21,b,y\n")
    with pytest.raises(DataError, match="too few"):
        SearchData.read(str(table), schema)
