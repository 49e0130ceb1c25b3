"""Training on images in files: kills, files that do not decode, the score, and what anybody may see."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sordino
from sordino import models
from sordino.budget import Ledger
from sordino.data import DataError, ImageFiles, read_index
from sordino.features import Pixels, StoredImages
from sordino.gradients.tuning import Choices
from sordino.runs import Run, RunError
from sordino.training import RECIPES, SGD, TrainableModule
from sordino.training import image_files as image_files_module
from sordino.training import recipe as recipe_named
from sordino.training.augmentation import RandomCrops
from sordino.training.dataset_recipes import Settings, cropped_side
from sordino.training.description import Request
from sordino.training.heads import NetworkHead, cross_entropy
from sordino.training.image_files import noisy_score, score_charge
from sordino.training.recipes import strongest_for_files
from sordino.training.train import train

Folder = Callable[[], Path]


class Stopped(BaseException):
    """As a kill, but within this process."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Dark and bright images, sixty in all."""
    for number in range(60):
        place = tmp_path / "images" / ("dark", "bright")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        low = 120 * (number % 2)
        pixels = np.random.default_rng(number).integers(low, low + 120, (14, 12, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02}.jpg")
    return tmp_path / "images"


def tiny(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


@pytest.fixture
def tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> str:
    made = replace(
        RECIPES["resnet18"],
        name="tiny",
        settings={"imagenet": Settings(60, 30, 5.0, 12, averaged=0.0)},
        head=lambda facts: NetworkHead(tiny, crops=RandomCrops(8), l2_penalty=1e-4),
        sides=(10, 10),
    )
    monkeypatch.setitem(RECIPES, "tiny", made)
    # Two runs that are compared to the bit must round alike: what is fastest is measured, and may differ.
    alike = partial(TrainableModule, choices=Choices("rules", 16, False, {}))
    monkeypatch.setattr(sys.modules["sordino.training.heads"], "TrainableModule", alike)
    return "tiny"


def asked(folder: Path, recipe: str, **settings: Any) -> Request:
    return Request(str(folder), recipe, 20.0, 1e-3, **settings)


def shown(run: Path, without_times: Callable[[Path], dict[str, Any]]) -> list[Any]:
    return [
        (run / "model.safetensors").read_bytes(),
        (run / "score.json").read_bytes(),
        without_times(run / "ledger.json"),
    ]


@pytest.mark.parametrize("recipe", ["tiny", "linear"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    folder: Path, tmp_path: Path, tiny_recipe: str, recipe: str, without_times: Callable[[Path], dict[str, Any]]
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    result = train(asked(folder, recipe, seed=3), whole)

    def stop(done: int, total: int, epsilon: float) -> None:
        if done > total // 2:
            raise Stopped

    with pytest.raises(Stopped):
        train(asked(folder, recipe, seed=3), stopped, stop)
    again = train(asked(folder, recipe, seed=3), stopped)
    assert shown(stopped, without_times) == shown(whole, without_times)
    assert again["test_accuracy"] == result["test_accuracy"]


def test_lost_steps_are_repeated_with_the_same_crops(
    folder: Path, tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a secret key, where a step that sums anything else than before the kill is refused."""
    step, taken = SGD.step, []

    def stops(self: SGD, *arguments: Any) -> None:
        taken.append(arguments[3])
        if len(taken) == 2:
            raise Stopped
        step(self, *arguments)

    monkeypatch.setattr(SGD, "step", stops)
    monkeypatch.setattr(sys.modules["sordino.training.fitting"], "BLOCKS", 3)
    with pytest.raises(Stopped):
        train(asked(folder, tiny_recipe), tmp_path / "run")
    result = train(asked(folder, tiny_recipe), tmp_path / "run")
    assert taken[:4] == [0, 1, 0, 1]
    assert result["steps"] == len(taken) - 2
    [training, score] = Ledger.open(tmp_path / "run" / "ledger.json").entries
    assert (training.what, training.part, training.count) == ("training", "train", result["steps"])
    assert (score.what, score.part, score.count) == ("score", "validation", 1)
    assert 19.9 < result["epsilon"] <= 20


def test_a_file_that_does_not_decode_adds_nothing_and_is_named_to_the_owner_alone(
    folder: Path, tmp_path: Path, tiny_recipe: str
) -> None:
    train_index, held_out = read_index(folder)
    lost = [train_index.paths[7], held_out.paths[1]]
    for path in lost:
        (folder / path).write_bytes((folder / path).read_bytes()[:100])
    images = StoredImages(ImageFiles(train_index, 10, 3), Pixels())
    model = TrainableModule(lambda: tiny(2), cross_entropy, augment=RandomCrops(8), l2_penalty=1e-2)
    model.choose(images, None, 10)
    with_it, alone = (
        model.clipped_sum(images, np.array(rows), 1.0, np.random.default_rng(0)) for rows in ([3, 5, 7], [7])
    )
    assert not torch.isfinite(with_it.norms[2])
    assert all(not value.any() for value in alone.sums.values())
    said: list[str] = []
    run = tmp_path / "run"
    train(asked(folder, tiny_recipe), run, say=said.append)
    kept = json.loads((run / "private" / "unreadable.json").read_text())
    assert kept["count"] == {"train": 1, "held_out": 1}
    assert kept["files"] == {"train": lost[:1], "held_out": lost[1:]}
    assert (run / "private" / "unreadable.json").stat().st_mode & 0o777 == 0o600
    public = "".join(path.read_text(errors="ignore") for path in run.iterdir() if path.is_file())
    for path in lost:
        assert Path(path).name not in public + "".join(said)
    assert "images that cannot be decoded count as empty records" in (run / "statement.txt").read_text()


def test_which_images_are_broken_or_held_out_does_not_show(folder: Path, tmp_path: Path, tiny_recipe: str) -> None:
    """Training reads no held-out image: whatever these are, the model is the same."""
    train(asked(folder, tiny_recipe, seed=1), tmp_path / "one")
    for path in read_index(folder)[1].paths:
        Image.fromarray(np.zeros((14, 12, 3), np.uint8)).save(folder / path)
    train(asked(folder, tiny_recipe, seed=1), tmp_path / "other")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "other")]
    assert runs[0]["facts"] == runs[1]["facts"]


def test_a_test_folder_is_private_too(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    folder.rename(whole / "train")
    (whole / "test" / "dark").mkdir(parents=True)
    for path in sorted((whole / "train" / "dark").iterdir())[:9]:
        path.rename(whole / "test" / "dark" / path.name)
    result = train(asked(whole, "linear"), tmp_path / "run")
    assert result["n"] == 51
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["n_test"] == 9
    assert metrics["test_set"] == "private: noisy and charged"
    assert metrics["test_accuracy_noise"] == pytest.approx(
        score_charge(20.0, 1e-3).event.noise_multiplier / 9  # type: ignore[attr-defined]
    )


def test_a_score_that_was_charged_and_lost_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, charge, correct = Run.at(tmp_path / "run"), score_charge(1.0, 1e-3), np.arange(100) % 3 > 0
    ledger = Ledger(1.0, 1e-3, path=run.ledger)
    drawn: list[float] = []
    release = image_files_module.noisy_accuracy

    def killed(*arguments: Any) -> float:
        drawn.append(release(*arguments))
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(image_files_module, "noisy_accuracy", killed)
        with pytest.raises(Stopped):
            noisy_score(run, correct, charge, ledger, None)
    with pytest.raises(RunError, match="other data"):
        noisy_score(run, ~correct, charge, ledger, None)
    assert [noisy_score(run, correct, charge, ledger, None) for _ in range(2)] == 2 * drawn
    assert len(ledger.entries) == 1
    assert not (run.private / "score.json").exists()
    other = Ledger(1.0, 1e-3, path=tmp_path / "other.json")
    with pytest.raises(RunError, match="what it cost is not in this one"):
        noisy_score(run, correct, charge, other, None)


def test_a_finished_run_is_loaded(folder: Path, tmp_path: Path, tiny_recipe: str) -> None:
    train(asked(folder, tiny_recipe, seed=1), tmp_path / "run")
    loaded = sordino.load(tmp_path / "run")
    assert loaded.classes == ("bright", "dark")
    index = read_index(folder)[0]
    seen = ImageFiles(index, 10, 3)[:].images
    assert loaded.predict(seen[:5]) == [loaded.predict(folder / path)[0] for path in index.paths[:5]]
    assert loaded.predict_proba(folder / "dark").shape == (30, 2)
    assert np.mean([loaded.predict(folder / name).count(name) / 30 for name in loaded.classes]) > 0.8
    Image.fromarray(seen[0, :, :, 0]).save(tmp_path / "grey.png")
    assert loaded.predict(tmp_path / "grey.png")[0] in loaded.classes
    assert loaded.statement["epsilon"] <= 20


def test_a_table_of_images_trains_alike(folder: Path, tmp_path: Path) -> None:
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(folder.rglob("*.jpg"))]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]), encoding="utf-8")
    (tmp_path / "classes.txt").write_text("bright\ndark\n", encoding="utf-8")
    request = asked(tmp_path / "labels.csv", "linear", classes=str(tmp_path / "classes.txt"), channels=1, side=16)
    train(request, tmp_path / "run")
    loaded = sordino.load(tmp_path / "run")
    assert len(loaded.predict(folder / "dark")) == 30


def test_canaries_ride_along(folder: Path, tmp_path: Path, tiny_recipe: str) -> None:
    assert train(asked(folder, tiny_recipe, canaries=10), tmp_path / "run")["n"] == 64


def test_recipes_for_files_follow_from_public_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.training.recipes.is_installed", lambda name: True)
    assert strongest_for_files(32, 3, 1000, 3.0) == strongest_for_files(64, 1, 1000, 3.0) == "transfer-linear"
    assert strongest_for_files(28, 1, 1000, 3.0) == "scatter-linear"
    monkeypatch.setattr("sordino.training.recipes.is_installed", lambda name: False)
    assert strongest_for_files(200, 3, 10_000, 3.0) == "scatter-cnn"
    assert strongest_for_files(200, 3, 10_000, 1.0) == strongest_for_files(64, 1, 1000, 1.0) == "scatter-linear"
    assert strongest_for_files(200, 3, 1_000_000, 3.0) == "linear"
    sides = {name: [RECIPES[name].side(None, first, 3) for first in (20, 48, 500)] for name in RECIPES}
    assert sides["linear"] == sides["cnn"] == [32, 32, 32]
    assert sides["transfer-linear"] == [32, 48, 224]
    assert sides["resnet18"] == [32, 48, 256]
    assert sides["resnet18-finetune"] == [256, 256, 256]
    assert (RECIPES["linear"].side(None, 20, 1), RECIPES["resnet18"].side(96, 20, 3)) == (28, 110)
    for side in (8, 64, 65, 224, 1023):
        assert cropped_side(RECIPES["resnet18"].side(side, 1, 3)) == side


def test_fine_tuning_needs_weights_and_says_what_it_took(folder: Path, tmp_path: Path) -> None:
    facts = replace(sordino.data.load("digits").facts, shape=(18, 18, 3), n_train=1000)  # type: ignore[attr-defined]
    chosen = recipe_named("resnet18-finetune", "images", facts)
    with pytest.raises(DataError, match="starts from public weights: give --weights FILE"):
        chosen.starting_from(None, facts, print)
    with pytest.raises(ValueError, match="'resnet18' starts from no weights: leave --weights out"):
        recipe_named("resnet18", "images", facts).starting_from("w.pth", facts, print)
    assert chosen.optimiser(1_281_167, 10.0).learning_rate.peak == pytest.approx(7.68)
    assert chosen.optimiser(1_281_167, 10.0).nesterov
    weights, said = tmp_path / "weights.pth", []
    torch.save(models.resnet18_v2(3, 5).state_dict(), weights)
    begun = chosen.starting_from(str(weights), facts, said.append)
    assert "100.0% of the weights outside the head" in said[0]
    model = begun.head.model(18 * 18 * 3, 10)
    assert sorted(model.parameters) == ["head.bias", "head.weight"]
    assert torch.equal(model.weights()["stem.conv.weight"], torch.load(weights)["stem.conv.weight"])
    assert not model.weights()["head.weight"].any()
    many = chosen.starting_from(str(weights), replace(facts, n_train=10**6), said.append)
    assert {name.split(".")[0] for name in many.head.model(18 * 18 * 3, 10).parameters} == {"group4", "pool", "head"}
    assert repr(begun) == repr(chosen)  # a run predicts without the file
    with pytest.raises(DataError, match=r"missing\.pth does not exist"):
        chosen.starting_from(str(tmp_path / "missing.pth"), facts, print)
