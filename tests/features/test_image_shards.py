"""Images that are decoded, or described, once: rows, shards, kills, damage and files that do not decode."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sordino.data import ImageFiles, read_index
from sordino.features import OrientedGradients, Pixels, StoredImages, image_shards
from sordino.mechanisms import memory

KEY = b"k" * 16


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    for number in range(40):
        place = tmp_path / "images" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02}.png")
    return ImageFiles(read_index(tmp_path / "images")[0], 8, 3)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_shards, "_MOST_IMAGES", 10)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were decoded, block by block."""
    found: list[int] = []
    decode = ImageFiles.__getitem__

    def noted(self: ImageFiles, rows: slice) -> object:
        result = decode(self, rows)
        found.append(len(result.images))
        return result

    monkeypatch.setattr(ImageFiles, "__getitem__", noted)
    return found


@pytest.mark.parametrize("slow", [False, True])
def test_rows_are_the_features_of_the_files(files: ImageFiles, tmp_path: Path, slow: bool) -> None:
    lost = tmp_path / "images" / files.index.paths[13]
    lost.write_bytes(lost.read_bytes()[:50])
    progress: list[int] = []
    images = StoredImages(files, OrientedGradients(), slow=slow, cache=tmp_path / "cache", on_progress=progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 36
    wanted = OrientedGradients()(files[:].images)
    wanted[13] = np.nan
    assert images.shape == wanted.shape
    for rows in (slice(None), slice(5, 25), np.array([30, 2, 13, 2]), np.array([], np.int64)):
        assert np.array_equal(images[rows], wanted[rows], equal_nan=True)
    assert np.array_equal(np.asarray(images), wanted, equal_nan=True)
    x, y = images.batch(np.array([35, 0]))
    assert np.array_equal(x.numpy(), wanted[[35, 0]])
    assert y.tolist() == files.index.labels[[35, 0]].tolist()
    assert images.unreadable() == [files.index.paths[13]]
    assert images.fingerprint(KEY) == files.fingerprint(KEY)


def test_later_runs_decode_nothing_and_a_changed_file_only_its_shard(
    files: ImageFiles, tmp_path: Path, decoded: list[int]
) -> None:
    def images() -> StoredImages:
        return StoredImages(files, Pixels(), cache=tmp_path / "cache")

    first = images()[:]
    assert sum(decoded) == 36
    kept = sorted((tmp_path / "cache" / "features").glob("*.npy"))
    assert len(kept) == 4
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert kept[0].parent.stat().st_mode & 0o777 == 0o700
    decoded.clear()
    assert np.array_equal(images()[:], first)
    assert not decoded
    changed = tmp_path / "images" / files.index.paths[25]
    changed.write_bytes((tmp_path / "images" / files.index.paths[0]).read_bytes())
    assert np.array_equal(images()[:][25], first[0])
    assert sum(decoded) == 10
    StoredImages(ImageFiles(files.index, 4, 3), Pixels(), cache=tmp_path / "cache")
    assert sum(decoded) == 46


def test_after_a_kill_whole_shards_are_there(files: ImageFiles, tmp_path: Path, decoded: list[int]) -> None:
    class Killed(BaseException):
        pass

    def kill(done: int) -> None:
        if done > 20:
            raise Killed

    with pytest.raises(Killed):
        StoredImages(files, Pixels(), cache=tmp_path / "cache", on_progress=kill)
    assert sum(decoded) == 30
    decoded.clear()
    StoredImages(files, Pixels(), cache=tmp_path / "cache")
    assert sum(decoded) == 16


def test_an_array_that_memory_has_no_room_for_is_refused(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = StoredImages(files, Pixels(), cache=tmp_path / "cache")
    whole: Callable[[], object] = lambda: np.asarray(images)  # noqa: E731
    monkeypatch.setattr(memory, "available", lambda: 1000.0)
    with pytest.raises(memory.NotEnoughMemory, match="the features of 36 images needs"):
        whole()
