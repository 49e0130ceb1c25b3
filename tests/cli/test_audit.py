"""`sordino audit` on a run, on a run with canaries, on a recipe, and on what is neither."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.training import Run
from sordino.training.description import Description

SURE = ("--runs", 500, "--confidence", 0.9999)  # correct code must not fail here, and one in twenty would
KEYS = {"lower_bound", "confidence", "claimed_epsilon", "sound_epsilon", "verdict"}


def test_a_run_is_audited_under_its_own_plan(sordino: Callable[..., Any], finished_digits: Path) -> None:
    outcome = sordino("audit", finished_digits, *SURE, "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert set(found) >= KEYS
    assert found["verdict"] == found["sound_verdict"] == "consistent"
    assert 0 <= found["lower_bound"] < found["claimed_epsilon"] <= 3
    assert {finding["name"] for finding in found["findings"]} == {"sampler", "noise", "sensitivity", "ledger"}
    assert found["one_run_lower_bound"] is None


def test_a_run_with_canaries_says_so_and_is_audited_by_them(sordino: Callable[..., Any], tmp_path: Path) -> None:
    command = ("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--canaries", 300, "--out", tmp_path / "run")
    trained = sordino(*command, "--json")
    assert trained.code == 0, trained.err
    plan = Description.read(Run(tmp_path / "run")).plan
    assert trained.json["n"] == plan.sampler.n == 1437 + 300
    assert trained.json["canaries"] == 300
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["canaries"] == 300
    assert "300 synthetic canaries took part" in (tmp_path / "run" / "statement.txt").read_text()
    assert (tmp_path / "run" / "private" / "canaries.json").stat().st_mode & 0o777 == 0o600
    outcome = sordino("audit", tmp_path / "run", *SURE)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert any(line.startswith("this training ε ≥") and "300 canaries" in line for line in lines)
    assert lines[-1] == "verdict       consistent"


def test_a_ledger_that_says_less_than_the_plan_costs_is_violated(
    sordino: Callable[..., Any], finished_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_digits, tmp_path / "run")
    run = Run(tmp_path / "run")
    known = Description.read(run)
    quieter = {"noise_multiplier": known.plan.noise_multiplier / 2}
    plan = type(known.plan)(**{**vars(known.plan), **quieter})
    type(known)(**{**vars(known), "plan": plan}).write(run)
    found = sordino("audit", tmp_path / "run", *SURE, "--json").json
    assert found["verdict"] == "violated"
    assert [finding["name"] for finding in found["findings"] if not finding["passed"]] == ["ledger"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "cake"), "recipes: linear"),
        (("audit", "linear", "--runs", 10), "at least 100 runs"),
        (("audit", "linear", "--confidence", 1), "confidence"),
        (("audit", "linear", "--epsilon", -1), "positive"),
        (("audit", "linear", "--epsilon", 0), "positive"),
        (("audit", __file__), "not a file of sordino"),
        (("audit", Path(__file__).parent, "--epsilon", 1), "for recipes"),
        (("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--canaries", 1), "at least two"),
        (("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--canaries", -5), "canaries"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    sordino: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = sordino(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
