"""Formats are promises: what version 0.1.0 has left on disk opens, resumes and predicts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from sordino.budget import Ledger
from sordino.cli.main import run as command
from sordino.data import load
from sordino.runs import Run
from sordino.training import SGD, Plan, fit

OLD = Path(__file__).parent / "fixtures/version-0.1"
TABLE = ("--target", "c", "--schema", OLD / "schema.json", "--epsilon", "3", "--delta", "1e-3")
QUICK = ("--epochs", "1", "--mean-trials", "1", "--learning-rates", "0.5")


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an old folder."""

    def copied(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(OLD / name, folder)
        (folder / "private").chmod(0o700)
        return folder

    return copied


@pytest.fixture
def sordino(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command that must succeed, and what it prints."""

    def call(*arguments: object) -> str:
        with pytest.raises(SystemExit) as leaving:
            command([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert not leaving.value.code, printed.err
        return printed.out

    return call


@pytest.mark.parametrize("name", ["advise", "fit", "select", "train", "tune"])
def test_ledgers_open_and_state_the_same_epsilon(name: str, old: Callable[[str], Path], sordino: Any) -> None:
    folder = old(name)
    document = json.loads(sordino("ledger", folder, "--json"))
    assert document["epsilon"] == Ledger.open(folder / "ledger.json").statement()["epsilon"] <= 3
    if (folder / "statement.json").exists():
        before = json.loads((folder / "statement.json").read_text())["epsilon"]
        assert document["epsilon"] == pytest.approx(before, rel=1e-12)  # processors differ in the last digit


def test_a_finished_run_predicts(old: Callable[[str], Path], sordino: Any, tmp_path: Path) -> None:
    folder = old("train")
    np.save(tmp_path / "some.npy", load("digits").test.x)
    predicted = json.loads(sordino("predict", folder, tmp_path / "some.npy", "--json"))["predictions"]
    accuracy = np.mean(np.array(predicted).astype(int) == load("digits").test.y)
    assert accuracy == pytest.approx(json.loads((folder / "metrics.json").read_text())["test_accuracy"])


def test_a_killed_run_resumes(old: Callable[[str], Path], sordino: Any) -> None:
    folder = old("train-killed")
    charged = Ledger.open(folder / "ledger.json").entries[0].count
    result = json.loads(sordino("resume", folder, "--json"))
    [entry] = Ledger.open(folder / "ledger.json").entries
    assert 0 < charged < entry.count == entry.committed
    assert 0 < result["steps"] <= entry.count
    assert result["test_accuracy"] > 0.6
    assert not (folder / "private/key.json").exists()


@pytest.mark.parametrize("name", ["fit", "fit-killed"])
def test_fit_takes_an_old_folder(name: str, old: Callable[[str], Path]) -> None:
    run = Run.at(old(name))
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 5)).astype("float32")
    y = (x.sum(1) > 0).astype("int64")
    ledger = Ledger.open(run.ledger)
    plan = Plan.calibrated(n=400, expected_batch_size=40, epochs=4, l2_clip=1, target_epsilon=3, target_delta=1e-4)
    # Version 0.1 kept no plan, and on another processor the last digits of the noise are others.
    [entry] = ledger.entries
    assert plan.noise_multiplier == pytest.approx(entry.event.noise_multiplier, rel=1e-12)
    plan = replace(plan, noise_multiplier=entry.event.noise_multiplier)
    fitted = fit(
        plan,
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)),
        (x, y),
        optimiser=SGD(learning_rate=0.5, momentum=0.9),
        loss=nn.CrossEntropyLoss(reduction="none"),
        ledger=ledger,
        run=run,
        checkpoint_every=10,
    )
    assert fitted.steps == 40
    assert ledger.entries[0].count == 40
    assert run.model.exists()


@pytest.mark.parametrize("name", ["advise", "tune"])
def test_models_of_tables_predict(name: str, old: Callable[[str], Path], sordino: Any) -> None:
    predicted = sordino("predict", old(name), OLD / "table.csv").split()
    assert len(predicted) == 120
    assert set(predicted) <= {"no", "yes"}


def test_a_killed_search_resumes_and_predicts(old: Callable[[str], Path], sordino: Any) -> None:
    folder = old("search-killed")
    sordino("search", OLD / "table.csv", *TABLE, *QUICK, "--out", folder)
    assert len(sordino("predict", folder, OLD / "table.csv").split()) == 120


def test_killed_advice_resumes_and_predicts(old: Callable[[str], Path], sordino: Any) -> None:
    folder = old("advise-killed")
    weights = (folder / "model.safetensors").read_bytes()
    sordino("advise", OLD / "table.csv", *TABLE, "--carry-out", "--out", folder)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert len(sordino("predict", folder, OLD / "table.csv").split()) == 120


def test_a_selection_goes_into_the_next_command(old: Callable[[str], Path], sordino: Any, tmp_path: Path) -> None:
    folder = old("select")
    words = ("--target", "c", "--epsilon", "1", "--delta", "1e-3", "--ledger", folder, "--carry-out", "--json")
    printed = sordino(
        "advise", OLD / "table.csv", *words, "--schema", folder / "schema.json", "--out", tmp_path / "next"
    )
    assert 0.9 < json.loads(printed)["epsilon"] <= 1
