"""Train, validation and test parts: deterministic, disjoint, assigned row by row without looking at the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Dataset, Split
from sordino.data.errors import DataError


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint parts of one dataset; validation may be empty."""

    train: Split
    validation: Split
    test: Split


def shuffled(n: int, seed: int) -> NDArray[np.intp]:
    """A permutation that stays the same in every NumPy version: only raw Philox words are promised to."""
    if seed < 0:
        raise DataError(f"a split's seed must be 0 or more, not {seed}")
    return np.argsort(np.random.Philox(key=seed).random_raw(n), kind="stable")


def cut(pool: Split, n_test: int) -> tuple[Split, Split]:
    """The fixed train and test parts of a dataset that was published without them."""
    order = shuffled(len(pool), seed=0)
    return pool.take(np.sort(order[n_test:])), pool.take(np.sort(order[:n_test]))


_VALIDATION_SHARE = 0.2


def number_set_aside(n: int) -> int:
    """How many of a private table's records score and do not train."""
    return int(_VALIDATION_SHARE * n)


def set_aside(pool: Split) -> tuple[Split, Split]:
    """The parts "train" and "validation" of a private table: the same records whichever command asks.

    Guarantee: assigned by a record's number alone, so it costs nothing. Commands that go on with one ledger must all
    split like this: its ε is the largest over parts, and that holds only if no record is in two of them.
    """
    held = number_set_aside(len(pool))
    if held < 1:
        raise DataError(f"{len(pool)} records are too few to set some aside for scores; a table needs at least 5")
    return cut(pool, held)


def _draw(pool: Split, sizes: tuple[int, ...], seed: int, what: str) -> list[Split]:
    if min(sizes) < 0 or sum(sizes) > len(pool):
        asked = " + ".join(f"{size:,}" for size in sizes)
        raise DataError(f"cannot draw {asked} rows from {len(pool):,} {what}; ask for fewer")
    order = shuffled(len(pool), seed)
    ends = np.cumsum((0, *sizes))
    return [pool.take(np.sort(order[a:b])) for a, b in pairwise(ends)]


def hold_out(dataset: Dataset, validation: int, *, train: int | None, test: int | None, seed: int) -> Splits:
    """Validation from the training rows; the test rows stay out of it."""
    pool = dataset.train
    n_train = len(pool) - validation if train is None else train
    held, kept = _draw(pool, (validation, n_train), seed, f"training rows of {dataset.name}")
    n_test = len(dataset.test) if test is None else test
    [rest] = _draw(dataset.test, (n_test,), seed, f"test rows of {dataset.name}")
    return Splits(kept, held, rest)


def share_test(dataset: Dataset, validation: int, test: int, seed: int = 0) -> Splits:
    """All training rows train; validation and test are drawn from the official test rows."""
    held, rest = _draw(dataset.test, (validation, test), seed, f"test rows of {dataset.name}")
    return Splits(dataset.train, held, rest)


def repartition(dataset: Dataset, train: int, validation: int, test: int, seed: int = 0) -> Splits:
    """Three parts drawn from training and test rows together."""
    x = [dataset.train.x, dataset.test.x]
    if isinstance(x[0], np.ndarray):
        rows = np.concatenate(x)
    else:
        import pandas as pd

        rows = pd.concat(x, ignore_index=True)
    pool = Split(rows, np.concatenate([dataset.train.y, dataset.test.y]))
    return Splits(*_draw(pool, (train, validation, test), seed, f"rows of {dataset.name}"))


def divide_train(dataset: Dataset, train: int, test: int, seed: int = 0) -> Splits:
    """Train and test both drawn from the training rows (the paper leaves adult.test aside)."""
    held, kept, rest = _draw(dataset.train, (0, train, test), seed, f"training rows of {dataset.name}")
    return Splits(kept, held, rest)


# Sizes from "Section IV-A: Datasets" of the privacy-aware-workflow paper. Location-30 stands in for Purchase-100.
_WORKFLOW: dict[str, Callable[[Dataset, int], Splits]] = {
    "mnist": lambda d, seed: share_test(d, 5000, 5000, seed),
    "fashion-mnist": lambda d, seed: share_test(d, 5000, 5000, seed),
    "cifar-10": lambda d, seed: share_test(d, 5000, 5000, seed),
    "svhn": lambda d, seed: repartition(d, 42_000, 5000, 5000, seed),
    "adult": lambda d, seed: divide_train(d, 22_750, 9750, seed),
    "purchase-100": lambda d, seed: repartition(d, 157_750, 5000, 5000, seed),
    "location-30": lambda d, seed: repartition(d, 4010, 500, 500, seed),
    "breast-cancer": lambda d, seed: repartition(d, 191, 0, 95, seed),
    "sms-spam": lambda d, seed: repartition(d, 4700, 0, 836, seed),
    "medical-cost": lambda d, seed: repartition(d, 1000, 0, 300, seed),
}


def workflow(dataset: Dataset, seed: int) -> Splits:
    """The paper's split of this dataset, with the rows drawn by `seed`."""
    draw = _WORKFLOW.get(dataset.name)
    if draw is None:
        raise DataError(f"the privacy-aware-workflow paper does not use {dataset.name}; use Dataset.split instead")
    return draw(dataset, seed)
