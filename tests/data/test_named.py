"""The named datasets against what their publishers say of them."""

import numpy as np
import pandas as pd
import pytest

from sordino.data import DataError, Split, catalogue, load, names
from sordino.data.dataset import check_labels
from sordino.data.places import digest

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
    described = catalogue.definition_of(name)
    assert described.name == name
    assert described.source
    assert described.licence
    assert described.protected
    assert not described.forms[0].missing
    for form in described.forms:
        assert set(form.published) <= set(form.files)
        if name != "purchase-100":
            assert form.published or (form.train and form.test) or (form.missing and form.test)


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
    assert facts.complete == (facts.n_train == catalogue.definition_of(name).n_train)
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


def test_a_split_shows_no_rows_and_refuses_unequal_lengths():
    split = Split(np.array([["secret"]], object), np.array([1]))
    assert repr(split) == "Split(n=1)"
    with pytest.raises(DataError, match="2 examples but 1 labels"):
        Split(np.zeros(2), np.zeros(1))


def test_labels_outside_the_classes_name_the_row():
    with pytest.raises(DataError, match=r"file: the label of row 2 is outside the 3 classes; labels must be 0 to 2"):
        check_labels(np.array([0, 7, 9], np.uint8), ("a", "b", "c"), "file")


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
