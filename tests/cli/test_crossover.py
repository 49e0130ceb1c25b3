"""`sordino crossover` as a user runs it: free by default, out of one ledger with --private."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sordino import selection
from sordino.budget import BudgetExceeded, Gaussian, Ledger
from sordino.data import source_fingerprint
from sordino.runs import TableLedger
from sordino.selection import crossover_measurement as measurement
from sordino.selection import table_models

SCHEMA = {
    "columns": {"age": {"bounds": [0, 100]}, "work": {"categories": ["a", "b", "c"]}},
    "target": {"rich": {"categories": ["no", "yes"]}},
}
BUDGET = ("--epsilon", 1, "--delta", 1e-5, "--target", "rich")
QUICK = ("--models", "logistic-numeric,linear", "--points", 2, "--repeats", 2)


def table(path: Path, rows: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    age, work = rng.uniform(0, 100, rows), rng.choice(list("abc"), rows)
    rich = np.where((age + 30 * (work == "a") + rng.normal(0, 10, rows)) > 60, "yes", "no")
    pd.DataFrame({"age": age, "work": work, "rich": rich, "secret": "do not read"}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    table(folder / "private.csv", 400, 0)
    table(folder / "public.csv", 300, 1)
    (folder / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    return folder


def test_free_on_made_up_rows(sordino: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    options = ("--schema", files / "schema.json", "--out", tmp_path / "out", *QUICK)
    answer = sordino("crossover", files / "private.csv", *BUDGET, *options, "--json").json
    assert (answer["n"], answer["spent"], answer["epsilon"]) == (400, False, 0.0)
    assert answer["parameters"] == {"logistic-numeric": 2, "linear": 10}
    assert "synthetic rows" in answer["measured_on"]
    assert np.shape(answer["accuracies"]["linear"]) == (2, 2)
    assert answer["epsilons"] == [0.01, 10.0]
    [found] = answer["crossovers"]
    assert (found["simple"], found["complex"]) == ("logistic-numeric", "linear")
    assert answer["best"] in answer["parameters"]
    assert json.loads((tmp_path / "out" / "crossover.json").read_text(encoding="utf-8")) == answer
    assert (tmp_path / "out" / "crossover.png").stat().st_size > 5000
    assert not (tmp_path / "out" / "ledger.json").exists()


def test_free_on_a_public_file_whose_schema_is_inferred(sordino: Callable[..., Any], files: Path) -> None:
    public = ("--public", files / "public.csv")
    outcome = sordino("crossover", files / "private.csv", *BUDGET, *public, *QUICK)
    assert outcome.code == 0
    assert "240 of 300 public rows, scored on 60 others" in outcome.out
    assert "crossover logistic-numeric → linear" in outcome.out
    assert outcome.out.endswith("ε of the whole workflow: 0. Of the private table only the number of rows was used.\n")


def test_private_spends_within_one_ledger_and_goes_on(
    sordino: Callable[..., Any], files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ("crossover", files / "private.csv", *BUDGET, "--schema", files / "schema.json", *QUICK, "--private")
    killed = iter([False] * 5 + [True])
    score = table_models.noisy_accuracy

    def scored(*arguments: Any) -> float:
        if next(killed, False):
            raise OSError("no space left on device")
        return score(*arguments)

    monkeypatch.setattr(table_models, "noisy_accuracy", scored)
    assert sordino(*command, "--out", out).code == 2
    before = {path.parent.name: path.read_bytes() for path in out.glob("*/score.json")}
    assert len(before) == 5
    answer = sordino(*command, "--out", out, "--json").json
    assert all((out / name / "score.json").read_bytes() == content for name, content in before.items())
    ledger = Ledger.open(out / "ledger.json")
    assert answer["spent"]
    assert answer["epsilon"] == ledger.epsilon()
    assert 0.9 < ledger.epsilon() <= 1  # the whole budget is used, and never more
    assert not ledger.adaptive
    # Two models at two ε, twice each: trained on one part, scored on the other, each paid for once.
    assert sorted(entry.part for entry in ledger.entries) == ["train"] * 8 + ["validation"] * 8
    assert len({entry.what for entry in ledger.entries}) == 16
    # One training alone costs less than what all of them together may.
    assert max(answer["epsilons"]) < 0.6
    again = sordino(*command, "--out", out, "--json").json
    assert again == answer
    other = sordino(*command, "--repeats", 3, "--out", out)
    assert (other.code, "other settings" in other.err) == (2, True)
    assert len(Ledger.open(out / "ledger.json").entries) == 16


def test_private_goes_on_with_a_ledger(sordino: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    path = tmp_path / "first" / "ledger.json"
    wanted = (files / "private.csv", *BUDGET, "--schema", files / "schema.json")
    assert sordino("select", *wanted, "--out", path.parent).code == 0
    command = ("crossover", *wanted, *QUICK, "--private")
    answer = sordino(*command, "--ledger", path, "--out", tmp_path / "out", "--json").json
    ledger = Ledger.open(path)
    assert answer["adaptive"]
    assert answer["epsilon"] == 1  # what a filter guarantees is its target
    assert ledger.epsilon() == answer["epsilon_drawn"] <= 1
    assert len(ledger.entries) == 17
    assert not (tmp_path / "out" / "ledger.json").exists()
    full = ("--ledger", path, "--out", tmp_path / "more")
    refused = sordino(*command, *full)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert len(Ledger.open(path).entries) == 17
    assert not (tmp_path / "more").exists()


def test_a_ledger_on_other_terms_is_told_of_nothing(sordino: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    Ledger(0.5, 1e-5, path=path)
    wanted = (files / "private.csv", *BUDGET, "--schema", files / "schema.json", *QUICK, "--private")
    refused = sordino("crossover", *wanted, "--ledger", path, "--out", tmp_path / "out")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "was opened at ε=0.5" in refused.err
    assert Ledger.open(path).plan == ()


def test_announcements_that_do_not_fit_together_are_all_refused(files: Path, tmp_path: Path) -> None:
    """Each fits alone: told of one by one, the ledger would keep the first."""
    path = tmp_path / "ledger.json"
    Ledger(1.0, 1e-5, path=path)
    account = TableLedger(
        str(files / "private.csv"), source_fingerprint(str(files / "private.csv")), 1.0, 1e-5, path, None
    )
    with pytest.raises(BudgetExceeded, match="Nothing was recorded"):
        account.opened(None, [(Gaussian(5.0), "one", "train"), (Gaussian(5.0), "two", "train")])
    assert Ledger.open(path).plan == ()


def test_free_and_private_measurements_are_of_as_many_records(
    sordino: Callable[..., Any], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    measure_on_proxy = measurement.measure_on_proxy

    def noted(models: Any, schema: Any, proxy: Any, n: int, *more: Any) -> Any:
        sizes.append(n)
        return measure_on_proxy(models, schema, proxy, n, *more)

    monkeypatch.setattr(selection, "measure_on_proxy", noted, raising=False)
    wanted = (files / "private.csv", *BUDGET, "--schema", files / "schema.json", *QUICK)
    assert sordino("crossover", *wanted).code == 0
    assert sizes == [320]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--models", "linear"), "at least two"),
        (("--models", "linear,forest"), "no model 'forest'"),
        (("--confidence", 1), "--confidence"),
        (("--points", 1), "points"),
        (("--repeats", 1), "repeats"),
        (("--epsilon", 0), "positive"),
        (("--epsilon", "nan"), "positive"),
        (("--delta", 2), "delta"),
        (("--target", "income"), "make them agree"),
        (("--ledger", "l.json"), "goes with --private"),
        (("--private",), "--out"),
        (("--schema", "missing.json"), "missing.json"),
        (("--public", "missing.csv"), "missing.csv"),
    ],
)
def test_bad_options(sordino: Callable[..., Any], files: Path, options: tuple[Any, ...], word: str) -> None:
    outcome = sordino("crossover", files / "private.csv", *BUDGET, "--schema", files / "schema.json", *options)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert word in outcome.err


def test_bad_files(sordino: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    table_without = tmp_path / "less.csv"
    table_without.write_text("age,rich\n1,no\n", encoding="utf-8")
    for command, word in (
        ((table_without, "--schema", files / "schema.json"), "lacks 'work'"),
        ((tmp_path / "none.csv", "--schema", files / "schema.json"), "none.csv"),
        ((files / "private.csv",), "domains are not read off private rows"),
    ):
        outcome = sordino("crossover", *command, *BUDGET)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert word in outcome.err
    regression = SCHEMA | {"target": {"rich": {"bounds": [0, 1]}}}
    (tmp_path / "numbers.json").write_text(json.dumps(regression), encoding="utf-8")
    outcome = sordino("crossover", files / "private.csv", *BUDGET, "--schema", tmp_path / "numbers.json")
    assert "is a number" in outcome.err


CONTENT = st.dictionaries(
    st.sampled_from(["epsilons", "models", "n", "repeats", "score_noise", "learning_rates"]),
    st.none() | st.integers() | st.lists(st.integers() | st.text(max_size=3), max_size=3) | st.just({"linear": 3}),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CONTENT)
@example({})
@example({"learning_rates": {"logistic-numeric": [1.0], "linear": [1.0, 1.0]}})
@example({"learning_rates": {"logistic-numeric": [1.0, 1.0]}})
@example({"n": 100, "learning_rates": {"logistic-numeric": [1.0, 1.0], "linear": [1.0, 1.0]}})
def test_damaged_measurements(
    sordino: Callable[..., Any], files: Path, tmp_path: Path, content: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    TableLedger(str(files / "private.csv"), source_fingerprint(str(files / "private.csv")), 1.0, 1e-5, None, out).bind(
        out
    )
    good = {"models": ["logistic-numeric", "linear"], "epsilons": [0.1, 0.2], "n": 320, "repeats": 2, "score_noise": 9}
    damaged = json.dumps(good | content) if content else ""
    (out / "measurement.json").write_text(damaged, encoding="utf-8")
    options = ("--schema", files / "schema.json", "--private", "--out", out)
    outcome = sordino("crossover", files / "private.csv", *BUDGET, *options)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "cannot be read" in outcome.err
    assert not (out / "ledger.json").exists()
