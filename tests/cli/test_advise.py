"""`sordino advise` as a user runs it: free by default, and carried out in one ledger."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.budget import Ledger
from sordino.selection import table_models

SCHEMA = {
    "columns": {
        "age": {"bounds": [0, 100]},
        "size": {"bounds": [0, 100]},
        "noise": {"bounds": [0, 100]},
        "code": {"categories": [f"code {number}" for number in range(300)]},  # too rare to stand above the noise
    },
    "target": {"rich": {"categories": ["no", "yes"]}},
}
BUDGET = ("--epsilon", 2, "--delta", 1e-5, "--target", "rich")


def table(path: Path, rows: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    numbers = {name: rng.uniform(0, 100, rows) for name in ("age", "size", "noise")}
    rich = np.where(numbers["age"] + 0.3 * numbers["size"] + rng.normal(0, 10, rows) > 65, "yes", "no")
    codes = [f"code {number}" for number in rng.integers(0, 300, rows)]
    pd.DataFrame({**numbers, "code": codes, "rich": rich}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    table(folder / "private.csv", 2000, 0)
    table(folder / "public.csv", 300, 1)
    (folder / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    return folder


@pytest.fixture
def advise(sordino: Callable[..., Any], files: Path) -> Callable[..., Any]:
    command = ("advise", files / "private.csv", *BUDGET, "--schema", files / "schema.json")
    return lambda *options: sordino(*command, *options)


def answers(outcome: Any) -> dict[str, Any]:
    return {each["question"]: each for each in outcome.json["answers"]}


def test_free_and_in_words(advise: Callable[..., Any]) -> None:
    outcome = advise()
    assert outcome.code == 0
    for word in (
        "public data",
        "How is ε divided?",
        "private CFS",
        "One-hot",
        "Which model?",
        "freeze",
        "learning rate",
    ):
        assert word in outcome.out
    assert outcome.out.endswith("ε of the whole workflow: 0. This advice is from public facts alone.\n")


def test_only_the_number_of_records_is_read(advise: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    """Other rows, as many: the same advice to the letter."""
    before = advise("--json").out
    content = (files / "private.csv").read_text(encoding="utf-8")
    try:
        nonsense = "\n".join(["age,size,noise,code,rich", *["not a number,?,?,?,?"] * 2000])
        (files / "private.csv").write_text(nonsense, encoding="utf-8")
        assert advise("--json").out == before
    finally:
        (files / "private.csv").write_text(content, encoding="utf-8")


def test_public_data_makes_choices_free(advise: Callable[..., Any], files: Path) -> None:
    without, found = answers(advise("--json")), answers(advise("--public", files / "public.csv", "--json"))
    assert without["Are features selected?"]["cost"] > 0
    assert found["Are features selected?"]["cost"] == 0
    assert found["How is ε divided?"]["numbers"]["shares"] == {"selection": 0.0, "tuning": 0.0, "training": 1.0}
    assert found["Is there public data like the private?"]["numbers"]["public_records"] == 300


def test_features_are_selected_on_public_rows_as_it_says(
    advise: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = advise("--public", files / "public.csv", "--carry-out", "--out", out, "--json")
    assert answers(found)["Are features selected?"]["answer"].startswith("Yes, by CFS-Greedy on the public records")
    result = found.json["result"]
    assert result["why_these"] == "CFS-Greedy on 300 public rows: free."
    assert "age" in result["features"]
    assert len(result["features"]) < 303
    assert [entry.what for entry in Ledger.open(out / "ledger.json").entries] == ["training", "final score"]
    kept = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    again = advise("--public", files / "public.csv", "--carry-out", "--out", out, "--json")
    assert again.json == found.json
    table(tmp_path / "other.csv", 300, 2)
    for public in ((), ("--public", tmp_path / "other.csv")):
        refused = advise(*public, "--carry-out", "--out", out)
        assert (refused.code, "another --public file, or without one" in refused.err) == (2, True), refused.err
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == kept


def test_carried_out_in_one_ledger_and_goes_on(
    advise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as broken:

        def fails(*_: Any) -> float:
            raise OSError("no space left on device")

        broken.setattr(table_models, "noisy_accuracy", fails)
        assert advise("--carry-out", "--out", out).code == 2
    selection = (out / "features.json").read_bytes()
    outcome = advise("--carry-out", "--out", out, "--json")
    assert (out / "features.json").read_bytes() == selection
    ledger = Ledger.open(out / "ledger.json")
    assert [(entry.what, entry.part) for entry in ledger.entries] == [
        ("feature selection", "train"),
        ("training", "train"),
        ("final score", "validation"),
    ]
    assert not ledger.adaptive
    assert outcome.json["epsilon"] == ledger.epsilon()
    assert 1.99 < ledger.epsilon() <= 2
    result = outcome.json["result"]
    assert "age" in result["features"]
    assert "noise" not in result["features"]
    assert result["accuracy"] > 0.8
    assert json.loads((out / "result.json").read_text(encoding="utf-8")).items() <= result.items()
    again = advise("--carry-out", "--out", out)
    assert len(Ledger.open(out / "ledger.json").entries) == 3
    assert "ε of the whole workflow: 2" in again.out or "ε of the whole workflow: 1.99" in again.out


def test_carried_out_without_selection_where_it_would_be_noise(
    sordino: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    command = ("advise", files / "private.csv", "--epsilon", 0.05, "--delta", 1e-5, "--target", "rich")
    options = ("--schema", files / "schema.json", "--carry-out", "--out", tmp_path / "out", "--json")
    outcome = sordino(*command, *options)
    ledger = Ledger.open(tmp_path / "out" / "ledger.json")
    assert [entry.what for entry in ledger.entries] == ["training", "final score"]
    assert outcome.json["epsilon"] <= 0.05
    assert "stand above the noise" in outcome.json["result"]["why_these"]


def test_a_selection_and_its_advice_share_a_ledger(
    advise: Callable[..., Any],
    sordino: Callable[..., Any],
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "first" / "ledger.json"
    wanted = (files / "private.csv", *BUDGET, "--schema", files / "schema.json")
    assert sordino("select", *wanted, "--share", 0.5, "--out", path.parent).code == 0
    out = tmp_path / "out"
    options = ("--carry-out", "--ledger", path, "--out", out)
    with monkeypatch.context() as broken:

        def fails(*_: Any) -> float:
            raise OSError("no space left on device")

        broken.setattr(table_models, "noisy_accuracy", fails)
        assert advise(*options).code == 2
    answer = advise(*options, "--json").json
    ledger = Ledger.open(path)
    assert [entry.part for entry in ledger.entries].count("validation") == 1
    assert not (out / "ledger.json").exists()
    assert (answer["epsilon"], answer["adaptive"]) == (2, True)
    assert 1.9 < answer["epsilon_drawn"] <= 2  # what was left is used
    assert 0.5 < answer["target_epsilon"] < 2  # and the advice is for that
    again = advise(*options, "--json").json
    assert again == answer
    assert len(Ledger.open(path).entries) == len(ledger.entries)
    told = sordino("predict", out, files / "public.csv", "--json").json["predictions"]
    assert len(told) == 300
    assert set(told) <= {"no", "yes"}
    resumed = sordino("resume", out)
    assert "to resume" in resumed.err
    (out / "advice.json").write_text("{}")
    damaged = advise(*options)
    assert (damaged.code, damaged.err.count("\n")) == (2, 1)
    assert "advice.json cannot be read" in damaged.err


def test_images_by_name(sordino: Callable[..., Any]) -> None:
    outcome = sordino("advise", "digits", "--epsilon", 1, "--delta", 1e-4, "--json")
    found = answers(outcome)
    assert found["Images: PCA or max-pooling?"]["numbers"]["width"] == 64
    assert "Are features selected?" not in found


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--epsilon", 0), "positive"),
        (("--epsilon", "inf"), "positive"),
        (("--delta", 0), "delta"),
        (("--carry-out",), "go together"),
        (("--out", "x"), "go together"),
        (("--ledger", "x"), "goes with --carry-out"),
        (("--target", "poor"), "make them agree"),
        (("--schema", "none.json"), "none.json"),
        (("--public", "none.csv"), "none.csv"),
    ],
)
def test_bad_options(advise: Callable[..., Any], options: tuple[Any, ...], word: str) -> None:
    outcome = advise(*options)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert word in outcome.err


def test_one_column_and_a_tiny_budget_get_advice_too(sordino: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA | {"columns": {"age": {"bounds": [0, 100]}}}), encoding="utf-8")
    command = ("advise", files / "private.csv", "--delta", 1e-5, "--target", "rich", "--schema", schema)
    assert answers(sordino(*command, "--epsilon", 1, "--json"))["Are features selected?"]["numbers"]
    assert "is impossible at so small an ε" in sordino(*command, "--epsilon", 1e-3).out


numbers = st.sampled_from(["0", "-1", "1e-300", "1e-9", "0.1", "3", "1e9", "1e300", "nan", "inf", ""])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers, numbers)
def test_any_budget(sordino: Callable[..., Any], files: Path, epsilon: str, delta: str) -> None:
    budget = ("--epsilon", epsilon, "--delta", delta, "--target", "rich", "--schema", files / "schema.json", "--json")
    outcome = sordino("advise", files / "private.csv", *budget)
    assert outcome.code in (0, 2)
    if outcome.code == 0:
        assert outcome.json["epsilon"] == 0
    else:
        assert outcome.err.splitlines()[-1].startswith("sordino: ")
