"""Parts are disjoint, deterministic, and of the papers' sizes."""

from dataclasses import replace

import numpy as np
import pytest

from sordino.data import DataError, Dataset, Split, check_labels, draw, shuffled


@pytest.fixture
def numbered(named):
    """A dataset whose examples are their own row numbers."""
    return Dataset(
        "numbered",
        named("digits").facts,
        Split(np.arange(100), np.arange(100)),
        Split(np.arange(100, 140), np.arange(100, 140)),
    )


def test_shuffled_is_the_same_in_every_version():
    assert shuffled(10, 0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert sorted(shuffled(1000, 3)) == list(range(1000))


def test_parts_are_disjoint_and_follow_from_the_seed(numbered):
    train, validation = draw(numbered.train, (70, 30), seed=1)
    assert sorted([*train.x, *validation.x]) == list(range(100))
    assert train.x.tolist() == sorted(train.x)
    assert validation.x.tolist() == draw(numbered.train, (70, 30), seed=1)[1].x.tolist()
    assert validation.x.tolist() != draw(numbered.train, (70, 30), seed=2)[1].x.tolist()


def test_parts_need_not_be_all(numbered):
    small, none = draw(numbered.train, (5, 0), seed=0)
    assert (len(small), len(none)) == (5, 0)


@pytest.mark.parametrize(
    ("workflow", "rows"),
    [
        ({"from": "test", "validation": 20, "test": 20}, (range(100), range(100, 140), range(100, 140))),
        ({"from": "all", "train": 90, "validation": 30, "test": 20}, (range(140),) * 3),
        ({"from": "train", "train": 60, "test": 40}, (range(100),) * 3),
    ],
)
def test_a_workflow_draws_from_the_rows_it_names(numbered, workflow, rows):
    parts = replace(numbered, workflow=workflow).workflow_split()
    assert [len(part) for part in parts] == [workflow.get(name, 0) for name in parts._fields] or workflow[
        "from"
    ] == "test"
    assert len({*parts.train.x, *parts.validation.x, *parts.test.x}) == sum(len(part) for part in parts)
    for part, allowed in zip(parts, rows, strict=True):
        assert set(part.x) <= set(allowed)


@pytest.mark.parametrize("sizes", [(101,), (-1, 5), (95, 6)])
def test_impossible_sizes_are_refused(numbered, sizes):
    with pytest.raises(DataError, match="cannot draw"):
        draw(numbered.train, sizes, seed=0)


def test_negative_seed_is_refused(numbered):
    with pytest.raises(DataError, match="seed must be 0 or more, not -1"):
        draw(numbered.train, (1,), seed=-1)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mnist", (60_000, 5000, 5000)),
        ("svhn", (42_000, 5000, 5000)),
        ("adult", (22_750, 0, 9750)),
        ("breast-cancer", (191, 0, 95)),
        ("sms-spam", (4700, 0, 836)),
        ("medical-cost", (1000, 0, 300)),
        ("location-30", (4010, 500, 500)),
    ],
)
def test_the_workflow_papers_sizes(named, name, sizes):
    parts = named(name).workflow_split(seed=0)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == sizes


def test_a_dataset_the_paper_does_not_use(named):
    with pytest.raises(DataError, match="does not use digits"):
        named("digits").workflow_split()


def test_a_row_keeps_its_label(named):
    dataset = named("digits")
    rows = {x.tobytes(): y for x, y in zip(dataset.train.x, dataset.train.y, strict=True)}
    [part] = draw(dataset.train, (200,), seed=5)
    assert all(rows[x.tobytes()] == y for x, y in zip(part.x, part.y, strict=True))


def test_a_split_shows_no_rows_and_refuses_unequal_lengths():
    split = Split(np.array([["secret"]], object), np.array([1]))
    assert repr(split) == "Split(n=1)"
    with pytest.raises(DataError, match="2 examples but 1 labels"):
        Split(np.zeros(2), np.zeros(1))


def test_labels_outside_the_classes_name_the_row():
    with pytest.raises(DataError, match=r"file: the label of row 2 is outside the 3 classes; labels must be 0 to 2"):
        check_labels(np.array([0, 7, 9], np.uint8), ("a", "b", "c"), "file")
