"""`sordino train FOLDER` and what follows it, and what is wrong with a folder in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sordino.budget import Ledger

BUDGET = ("--epsilon", 20, "--delta", 1e-3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Horizontal and vertical stripes, as grey images of several sizes."""
    for number in range(400):
        place = tmp_path / "my images" / ("down", "over")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(number)
        size = int(rng.integers(28, 40))
        stripes = np.tile(np.arange(size) // 3 % 2 * 150, (size, 1)) + rng.integers(0, 100, (size, size))
        Image.fromarray((stripes if number % 2 else stripes.T).astype(np.uint8)).save(place / f"{number:03}.png")
    return tmp_path / "my images"


def test_a_folder_of_images_trains_predicts_and_shows_its_ledger(
    sordino: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = sordino("train", folder.name, *BUDGET, "--recipe", "linear", "--json")
    assert outcome.code == 0, outcome.err
    assert "360 training and 40 test examples" in outcome.err
    assert outcome.json["test_accuracy"] > 0.9
    assert 0 < outcome.json["test_accuracy_noise"] < 0.02
    run = Path(outcome.json["run"])
    assert run.parent.name == "runs"
    assert run.name.startswith("my images-")
    predicted = sordino("predict", run, folder / "down")
    assert predicted.out.split().count("down") > 180
    assert sordino("predict", run, folder / "over" / "001.png", "--json").json["predictions"] == ["over"]
    shown = sordino("ledger", run, "--json").json
    assert [entry["what"] for entry in shown["entries"]] == ["training", "score"]
    assert 19.9 < shown["epsilon"] == Ledger.open(run / "ledger.json").epsilon() <= 20
    resumed = sordino("resume", run)
    assert (resumed.code, "is finished" in resumed.err) == (2, True)
    plain = sordino("train", folder, *BUDGET, "--recipe", "linear", "--out", tmp_path / "plain")
    assert plain.out.startswith("test accuracy ")
    assert " % (noise ±" in plain.out.splitlines()[0]
    for line in ("the names of the classes and the size and kind of the first image", "the test accuracy has noise"):
        assert line in plain.out


def test_without_a_recipe_one_is_chosen_and_named(sordino: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    outcome = sordino("train", folder, *BUDGET, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["recipe"] == "scatter-linear"
    assert "recipe: scatter-linear" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("my images/down",), "has no class folders: put the images of each class into a folder of its own"),
        (("my images", "--recipe", "cake"), "there is no recipe 'cake'; recipes: best, linear"),
        (("my images", "--recipe", "cnn", "--side", 40), "has networks for grey images of 28×28 and colour"),
        (("my images", "--recipe", "resnet18-finetune"), "give --weights FILE, a .safetensors or .pth file"),
        (("my images", "--recipe", "linear", "--weights", "w.pth"), "starts from no weights: leave --weights out"),
        (("my images", "--side", 4), "a side of 8 to 1024 pixels, not 4"),
        (("my images", "--channels", 2), "1 channel (grey) or 3 (colour), not 2"),
        (("my images", "--classes", "classes.txt"), "leave --classes out"),
        (("./mnist",), "there is no dataset and no folder './mnist'"),
        (("mnist", "--side", 32), "--side is for images in files"),
        (("labels.csv",), "for one of images' paths and labels, name the classes with --classes FILE"),
        (
            ("labels.csv", "--classes", "classes.txt"),
            "rows 1, 2: there is no such file; row 2: the label is none",
        ),
        (("labels.csv", "--classes", "none.txt"), "none.txt does not exist"),
        (("missing.csv", "--classes", "classes.txt"), "no folder 'missing.csv'"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_is_made(
    sordino: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, words: str
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("labels.csv").write_text("path,label\nx.png,down\ny.png,left\n", encoding="utf-8")
    Path("classes.txt").write_text("down\nover\n", encoding="utf-8")
    outcome = sordino("train", *arguments, *BUDGET)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[-1].startswith("sordino: ")
    assert words in outcome.err.splitlines()[-1]
    assert not Path("runs").exists()


def test_mixed_kinds_are_refused_and_can_be_converted(
    sordino: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(folder / "down" / "100.png")
    command = ("train", folder, *BUDGET, "--recipe", "linear", "--out", tmp_path / "run")
    refused = sordino(*command)
    assert refused.code == 2
    assert "100.png is in colour and other images are grey: give --channels 1 or 3" in refused.err
    assert not (tmp_path / "run").exists()
    assert sordino(*command, "--channels", 1).code == 0
