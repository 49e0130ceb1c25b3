"""One ledger, one state of one table: every command refuses another before it spends, in one line."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino.budget import Gaussian, Ledger, LedgerError
from sordino.budget.statement import printed
from sordino.data import load, number_set_aside, shuffled, source_fingerprint
from sordino.runs import TableLedger, spending, spending_in_words

SCHEMA = {
    "columns": {"age": {"bounds": [0, 100]}, "work": {"categories": ["a", "b", "c"]}},
    "target": {"rich": {"categories": ["no", "yes"]}},
}
ROWS = 300
BUDGET = ("--epsilon", 2, "--delta", 1e-4, "--target", "rich")
QUICK = ("--mean-trials", 1, "--epochs", 1, "--learning-rates", "1")
COMMANDS: dict[str, tuple[object, ...]] = {
    "select": (),
    "tune": QUICK,
    "search": QUICK,
    "crossover": ("--private", "--models", "logistic-numeric,logistic", "--points", 2, "--repeats", 2),
    "advise": ("--carry-out",),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    age, work = rng.uniform(0, 100, ROWS), rng.choice(list("abc"), ROWS)
    lines = [f"{a:.2f},{w},{'yes' if a > 50 else 'no'}" for a, w in zip(age, work, strict=True)]
    (folder / "table.csv").write_text("\n".join(["age,work,rich", *lines]) + "\n")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    return folder


@pytest.fixture
def files(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(command: str, *options: object) -> tuple[object, ...]:
    return (command, "table.csv", *BUDGET, "--schema", "schema.json", *COMMANDS[command], *options)


def drop_a_row(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:6] + lines[7:]))


def begin_with_one_of_two(sordino: Callable[..., Any], files: Path, command: str) -> None:
    Ledger(2.0, 1e-4, path=files / "one.json")
    Ledger(2.0, 1e-4, path=files / "other.json")
    first = sordino(*asked(command, "--ledger", "one.json", "--out", "out"))
    assert first.code == 0, first.err


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_a_dropped_row_would_move_records_between_the_parts() -> None:
    """Why all this: nearly every record that scored would train."""

    def held(n: int) -> set[int]:
        return set(shuffled(n, 0)[: number_set_aside(n)].tolist())

    before, after = held(ROWS), {row if row < 5 else row + 1 for row in held(ROWS - 1)}
    assert len(before - after) > len(before) / 2


@pytest.mark.parametrize("command", COMMANDS)
def test_another_state_of_the_table_is_refused_with_the_same_ledger_and_folder(
    sordino: Callable[..., Any], files: Path, command: str
) -> None:
    first = sordino(*asked("select", "--out", "first"))
    assert first.code == 0, first.err
    drop_a_row(files / "table.csv")
    before = state(files)
    elsewhere = () if command == "select" else ("--out", "second")
    tries = [asked(command, "--ledger", "first/ledger.json", *elsewhere)]
    if command != "select":  # which takes an empty folder alone
        tries.append(asked(command, "--out", "first"))
    for words in tries:
        refused = sordino(*words)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
        assert "another state of that file" in refused.err
        assert "Give the file as it was" in refused.err
    assert state(files) == before


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "select"])
def test_what_a_folder_holds_is_not_told_of_another_table(
    sordino: Callable[..., Any], files: Path, command: str
) -> None:
    """Also if the ledger lies elsewhere, and is the other table's own."""
    begin_with_one_of_two(sordino, files, command)
    shutil.copy(files / "table.csv", files / "kept.csv")
    drop_a_row(files / "table.csv")
    refused = sordino(*asked(command, "--ledger", "other.json", "--out", "out"))
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
    assert Ledger.open(files / "other.json").plan == ()
    shutil.copy(files / "kept.csv", files / "table.csv")
    again = sordino(*asked(command, "--ledger", "one.json", "--out", "out"))
    assert again.code == 0, again.err


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "select"])
def test_a_folder_keeps_to_the_ledger_that_it_began_with(
    sordino: Callable[..., Any], files: Path, command: str
) -> None:
    """Told beside another ledger, what it holds would seem to have cost nothing."""
    begin_with_one_of_two(sordino, files, command)
    before = state(files)
    refused = sordino(*asked(command, "--ledger", "other.json", "--out", "out"))
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
    assert f"began with the ledger {files / 'one.json'}" in refused.err
    assert state(files) == before
    forgotten = sordino(*asked(command, "--out", "out", "--json"))
    assert forgotten.code == 0, forgotten.err
    assert forgotten.json["epsilon"] == Ledger.open(files / "one.json").statement()["epsilon"] > 0
    assert not (files / "out" / "ledger.json").exists()
    assert sordino("ledger", "out").out == sordino("ledger", "one.json").out
    own = sordino(*asked(command, "--out", "own"))
    assert own.code == 0, own.err
    refused = sordino(*asked(command, "--ledger", "other.json", "--out", "own"))
    assert (refused.code, "began with the ledger" in refused.err) == (2, True)


def test_the_binding_is_private_keyed_and_fresh(sordino: Callable[..., Any], files: Path) -> None:
    for out in ("one", "two"):
        assert sordino(*asked("select", "--out", out)).code == 0
    kept = [files / out / "private" / "ledger.table.json" for out in ("one", "two")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in kept} == {0o700}
    documents = [json.loads(path.read_text()) for path in kept]
    for name in ("key", "table"):
        assert documents[0][name] != documents[1][name]
    public = "".join(path.read_text() for path in files.rglob("*.json") if path not in kept)
    assert not any(document[name] in public for document in documents for name in ("key", "table"))


def test_a_ledger_with_entries_and_no_binding_is_refused(sordino: Callable[..., Any], files: Path) -> None:
    assert sordino(*asked("select", "--out", "first")).code == 0
    kept = files / "first" / "private" / "ledger.table.json"
    for content, says in (("{}", "restore it from a backup"), ("", "restore it from a backup"), (None, "put it back")):
        kept.unlink() if content is None else kept.write_text(content)
        refused = sordino(*asked("select", "--ledger", "first/ledger.json"))
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert says in refused.err
    assert len(Ledger.open(files / "first" / "ledger.json").entries) == 1
    Ledger(2.0, 1e-4, path=files / "spent.json").spend(Gaussian(50.0), "something before")
    assert "put it back" in sordino(*asked("tune", "--ledger", "spent.json", "--out", "out")).err


def test_a_table_that_changes_while_it_is_read_is_refused(files: Path) -> None:
    account = TableLedger(
        str(files / "table.csv"), source_fingerprint(str(files / "table.csv")), 1.0, 1e-5, None, files / "out"
    )
    drop_a_row(files / "table.csv")
    with pytest.raises(ValueError, match="another state of that file"):
        account.opened(files / "out")
    assert not (files / "out" / "ledger.json").exists()


def test_a_named_table_is_bound_by_its_name(files: Path) -> None:
    TableLedger("digits", source_fingerprint("digits"), 1.0, 1e-5, None, None).bind(files / "out")
    TableLedger("digits", source_fingerprint("digits"), 1.0, 1e-5, None, files / "out")
    with pytest.raises(ValueError, match="another table than breast-cancer"):
        TableLedger("breast-cancer", source_fingerprint("breast-cancer"), 1.0, 1e-5, None, files / "out")


def test_a_folder_with_something_else_in_it_is_not_bound(files: Path) -> None:
    (files / "out").mkdir()
    (files / "out" / "score.json").write_text("{}")
    with pytest.raises(ValueError, match="choose another folder"):
        TableLedger("digits", source_fingerprint("digits"), 1.0, 1e-5, None, files / "out")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_private_table_is_not_public(sordino: Callable[..., Any], files: Path, command: str) -> None:
    """Neither under its own name, nor through a link, nor as a copy, nor in another order or format."""
    (files / "link.csv").symlink_to("table.csv")
    shutil.copy(files / "table.csv", files / "copy.csv")
    rows = pd.read_csv(files / "table.csv")
    rows[::-1].to_csv(files / "reversed.csv", index=False)
    rows[["rich", "work", "age"]].to_parquet(files / "rows.parquet")
    before = state(files)
    options = () if command == "select" else ("--out", "out")
    for public in ("table.csv", "link.csv", "copy.csv", "reversed.csv", "rows.parquet"):
        refused = sordino(*asked(command, *options, "--public", public))
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
        assert "is the private table itself" in refused.err
    assert state(files) == before


def test_a_named_dataset_is_not_its_own_public_one(sordino: Callable[..., Any], files: Path) -> None:
    rows = load("breast-cancer").train
    rows.x.assign(target=rows.y)[::-1].to_csv(files / "rows.csv", index=False)
    for command, name, public in (("tune", "digits", "digits"), ("advise", "breast-cancer", "rows.csv")):
        refused = sordino(command, name, "--public", public, "--epsilon", 1, "--delta", 1e-5)
        assert (refused.code, "the private table itself" in refused.err) == (2, True), refused.err


def test_a_named_table_beside_a_public_file(sordino: Callable[..., Any], files: Path) -> None:
    """The domains are those of the named one."""
    table = load("breast-cancer")
    words = np.array(table.facts.classes)[table.train.y]
    table.train.x.assign(target=words)[:60].to_csv(files / "some.csv", index=False)
    options = ("--public", "some.csv", "--epsilon", 2, "--delta", 1e-4)
    assert sordino("tune", "breast-cancer", *QUICK, *options, "--out", "out").code == 0
    assert sordino("advise", "breast-cancer", *options).code == 0


def test_noise_that_can_be_predicted_is_not_called_private(sordino: Callable[..., Any], files: Path) -> None:
    seeded = sordino(*asked("tune", "--seed", 3, "--out", "out"))
    assert "nothing here is private: the seed is fixed" in seeded.out
    assert "ε of the whole workflow" not in seeded.out
    statement = (files / "out" / "statement.txt").read_text().splitlines()
    assert statement[2].startswith("NOTHING HERE IS PRIVATE")
    assert sordino(*asked("tune", "--seed", 3, "--out", "out", "--json")).json["seeded"] is True
    ledger = Ledger(1.0, 1e-5)
    for predictable in (True, False):  # whatever goes on with such a ledger is no better
        ledger.spend(Gaussian(50.0), "something", seeded=predictable)
        assert "nothing here is private" in spending_in_words(spending(ledger))
    fresh = sordino(*asked("tune", "--out", "fresh", "--json")).json
    assert fresh["seeded"] is False
    assert spending_in_words(fresh).startswith("ε of the whole workflow: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_spends_leaves_a_statement(sordino: Callable[..., Any], files: Path, command: str) -> None:
    answer = sordino(*asked(command, "--out", "out", "--json")).json
    statement = json.loads((files / "out" / "statement.json").read_text())
    assert statement["epsilon"] == answer["epsilon"]
    assert statement["unit"] == "one row of the table"
    assert statement["entries"]
    assert f"(ε={printed(answer['epsilon'])}" in (files / "out" / "statement.txt").read_text()
    assert "listed above" in sordino("ledger", "out").out  # what a search read, not that none was
    refused = sordino("resume", "out")
    assert (refused.code, f"`sordino {command}`" in refused.err) == (2, True)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "select"])
@pytest.mark.parametrize("change", ["bounds", "target"])
def test_a_folder_is_of_one_schema(sordino: Callable[..., Any], files: Path, command: str, change: str) -> None:
    """What it holds was found under that one, also where it is finished and only told again."""
    rows = pd.read_csv(files / "table.csv")
    rows.assign(tall=rows["rich"].iloc[::-1].to_numpy()).to_csv(files / "table.csv", index=False)
    assert sordino(*asked(command, "--out", "out")).code == 0
    before = state(files)
    columns: dict[str, Any] = {**SCHEMA["columns"]}
    target = "rich"
    if change == "bounds":
        columns["age"] = {"bounds": [0, 50]}
    else:
        target = "tall"
    (files / "other.json").write_text(
        json.dumps({"columns": columns, "target": {target: {"categories": ["no", "yes"]}}})
    )
    refused = sordino(*asked(command, "--out", "out", "--schema", "other.json", "--target", target))
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
    (files / "other.json").unlink()
    assert state(files) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_schema_that_records_paid_for_goes_with_their_ledger(
    sordino: Callable[..., Any], files: Path, command: str
) -> None:
    """Else ε would cover the training alone, and not the choice of its columns."""
    sordino(*asked("select", "--size", 1, "--out", "chosen"))
    on = ("--schema", "chosen/schema.json", "--out", "out")
    if command == "crossover":
        on = (*on, "--models", "logistic,network-small")
    refused = sordino(*asked(command, *on))
    assert (refused.code, "--ledger" in refused.err, refused.err.count("\n")) == (2, True, 1), refused.err
    assert not (files / "out").exists()
    (files / "chosen").rename(files / "moved")
    on = tuple("moved/schema.json" if word == "chosen/schema.json" else word for word in on)
    assert "--ledger" in sordino(*asked(command, *on)).err
    gone_on = sordino(*asked(command, *on, "--ledger", "moved"))
    assert gone_on.code == 0, gone_on.err
    # Nothing was read for a blind one, and of another table this one has told nothing.
    sordino(*asked("select", "--method", "random", "--size", 1, "--out", "blind"))
    assert sordino(*asked("select", "--schema", "blind/schema.json", "--out", "after")).code == 0
    drop_a_row(files / "table.csv")
    assert sordino(*asked("select", "--schema", "moved/schema.json", "--out", "elsewhere")).code == 0


def test_a_selection_of_a_named_table_goes_on(sordino: Callable[..., Any], files: Path) -> None:
    budget = ("--epsilon", 4, "--delta", 1e-4)
    chosen = sordino("select", "breast-cancer", *budget, "--size", 3, "--out", "selected", "--json").json
    on = ("--schema", chosen["schema"], "--ledger", chosen["ledger"])
    found = sordino("tune", "breast-cancer", *budget, *QUICK, *on, "--out", "out", "--json").json
    columns = json.loads(Path(chosen["schema"]).read_text())["columns"]
    width = sum(len(domain.get("categories", [0])) for domain in columns.values())
    assert found["parameters"] == 2 * (width + 1)
    advice = sordino("advise", "breast-cancer", *budget, "--schema", chosen["schema"], "--json").json
    assert advice["answers"][3]["numbers"]["kept"] == list(columns)
    for document, words in (
        (
            {"columns": {"age": {"bounds": [0, 1]}}, "target": {"target": {"categories": ["a", "b"]}}},
            "other categories in 'age'",
        ),
        ({"columns": columns, "target": {"target": {"categories": ["a", "b"]}}}, "not that of breast-cancer"),
    ):
        (files / "other.json").write_text(json.dumps(document))
        for command in ("tune", "advise"):
            refused = sordino(command, "breast-cancer", *budget, "--schema", "other.json")
            assert (refused.code, words in refused.err) == (2, True), refused.err


def test_a_place_that_cannot_be_written_to_is_named(sordino: Callable[..., Any], files: Path) -> None:
    refused = sordino(*asked("select", "--out", "/proc/out"))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert refused.err.startswith("sordino: /proc/out")
    assert "Errno" not in refused.err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_epsilon_that_delta_swallows_and_a_delta_that_is_none(
    sordino: Callable[..., Any], files: Path, command: str
) -> None:
    options = () if command == "select" else ("--out", "out")
    before = state(files)
    for budget in (("--epsilon", 1e-12), ("--delta", -1e-5), ("--delta", 1), ("--epsilon", "nan")):
        refused = sordino(*asked(command, *options, *budget))
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
    assert state(files) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_delta_above_one_in_n_is_warned_of(sordino: Callable[..., Any], files: Path, command: str) -> None:
    options = () if command == "select" else ("--out", "out")
    outcome = sordino(*asked(command, *options, "--delta", 0.0035))  # above 1/300, and below 1/240
    assert outcome.err.count("not below 1/n=0.00333") == 1, outcome.err


class Killed(BaseException):
    """Stands for a process that ends at once."""


@pytest.mark.parametrize(("command", "writes"), [*((command, 1) for command in COMMANDS), ("select", 2)])
def test_a_folder_killed_in_its_first_moments_is_taken_up_by_the_same_command(
    sordino: Callable[..., Any], files: Path, monkeypatch: pytest.MonkeyPatch, command: str, writes: int
) -> None:
    replace, left = os.replace, iter(range(writes - 1))

    def killed(source: Any, target: Any) -> None:
        if next(left, None) is None:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            sordino(*asked(command, "--out", "out"))
    assert (files / "out" / "private").is_dir()
    outcome = sordino(*asked(command, "--out", "out", "--json"))
    assert outcome.code == 0, outcome.err
    assert outcome.json["epsilon"] <= 2


def test_a_selection_that_was_charged_is_not_made_again_in_its_folder(sordino: Callable[..., Any], files: Path) -> None:
    assert sordino(*asked("select", "--out", "out")).code == 0
    for path in (files / "out").glob("*.json"):
        if path.name != "ledger.json":
            path.unlink()
    outcome = sordino(*asked("select", "--out", "out"))
    assert outcome.code == 2
    assert "exists and is not an unfinished run" in outcome.err


def test_an_old_copy_of_a_ledger_does_not_regain_budget(
    sordino: Callable[..., Any], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models from one ledger, of which the restored copy would count one."""
    Ledger(2.0, 1e-4, path=files / "one.json")
    old = (files / "one.json").read_bytes()
    assert sordino(*asked("select", "--ledger", "one.json", "--out", "out")).code == 0
    (files / "one.json").write_bytes(old)
    again = sordino(*asked("select", "--ledger", "one.json", "--out", "another"))
    assert again.code == 2
    assert "is an old copy" in again.err
    assert not Ledger.open(files / "one.json").entries
    # Where the user's registry knows nothing, the folder that drew from the ledger does.
    monkeypatch.setenv("SORDINO_STATE", str(files / "another computer"))
    account = TableLedger("table.csv", source_fingerprint("table.csv"), 2.0, 1e-4, files / "one.json", files / "out")
    with pytest.raises(LedgerError, match="is an old copy"):
        account.opened(files / "out")
    assert not Ledger.open(files / "one.json").entries


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("moved", [True, False])
def test_nothing_is_stated_of_an_old_copy(
    sordino: Callable[..., Any], files: Path, monkeypatch: pytest.MonkeyPatch, own: bool, moved: bool
) -> None:
    """The ledger of a folder or one elsewhere, here or where the user's registry knows nothing of it."""
    path = files / "out" / "ledger.json" if own else files / "one.json"
    elsewhere = () if own else ("--ledger", "one.json")
    if not own:
        Ledger(2.0, 1e-4, path=path)
    assert sordino(*asked("select", "--out", "out", *elsewhere)).code == 0
    assert sordino("ledger", "out").code == 0
    old = path.read_bytes()
    ledger = TableLedger("table.csv", source_fingerprint("table.csv"), 2.0, 1e-4, path, files / "out").opened(
        files / "out"
    )
    ledger.spend(Gaussian(400.0), "one more look")
    path.write_bytes(old)
    if moved:
        monkeypatch.setenv("SORDINO_STATE", str(files / "another computer"))
    for words in (("ledger", "out"), ("ledger", "out", "--json")):
        refused = sordino(*words)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
        assert "is an old copy" in refused.err
