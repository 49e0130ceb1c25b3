"""`sordino train FOLDER` on neighbouring folders: whatever one image is, only noisy outputs show it."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from sordino.data import ImageFiles, read_index
from sordino.features import Feature, storage
from sordino.gradients.tuning import Choices
from sordino.training import RECIPES, TrainableModule
from sordino.training.augmentation import RandomCrops
from sordino.training.dataset_recipes import Settings
from sordino.training.heads import NetworkHead

from .recorder import Recorder, entries_of, watching
from .test_commands import Seen, differences, seen

Change = Callable[[Path], None]


def broken(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:80])


def enormous(path: Path) -> None:
    Image.fromarray(np.full((10, 700, 3), 255, np.uint8)).save(path)


def relabelled(path: Path) -> None:
    path.rename(path.parent.with_name("b" if path.parent.name == "a" else "a") / path.name)


CHANGES: dict[str, Change] = {"broken": broken, "enormous": enormous, "of another class": relabelled}


def written(folder: Path) -> None:
    for number in range(60):
        place = folder / "images" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02}.png")


def tiny(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


@pytest.fixture(autouse=True)
def tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network whose rules and chunks are given: to measure them would make any two runs differ."""
    made = replace(
        RECIPES["resnet18"],
        name="tiny",
        settings={"imagenet": Settings(60, 30, 1.0, 4, averaged=0.0)},
        head=lambda facts: NetworkHead(tiny, crops=RandomCrops(8), l2_penalty=1e-4),
        sides=(10, 10),
    )
    monkeypatch.setitem(RECIPES, "tiny", made)
    usable = Choices("rules", 32, False, {})
    monkeypatch.setattr(TrainableModule, "_usable", lambda self, known: usable)


@pytest.mark.parametrize("recipe", ["linear", "tiny"])
def test_nothing_but_noisy_outputs_depends_on_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    monkeypatch.setattr(storage, "_path", by_names)
    folder, run = tmp_path / "work", tmp_path / "work" / "run"
    command = ("train", folder / "images", "--recipe", recipe, "--epsilon", 20, "--delta", 1e-3, "--out", run)
    releases, first = None, None
    for change in (None, *CHANGES.values()):
        shutil.rmtree(folder, ignore_errors=True)
        written(folder)
        monkeypatch.setenv("SORDINO_CACHE", tempfile.mkdtemp(dir=tmp_path))
        for part in read_index(folder / "images") if change is not None else ():
            assert change is not None
            change(folder / "images" / part.paths[3])
        recorder = Recorder(releases, apart=2, account=entries_of(run / "ledger.json"))
        with watching(recorder):
            shown = without_images(seen(folder, command))
        assert shown.code == 0, shown.err
        assert recorder.finish() == []
        assert {release.name for release in recorder.releases} == {"release", "noisy_accuracy"}
        if first is None:
            first, releases = shown, recorder.releases
        assert differences(first, shown) == []


def by_names(folder: Path, secret: bytes, feature: Feature, examples: ImageFiles, dtype: str) -> Path:
    """Where shards are kept: fingerprints are all alike under the recorder, and a cache is each run's own."""
    return folder / f"{hashlib.sha256(repr(examples.index.paths).encode()).hexdigest()}.npy"


def without_images(shown: Seen) -> Seen:
    return replace(
        shown, files={name: content for name, content in shown.files.items() if not name.startswith("images")}
    )
