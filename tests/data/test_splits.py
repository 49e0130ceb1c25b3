"""Parts are disjoint, deterministic, and of the papers' sizes."""

import numpy as np
import pytest

from sordino.data import DataError, Dataset, Split
from sordino.data.splits import repartition, share_test, shuffled


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


def test_validation_comes_from_the_training_rows(numbered):
    parts = numbered.split(validation=30, seed=1)
    assert sorted([*parts.train.x, *parts.validation.x]) == list(range(100))
    assert (len(parts.train), len(parts.validation)) == (70, 30)
    assert parts.test.x.tolist() == list(range(100, 140))
    assert parts.validation.x.tolist() == numbered.split(validation=30, seed=1).validation.x.tolist()
    assert parts.validation.x.tolist() != numbered.split(validation=30, seed=2).validation.x.tolist()


def test_parts_can_be_cut_to_size(numbered):
    parts = numbered.split(validation=10, train=50, test=5)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (50, 10, 5)
    assert not set(parts.train.x) & set(parts.validation.x)


def test_without_validation_nothing_moves(numbered):
    parts = numbered.split()
    assert parts.train.x.tolist() == list(range(100))
    assert len(parts.validation) == 0


def test_validation_may_share_the_test_rows(numbered):
    parts = share_test(numbered, 20, 20)
    assert sorted([*parts.validation.x, *parts.test.x]) == list(range(100, 140))
    assert len(parts.train) == 100


def test_repartition_draws_from_all_rows(numbered):
    parts = repartition(numbered, 90, 30, 20)
    assert sorted([*parts.train.x, *parts.validation.x, *parts.test.x]) == list(range(140))


@pytest.mark.parametrize(
    "sizes", [{"validation": 101}, {"validation": -1}, {"train": 95, "validation": 6}, {"test": 41}]
)
def test_impossible_sizes_are_refused(numbered, sizes):
    with pytest.raises(DataError, match="cannot draw"):
        numbered.split(**sizes)


def test_negative_seed_is_refused(numbered):
    with pytest.raises(DataError, match="seed must be 0 or more, not -1"):
        numbered.split(validation=1, seed=-1)


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
    parts = dataset.split(validation=200, seed=5)
    assert all(rows[x.tobytes()] == y for x, y in zip(parts.validation.x, parts.validation.y, strict=True))
