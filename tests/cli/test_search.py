"""`sordino search` and `sordino tune` on small data, and one line for what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from sordino.budget import Ledger

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
    assert "linear, learning rate 0.5: " in told.err
    assert "linear, learning rate 1: " in told.err
    assert told.json["candidate"]["layers"] == []
    assert told.json["epsilon"] == pytest.approx(told.json["epsilon_of_one_training"], rel=1e-2)


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
    ],
)
def test_bad_input_is_one_line(sordino, words, says, tmp_path) -> None:
    told = sordino(*words, "--epsilon", 3, "--delta", 1e-4, "--out", tmp_path / "out")
    assert told.code == 2
    assert says in told.err
    assert told.err.strip().count("\n") == 0
