"""What PAW's networks see of each dataset. All but the principal components is a function of one record, and free."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional

from sordino.data import Dataset, Split, load, shuffled
from sordino.features import Pixels

COMPONENTS = 300
VOCABULARY, LENGTH = 1000, 40
"""PAW's vocabulary, and the words of a message that are read: 40 of its 150, which few messages have."""
CHARGES = 62_649.0
"""The range of the charges in the published table (1,122 to 63,770), by which PAW's errors seem to be rescaled."""
_WORD = re.compile(r"\w+|[^\w\s]")
_WORST = 1e5

Rows = NDArray[Any]
Inputs = Callable[[Any, Any], tuple[Rows, Rows]]
"""From the records of the training part and of the examined part to what the network sees of them."""


@dataclass(frozen=True, eq=False)
class Material:
    """Inputs and targets to train on, and those to examine."""

    x: Rows
    y: Rows
    examined_x: Rows
    examined_y: Rows


def _each(seen: Callable[[Any], Rows]) -> Inputs:
    """Of one record alone."""

    def both(train: Any, examined: Any) -> tuple[Rows, Rows]:
        return seen(train), seen(examined)

    return both


def _planes(images: Any) -> Rows:
    return Pixels()(images).numpy()


def _flat(images: Any) -> Rows:
    return _planes(images).reshape(len(images), -1)


def _pooled(images: Any) -> Rows:
    """28×28 pixels → the means of an 8×8 grid: PAW's 64 numbers, which it does not describe."""
    return functional.adaptive_avg_pool2d(Pixels()(images), 8).flatten(1).numpy()


def _bits(vectors: Any) -> Rows:
    return np.asarray(vectors, np.float32)


def _tokens(texts: Any) -> Rows:
    """The first words by a public hash, zeros before them; a vocabulary of frequent words would read the messages."""
    rows = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in zip(rows, texts, strict=True):
        found = [1 + _hash(word) % (VOCABULARY - 1) for word in _WORD.findall(text.lower())[:LENGTH]]
        if found:
            row[-len(found) :] = found
    return rows


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _attributes(table: Any) -> Rows:
    """Six numbers in [0, 1], as PAW's counts say: categories by their place in the documented order."""
    columns = load("medical-cost").facts.columns or ()
    numbers = []
    for column in columns:
        low, high = column.bounds or (0, len(column.categories or ()) - 1)
        values = table[column.name].astype(str if column.categories else float)
        raw = (
            values.map({name: place for place, name in enumerate(column.categories or ())})
            if not column.bounds
            else values
        )
        numbers.append(np.clip((raw.to_numpy(np.float64) - low) / (high - low), 0, 1))
    return np.stack(numbers, axis=1).astype(np.float32)


def _components(train: Any, examined: Any) -> tuple[Rows, Rows]:
    return principal_components(_flat(train), _flat(examined), COMPONENTS)


def principal_components(train: Rows, examined: Rows, count: int) -> tuple[Rows, Rows]:
    """Both in the leading directions of the training records.

    Guarantee: none. The directions are read off the training records without noise, as PAW does; a record that uses
    them says so.
    """
    from sklearn.decomposition import PCA

    fitted = PCA(min(count, *train.shape), svd_solver="auto", random_state=0).fit(train)
    missing = count - fitted.n_components_  # of fewer records than components, when an item is tried out
    both = [np.pad(fitted.transform(rows), ((0, 0), (0, missing))).astype(np.float32) for rows in (train, examined)]
    return both[0], both[1]


PLANES, FLAT, POOLED, BITS, TOKENS, ATTRIBUTES = map(_each, (_planes, _flat, _pooled, _bits, _tokens, _attributes))
PRINCIPAL: Inputs = _components


@lru_cache(maxsize=2)
def material(dataset: str, inputs: Inputs, validation: int, records: int | None, examined: int | None) -> Material:
    """The paper's parts of a dataset, its test rows examined; or some training rows held out, to choose by.

    More records than there are means drawn with replacement, as in PAW's Figure 6: then they are copies.
    """
    data = loaded(dataset)
    parts = data.workflow_split()
    train, other = parts.train, parts.test
    if validation:
        order = shuffled(len(train), seed=1)
        train, other = train.take(np.sort(order[validation:])), train.take(np.sort(order[:validation]))
    if records is not None:
        replace = records > len(train)
        rows = np.random.default_rng(0).choice(len(train), records, replace=replace)
        train = train.take(np.sort(rows))
    if examined is not None:
        other = other.take(np.arange(min(examined, len(other))))
    x, examined_x = inputs(train.x, other.x)
    return Material(x, _targets(train, data), examined_x, _targets(other, data))


def _targets(split: Split, data: Dataset) -> Rows:
    if data.facts.task != "regression":
        return split.y
    return np.asarray(np.clip(split.y, 0, _WORST) / CHARGES, dtype=np.float32)


loaded = lru_cache(maxsize=2)(load)
