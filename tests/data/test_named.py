"""The named datasets against what their publishers say of them; only published files are accepted, from any place."""

import io
import shutil
import tarfile

import numpy as np
import pandas as pd
import pytest

from sordino.data import DataError, Schema, Split, cache_folder, load, locate, names
from sordino.data.decoders import DECODERS
from sordino.data.named import declared, digest
from sordino.data.raw_files import Files
from sordino.data.sources import READERS

IMAGES = {
    "mnist": ((28, 28), 60_000, 10_000),
    "mnist-5k": ((28, 28), 4000, 1000),
    "digits": ((8, 8), 1437, 360),
    "fashion-mnist": ((28, 28), 60_000, 10_000),
    "kmnist": ((28, 28), (0, 60_000), 10_000),
    "cifar-10": ((32, 32, 3), 50_000, 10_000),
    "cifar-100": ((32, 32, 3), (1117, 50_000), (916, 10_000)),
    "svhn": ((32, 32), (50_000, 73_257), (10_000, 26_032)),
    "location-30": ((446,), 4010, 1000),
}


def class_counts(split, classes):
    return dict(zip(classes, np.bincount(split.y, minlength=len(classes)).tolist(), strict=True))


def test_every_dataset_of_the_list_is_there():
    assert set(names()) == {
        "mnist", "mnist-5k", "digits", "fashion-mnist", "kmnist", "cifar-10", "cifar-100", "svhn", "adult",
        "breast-cancer", "sms-spam", "ag-news", "medical-cost", "location-30", "purchase-100",
    }  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_definitions_are_consistent(name):
    described = declared()[name]
    assert described.name == name
    assert described.what
    facts = described.facts
    assert facts.source
    assert facts.licence
    assert facts.protected
    assert facts.complete
    assert facts.columns is None or facts.shape == (len(facts.columns),)
    assert {source.kind for source in described.sources} <= set(READERS)
    assert not described.forms[0].missing
    for form in described.forms:
        assert set(form.published) <= set(form.files)
        assert form.format in DECODERS
        if name != "purchase-100":
            decoded = form.train_sha256 and form.test_sha256
            assert form.published or decoded or (form.missing and form.test_sha256)


@pytest.mark.parametrize("name", IMAGES)
def test_arrays(named, name):
    dataset = named(name)
    shape, n_train, n_test = IMAGES[name]
    facts = dataset.facts
    assert facts.shape == shape
    for part, n in ((dataset.train, n_train), (dataset.test, n_test)):
        assert len(part) in (n if isinstance(n, tuple) else (n,))
        assert part.x.dtype == np.uint8
        assert part.x.shape == (len(part), *shape)
        assert part.x.flags.c_contiguous
        assert part.x.flags.writeable
        assert part.y.dtype == np.int64
        if len(part):
            assert facts.value_range == (part.x.min(), part.x.max())
            assert set(np.unique(part.y)) == set(range(len(facts.classes)))
    assert (facts.n_train, facts.n_test) == (len(dataset.train), len(dataset.test))
    assert facts.complete == (facts.n_train == declared()[name].facts.n_train)
    assert facts.complete or " of " in facts.note


def test_class_balance_of_benchmarks(named):
    assert class_counts(named("mnist").train, tuple("0123456789")) == {
        "0": 5923, "1": 6742, "2": 5958, "3": 6131, "4": 5842, "5": 5421, "6": 5918, "7": 6265, "8": 5851, "9": 5949,
    }  # fmt: skip
    mnist_5k = named("mnist-5k")
    assert set(np.bincount(np.concatenate([mnist_5k.train.y, mnist_5k.test.y]))) == {500}


@pytest.mark.parametrize(("name", "train", "test"), [("fashion-mnist", 6000, 1000), ("cifar-10", 5000, 1000)])
def test_balanced_sets(named, name, train, test):
    assert set(np.bincount(named(name).train.y)) == {train}
    assert set(np.bincount(named(name).test.y)) == {test}


def test_kmnist_test_part_is_balanced(named):
    assert set(np.bincount(named("kmnist").test.y)) == {1000}


def test_partial_sets_say_what_is_missing(named):
    expected = {
        "kmnist": "0 of 60,000 training images",
        "cifar-100": "1,117 of 50,000 training and 916 of 10,000 test images",
        "svhn": "50,000 of 73,257 training and 10,000 of 26,032 test images",
        "ag-news": "37,453 of 120,000 training rows",
    }
    for name, missing in expected.items():
        facts = named(name).facts
        assert facts.complete or facts.note.startswith(missing)


def test_location_rows_are_bits_and_all_there(named):
    dataset = named("location-30")
    assert len(dataset.train) + len(dataset.test) == 5010


def test_adult(named):
    dataset = named("adult")
    assert (len(dataset.train), len(dataset.test)) == (32_561, 16_281)
    assert class_counts(dataset.train, dataset.facts.classes) == {"<=50K": 24_720, ">50K": 7841}
    columns = dataset.facts.columns
    widths = [1 if column.categories is None else len(column.categories) for column in columns]
    assert sum(widths) == 108
    assert list(dataset.train.x.columns) == [column.name for column in columns]
    for part in (dataset.train, dataset.test):
        _stays_in_its_public_domain(part.x, columns)


def test_breast_cancer(named):
    dataset = named("breast-cancer")
    assert (len(dataset.train), len(dataset.test)) == (191, 95)
    y = np.concatenate([dataset.train.y, dataset.test.y])
    assert np.bincount(y).tolist() == [201, 85]
    rows = pd.concat([dataset.train.x, dataset.test.x])
    assert (rows == "?").any(axis=1).sum() == 9
    columns = dataset.facts.columns
    assert sum(len(column.categories) - len(column.absent) for column in columns) == 43
    for column in columns:
        assert set(column.categories) - set(rows[column.name]) == set(column.absent)


def test_medical_cost(named):
    dataset = named("medical-cost")
    assert (len(dataset.train), len(dataset.test)) == (1038, 300)
    assert dataset.facts.task == "regression"
    assert dataset.facts.classes is None
    low, high = dataset.facts.target_range
    for part in (dataset.train, dataset.test):
        assert part.y.dtype == np.float64
        assert low <= part.y.min() < part.y.max() <= high
        _stays_in_its_public_domain(part.x, dataset.facts.columns)


def _stays_in_its_public_domain(frame, columns):
    assert not frame.isna().any(axis=None)
    for column in columns:
        if column.bounds:
            assert frame[column.name].between(*column.bounds).all()


def test_sms_spam(named):
    dataset = named("sms-spam")
    assert np.bincount(np.concatenate([dataset.train.y, dataset.test.y])).tolist() == [4827, 747]
    assert all(isinstance(message, str) for message in dataset.test.x)


def test_ag_news(named):
    dataset = named("ag-news")
    assert len(dataset.test) == 7600
    assert set(np.bincount(dataset.test.y)) == {1900}
    counts = np.bincount(dataset.train.y).tolist()
    assert counts in ([30_000] * 4, [9369, 9412, 9398, 9274])
    assert not set(dataset.train.x) & set(dataset.test.x) or dataset.facts.complete


def test_unknown_name_suggests_one():
    with pytest.raises(DataError, match=r"no dataset 'minst'; did you mean 'mnist'\?"):
        load("minst")
    with pytest.raises(DataError, match="choose one of mnist, "):
        load("imagenet")


def test_digest_sees_dtype_shape_and_bytes():
    base = Split(np.zeros((2, 3), np.uint8), np.zeros(2, np.int64))
    others = [
        Split(np.zeros((2, 3, 1), np.uint8), base.y),
        Split(np.zeros((2, 3), np.int8), base.y),
        Split(np.array([[0, 0, 0], [0, 0, 1]], np.uint8), base.y),
        Split(base.x, np.ones(2, np.int64)),
    ]
    assert len({digest(split) for split in (base, *others)}) == 5
    assert digest(Split(np.asfortranarray(others[2].x), base.y)) == digest(others[2])


def test_digest_keeps_texts_apart():
    y = np.zeros(2, np.int64)
    assert digest(Split(np.array(["ab", "c"], object), y)) != digest(Split(np.array(["a", "bc"], object), y))


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


def test_a_package_carries_a_dataset(tmp_path):
    assert locate("digits", cache=tmp_path).name == "data"


def test_mnist_has_the_digits_of_its_subset(copy, tmp_path, named):
    copy("mnist")
    assert locate("mnist-5k", cache=tmp_path) == tmp_path / "mnist"
    subset = load("mnist-5k", cache=tmp_path)
    np.testing.assert_array_equal(subset.test.x, named("mnist-5k").test.x)
    for part in (subset.train, subset.test):
        assert not {image.tobytes() for image in part.x} - {image.tobytes() for image in named("mnist").train.x[:6000]}


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
    monkeypatch.setattr("sordino.data.named.check", lambda *_: pytest.fail("checked twice"))
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


PETS = """
[pets]
what = "weights of pets"
task = "classification"
kind = "table"
classes = "cat dog"
shape = [2]
n_train = 4
n_test = 1
source = "https://example.org/pets"
licence = "CC0"
protected = "one pet"
[[pets.sources]]
kind = "web"
address = "https://example.org/"
[[pets.forms]]
folder = "pets"
format = "table"
train = ["pets.csv"]
test_rows = 1
[pets.columns]
weight.bounds = [0, 100]
colour.categories = "black white"
"""


@pytest.fixture
def declared_pets(tmp_path, monkeypatch):
    """Another file of declarations, with one dataset."""
    (tmp_path / "datasets.toml").write_text(PETS)
    monkeypatch.setattr("sordino.data.named._DECLARATIONS", tmp_path / "datasets.toml")
    declared.cache_clear()
    yield
    declared.cache_clear()


def test_a_new_dataset_is_one_entry(tmp_path, declared_pets):
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "pets.csv").write_text("4,black,cat\n30,white,dog\n5,white,cat\n12,black,dog\n3,white,cat\n")
    assert names() == ("pets",)
    pets = load("pets", cache=tmp_path)
    assert (len(pets.train), len(pets.test), pets.facts.classes) == (4, 1, ("cat", "dog"))
    assert Schema.of(pets.facts).columns[1].categories == ("black", "white")
    assert declared()["pets"].sources[0].members == {"pets.csv": "pets.csv"}
