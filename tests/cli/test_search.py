"""`sordino search` and `sordino tune` on small data, and one line for what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from sordino.budget import Ledger
from sordino.data import load
from sordino.selection import tune

QUICK = ("--epsilon", 3, "--delta", 1e-3, "--epochs", 1, "--mean-trials", 1)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    generator = np.random.default_rng(0)
    rows = generator.uniform(0, 1, (120, 2))
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rows]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c", *lines]) + "\n")
    columns = {name: {"bounds": [0, 1]} for name in "ab"}
    domains = {"columns": columns, "target": {"c": {"categories": ["no", "yes"]}}}
    (tmp_path / "schema.json").write_text(json.dumps(domains))
    return tmp_path / "table.csv", tmp_path / "schema.json"


def test_a_search_of_a_table_ends_with_the_epsilon_of_one_ledger(sordino, table, tmp_path) -> None:
    file, schema = table
    out = tmp_path / "out"
    words = ("search", file, "--target", "c", "--schema", schema, *QUICK, "--out", out, "--learning-rates", "0.5")
    told = sordino(*words)
    assert told.code == 0, told.err
    assert "ε of the whole workflow: 3 at δ=0.001" in told.out
    again = sordino(*words, "--json")
    assert again.json["epsilon"] == Ledger.open(out / "ledger.json").cost(reserved=True).epsilon
    assert again.json["test_accuracy"] is None
    assert sordino("ledger", out).code == 0
    other = sordino(*words, "--freeze", "--clip", 2)
    assert (other.code, "other settings" in other.err) == (2, True)


def test_genetic_trials_are_shown_as_they_finish(sordino, table, tmp_path) -> None:
    file, schema = table
    told = sordino(
        *("search", file, "--schema", schema, *QUICK, "--method", "paas", "--generations", 1, "--population", 2),
        *("--out", tmp_path / "out", "--learning-rates", "0.5"),
    )
    assert told.code == 0, told.err
    assert told.err.count("learning rate 0.5: ") == 2


def test_tuning_with_a_public_table_costs_one_training(sordino, table, tmp_path) -> None:
    file, _ = table
    public = tmp_path / "public.csv"
    public.write_text(file.read_text().partition("\n")[0] + "\n" + "0.01,0.99,no\n0.99,0.01,yes\n" * 30)
    told = sordino(
        *("tune", file, "--target", "c", "--public", public, *QUICK, "--out", tmp_path / "out", "--json"),
        *("--learning-rates", "0.5,1", "--clips", "1"),
    )
    assert told.code == 0, told.err
    assert "linear, learning rate 0.5, clip 1: " in told.err
    assert "linear, learning rate 1, clip 1: " in told.err
    assert told.json["candidate"]["layers"] == []
    assert told.json["epsilon"] == pytest.approx(told.json["epsilon_of_one_training"], rel=1e-2)


def test_the_command_and_the_function_are_one_search(sordino, table, tmp_path) -> None:
    file, schema = table
    out = tmp_path / "out"
    options = ("--epochs", 1, "--mean-trials", 1, "--learning-rates", "0.5", "--clips", "1", "--score-epsilon", 1)
    words = ("tune", file, "--target", "c", "--schema", schema, *QUICK, *options, "--out", out, "--json")
    shown = sordino(*words)
    assert shown.code == 0, shown.err
    again = tune(
        file,
        epsilon=3,
        delta=1e-3,
        target="c",
        schema=schema,
        learning_rates=[0.5],
        clips=[1.0],
        mean_trials=1.0,
        epochs=1.0,
        score_epsilon=1.0,
        out=out,
    )
    assert json.loads(json.dumps(again)) == shown.json


def test_a_ledger_goes_on(sordino, table, tmp_path) -> None:
    file, schema = table
    path = tmp_path / "ledger.json"
    Ledger(3.0, 1e-3, path=path)
    words = ("tune", file, "--schema", schema, *QUICK, "--ledger", path, "--out", tmp_path / "out")
    assert sordino(*words, "--clips", "1").code == 0
    assert {entry.part for entry in Ledger.open(path).entries} == {"train", "validation"}
    wrong = sordino(
        "tune", file, "--schema", schema, "--epsilon", 2, "--delta", 1e-3, "--ledger", path, "--out", tmp_path / "b"
    )
    assert (wrong.code, "was opened at" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("search", "nowhere"), "neither a file nor a named dataset"),
        (("search", "digits", "--learning-rates", "fast"), "positive numbers"),
        (("search", "digits", "--mean-trials", 0.5), "mean number of trials"),
        (("search", "digits", "--method", "guess"), "guess"),
        (("search", "digits", "--ray", "ray://nowhere:1", "--workers", 0), "workers"),
        (("tune", "digits", "--hidden", "1.5"), "whole numbers"),
        (("search", "medical-cost"), "regression"),
        (("search", "digits", "--score-epsilon", 0), "positive finite"),
        (("search", "digits", "--score-epsilon", 50), "Nothing was recorded"),
        (("search", "digits", "--score-epsilon", "nan"), "positive finite"),
        (("search", "digits", "--seed", -1), "seed"),
        (("search", "digits", "--delta", -1e-5), "delta"),
        (("search", "digits", "--epsilon", -1), "ε"),
        (("search", "digits", "--space", "cnn"), "not images large enough"),
        (("search", "digits", "--clip", -1), "clip"),
        (("search", "digits", "--batch", 10**6), "batch"),
        (("tune", "digits", "--hidden", 1e8), "parameters"),
        (("tune", "digits", "--hidden", "64,100000000,64"), "parameters"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(sordino, words, says, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = tmp_path / "ledger.json"
    Ledger(3.0, 1e-4, path=ledger)
    before = ledger.read_bytes()
    for options in ((), ("--out", "out"), ("--ledger", ledger)):
        told = sordino(words[0], words[1], "--epsilon", 3, "--delta", 1e-4, *words[2:], *options)
        assert (told.code, told.err.strip().count("\n")) == (2, 0)
        assert says in told.err
    assert ledger.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {"ledger.json", "ledger.json.lock"}


def test_a_network_that_the_table_cannot_have_is_refused_before_it_is_paid_for(sordino, table, tmp_path) -> None:
    file, schema = table
    path = tmp_path / "ledger.json"
    Ledger(3.0, 1e-3, path=path)
    told = sordino("search", file, "--schema", schema, *QUICK, "--space", "cnn", "--ledger", path)
    assert (told.code, told.err.count("\n")) == (2, 1)
    assert "not images large enough" in told.err
    assert (Ledger.open(path).plan, Ledger.open(path).entries) == ((), ())


def test_a_model_that_was_searched_for_can_be_used(sordino, table, tmp_path) -> None:
    file, schema = table
    out = tmp_path / "out"
    wanted = ("--epsilon", 50, "--delta", 1e-3, "--epochs", 20, "--mean-trials", 1)
    words = ("tune", file, "--schema", schema, *wanted, "--clips", "1", "--learning-rates", "4", "--out", out)
    assert sordino(*words).code == 0
    rows = tmp_path / "rows.csv"  # in another order, with another column, and without the target
    rows.write_text("b,other,a\n0.05,x,0.95\n0.95,y,0.05\n")
    assert sordino("predict", out, rows).out.split() == ["yes", "no"]
    assert sordino("predict", out, rows, "--json").json == {"run": str(out), "predictions": ["yes", "no"]}
    rows.write_text("a\n0.05\n")
    for wrong, says in (
        (("predict", out, rows), "lacks the column 'b'"),
        (("resume", out), "to resume"),
    ):
        told = sordino(*wrong)
        assert (told.code, told.err.count("\n")) == (2, 1)
        assert says in told.err
    for name, content, says in (
        ("model.safetensors", b"", "cannot be read"),
        ("search.json", b"{}", "cannot be read"),
        ("search.json", None, "not finished"),
        ("workflow.json", b"[]", "cannot be read"),
    ):
        (out / name).unlink() if content is None else (out / name).write_bytes(content)
        told = sordino("predict", out, file)
        assert (told.code, told.err.count("\n")) == (2, 1)
        assert says in told.err


def test_a_network_for_images_that_was_searched_for_can_be_used(sordino, tmp_path) -> None:
    words = ("tune", "digits", "--epsilon", 50, "--delta", 1e-5, "--epochs", 5, "--mean-trials", 1, "--hidden", 32)
    chosen = sordino(*words, "--clips", "1", "--learning-rates", "2", "--out", tmp_path / "out", "--json").json
    test = load("digits").test
    np.save(tmp_path / "x.npy", test.x)
    found = sordino("predict", tmp_path / "out", tmp_path / "x.npy").out.split()
    right = [int(word) == label for word, label in zip(found, test.y, strict=True)]
    assert np.mean(right) == pytest.approx(chosen["test_accuracy"])
    assert np.mean(right) > 0.5


def test_a_file_may_be_called_like_a_dataset(sordino, table, tmp_path, monkeypatch) -> None:
    """All commands then take the file, so that they share a ledger about the same records."""
    from sordino.data import is_named

    monkeypatch.chdir(tmp_path)
    assert is_named("digits")
    (tmp_path / "digits").write_text("not a table")
    assert not is_named("digits")
    told = sordino("search", "digits", "--schema", table[1], *QUICK)
    assert (told.code, "digits is not a table" in told.err) == (2, True)
