"""`sordino audit` on a run, on a run with canaries, on a recipe, and on what is neither."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.audit import SI_MNIST, auditing
from sordino.budget import Ledger, marks
from sordino.data.samplers import PoissonSampler
from sordino.runs import Run
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
    assert {finding["name"] for finding in found["findings"]} == {
        *("weights", "charge", "sampler", "noise", "keys", "sensitivity", "ledger")
    }
    assert found["one_run_lower_bound"] is None
    assert sum("in the audit's own folder" in finding["seen"] for finding in found["findings"]) == 2


def test_a_run_whose_own_weights_were_altered_is_refused(
    sordino: Callable[..., Any], finished_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_digits, tmp_path / "run")
    run = Run(tmp_path / "run")
    content = bytearray(run.model.read_bytes())
    content[-1] ^= 1
    run.model.write_bytes(content)
    outcome = sordino("audit", run.folder, *SURE)
    assert (outcome.code, outcome.out) == (2, "")
    assert "model.safetensors is damaged" in outcome.err
    shutil.copy(run.model, run.checkpoint)
    shutil.copy(finished_digits / "model.safetensors", run.model)
    outcome = sordino("audit", run.folder, *SURE)
    assert (outcome.code, outcome.out) == (2, "")
    assert "checkpoint.safetensors is damaged" in outcome.err
    run.model.unlink()
    run.checkpoint.unlink()
    outcome = sordino("audit", run.folder, *SURE)
    assert (outcome.code, outcome.out) == (2, "")
    assert "model.safetensors is missing" in outcome.err


def test_a_run_with_canaries_says_so_and_is_audited_by_them(
    sordino: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--canaries", 300, "--out", tmp_path / "run")
    trained = sordino(*command, "--json")
    assert trained.code == 0, trained.err
    plan = Description.read(Run(tmp_path / "run")).plan
    assert trained.json["n"] == plan.sampler.n == 1437 + 300
    assert trained.json["canaries"] == 300
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["canaries"] == 300
    assert "300 synthetic canaries took part" in (tmp_path / "run" / "statement.txt").read_text()
    assert (tmp_path / "run" / "private" / "canaries.json").stat().st_mode & 0o777 == 0o600
    levels, bound = [], auditing.one_run_lower_bound
    monkeypatch.setattr(auditing, "one_run_lower_bound", lambda *ways: levels.append(1 - ways[-1]) or bound(*ways))
    outcome = sordino("audit", tmp_path / "run", *SURE)
    assert outcome.code == 0, outcome.err
    assert levels == [pytest.approx(2e-5)]
    lines = outcome.out.splitlines()
    assert any(line.startswith("this training ε ≥") and "300 canaries" in line for line in lines)
    assert "with 99.998 % confidence" in outcome.out
    assert lines[-2:] == ["verdict       sound ε: consistent", "verdict       claimed ε: consistent"]
    (tmp_path / "run" / "private" / "canaries.json").unlink()
    outcome = sordino("audit", tmp_path / "run", *SURE)
    assert outcome.code == 0, outcome.err
    assert "note: " in outcome.out
    assert "lost its canaries" in outcome.out


def test_a_run_at_a_sample_rate_of_one_is_audited(sordino: Callable[..., Any], tmp_path: Path) -> None:
    command = ("train", "breast-cancer", "--epsilon", 3, "--delta", 1e-3, "--out", tmp_path / "run", "--json")
    trained = sordino(*command)
    assert trained.code == 0, trained.err
    assert trained.json["sample_rate"] == 1
    outcome = sordino("audit", tmp_path / "run", *SURE)
    assert outcome.code == 0, outcome.err


def test_too_many_canaries_are_refused_before_there_is_a_folder(sordino: Callable[..., Any], tmp_path: Path) -> None:
    command = ("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--canaries", 10**6, "--out", tmp_path / "run")
    outcome = sordino(*command, "--recipe", "linear")
    assert (outcome.code, outcome.out) == (2, "")
    assert "ask for fewer" in outcome.err
    assert not (tmp_path / "run").exists()


def test_weight_distributions_as_the_paper_has_them(
    sordino: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With fewer steps, which are enough: a claim that falls leaves the exit code at 0."""
    monkeypatch.chdir(tmp_path)
    fewer = replace(SI_MNIST, sampler=PoissonSampler(600, 32), steps=200)
    monkeypatch.setattr(sys.modules["sordino.audit"], "SI_MNIST", fewer)
    outcome = sordino("audit", "si-mnist", "--confidence", 0.9999)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-2:] == ["verdict       sound ε: consistent", "verdict       claimed ε: violated"]
    assert f"last weights  ε ≥ {fewer.final_epsilon(1e-5):.4g}" in outcome.out
    assert "from 1,875 trials" in outcome.out


def test_a_ledger_that_says_less_than_the_plan_costs_is_violated(
    sordino: Callable[..., Any], finished_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_digits, tmp_path / "run")
    run = Run(tmp_path / "run")
    known = Description.read(run)
    quieter = {"noise_multiplier": known.plan.noise_multiplier / 2}
    plan = type(known.plan)(**{**vars(known.plan), **quieter})
    type(known)(**{**vars(known), "plan": plan}).write(run)
    outcome = sordino("audit", tmp_path / "run", *SURE, "--json")
    assert outcome.code == 1
    assert outcome.json["verdict"] == outcome.json["sound_verdict"] == "violated"
    assert [finding["name"] for finding in outcome.json["findings"] if not finding["passed"]] == ["ledger"]
    outcome = sordino("audit", tmp_path / "run", *SURE)
    assert outcome.code == 1
    assert "ledger: FAILED, p=0 is below 2.9e-06 (" in outcome.out


def test_an_old_copy_of_a_ledger_is_not_audited(
    sordino: Callable[..., Any], finished_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_digits, tmp_path / "run")
    mark = Ledger.open(tmp_path / "run" / "ledger.json")._mark()
    marks.note(tmp_path / "run" / "private" / "ledger.mark.json", replace(mark, entries=mark.entries + 1))
    outcome = sordino("audit", tmp_path / "run", *SURE)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "is an old copy" in outcome.err


def test_a_ledger_without_a_bound_promises_nothing_that_could_be_violated(
    sordino: Callable[..., Any], finished_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "statement", lambda self: {"epsilon": "infinity"})
    outcome = sordino("audit", finished_digits, *SURE)
    assert outcome.code == 0, outcome.err
    assert "the ledger states ε=infinity" in outcome.out


def test_a_ledger_that_states_nothing_of_a_finished_run_is_violated(
    sordino: Callable[..., Any], finished_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "statement", lambda self: {"epsilon": None})
    outcome = sordino("audit", finished_digits, *SURE)
    assert outcome.code == 1
    assert "the ledger states no ε, the plan costs" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "cake"), "recipes: linear"),
        (("audit", "linear", "--runs", 10), "at least 100 runs"),
        (("audit", "linear", "--runs", 10**11), "at most"),
        (("audit", "si-mnist", "--epsilon", 1), "have their own"),
        (("audit", "linear", "--confidence", 1), "confidence"),
        (("audit", "linear", "--epsilon", -1), "positive"),
        (("audit", "linear", "--epsilon", 0), "positive"),
        (("audit", __file__), "is not a run of sordino: it has no run.json"),
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
