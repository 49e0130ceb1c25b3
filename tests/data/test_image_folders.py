"""Images in files: which there are, how they are decoded, and what is refused in one line."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sordino.data import DataError, ImageFiles, ImageIndex, first_image, pictures, read_index

KEY = b"k" * 16
Write = Callable[..., Path]


def painted(seed: int, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of six images each, whose names alternate."""
    for number in range(12):
        place = tmp_path / "images" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        painted(number).save(place / f"{number:02}.png")
    return tmp_path / "images"


def files_of(folder: Path, side: int = 8, channels: int = 3, converted: bool = False) -> ImageFiles:
    return ImageFiles(read_index(folder)[0], side, channels, converted)


def test_a_tenth_is_held_out_by_number_alone(folder: Path) -> None:
    train, held_out = read_index(folder)
    assert (len(train), len(held_out), train.classes) == (11, 1, ("a", "b"))
    assert not set(train.paths) & set(held_out.paths)
    assert [os.path.basename(path) for path in train.paths] == sorted(map(os.path.basename, train.paths))
    [number] = {f"{n:02}.png" for n in range(12)} - set(map(os.path.basename, train.paths))
    (folder / held_out.paths[0]).rename(folder / ("b" if held_out.paths[0][0] == "a" else "a") / number)
    assert [os.path.basename(path) for path in read_index(folder)[1].paths] == [number]  # whatever its class is
    for path in train.paths[:5]:
        painted(99).save(folder / path)
    assert [os.path.basename(path) for path in read_index(folder)[1].paths] == [number]  # whatever the others are
    assert str(folder / "a") not in repr(train)


def test_train_and_test_are_parts(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    folder.rename(whole / "train")
    assert [len(part) for part in read_index(whole)] == [11, 1]
    (whole / "test" / "b" / "deep").mkdir(parents=True)
    painted(1).save(whole / "test" / "b" / "deep" / "x.JPG")
    (whole / "test" / "b" / ".hidden.png").touch()
    (whole / "test" / "b" / "notes.txt").touch()
    (whole / "test" / "a").mkdir()
    train, test = read_index(whole)
    assert (len(train), test.paths, test.labels.tolist()) == (12, ("b/deep/x.JPG",), [1])
    (whole / "test" / "c").mkdir()
    with pytest.raises(DataError, match=r"test has classes that .*train lacks: 'c'"):
        read_index(whole)
    (whole / "val").mkdir()
    with pytest.raises(DataError, match="has 'val' beside train/: only train/ and test/ are read"):
        read_index(whole)


def test_folders_that_are_no_images_are_refused(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="has no class folders"):
        read_index(empty)
    (empty / "one").mkdir()
    with pytest.raises(DataError, match="has 1 class: a model needs two or more"):
        read_index(empty)
    for name in ("c", "d"):
        (folder / name).mkdir()
    with pytest.raises(DataError, match=r"classes without images \(\.jpg, .*\): 'c', 'd'; fill or remove"):
        read_index(folder)
    (folder / "c").rmdir()
    (folder / "d").rename(folder / "d\n")
    with pytest.raises(DataError, match=r"the name of the class 'd\\n' is not printable text"):
        read_index(folder)
    (folder / "d\n").rmdir()
    (folder / "a" / "link.png").symlink_to(folder / "a" / "00.png")
    with pytest.raises(DataError, match=r"link\.png is a link, by which an image may count twice"):
        read_index(folder)
    (folder / "a" / "link.png").unlink()
    (folder / "c").symlink_to(folder / "a")
    with pytest.raises(DataError, match="c is a link"):
        read_index(folder)
    (folder / "c").unlink()
    for path in sorted(folder.rglob("*.png"))[3:6]:
        path.unlink()
    with pytest.raises(DataError, match="has 9 images: at least 10 are needed"):
        read_index(folder)
    with pytest.raises(DataError, match="leave --classes out"):
        read_index(folder, "classes.txt")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_names_all_its_problems_by_row(folder: Path, tmp_path: Path, suffix: str) -> None:
    paths = [str(path.relative_to(tmp_path)) for path in sorted(folder.rglob("*.png"))]
    frame = pd.DataFrame({"path": paths, "label": [path.split("/")[1] for path in paths], "age": 3})
    table, classes = tmp_path / f"labels{suffix}", tmp_path / "classes.txt"
    classes.write_text("a\nb\n\n", encoding="utf-8")

    def written(frame: pd.DataFrame) -> None:
        frame.to_csv(table, index=False) if suffix == ".csv" else frame.to_parquet(table)

    written(frame)
    train, held_out = read_index(table, classes)
    assert (len(train), len(held_out), train.classes) == (11, 1, ("a", "b"))
    assert [train.classes[label] for label in train.labels] == [path.split("/")[1] for path in train.paths]
    with pytest.raises(DataError, match="never read off its rows: name them with `--classes FILE`"):
        read_index(table)
    written(frame.drop(columns="label"))
    with pytest.raises(DataError, match="lacks the column label"):
        read_index(table, classes)
    frame.loc[2, "path"] = frame.loc[5, "path"] = "secret.png"
    frame.loc[3, "label"] = "secret"
    frame.loc[7, "path"] = frame.loc[6, "path"]
    frame.loc[8, "path"] = classes.name
    written(frame)
    with pytest.raises(DataError) as refused:
        read_index(table, classes)
    assert str(refused.value) == (
        f"{table}: rows 3, 6: there is no such file; row 9: the file is no image (.jpg, .jpeg, .png, .bmp, .webp, "
        ".tif, .tiff, .ppm, .pgm); row 8: an earlier row has the same image; row 4: the label is none of the 2 "
        "classes. Correct or drop these rows"
    )
    classes.write_text("a\na\n", encoding="utf-8")
    with pytest.raises(DataError, match="names a class twice"):
        read_index(table, classes)
    classes.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="not text in UTF-8"):
        read_index(table, classes)


def test_images_are_scaled_and_cut_to_their_centre(tmp_path: Path) -> None:
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 20:60] = 200  # the central square
    for name in ("wide.png", "wide.jpg", "wide.bmp", "wide.tif", "wide.webp", "wide.ppm"):
        Image.fromarray(image).save(tmp_path / name)
    names = tuple(sorted(path.name for path in tmp_path.iterdir()))
    decoded = ImageFiles(ImageIndex(tmp_path, names, np.zeros(6, np.int64), ("a", "b")), 16, 3)[:]
    assert decoded.readable.all()
    assert decoded.images.shape == (6, 16, 16, 3)
    inner = decoded.images[:, 2:-2, 2:-2].astype(int)
    assert np.abs(inner - 200).max() <= 6


def test_the_first_image_that_can_be_read_says_what_they_are(folder: Path) -> None:
    train, _ = read_index(folder)
    assert first_image(train) == (10, 3)
    (folder / train.paths[0]).write_bytes(b"nothing")
    assert first_image(train) == (10, 3)
    for path in train.paths:
        (folder / path).write_bytes(b"nothing")
    with pytest.raises(DataError, match="none of the 11 images can be read"):
        first_image(train)


def test_grey_among_colour_is_refused_unless_converted(folder: Path) -> None:
    path = folder / read_index(folder)[0].paths[4]
    painted(4, mode="L").save(path)
    with pytest.raises(DataError, match=r"\.png is grey and other images are in colour: give --channels 1 or 3"):
        files_of(folder)[:]
    assert files_of(folder, converted=True)[:].readable.all()
    assert files_of(folder, channels=1, converted=True)[:].images.shape == (11, 8, 8)


def test_what_does_not_decode_is_a_record_without_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [folder / path for path in read_index(folder)[0].paths]
    before = files_of(folder)[:].images
    paths[2].write_bytes(paths[2].read_bytes()[:60])
    paths[3].write_bytes(b"")
    painted(0, (60, 60)).save(paths[5])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # of which Pillow warns, and refuses twice as many
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = files_of(folder)[:]
    assert np.flatnonzero(~decoded.readable).tolist() == [2, 3, 5]
    assert not decoded.images[[2, 3, 5]].any()
    assert np.array_equal(decoded.images[decoded.readable], before[decoded.readable])
    files = files_of(folder)
    paths[2].unlink()
    for read in (lambda: files[:], lambda: files.fingerprint(KEY)):
        with pytest.raises(DataError, match="No such file or directory; the images must stay where they are"):
            read()


def test_the_fingerprint_is_of_names_classes_and_bytes(folder: Path) -> None:
    files = files_of(folder)
    first = files.fingerprint(KEY)
    assert first == files_of(folder).fingerprint(KEY) != files.fingerprint(b"other" * 4)
    path = folder / files.index.paths[0]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    changed = files_of(folder).fingerprint(KEY)
    path.write_bytes(content)
    assert files_of(folder).fingerprint(KEY) == first != changed
    path.rename(path.with_name("00a.png"))
    assert files_of(folder).fingerprint(KEY) not in (first, changed)
    path.with_name("00a.png").rename(path)
    assert first not in (files.part(0, 5).fingerprint(KEY), files.part(5, 11).fingerprint(KEY))


def test_pictures_to_predict_are_scaled_alike_and_must_be_readable(folder: Path, tmp_path: Path) -> None:
    painted(3, mode="L").save(folder / "a" / "grey.png")
    [images] = pictures(folder / "a", (8, 8, 3)).blocks()
    assert images.shape == (7, 8, 8, 3)
    [one] = pictures(folder / "a" / "00.png", (8, 8)).blocks()
    assert one.shape == (1, 8, 8)
    with pytest.raises(DataError, match=r"images holds no images \("):
        pictures(folder, (8, 8, 3))
    (folder / "a" / "bad.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"bad\.png is not a readable image"):
        list(pictures(folder / "a", (8, 8, 3)).blocks())
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 3), np.uint8))
    assert pictures(tmp_path / "x.npy", (8, 8, 3)).shape == (2, 8, 8, 3)


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16")


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from((1, 3)),
    side=st.integers(1, 20),
    name=st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=20),
)
def test_every_mode_size_and_name_is_decoded(
    mode: str, size: tuple[int, int], channels: int, side: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("images")
    suffix = {"CMYK": ".tif", "YCbCr": ".jpg"}.get(mode, ".png")
    image = painted(1, size)
    if mode == "I;16":
        image = Image.fromarray((np.asarray(image.convert("L")).astype(np.uint16) << 8) + 7)
    else:
        image = image.convert(mode)
    file = f"{name.encode()[:60].decode(errors='ignore')}x{suffix}"
    image.save(folder / file)
    files = ImageFiles(ImageIndex(folder, (file,), np.zeros(1, np.int64), ("a", "b")), side, channels, converted=True)
    decoded = files[:]
    assert decoded.readable.all()
    assert decoded.images.shape == files.shape
    if mode == "I;16":
        plain = folder / "plain.png"
        Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).save(plain)
        other = ImageFiles(ImageIndex(folder, ("plain.png",), np.zeros(1, np.int64), ("a", "b")), side, channels, True)
        assert np.array_equal(other[:].images, decoded.images)
    assert len(files.fingerprint(KEY)) == 64
