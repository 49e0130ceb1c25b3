"""Steps that are charged once, drawn from a key, and kept: repeated only with the same numbers on the same data."""

import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.budget import BudgetExceeded, Gaussian, Ledger, Repeated, UnsupportedEvent
from sordino.budget.entries import Planned
from sordino.data import Column, Split
from sordino.data.schema import Schema
from sordino.mechanisms.streams import Stream, Streams
from sordino.runs import Binding, Diverged, Key, Purpose, Run, RunError, WorkflowSteps, workflow_steps
from sordino.runs import releases as module
from sordino.selection.table_models import table_arrays

DATA = (np.arange(6.0), np.arange(6))
CHARGE = Planned(Gaussian(3.0), "a number")


def drawn(ledger: Ledger, streams: Streams, charge: Planned = CHARGE) -> dict[str, Any]:
    ledger.spend(charge.event, charge.what, charge.part)
    return {"number": float(streams.generator(Stream.NOISE).normal())}


def steps_in(folder: Path, settings: str = "q", data: Any = DATA, ledger: Ledger | None = None) -> Any:
    ledger = Ledger(5.0, 1e-5, path=folder / "ledger.json") if ledger is None else ledger
    return workflow_steps(Run.at(folder), ledger, settings, data, [folder / "last.json"])


def interrupted(folder: Path) -> list[float]:
    """One step is kept, a second is charged and drawn but not kept; what was drawn."""
    seen: list[float] = []

    def fails(ledger: Ledger, streams: Streams) -> dict[str, Any]:
        seen.append(drawn(ledger, streams)["number"])
        raise OSError("no space left on device")

    with steps_in(folder) as steps:
        steps.values(folder / "first.json", CHARGE, drawn)
    with pytest.raises(OSError, match="no space"), steps_in(folder) as steps:
        steps.values(folder / "last.json", CHARGE, fails)
    return seen


def test_what_was_charged_and_lost_is_drawn_again_alike(tmp_path: Path) -> None:
    seen = interrupted(tmp_path)
    key = tmp_path / "private" / "steps.json"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = json.loads(key.read_text())["secret"]
    with steps_in(tmp_path) as steps:
        assert secret not in repr(steps)
        first = steps.values(tmp_path / "first.json", CHARGE, drawn)
        last = steps.values(tmp_path / "last.json", CHARGE, drawn)
    assert last == {"number": seen[0]}
    assert first != last  # equal charges, other streams
    ledger = Ledger.open(tmp_path / "ledger.json")
    assert [(entry.count, entry.committed) for entry in ledger.entries] == [(1, 1)] * 2
    assert not key.exists()
    assert not any(secret in path.read_text() for path in tmp_path.glob("*.json"))
    with steps_in(tmp_path, "whatever", ()) as steps:  # finished: to be read, and nothing more to be drawn
        assert steps.values(tmp_path / "last.json", CHARGE, drawn) == last
        with pytest.raises(RunError, match="finished folder"):
            steps.values(tmp_path / "more.json", CHARGE, drawn)
    assert not key.exists()


def test_streams_are_of_one_step_and_one_workflow(tmp_path: Path) -> None:
    def everything(folder: Path) -> list[float]:
        with steps_in(folder, ledger=Ledger()) as steps:
            return [steps.values(folder / f"{k}.json", CHARGE, drawn)["number"] for k in range(10)]

    numbers = [*everything(tmp_path / "a"), *everything(tmp_path / "b")]
    assert len(set(numbers)) == 20
    # The names in the ledger are public: only the secret makes numbers of them.
    keys = [Key.new(Binding("question", lambda secret: "data", purpose=Purpose.WORKFLOW)) for _ in range(2)]
    assert len({key.streams_for({"step": "entry"}).generator(Stream.NOISE).normal() for key in keys}) == 2
    assert len({key.name for key in keys}) == 2


def test_weights_are_kept_as_they_were_drawn(tmp_path: Path) -> None:
    charge, path = Planned(Repeated(Gaussian(9.0), 3), "weights"), tmp_path / "part" / "model.safetensors"
    Run.at(path.parent)

    def draw(ledger: Ledger, streams: Streams) -> np.ndarray:
        ledger.spend(charge.event, charge.what)
        return streams.generator(Stream.NOISE).normal(size=(3, 4))

    with steps_in(tmp_path) as steps:
        weights = steps.weights(path, charge, draw)
        assert np.array_equal(steps.weights(path, charge, draw), weights)
        path.unlink()
        assert np.array_equal(steps.weights(path, charge, draw), weights)
        [entry] = steps.ledger.entries
        assert (entry.count, entry.committed, entry.run.split()[-1]) == (3, 3, "part/model.safetensors")
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(RunError, match="damaged"):
            steps.weights(path, charge, draw)


@pytest.mark.parametrize(
    ("question", "data", "words"),
    [
        ("other", DATA, "other settings"),
        ("q", (DATA[0], DATA[1] * 2), "other data"),
        ("q", (DATA[0].astype(np.float32), DATA[1]), "other data"),
        ("q", (*DATA, np.zeros(0)), "other data"),
    ],
)
def test_a_key_is_for_one_question_and_one_table(tmp_path: Path, question: str, data: Any, words: str) -> None:
    interrupted(tmp_path)
    with pytest.raises(RunError, match=words), steps_in(tmp_path, question, data):
        pass
    assert len(Ledger.open(tmp_path / "ledger.json").entries) == 2
    with steps_in(tmp_path):
        pass  # and it is not lost by that


def test_another_environment_or_model_does_not_repeat_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path)
    with pytest.raises(RunError, match="another environment"), steps_in(tmp_path) as steps:
        steps.values(tmp_path / "last.json", CHARGE, drawn, given=b"a model")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(module, "environment", lambda: {"threads": 99})
        with steps_in(tmp_path) as steps:
            steps.values(tmp_path / "first.json", CHARGE, drawn)  # was kept
            steps.values(tmp_path / "new.json", CHARGE, drawn)  # was not begun
        with pytest.raises(RunError, match="another environment"), steps_in(tmp_path) as steps:
            steps.values(tmp_path / "last.json", CHARGE, drawn)
    assert len(Ledger.open(tmp_path / "ledger.json").entries) == 3


def test_a_step_may_draw_what_it_was_charged_for_and_nothing_else(tmp_path: Path) -> None:
    for draw in (
        lambda ledger, streams: {"number": 1.0},
        lambda ledger, streams: drawn(ledger, streams, CHARGE._replace(event=Gaussian(2.0))),
        lambda ledger, streams: drawn(ledger, streams, CHARGE._replace(part="validation")),
        lambda ledger, streams: [drawn(ledger, streams), drawn(ledger, streams)][0],
    ):
        with pytest.raises(RuntimeError, match="something else"), steps_in(tmp_path) as steps:
            steps.values(tmp_path / "last.json", CHARGE, draw)
        assert not (tmp_path / "last.json").exists()
    with pytest.raises(RunError, match="ledger's entry"), steps_in(tmp_path) as steps:
        steps.values(tmp_path / "last.json", CHARGE._replace(event=Gaussian(2.0)), drawn)


def test_what_another_ledger_key_or_plan_has_made_is_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        interrupted(folder)
    with pytest.raises(RunError, match="another plan"), steps_in(here) as steps:
        steps.values(here / "first.json", CHARGE._replace(event=Gaussian(4.0)), drawn)
    with pytest.raises(RunError, match="has not paid"), steps_in(here, ledger=Ledger()) as steps:
        steps.values(here / "first.json", CHARGE, drawn)
    shutil.copy(here / "first.json", here / "copy.json")
    with pytest.raises(RunError, match="another plan"), steps_in(here) as steps:
        steps.values(here / "copy.json", CHARGE, drawn)
    shutil.copy(there / "first.json", here / "first.json")
    with pytest.raises(RunError, match="another plan"), steps_in(here) as steps:
        steps.values(here / "first.json", CHARGE, drawn)


def test_what_is_beyond_the_budget_leaves_no_key_unless_something_was_paid(tmp_path: Path) -> None:
    dear = CHARGE._replace(event=Gaussian(0.1))
    with pytest.raises(BudgetExceeded), steps_in(tmp_path, "dear") as steps:
        steps.values(tmp_path / "last.json", dear, drawn)
    assert not (tmp_path / "private" / "steps.json").exists()
    found: list[object] = []

    def both() -> None:
        with steps_in(tmp_path, "cheap") as steps:
            found.append(steps.values(tmp_path / "first.json", CHARGE, drawn))
            steps.values(tmp_path / "last.json", dear, drawn)

    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            both()
    assert found[0] == found[1]
    assert len(Ledger.open(tmp_path / "ledger.json").entries) == 1


def test_another_ledger_is_refused_and_what_was_paid_stays(tmp_path: Path) -> None:
    seen = interrupted(tmp_path)
    other = Ledger(0.001, 1e-5, path=tmp_path / "other.json")
    with pytest.raises(RunError, match="pass the ledger it was started with"), steps_in(tmp_path, ledger=other):
        pass
    with steps_in(tmp_path) as steps:
        assert steps.values(tmp_path / "last.json", CHARGE, drawn) == {"number": seen[0]}


@pytest.mark.parametrize("problem", [Diverged("as if"), UnsupportedEvent("as if"), RunError("as if"), OSError("full")])
def test_a_workflow_that_cannot_go_on_leaves_no_key_and_one_that_can_keeps_it(
    tmp_path: Path, problem: Exception
) -> None:
    def fails(*_: object) -> dict[str, object]:
        raise problem

    with pytest.raises(type(problem)), steps_in(tmp_path) as steps:
        steps.values(tmp_path / "first.json", CHARGE, fails)
    diverged = isinstance(problem, Diverged)
    assert (tmp_path / "private" / "steps.json").exists() != diverged
    if diverged:
        with pytest.raises(Diverged, match="use another folder"), steps_in(tmp_path):
            pass


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with steps_in(tmp_path), pytest.raises(RunError, match="another process"), steps_in(tmp_path):
        pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> WorkflowSteps:
    folder = tmp_path_factory.mktemp("finished")
    with steps_in(folder) as steps:
        steps.values(folder / "last.json", CHARGE, drawn)
    return WorkflowSteps(steps.run, steps.ledger, None)


documents = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["seal", "entry", "number"]), inner),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=20) | documents.map(lambda value: json.dumps(value).encode()))
def test_damaged_files_give_one_line(finished: WorkflowSteps, content: bytes) -> None:
    path = finished.run.folder / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(RunError, match="cannot be read"):
        finished.known(path, CHARGE)


def test_a_changed_number_or_key_is_found(finished: WorkflowSteps, tmp_path: Path) -> None:
    path = finished.run.folder / "changed.json"
    text = (finished.run.folder / "last.json").read_text()
    path.write_text(re.sub(r'("number": -?\d)', r"\g<1>1", text))
    with pytest.raises(RunError, match="cannot be read"):
        finished.known(path, CHARGE)
    for content in ("", "{}", "[]", '{"secret": 3}', '{"secret": "xy", "question": "", "data": ""}'):
        Run.at(tmp_path)
        (tmp_path / "private" / "steps.json").write_text(content)
        with pytest.raises(RunError, match="damaged"), steps_in(tmp_path):
            pass


def test_every_cell_of_a_table_is_in_its_arrays() -> None:
    schema = Schema(
        (Column("a", bounds=(0.0, 1.0)), Column("b", categories=("x", "y"))), Column("t", categories=("0", "1"))
    )
    table = pd.DataFrame({"a": [0.1, 0.2, 0.3], "b": pd.Categorical(["x", "y", "x"], ["x", "y"]), "other": [1, 2, 3]})
    part = Split(table, np.array([0, 1, 0]))

    def content(changed: Split) -> list[list[float]]:
        return [array.tolist() for array in table_arrays(schema, changed, part)]

    assert len(content(part)) == 6
    assert content(Split(table.astype({"b": object}), part.y)) == content(part)
    for row in range(3):
        for name, value in (("a", 0.1 + 1e-15 + row), ("b", "yxy"[row])):
            other = table.copy()
            other.loc[row, name] = value
            assert content(Split(other, part.y)) != content(part)
        assert content(Split(table, np.where(np.arange(3) == row, 1 - part.y, part.y))) != content(part)
