"""Every folder says what it holds, and old ones are recognised by their files."""

from pathlib import Path

import pytest

from sordino.budget import Gaussian, Ledger
from sordino.runs import KINDS, Kind, Run, RunError, TableLedger, check_resumable, kind_of, predict, statement_of


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_what_run_json_says_or_what_the_files_show(tmp_path: Path, kind: Kind) -> None:
    run = Run.at(tmp_path / "new")
    run.write_kind(kind.name)
    run.write_kind("something else")  # the first word stays
    assert kind_of(run.folder) is kind
    for number, sign in enumerate(kind.signs):
        old = Run.at(tmp_path / str(number))
        old.write_sealed(sign, {})
        assert kind_of(old.folder) is kind


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run of sordino"):
        kind_of(tmp_path)
    with pytest.raises(RunError, match="there is no folder"):
        kind_of(tmp_path / "nowhere")
    with pytest.raises(RunError, match="is a file"):
        kind_of(__file__)
    Run.at(tmp_path / "later").write_kind("dream")
    with pytest.raises(RunError, match="upgrade"):
        kind_of(tmp_path / "later")


def test_folders_of_tables_name_their_command(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    TableLedger("a table", lambda key: "same", 1.0, 1e-5, None, None, kind="selection").opened(folder)
    assert kind_of(folder).name == "selection"
    with pytest.raises(RunError, match="`sordino select`: rerun that command with another folder"):
        check_resumable(folder)
    with pytest.raises(RunError, match="no model"):
        predict(folder, tmp_path / "rows.csv")
    other = tmp_path / "other"
    TableLedger("a table", lambda key: "same", 1.0, 1e-5, None, None).bind(other)
    with pytest.raises(RunError, match="command for tables"):
        check_resumable(other)


def test_one_statement_for_every_place(tmp_path: Path) -> None:
    one = tmp_path / "one" / "ledger.json"
    Run.at(one.parent)
    Ledger(1.0, 1e-5, path=one)
    TableLedger("a table", lambda key: "same", 1.0, 1e-5, one, None).opened(tmp_path / "found").spend(
        Gaussian(40.0), "a sum"
    )
    places = (tmp_path / "found", one)
    assert len({statement_of(place)["epsilon"] for place in places}) == 1
    run = Run.at(tmp_path / "trained")
    Ledger(1.0, 1e-5, path=run.ledger).spend(Gaussian(40.0), "a sum")
    run.write_description({"kind": "training", "statement": {"unit": "one person", "tuning": "none", "notes": []}})
    assert statement_of(run.folder)["unit"] == "one person"


@pytest.mark.parametrize("kind", ["fit", "private loop"])
def test_folders_of_programs_say_that_the_program_is_to_be_run_again(tmp_path: Path, kind: str) -> None:
    run = Run.at(tmp_path / "own")
    run.write_kind(kind)
    with pytest.raises(RunError, match=f"`{kind_of(run.folder).command}`: .*run the program that called it again"):
        check_resumable(run.folder)
    with pytest.raises(RunError, match=r"predict in Python with sordino\.load\(folder, model\)"):
        predict(run.folder, __file__)


def test_a_fit_whose_ledger_lies_elsewhere_asks_for_that_file(tmp_path: Path) -> None:
    run = Run.at(tmp_path / "old")
    run.write_tensors(run.model, {}, {"steps": 1})  # version 0.1 wrote no run.json
    assert kind_of(run.folder).name == "fit"
    with pytest.raises(RunError, match="give that file"):
        statement_of(run.folder)
