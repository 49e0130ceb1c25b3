"""`sordino select` on a small table: what it chooses, what it charges, and what it refuses in one line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.budget import Ledger
from sordino.data.schema import Schema

SCHEMA: dict[str, Any] = {
    "columns": {
        "copy": {"categories": ["no", "yes"]},
        "noise": {"categories": ["a", "b", "c"]},
        "number": {"bounds": [0, 100]},
    },
    "target": {"y": {"categories": ["0", "1"]}},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("table")
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 3000)
    rows = zip(
        np.where(y, "yes", "no"), generator.choice(list("abc"), 3000), 4 * y + generator.random(3000), y, strict=True
    )
    lines = ["copy,noise,number,y", *(",".join(map(str, row)) for row in rows)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    return folder / "table.csv", folder / "schema.json"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs/ may be made."""
    monkeypatch.chdir(tmp_path)


def wish(table: tuple[Path, Path], *more: object) -> tuple[object, ...]:
    return ("select", table[0], "--target", "y", "--epsilon", 2, "--delta", 1e-5, "--schema", table[1], *more)


def test_words_with_numbers(sordino: Callable[..., Any], table: tuple[Path, Path], tmp_path: Path) -> None:
    outcome = sordino(*wish(table, "--size", 2, "--share", 0.5))
    assert outcome.code == 0, outcome.err
    assert "2 of 6 features, by cfs-greedy:" in outcome.out
    assert "1. copy = " in outcome.out
    assert "1 of 3 columns depend on the target" in outcome.out  # all numbers fall into the first of ten bins
    assert "not because of noise" in outcome.out
    assert re.search(r"ε of the whole workflow: (1|0\.999\d) at δ=1e-05 \(pld\); remaining budget of ", outcome.out)
    # Even unasked for there is a ledger, so that what was spent counts in the next command, too.
    [run] = (tmp_path / "runs").iterdir()
    assert outcome.out.endswith(f"--schema {run / 'schema.json'} --ledger {run / 'ledger.json'}\n")
    assert [entry.what for entry in Ledger.open(run / "ledger.json").entries] == ["feature selection"]


def test_one_ledger_goes_through_several_commands(
    sordino: Callable[..., Any], table: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = sordino(*wish(table, "--out", out, "--method", "cfs-ga", "--private-bounds", 0.1, "--json")).json
    assert any(name.startswith("copy") for name in first["features"])
    assert first["columns"][0] == "copy"
    assert sum(first["mask"]) == len(first["features"])
    assert 0.49 < first["epsilon"] <= 0.5
    assert not first["adaptive"]
    assert json.loads((out / "selection.json").read_text()) == first
    assert [column.name for column in Schema.read(first["schema"]).columns] == first["columns"]
    ledger = Ledger.open(out / "ledger.json")
    assert [entry.what for entry in ledger.entries] == ["bounds of columns", "feature selection"]
    assert {entry.part for entry in ledger.entries} == {"train"}
    again = sordino(*wish(table, "--ledger", out, "--out", "next", "--json")).json  # its folder will do
    assert json.loads(Path("next/selection.json").read_text()) == again
    # What a next command may spend is what a filter leaves of the first, which is less than ε says of it alone.
    assert first["remaining"] < 1.5
    assert again["adaptive"]
    assert again["epsilon"] == 2  # what a filter guarantees is its target
    assert 0.5 < again["epsilon_drawn"] < 2
    assert len(Ledger.open(out / "ledger.json").entries) == 3


def test_bounds_that_were_paid_for_are_kept(sordino: Callable[..., Any], table: tuple[Path, Path]) -> None:
    found = sordino(*wish(table, "--size", 6, "--private-bounds", 0.5, "--out", "run", "--json")).json
    bounds = {column.name: column.bounds for column in Schema.read(found["schema"]).columns}["number"]
    wide = SCHEMA["columns"]["number"]["bounds"]
    assert bounds is not None
    assert wide[0] <= bounds[0] < bounds[1] < wide[1]
    after = sordino("advise", *wish(table)[1:-1], found["schema"], "--ledger", "run", "--carry-out", "--out", "model")
    assert after.code == 0, after.err


def test_pafs_charges_both_parts(sordino: Callable[..., Any], table: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--method", "pafs", "--trials", 12, "--share", 1, "--out", out, "--json")
    answer = sordino(*wish(table, *options)).json
    assert 0 < answer["trials"] <= 12
    assert answer["score"] > 0.6
    assert 1.99 < answer["epsilon"] <= 2
    assert [entry.part for entry in Ledger.open(out / "ledger.json").entries] == ["train", "validation"]


def test_a_random_subset_costs_nothing(sordino: Callable[..., Any], table: tuple[Path, Path]) -> None:
    outcome = sordino(*wish(table, "--method", "random", "--size", 3))
    assert "3 of 6 features" in outcome.out
    assert "ε of the whole workflow: 0 at" in outcome.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--size", 7), "1 to 6 features"),
        (("--size", 0), "1 to 6 features"),
        (("--method", "cfs-ga", "--size", 2), "finds its own"),
        (("--method", "random"), "needs --size"),
        (("--method", "pafs", "--trials", 1), "at least 2 trials"),
        (("--method", "pafs", "--private-bounds", 1), "goes with cfs"),
        (("--method", "magic"), "magic"),
        (("--share", 0), "--share"),
        (("--share", "nan"), "--share"),
        (("--private-bounds", 0), "--private-bounds is the ε of the bounds"),
        (("--private-bounds", 5), "nothing is left for the tables"),
        (("--ledger", "absent.json"), "absent.json"),
        (("--target", "z"), "target"),
        (("--epsilon", 0), "ε"),
        (("--epsilon", 1e-12), "is below δ=1e-05"),
        (("--delta", 2), "delta"),
    ],
)
def test_bad_wishes_get_one_line(
    sordino: Callable[..., Any], table: tuple[Path, Path], options: Any, words: str
) -> None:
    outcome = sordino(*wish(table, *options))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert words in outcome.err
    assert not Path("runs").exists()


def test_what_is_refused_leaves_no_folder(
    sordino: Callable[..., Any], table: tuple[Path, Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(table[0].read_text() + "yes,s3cret,1,0\n")
    outcome = sordino(*wish((bad, table[1]), "--out", tmp_path / "run"))
    assert outcome.code == 2
    assert "row 3001, column 'noise'" in outcome.err
    assert "s3cret" not in outcome.err
    bad.write_text("copy,noise,number,y\nyes,a,1,0\n")
    assert "too few" in sordino(*wish((bad, table[1]), "--out", tmp_path / "run")).err
    assert not (tmp_path / "run").exists()


def test_a_column_of_many_categories_is_refused_before_anything_is_charged(
    sordino: Callable[..., Any], table: tuple[Path, Path], tmp_path: Path
) -> None:
    words = [f"z{i}" for i in range(300_000)]
    columns = {"noise": {"categories": ["a", "b", "c", *words]}, "number": {"bounds": [0, 100]}}
    (tmp_path / "wide.json").write_text(json.dumps({"columns": columns, "target": SCHEMA["target"]}))
    outcome = sordino(*wish((table[0], tmp_path / "wide.json"), "--out", tmp_path / "run"))
    assert outcome.code == 2
    assert "column 'noise' has 300,003 categories; merge its categories" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
