"""Records of every kind: batches by index, fingerprints that bind a run to its data, and what is refused."""

import random
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from sordino.data import (
    ArrayRecords,
    DatasetRecords,
    Records,
    array_fingerprint,
    as_records,
    dataset_records,
    in_memory,
)
from sordino.mechanisms import data_tag

KEY = b"k" * 16
X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])


class Stream(IterableDataset[Any]):
    """Records that cannot be drawn by index."""

    def __iter__(self) -> Any:
        return iter(())


class Tokens(Dataset[dict[str, Any]]):
    """As Hugging Face has them: lists of token ids, and a label."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [index, index + 1, 2], "attention_mask": [1, 1, 0], "labels": index % 2}


class Pairs(Dataset[tuple[Any, Any]]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return torch.from_numpy(X[index]), int(Y[index])


@pytest.mark.parametrize("kind", [lambda a: a, torch.from_numpy], ids=["arrays", "tensors"])
def test_arrays_give_rows_and_the_tag_that_older_runs_are_bound_to(kind: Any) -> None:
    records = as_records((kind(X), kind(Y)))
    assert isinstance(records, Records)
    assert len(records) == 6
    x, y = records.batch(np.array([4, 1]))
    assert torch.equal(x, torch.from_numpy(X[[4, 1]]))
    assert torch.equal(y, torch.from_numpy(Y[[4, 1]]))
    assert records.fingerprint(KEY) == data_tag(KEY, X, Y)
    assert records.fingerprint(b"j" * 16) != records.fingerprint(KEY)
    x, y = records.batch(np.array([], dtype=np.int64))
    assert (x.shape, y.dtype) == ((0, 2), torch.int64)


def test_memory_maps_tuples_and_dicts_are_read_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.repeat(X, 2000, axis=0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    labels = np.repeat(Y, 2000)
    records = ArrayRecords({"a": mapped, "b": (mapped[:, ::-1], labels)}, labels)
    copied = ArrayRecords({"a": np.array(mapped), "b": (np.array(mapped[:, ::-1]), labels)}, labels)
    assert records.fingerprint(KEY) == copied.fingerprint(KEY)
    x, _ = records.batch(np.array([2000]))
    assert torch.equal(x["b"][0], torch.tensor([[3.0, 2.0]]))
    assert in_memory(records)[0]["a"] is mapped
    with pytest.raises(ValueError, match=r"one row for each record, not \[5, 6\] rows"):
        ArrayRecords(X, Y[:5])


A, B, LABELS = torch.from_numpy(X), torch.from_numpy(X) + 1, torch.from_numpy(Y)


@pytest.mark.parametrize(
    ("data", "other"),
    [
        ({"a": A, "b": B, "labels": LABELS}, {"b": A, "a": B, "labels": LABELS}),
        (((A, B), LABELS), (A, (B, LABELS))),
        (((A, B), LABELS), ([A, B], LABELS)),
        ((A.bfloat16(), LABELS), (A.bfloat16().view(torch.int16), LABELS)),
        ((A.bfloat16(), LABELS), (A.half(), LABELS)),
        ((A.bfloat16(), LABELS), (B.bfloat16(), LABELS)),
        ((A.to(torch.float8_e4m3fn), LABELS), (A.to(torch.float8_e4m3fn).view(torch.uint8), LABELS)),
        ((X.astype(">f4"), Y), (X.astype("<f4"), Y)),
    ],
    ids=["keys", "nesting", "containers", "bfloat16", "half", "values", "float8", "byte order"],
)
def test_fingerprints_bind_keys_structure_and_types(data: Any, other: Any) -> None:
    assert as_records(data).fingerprint(KEY) == as_records(data).fingerprint(KEY)
    assert as_records(data).fingerprint(KEY) != as_records(other).fingerprint(KEY)


@pytest.mark.parametrize(
    ("leaf", "other"),
    [
        (np.zeros((1, 3000)), np.eye(1, 3000, 1500)),
        (np.zeros(1), np.zeros(1, np.float32)),
        (np.float32(1), np.float64(1)),
        (np.array(["a"]), np.array(["b"])),
        (1, "1"),
        (None, "None"),
    ],
)
def test_leaves_that_are_no_tensors_bind_in_full(leaf: Any, other: Any) -> None:
    def fingerprint(held: Any) -> str:
        collated = DatasetRecords(Pairs(), lambda items: ((torch.ones(len(items), 2), [held]), torch.ones(len(items))))
        return collated.fingerprint(KEY)

    assert fingerprint(leaf) == fingerprint(leaf)
    assert fingerprint(leaf) != fingerprint(other)


class Jittered(Dataset[Any]):
    """Items that draw from every generator a transform may use."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index] + np.float32(random.random() + np.random.rand()) + torch.rand(2).numpy(), Y[index]


def test_random_transforms_have_one_fingerprint_and_the_callers_generators_stay() -> None:
    def drawn() -> list[float]:
        return [random.random(), np.random.rand(), float(torch.rand(()))]

    seed_all(1)
    first = as_records(Jittered()).fingerprint(KEY)
    after = drawn()
    assert as_records(Jittered()).fingerprint(KEY) == first
    seed_all(1)
    assert drawn() == after
    assert as_records(Jittered()).fingerprint(b"j" * 16) != first


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_what_has_no_exact_fingerprint_is_refused() -> None:
    for leaf in (object(), np.array([object()]), np.zeros(1, "i4,f4"), torch.eye(2).to_sparse()):
        with pytest.raises(ValueError, match=r"a \w+.* among the records has no fingerprint"):
            array_fingerprint(KEY, [leaf])
    for rows in ([1, 2], np.array(1), "text", None):
        with pytest.raises(TypeError, match=r"anything else with numpy\.asarray"):
            as_records((rows, rows))


def test_items_of_a_dataset_are_collated_and_their_contents_bind() -> None:
    records = as_records(Pairs())
    assert isinstance(records, DatasetRecords)
    x, y = records.batch(np.array([3, 0]))
    assert torch.equal(x, torch.from_numpy(X[[3, 0]]))
    assert y.tolist() == [1, 0]
    assert records.batch(np.array([], dtype=np.int64))[0].shape == (0, 2)
    plain = DatasetRecords(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))
    assert plain.fingerprint(KEY) == records.fingerprint(KEY)
    changed = DatasetRecords(TensorDataset(torch.from_numpy(X) + 1, torch.from_numpy(Y)))
    assert changed.fingerprint(KEY) != records.fingerprint(KEY)
    assert isinstance(as_records(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))), ArrayRecords)
    assert in_memory(records)[1].tolist() == Y.tolist()


def test_dicts_with_labels_need_no_collate_fn() -> None:
    x, y = as_records(Tokens()).batch(np.array([1, 2]))
    assert x["input_ids"].tolist() == [[1, 2, 2], [2, 3, 2]]
    assert set(x) == {"input_ids", "attention_mask"}
    assert y.tolist() == [1, 0]
    whole = as_records(UserDict({"input_ids": X, "labels": Y}))
    assert whole.batch(np.array([1]))[0]["input_ids"].tolist() == [[2.0, 3.0]]
    with pytest.raises(ValueError, match="a dict of inputs with `labels`"):
        as_records({"input_ids": X})


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_plain_loader_lends_its_dataset_and_collate_fn(shuffle: bool) -> None:
    doubled = DataLoader(
        Pairs(),
        4,
        shuffle=shuffle,
        collate_fn=lambda items: (torch.stack([2 * a for a, _ in items]), torch.tensor([b for _, b in items])),
    )
    x, _ = as_records(doubled).batch(np.array([1]))
    assert x.tolist() == [[4.0, 6.0]]
    assert len(as_records(DataLoader(Pairs(), 4, shuffle=shuffle))) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": WeightedRandomSampler([1.0] * 6, 6)},
        {"batch_sampler": BatchSampler(RandomSampler(Pairs()), 2, True)},
        {"sampler": RandomSampler(Pairs(), replacement=True)},
        {"batch_size": None},
    ],
)
def test_a_loader_that_chooses_its_own_batches_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Poisson batches that the plan draws"):
        as_records(DataLoader(Pairs(), **options))
    with pytest.raises(ValueError, match="its own collate_fn"):
        dataset_records(DataLoader(Pairs()), lambda items: items)


def test_what_has_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="map-style"):
        as_records(iter([]))
    with pytest.raises(ValueError, match="empty"):
        as_records([])
    with pytest.raises(ValueError, match=r"a pair \(x, y\)"):
        as_records((X, Y, Y))
    with pytest.raises(ValueError, match="one row for each item"):
        dataset_records(Pairs(), lambda items: (torch.zeros(1, 2), torch.zeros(1))).batch(np.array([0, 1]))


def test_tables_lists_and_streams_are_refused_with_the_remedy() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    for data in ((frame, np.zeros(2)), (np.zeros((2, 1)), frame.a), (np.zeros((2, 1)), [0, 1])):
        with pytest.raises(TypeError, match="arrays or tensors"):
            as_records(data)
    with pytest.raises(ValueError, match="map-style"):
        as_records(DataLoader(Stream(), batch_size=2))
