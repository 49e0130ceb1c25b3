"""Train, resume, predict and ledger, on small real data."""

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sordino.budget import Ledger
from sordino.data import load
from sordino.runs import Run
from sordino.training import SGD
from sordino.training.description import Description
from sordino.training.recipes import BEST, RECIPES

TRAIN = ("train", "digits", "--epsilon", 3, "--delta", 1e-4)


def test_train_prints_one_json_object_and_keeps_the_rest_aside(sordino: Callable[..., Any], tmp_path: Path) -> None:
    outcome = sordino(*TRAIN, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0
    result = outcome.json
    assert {"test_accuracy", "epsilon", "delta", "n", "recipe", "accountant", "run"} <= set(result)
    assert 2.99 < result["epsilon"] <= 3
    assert result["test_accuracy"] > 0.6
    assert result["n"] == len(load("digits").train)
    assert "features of" in outcome.err


def test_train_ends_with_accuracy_statement_and_folder(sordino: Callable[..., Any], tmp_path: Path) -> None:
    outcome = sordino(*TRAIN, "--out", tmp_path / "run", "--seed", 4)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith("test accuracy")
    assert "PRIVACY STATEMENT" in lines
    assert lines[-1] == f"run: {tmp_path / 'run'}"
    assert "it can be predicted, so nothing here is private" in outcome.out


def test_exact_training_says_so_and_predicts(sordino: Callable[..., Any], tmp_path: Path) -> None:
    outcome = sordino(*TRAIN, "--exact", "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["exact"]
    assert outcome.json["test_accuracy"] > 0.6
    assert 2.99 < outcome.json["epsilon"] <= 3
    assert Description.read(Run(tmp_path / "run")).plan.exact
    assert "Note: exact: clipped sums in double precision" in (tmp_path / "run" / "statement.txt").read_text()
    np.save(tmp_path / "some.npy", load("digits").test.x[:40])
    predicted = sordino("predict", tmp_path / "run", tmp_path / "some.npy", "--json").json["predictions"]
    assert np.mean(np.array(predicted).astype(int) == load("digits").test.y[:40]) > 0.5
    command = ("train", "mnist-5k", "--epsilon", 3, "--delta", 1e-5, "--recipe", "weight-distributions", "--exact")
    refused = sordino(*command, "--out", tmp_path / "other")
    assert refused.code == 2
    assert "exact noise is for noisy gradients" in refused.err
    assert not (tmp_path / "other").exists()


def test_a_finished_run_has_everything_but_its_key(finished_run: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished_run
    names = {path.name for path in folder.iterdir()}
    assert {"run.json", "ledger.json", "metrics.json", "model.safetensors", "statement.json", "statement.txt"} <= names
    assert "checkpoint.safetensors" not in names
    assert {path.name for path in (folder / "private").iterdir()} <= {"lock", "ledger.mark.json"}
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert json.loads((folder / "metrics.json").read_text())["test_accuracy"] == result["test_accuracy"]
    ledger = Ledger.open(folder / "ledger.json")
    assert ledger.epsilon() == result["epsilon"]
    assert ledger.entries[0].count == ledger.entries[0].committed == result["steps"]
    assert not ledger.adaptive


def test_predict_agrees_with_the_reported_accuracy(
    sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, result = finished_run
    test = load("digits").test
    np.save(tmp_path / "x.npy", test.x)
    outcome = sordino("predict", folder, tmp_path / "x.npy")
    assert outcome.code == 0
    predicted = np.array([int(line) for line in outcome.out.split()])
    assert np.mean(predicted == test.y) == result["test_accuracy"]
    as_json = sordino("predict", folder, tmp_path / "x.npy", "--json").json
    assert [int(name) for name in as_json["predictions"]] == predicted.tolist()


def test_predict_refuses_weights_that_were_altered(
    sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(finished_run[0], tmp_path / "run")
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + bytes([weights.read_bytes()[-1] ^ 0x40]))
    np.save(tmp_path / "x.npy", load("digits").test.x)
    outcome = sordino("predict", tmp_path / "run", tmp_path / "x.npy")
    assert outcome.code == 2
    assert "altered after it was written" in outcome.err


def test_predict_takes_one_picture_in_colour_or_grey(
    sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    digit = load("digits").test.x[0]
    Image.fromarray(digit).save(tmp_path / "grey.png")
    Image.fromarray(np.stack([digit] * 3, axis=2)).save(tmp_path / "colour.png")
    grey, colour = (sordino("predict", finished_run[0], tmp_path / f"{name}.png").out for name in ("grey", "colour"))
    assert grey == colour
    assert grey.strip() in set("0123456789")


def test_ledger_shows_the_statement(sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]]) -> None:
    outcome = sordino("ledger", finished_run[0])
    assert outcome.code == 0
    assert "differentially private for" in outcome.out
    as_json = sordino("ledger", finished_run[0] / "ledger.json", "--json").json
    assert as_json["epsilon"] == finished_run[1]["epsilon"]
    assert as_json["entries"][0]["what"] == "training"


def test_a_finished_run_is_not_trained_again(
    sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]]
) -> None:
    for arguments in ((*TRAIN, "--out", finished_run[0]), ("resume", finished_run[0])):
        outcome = sordino(*arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert "is finished" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "digits", "--epsilon", 3), "--delta"),
        (("train", "digits", "--epsilon", 0, "--delta", 1e-4), "positive"),
        (("train", "digits", "--epsilon", "nan", "--delta", 1e-4), "positive"),
        (("train", "digits", "--epsilon", 3, "--delta", 1), "between 0 and 1"),
        (("train", "digits", "--epsilon", 3, "--delta", "x"), "valid number"),
        (("train", "no-such-data", "--epsilon", 3, "--delta", 1e-4), "no-such-data"),
        (("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--recipe", "cake"), "recipes: best, linear"),
        (("train", "sms-spam", "--epsilon", 3, "--delta", 1e-4), "no recipe"),
        (("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--out", __file__), "choose another folder"),
        (("predict", "nowhere", __file__), "there is no folder"),
        (("ledger", "nowhere"), "no ledger"),
        (("resume", "nowhere"), "there is no folder"),
        (("data", "path", "purchase-100"), "data get purchase-100"),
        (("dance",), "No such command"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    sordino: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = sordino(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("sordino: ")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert not (tmp_path / "runs").exists()


def test_wrong_examples_get_one_line(
    sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    for name, content in (
        ("a.npy", np.zeros((2, 9, 11), np.uint8)),
        ("b.npy", np.zeros((2, 3))),
        ("c.npy", np.ones(4)),
    ):
        np.save(tmp_path / name, content)
        outcome = sordino("predict", finished_run[0], tmp_path / name)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def test_a_table_is_sent_to_the_commands_for_tables(sordino: Callable[..., Any]) -> None:
    refused = sordino("train", "my.csv", "--epsilon", 1, "--delta", 1e-5)
    assert (refused.code, "`sordino tune`" in refused.err, refused.err.count("\n")) == (2, True, 1)


def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from sordino.cli.main import run; run()"]

    def heed_the_signal() -> None:  # which a process started in the background is born to ignore
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def interrupted(folder: str) -> tuple[int, str]:
        arguments = ["train", "digits", "--epsilon", "3", "--delta", "1e-4", "--out", folder]
        with subprocess.Popen(
            [*command, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heed_the_signal
        ) as process:
            deadline = time.monotonic() + 60
            while not (tmp_path / folder / "private" / "lock").exists() and time.monotonic() < deadline:
                time.sleep(0.005)
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=60)[1]
        return process.returncode, errors

    for folder in ("first", "second", "third", "fourth"):
        code, errors = interrupted(folder)
        if code != 0:  # else it was finished first, as so short a training may be on a busy machine
            break
    assert code == 130
    assert f"run folder: {folder}" in errors
    assert errors.splitlines()[-1].startswith("sordino: stopped")
    resumed = subprocess.run([*command, "resume", folder], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "test accuracy" in resumed.stdout


def test_a_training_that_diverges_is_one_line_and_leaves_no_key(
    sordino: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SGD, "step", lambda self, parameters, *_: [value.fill_(np.nan) for value in parameters.values()]
    )
    for words in ("training diverged", "use another folder"):
        outcome = sordino(*TRAIN, "--out", tmp_path / "run")
        assert outcome.code == 2
        assert words in outcome.err.splitlines()[-1]
        assert {path.name for path in (tmp_path / "run" / "private").iterdir()} <= {"lock", "ledger.mark.json"}


def test_resuming_with_another_budget_is_refused(
    sordino: Callable[..., Any], finished_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(finished_run[0], tmp_path / "run")
    run = Run(tmp_path / "run")
    replace(Description.read(run), status="training").write(run)
    outcome = sordino("train", "digits", "--epsilon", 2, "--delta", 1e-4, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "another plan (epsilon was 3.0, not 2.0)" in outcome.err
    (tmp_path / "run" / "ledger.json").unlink()
    outcome = sordino("resume", tmp_path / "run")
    assert outcome.code == 2
    assert "what they cost is lost" in outcome.err


def test_scattering_with_private_normalisation_is_one_budget(
    sordino: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = ("train", "mnist-5k", "--epsilon", 3, "--delta", 1e-5, "--recipe", "scatter-linear", "--seed", 1)
    outcome = sordino(*command, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["test_accuracy"] > 0.8
    ledger = Ledger.open(tmp_path / "run" / "ledger.json")
    assert [entry.what for entry in ledger.entries] == ["normalisation", "training"]
    assert 2.99 < ledger.epsilon() == outcome.json["epsilon"] <= 3
    assert not ledger.adaptive
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 2  # features of both parts, kept for next time
    np.save(tmp_path / "some.npy", load("mnist-5k").test.x[:20])
    predicted = sordino("predict", tmp_path / "run", tmp_path / "some.npy", "--json").json["predictions"]
    truth = load("mnist-5k").test.y[:20]
    assert np.mean([int(word) == label for word, label in zip(predicted, truth, strict=True)]) >= 0.7


def test_recipes_for_other_images_say_so(sordino: Callable[..., Any]) -> None:
    for command, words in (
        (("digits", "--recipe", "cnn"), "28×28"),
        (("digits", "--recipe", "cnn-small"), "colour images of 32×32 only, not grey images of 8×8"),
        (("digits", "--recipe", "lsr-m3"), "made for mnist alone, not for digits"),
        (("adult", "--recipe", "scatter-linear"), "for images"),
    ):
        outcome = sordino("train", *command, "--epsilon", 3, "--delta", 1e-5)
        assert outcome.code == 2
        assert words in outcome.err


def test_weight_distributions_are_sound_at_the_epsilon_asked_for_with_the_claim_beside(
    sordino: Callable[..., Any], tmp_path: Path
) -> None:
    command = ("train", "mnist-5k", "--epsilon", 3, "--delta", 1e-5, "--recipe", "weight-distributions", "--seed", 1)
    outcome = sordino(*command, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert 2.99 < outcome.json["epsilon"] <= 3
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    (entry,) = statement["entries"]
    assert 0 < entry["claimed_epsilon"] < 0.3
    assert 0 < outcome.json["claimed_epsilon"] < 0.3
    assert outcome.json["claimed_epsilon"] < outcome.json["last_weights_at_least"] < 3
    assert any("which is not sound" in note for note in statement["notes"])
    assert (entry["what"], entry["planned"]) == ("training by weight distributions", True)
    assert statement["samplers"] == ["shuffled epochs (no amplification counted)"]
    assert {path.name for path in (tmp_path / "run" / "private").iterdir()} <= {"lock", "ledger.mark.json"}
    examples = tmp_path / "some.npy"
    np.save(examples, load("mnist-5k").test.x[:5])
    assert len(sordino("predict", tmp_path / "run", examples, "--json").json["predictions"]) == 5
    assert sordino("resume", tmp_path / "run").code == 2


def test_recipes_are_listed(sordino: Callable[..., Any]) -> None:
    listed = sordino("train", "--recipes")
    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()] == [BEST, *RECIPES]
