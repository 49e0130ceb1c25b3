"""Records: private data as training sees it, whatever it is kept in.

Arrays, memory maps, tensors, torch Datasets and tables with a schema all become `Records`: a length, batches by index,
and a keyed fingerprint. Nothing downstream cares which it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from sordino.data.schema import Schema
from sordino.data.tables import one_hot, read_values

if TYPE_CHECKING:
    import pandas as pd

Indices = NDArray[np.int64]
Collate = Callable[[list[Any]], Any]
_BLOCK = 4096
_TABLE = "convert a table with schema.records(table), where schema is a sordino.Schema"
_LABELS = ("labels", "label")
_PLAIN = {str, bytes, bool, int, float, complex, type(None)}
"""Types whose repr says all."""
_BY_BYTES = "biufcmMSU"
"""NumPy's kinds of numbers, times and text: neither objects nor fields."""


@runtime_checkable
class Records(Protocol):
    """Private records: how many there are, batches of them, and a fingerprint.

    `batch` returns inputs and targets (x, y): tensors with one row for each index, or tuples or dicts of such tensors.
    Asked again for the same indices it must return the same batch, up to chance drawn from torch's, NumPy's or Python's
    generators. `fingerprint` binds a run to its data: an HMAC under the run's key, so that without the key it does not
    even confirm a guess.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> tuple[Any, Any]: ...

    def fingerprint(self, key: bytes) -> str: ...


class ArrayRecords:
    """Inputs x and targets y: arrays, memory maps or tensors with a row for each record, or tuples or dicts of them.

    >>> import numpy as np
    >>> records = ArrayRecords(np.eye(3, dtype=np.float32), np.array([0, 1, 0]))
    >>> len(records)
    3
    >>> records.batch(np.array([1]))
    (tensor([[0., 1., 0.]]), tensor([1]))
    """

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y
        for leaf in self._leaves:
            if not (isinstance(leaf, Tensor | np.ndarray) and leaf.ndim):
                raise TypeError(
                    f"records are arrays or tensors with rows, not {type(leaf).__name__}: {_TABLE}, and "
                    "anything else with numpy.asarray"
                )
        lengths = {len(leaf) for leaf in self._leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"inputs and targets must have one row for each record, not {sorted(lengths)} rows")
        self._n = lengths.pop()

    @property
    def _leaves(self) -> list[Any]:
        return pytree.tree_leaves((self.x, self.y))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All inputs, then all targets, as NumPy has them."""
        return tuple(leaf.numpy(force=True) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves)

    def __len__(self) -> int:
        return self._n

    def batch(self, indices: Indices) -> tuple[Any, Any]:
        return pytree.tree_map(lambda leaf: _gathered(leaf, indices), self.x), pytree.tree_map(
            lambda leaf: _gathered(leaf, indices), self.y
        )

    def fingerprint(self, key: bytes) -> str:
        return array_fingerprint(key, (self.x, self.y))


class TableRecords:
    """The rows of a DataFrame, or of a .csv or .parquet file, under a schema: one-hot inputs and the target.

    Inputs are float32 rows of `schema.width` numbers; the target is a class index, or a number cut at its bounds. What
    is kept is each column's numbers or category codes, so a batch alone is ever one-hot. A cell that does not fit the
    schema is named by row (counted from 1) and column, never by its value; columns outside the schema are not read.

    Guarantee: a record's batch row is a function of its own row and of the public schema, so encoding costs no privacy.
    The fingerprint binds the schema and every value, whether the rows came from a DataFrame or from a file.
    """

    def __init__(self, table: pd.DataFrame | str | Path, schema: Schema) -> None:
        self.schema = schema
        values = read_values(table, schema.columns, schema.target)
        y = values.pop(schema.target.name)
        if schema.target.bounds is None:
            self._y = y.astype(np.int64)
        else:
            self._y = np.clip(y, *schema.target.bounds).astype(np.float32)
        self._columns = list(values.values())

    def __len__(self) -> int:
        return len(self._y)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        x = one_hot(self.schema.columns, [values[indices] for values in self._columns])
        return torch.from_numpy(x), torch.from_numpy(self._y[indices])

    def fingerprint(self, key: bytes) -> str:
        return array_fingerprint(key, (json.dumps(self.schema.to_json()), *self._columns, self._y))


class DatasetRecords:
    """The items of a map-style torch Dataset: pairs (input, target), or dicts of inputs with `labels` or `label`.

    `collate_fn` must make each row of a batch from one item alone: whatever mixes items (mixup, a norm over the batch)
    breaks the guarantee, and only a wrong number of rows can be noticed here.
    """

    def __init__(self, dataset: Dataset[Any] | Sequence[Any], collate_fn: Collate | None = None) -> None:
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise ValueError(
                "the dataset must be map-style (with a length and items): Poisson batches are drawn by index"
            )
        self._dataset, self._collate = dataset, collate_fn or _collate
        self._n = len(dataset)
        if self._n == 0:
            raise ValueError("the dataset is empty")

    def __len__(self) -> int:
        return self._n

    def batch(self, indices: Indices) -> tuple[Any, Any]:
        if len(indices):
            return _pair(self._collate([self._dataset[int(index)] for index in indices]), len(indices))
        x, y = _pair(self._collate([self._dataset[0]]), 1)  # an empty batch has the shapes and types of any other
        empty: tuple[Any, Any] = pytree.tree_map_only(Tensor, lambda leaf: leaf[:0], (x, y))
        return empty

    def fingerprint(self, key: bytes) -> str:
        """Of the items, where random transforms draw under a seed from the key: the same again, whatever was drawn.

        A dataset that draws from a generator of its own has no two fingerprints alike.
        """
        with _seeded(int.from_bytes(hmac.digest(key, b"random transforms", "sha256")[:8], "big") >> 1):
            return array_fingerprint(key, (self.batch(np.array([index])) for index in range(self._n)))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """torch (on the CPU), NumPy and Python draw from this seed inside, and after it as if nothing had been drawn."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def as_records(data: Any) -> Records:
    """Records from what users have: a pair (x, y), a dict of arrays with `labels`, a torch Dataset or a DataLoader.

    Of a DataLoader its dataset and collate_fn are used; which records form a batch is drawn by the plan.

    >>> import numpy as np
    >>> len(as_records((np.zeros((5, 2), np.float32), np.zeros(5, np.int64))))
    5
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, DataLoader):
        _refuse_sampler(data)
        return _of_dataset(data.dataset, None if data.collate_fn is default_collate else data.collate_fn)
    if isinstance(data, Mapping):
        x, y = _pair(dict(data), None)
        return ArrayRecords(x, y)
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"arrays are given as a pair (x, y), not as a tuple of {len(data)}")
        return ArrayRecords(*data)
    return _of_dataset(data, None)


def dataset_records(dataset: Any, collate_fn: Collate | None = None) -> Records:
    """The same with a collate_fn for the items of a Dataset, in place of a DataLoader's own."""
    if collate_fn is None:
        return as_records(dataset)
    if isinstance(dataset, DataLoader):
        raise ValueError("a DataLoader has its own collate_fn: leave collate_fn out, or pass the dataset")
    return _of_dataset(dataset, collate_fn)


def in_memory(records: Records) -> tuple[Any, Any]:
    """All inputs and targets, for models that work on the whole: as they are if they are arrays, else read now."""
    if isinstance(records, ArrayRecords):
        return records.x, records.y
    return records.batch(np.arange(len(records)))


def _of_dataset(dataset: Any, collate_fn: Collate | None) -> Records:
    if hasattr(dataset, "iloc"):
        raise TypeError(f"a {type(dataset).__name__} does not say what is public about its columns: {_TABLE}")
    # A subclass may change its items, so only a plain one is read past them.
    if type(dataset) is TensorDataset and collate_fn is None and len(dataset.tensors) == 2 and len(dataset):
        return ArrayRecords(*dataset.tensors)
    return DatasetRecords(dataset, collate_fn)


def _refuse_sampler(loader: DataLoader[Any]) -> None:
    """Refuse a loader that decides by itself which records form a batch."""
    if isinstance(loader.dataset, IterableDataset):
        return  # has no sampler to speak of, and is refused as a dataset
    plain = type(loader.sampler) in (SequentialSampler, RandomSampler) and not getattr(loader.sampler, "replacement", 0)
    if loader.batch_size is None or not plain:
        what = "a batch_sampler" if loader.batch_size is None else f"a {type(loader.sampler).__name__}"
        raise ValueError(
            f"the DataLoader draws its batches by {what}, and ε is for the Poisson batches that the plan draws: pass "
            "a DataLoader without sampler and batch_sampler, or the dataset itself"
        )


def array_fingerprint(key: bytes, parts: Iterable[Any]) -> str:
    """An HMAC of the types, shapes and bytes of arrays and tensors, and of the tuples and dicts that hold them.

    Guarantee: parts that differ in a value, a type, a shape, a key or in what holds what have different fingerprints.
    Arrays alone have those of `mechanisms.data_tag`, to which runs of version 0.1 are bound.
    """
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        leaves, structure = pytree.tree_flatten(part)
        if not structure.is_leaf():
            mac.update(str(structure).encode())
        for leaf in leaves:
            _absorb(mac, leaf)
    return mac.hexdigest()


def _absorb(mac: hmac.HMAC, leaf: Any) -> None:
    if type(leaf) in _PLAIN:
        text = repr(leaf).encode()
        mac.update(f"{type(leaf).__name__}{len(text)}:".encode() + text)
        return
    kind, shape, array = _typed(leaf)
    mac.update(f"{kind}{shape}".encode())
    blocks = (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK)) if array.ndim else (array,)
    for block in blocks:
        mac.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data if block.size else b"")


def _typed(leaf: Any) -> tuple[str, tuple[int, ...], NDArray[Any]]:
    """The name of the leaf's type, its shape, and an array of its bytes."""
    if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not (leaf.is_quantized or leaf.is_nested):
        try:
            leaf = leaf.numpy(force=True)
        except TypeError:  # NumPy has no such type (bfloat16)
            flat = leaf.detach().cpu().contiguous().flatten()
            return str(leaf.dtype), tuple(leaf.shape), flat.view(torch.uint8).numpy()
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in _BY_BYTES:
        return leaf.dtype.str, leaf.shape, np.asarray(leaf)
    kind = f"{type(leaf).__name__} of {leaf.dtype}" if hasattr(leaf, "dtype") else type(leaf).__name__
    raise ValueError(
        f"a {kind} among the records has no fingerprint: give dense tensors, arrays of numbers or text, or plain values"
    )


def _collate(items: list[Any]) -> Any:
    """torch's, but lists of numbers in dicts (token ids, as Hugging Face has them) are rows, not columns."""
    return default_collate([_with_rows(item) for item in items])


def _with_rows(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    return {name: torch.as_tensor(value) if isinstance(value, list) else value for name, value in item.items()}


def _pair(batch: Any, examples: int | None) -> tuple[Any, Any]:
    """Inputs and targets of a batch of so many items."""
    batch = _dicts(batch)
    if isinstance(batch, dict) and len(batch) > 1:
        labels = next((name for name in _LABELS if name in batch), None)
        if labels is not None:
            batch = {name: value for name, value in batch.items() if name != labels}, batch[labels]
    if not isinstance(batch, Sequence) or len(batch) != 2:
        raise ValueError(
            "an item of the dataset must be a pair (input, target), or a dict of inputs with `labels`: give a "
            "collate_fn that returns (x, y)"
        )
    x, y = batch
    if examples is not None and not (_rows(x) == _rows(y) == {examples}):
        raise ValueError("the collated batch must have one row for each item that was drawn")
    return x, y


def _dicts(batch: Any) -> Any:
    """The batch with a dict for every mapping (transformers.BatchEncoding is one)."""
    return pytree.tree_map(
        lambda leaf: _dicts(dict(leaf)) if isinstance(leaf, Mapping) else leaf,
        batch,
        is_leaf=lambda part: isinstance(part, Mapping) and type(part) is not dict,
    )


def _rows(batch: Any) -> set[int]:
    return {len(leaf) if leaf.ndim else -1 for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)}


def _gathered(leaf: Any, indices: Indices) -> Tensor:
    return leaf[torch.from_numpy(indices)] if isinstance(leaf, Tensor) else torch.from_numpy(leaf[indices])
