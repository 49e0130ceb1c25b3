"""The named datasets by name: load, locate, fetch."""

from __future__ import annotations

import difflib
from pathlib import Path

from sordino.data import images, places, tables, texts, vectors
from sordino.data.dataset import Dataset, Facts
from sordino.data.definition import Definition, Form
from sordino.data.errors import DataError
from sordino.data.fetching import fetch as fetch_definition

DEFINITIONS: dict[str, Definition] = {
    "mnist": images.MNIST,
    "mnist-5k": images.MNIST_5K,
    "digits": images.SMALL_DIGITS,
    "fashion-mnist": images.FASHION_MNIST,
    "kmnist": images.KMNIST,
    "cifar-10": images.CIFAR10,
    "cifar-100": images.CIFAR100,
    "svhn": images.SVHN,
    "adult": tables.ADULT,
    "breast-cancer": tables.BREAST_CANCER,
    "sms-spam": texts.SMS_SPAM,
    "ag-news": texts.AG_NEWS,
    "medical-cost": tables.MEDICAL_COST,
    "location-30": vectors.LOCATION_30,
    "purchase-100": vectors.PURCHASE_100,
}


def names() -> tuple[str, ...]:
    """All dataset names."""
    return tuple(DEFINITIONS)


def is_named(source: str) -> bool:
    """Whether this is a dataset's name, and not a file that is called like one."""
    return source in DEFINITIONS and not Path(source).exists()


def definition_of(name: str) -> Definition:
    """The definition of a name, or a DataError that suggests one."""
    if name in DEFINITIONS:
        return DEFINITIONS[name]
    near = difflib.get_close_matches(name, DEFINITIONS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(DEFINITIONS)}"
    raise DataError(f"there is no dataset {name!r}; {hint}")


def locate(name: str, cache: Path | None = None) -> Path | None:
    """The folder that holds the dataset's files, or None."""
    found = places.locate(definition_of(name), cache)
    return found.folder if found else None


def fetch(name: str, cache: Path | None = None) -> Path:
    """The dataset's folder, after fetching what is not on the machine yet."""
    return fetch_definition(definition_of(name), cache).folder


def load(name: str, cache: Path | None = None) -> Dataset:
    """A dataset from $SORDINO_DATA or the cache, fetched if it is in neither, and checked against its checksums."""
    described = definition_of(name)
    found = places.locate(described, cache) or fetch_definition(described, cache)
    parts = places.verified(name, found, cache)
    return Dataset(name, _facts(described, found.form, len(parts.train), len(parts.test)), parts.train, parts.test)


def _facts(described: Definition, form: Form, n_train: int, n_test: int) -> Facts:
    return Facts(
        task=described.task,
        kind=described.kind,
        classes=described.classes,
        shape=described.shape,
        value_range=described.value_range,
        n_train=n_train,
        n_test=n_test,
        source=described.source,
        licence=described.licence,
        complete=not form.missing,
        note="; ".join(part for part in (form.missing, described.note) if part),
        protected=described.protected,
        columns=described.columns,
        target_range=described.target_range,
    )
