"""Files are found where they should be, and only the published ones are accepted."""

import io
import shutil
import tarfile

import numpy as np
import pytest

from sordino.data import DataError, load, locate
from sordino.data.definition import Files
from sordino.data.places import cache_folder


@pytest.fixture
def copy(tmp_path, monkeypatch, folder_of):
    """A function that copies a dataset's files into a cache of the test's own."""
    monkeypatch.delenv("SORDINO_DATA", raising=False)

    def make(name: str):
        source = folder_of(name)
        return shutil.copytree(source, tmp_path / source.name)

    return make


def _overwrite(path, position, value):
    data = bytearray(path.read_bytes())
    data[position] = value if data[position] != value else value ^ 1
    path.write_bytes(data)


def test_the_variable_wins_over_the_cache(copy, tmp_path, monkeypatch):
    copy("breast-cancer")
    other = tmp_path / "elsewhere"
    assert locate("breast-cancer", cache=tmp_path) == tmp_path / "breast-cancer"
    shutil.copytree(tmp_path / "breast-cancer", other / "breast-cancer")
    monkeypatch.setenv("SORDINO_DATA", str(other))
    assert locate("breast-cancer", cache=tmp_path) == other / "breast-cancer"
    assert len(load("breast-cancer", cache=tmp_path).train) == 191


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "sordino"


def test_an_empty_folder_is_no_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    assert locate("mnist", cache=tmp_path) is None


def test_packages_carry_two_datasets(tmp_path):
    assert locate("digits", cache=tmp_path).name == "data"
    assert len(load("mnist-5k", cache=tmp_path).train) == 4000


def test_gzipped_and_plain_files_are_the_same(copy, tmp_path, named):
    folder = copy("mnist")
    for file in [*folder.glob("*.gz")]:
        (folder / file.stem).write_bytes(Files(folder).read(file.stem))
        file.unlink()
    np.testing.assert_array_equal(load("mnist", cache=tmp_path).test.x, named("mnist").test.x)


def test_a_flipped_pixel_is_detected(copy, tmp_path):
    folder = copy("mnist")
    data = bytearray(Files(folder).read("t10k-images-idx3-ubyte"))
    (folder / "t10k-images-idx3-ubyte.gz").unlink(missing_ok=True)
    data[5000] ^= 1
    (folder / "t10k-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(
        DataError, match=r"does not hold the published mnist: the test part does not match its checksum"
    ):
        load("mnist", cache=tmp_path)


def test_a_flipped_byte_in_gzip_is_detected(copy, tmp_path):
    folder = copy("kmnist")
    _overwrite(folder / "t10k-images-idx3-ubyte.gz", 100_000, 0)
    with pytest.raises(DataError, match="kmnist"):
        load("kmnist", cache=tmp_path)


def test_a_truncated_gzip_is_detected(copy, tmp_path):
    file = copy("kmnist") / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is not a readable gzip file"):
        load("kmnist", cache=tmp_path)


def test_a_wrong_file_is_detected(copy, tmp_path):
    folder = copy("kmnist")
    shutil.copy(folder / "t10k-labels-idx1-ubyte.gz", folder / "t10k-images-idx3-ubyte.gz")
    with pytest.raises(DataError, match="expected greyscale images and one label each"):
        load("kmnist", cache=tmp_path)


def test_damage_after_a_good_load_is_detected(copy, tmp_path):
    file = copy("breast-cancer") / "breast-cancer.data"
    load("breast-cancer", cache=tmp_path)
    assert len([*(tmp_path / ".verified").iterdir()]) == 1
    content = file.read_text().replace("premeno", "ge40", 1)
    file.write_text(content)
    with pytest.raises(DataError, match="does not match its checksum; remove that folder and run `sordino data get"):
        load("breast-cancer", cache=tmp_path)


def test_a_checked_copy_is_not_hashed_again(copy, tmp_path, monkeypatch):
    copy("sms-spam")
    load("sms-spam", cache=tmp_path)
    monkeypatch.setattr("sordino.data.places.check", lambda *_: pytest.fail("checked twice"))
    assert len(load("sms-spam", cache=tmp_path).test) == 836


def test_original_files_have_their_published_checksum(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(bytes(3074))
    with pytest.raises(DataError, match=r"published cifar-100: train\.bin does not match its checksum"):
        load("cifar-100", cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "said"),
    [
        ("adult", "adult.data", "39, State-gov", "nan, State-gov", r"line 1, column 'age': not a finite number"),
        ("adult", "adult.data", "State-gov", "Secret-gov", r"line 1, column 'workclass': not one of the 9 documented"),
        ("adult", "adult.data", "39, State-gov", "State-gov", "line 1: 14 fields where 15 are expected"),
        ("adult", "adult.test", "<=50K.", "secret.", r"adult\.test, line 2: the label is none of <=50K, >50K"),
        ("medical-cost", "insurance.csv", "27.9", "", r"line 2, column 'bmi': not a finite number"),
        ("medical-cost", "insurance.csv", "bmi", "secret", "the first line must name the columns age, sex, bmi"),
        ("sms-spam", "SMSSpamCollection", "ham\t", "secret\t", "line 1: expected ham or spam, a tab and a message"),
        ("breast-cancer", "breast-cancer.data", "no-recurrence-events", "secret", "line 1: the label is none of no-"),
    ],
)
def test_bad_rows_are_named_without_their_values(copy, tmp_path, name, file, old, new, said):
    path = copy(name) / file
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError, match=said) as raised:
        load(name, cache=tmp_path)
    assert "ecret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_location_rows_in_any_order_and_container_are_the_same_dataset(tmp_path, monkeypatch, named):
    expected = named("location-30")
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    x = np.concatenate([expected.test.x, expected.train.x])
    y = np.concatenate([expected.test.y, expected.train.y]) + 1
    order = np.random.default_rng(0).permutation(len(y))
    lines = [f'"{label}",' + ",".join(map(str, row)) for label, row in zip(y[order], x[order], strict=True)]
    (tmp_path / "location-30").mkdir()
    (tmp_path / "location-30" / "bangkok").write_text("\n".join(lines) + "\n")
    np.testing.assert_array_equal(load("location-30", cache=tmp_path).train.x, expected.train.x)


def test_purchase_100_is_checked_by_its_size(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    (tmp_path / "purchase-100").mkdir()
    content = b"1," + b",".join([b"0"] * 600) + b"\n"
    with tarfile.open(tmp_path / "purchase-100" / "dataset_purchase.tgz", "w:gz") as archive:
        info = tarfile.TarInfo("dataset_purchase")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError, match="1 rows where 197,324 are expected"):
        load("purchase-100", cache=tmp_path)
    (tmp_path / "purchase-100" / "dataset_purchase.tgz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="not a readable archive"):
        load("purchase-100", cache=tmp_path)


def test_text_that_is_no_text(copy, tmp_path):
    file = copy("sms-spam") / "SMSSpamCollection"
    _overwrite(file, 10, 0xFF)
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 10\)"):
        load("sms-spam", cache=tmp_path)


@pytest.mark.parametrize(
    "name", ["adult", "breast-cancer", "medical-cost", "sms-spam", "ag-news", "kmnist", "location-30"]
)
def test_empty_files_are_refused(copy, tmp_path, name):
    for file in copy(name).iterdir():
        file.write_bytes(b"")
    with pytest.raises(DataError):
        load(name, cache=tmp_path)
