"""Searches within a budget: calibrated to it on either part, on public records free, and resumable as they were."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino.budget import BudgetExceeded, Composed, Gaussian, Laplace, Ledger, NonPrivate, Repeated, cost
from sordino.budget.events import to_json
from sordino.data import Column, DataError, Split
from sordino.data.schema import Schema
from sordino.runs import Run, RunError
from sordino.selection import (
    Dense,
    DenseLayer,
    GenerationalSearch,
    GeneticSearch,
    Grid,
    RandomSearch,
    SearchRequest,
    TrialData,
    search,
)
from sordino.selection.search_workflow import SearchData, begun_search, calibrated, prepare_search

GRID = Grid((Dense((), 0.5), Dense((DenseLayer(4, trainable=False),), 0.5)))
REQUEST = SearchRequest(RandomSearch(2.0), GRID, epochs=2, expected_batch_size=20)


def search_within(run, request, data, ledger, *, public=None, on_result=lambda result: None):
    prepared = prepare_search(run, request, data, ledger, public=public)
    with begun_search(run, prepared, ledger, on_result=on_result) as job:
        found = search(run, job.plan, job.parts, job.ledger, on_result=job.on_private_result)
    return job.outcome(found)


@pytest.fixture
def records(data: TrialData) -> SearchData:
    columns = tuple(Column(name, bounds=(-1.0, 1.0)) for name in "abcde")
    facts = Schema(columns, Column("y", categories=("no", "yes"))).facts(90, "mine")
    return SearchData("mine", facts, data, Split(data.validation_x, data.validation_y))


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


def test_a_search_states_what_the_whole_cost_and_is_read_again(tmp_path: Path, records: SearchData) -> None:
    run = Run.at(tmp_path)
    ledger = Ledger(3.0, 1e-4, path=run.ledger)
    result = search_within(run, REQUEST, records, ledger)
    assert result["epsilon"] == ledger.cost(reserved=True).epsilon <= 3.0
    assert result["epsilon_of_one_training"] < result["epsilon"]
    assert 0 <= result["validation_accuracy"] <= 1
    assert 0 <= result["test_accuracy"] <= 1
    assert "counted above" in (tmp_path / "statement.txt").read_text()
    assert search_within(run, REQUEST, records, Ledger.open(run.ledger)) == result
    with pytest.raises(RunError, match="other settings"):
        search_within(run, replace(REQUEST, epochs=3), records, ledger)
    known = json.loads((tmp_path / "workflow.json").read_text())
    for damage in ({"plan": {}}, {"noise": {}}, {"asked": 1}, {"facts": None}, {"noise": to_json(NonPrivate())}):
        (tmp_path / "workflow.json").write_text(json.dumps(known | damage))
        with pytest.raises(RunError, match="cannot be read"):
            search_within(run, REQUEST, records, ledger)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, records: SearchData) -> None:
    run = Run.at(tmp_path)
    run.write_description({"status": "training"})
    with pytest.raises(RunError, match="something else"):
        search_within(run, REQUEST, records, Ledger(3.0, 1e-4))


def test_scores_that_do_not_fit_are_refused_and_the_folder_is_free_again(tmp_path: Path, records: SearchData) -> None:
    run, ledger = Run.at(tmp_path), Ledger(1.0, 1e-4)
    for score_epsilon, fits in ((50.0, False), (0.02, True)):
        request = replace(REQUEST, method=RandomSearch(1.0), score_epsilon=score_epsilon)
        if fits:
            assert search_within(run, request, records, ledger)["epsilon"] <= 1.0
        else:
            with pytest.raises(BudgetExceeded, match="validation records"):
                search_within(run, request, records, ledger)
            assert ledger.entries == ()


def test_on_public_records_the_search_is_free_and_one_training_paid(tmp_path: Path, records: SearchData) -> None:
    run, shown = Run.at(tmp_path), []
    ledger = Ledger(3.0, 1e-4, path=run.ledger)
    request = replace(REQUEST, method=GeneticSearch(2, 2))
    other = replace(records, name="public", parts=replace(records.parts, train_y=1 - records.parts.train_y))
    result = search_within(run, request, records, ledger, public=other, on_result=shown.append)
    assert len(shown) == 2
    [train] = [entry for entry in ledger.entries if entry.part == "train"]
    assert (train.count, train.committed) == (1, 1)
    assert result["epsilon_of_one_training"] == pytest.approx(3.0, rel=2e-3)
    assert result["in_words"] == str(max(shown, key=lambda result: result.score).candidate)
    assert "free" in (tmp_path / "statement.txt").read_text()


def test_records_of_a_table_and_of_named_datasets(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("age,work,rich\n" + "".join(f"{20 + i},{'ab'[i % 2]},{'ny'[i // 20]}\n" for i in range(40)))
    columns = (Column("age", bounds=(20.0, 60.0)), Column("work", categories=("a", "b")))
    schema = Schema(columns, Column("rich", categories=("n", "y")))
    found = SearchData.read(str(table), schema=schema, target="rich")
    assert found.parts.train_x.shape == (32, 3)
    assert found.parts.validation_x.shape == (8, 3)
    assert found.test is None
    assert found.parts.train_x.max() <= 1
    rows = {tuple(row) for row in np.concatenate([found.parts.train_x, found.parts.validation_x]).tolist()}
    assert len(rows) == 40, "no record is in both parts"
    named = SearchData.read("digits")
    assert named.test is not None
    for wrong, message in [
        ({"source": "nowhere.csv"}, "neither a file nor"),
        ({"source": str(table)}, "--schema"),
        ({"source": str(table), "schema": schema, "target": "age"}, "target"),
        ({"source": "digits", "schema": schema}, "none of digits"),
    ]:
        source = wrong.pop("source")
        with pytest.raises(DataError, match=message):
            SearchData.read(source, **wrong)
    table.write_text("age,work,rich\n20,a,n\n21,b,y\n")
    with pytest.raises(DataError, match="too few"):
        SearchData.read(str(table), schema=schema)
