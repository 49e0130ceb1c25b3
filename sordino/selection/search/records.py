"""The records of a search from a named dataset or a user's table: encoded on a public scale, split record by record."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import DataError, Dataset, Facts, Schema, Split, is_named, load, read_table, set_aside, under
from sordino.features import Feature, OneHot, Pixels, Scaled, as_array
from sordino.selection.search.candidates import Material


@dataclass(frozen=True, eq=False)
class Records:
    """Two disjoint parts to search on, and test records where a benchmark has published some."""

    name: str
    facts: Facts
    material: Material
    test: Material | None
    """A benchmark's public test records, as validation records to be scored exactly; its training part is unused."""
    schema: dict[str, Any] | None = None
    """That was given, as JSON values."""

    @classmethod
    def read(cls, source: str, *, schema: Schema | None = None, target: str | None = None) -> "Records":
        """Of the dataset of this name, or of the .csv or .parquet file under its schema.

        Guarantee: encoding takes public bounds and categories, and the parts come from a record's place in the file
        alone; nothing is read off the records, so it costs nothing.
        """
        dataset = _dataset(source, schema, target)
        if dataset.facts.task != "classification" or dataset.facts.classes is None:
            raise DataError(
                f"{source} is of the kind {dataset.facts.kind} with the task {dataset.facts.task}: searching and "
                "tuning are for classes of images, vectors or table rows"
            )
        feature, classes = feature_of(dataset.facts, source), len(dataset.facts.classes)
        # A table takes more memory than its numbers, and images less: the smaller of them is what is split and copied.
        if dataset.facts.kind == "table":
            dataset = replace(dataset, train=Split(as_array(feature(dataset.train.x)), dataset.train.y))
            train, judged = set_aside(dataset.train)
        else:
            train, judged = (Split(as_array(feature(part.x)), part.y) for part in set_aside(dataset.train))
        train_x = train.x
        material = Material(train_x, train.y, judged.x, judged.y, classes)
        test = None
        if len(dataset.test):
            test_x = as_array(feature(dataset.test.x))
            test = Material(train_x[:1], train.y[:1], test_x, dataset.test.y, classes)
        return cls(dataset.name, dataset.facts, material, test, None if schema is None else schema.to_json())


def check_source(source: str) -> None:
    if not is_named(source) and not Path(source).exists():
        raise DataError(f"{source} is neither a file nor a named dataset; `sordino data list` names those")


def _dataset(source: str, schema: Schema | None, target: str | None) -> Dataset:
    if is_named(source):
        _check_target(schema, target)
        return load(source) if schema is None else under(load(source), schema)
    check_source(source)
    if schema is None:
        raise DataError(
            "a table of your own needs the public domains of its columns: give --schema, or --target and a public "
            "table with --public to infer them from"
        )
    _check_target(schema, target)
    rows = read_table(source, schema)
    return Dataset(Path(source).name, schema.facts(len(rows), source), rows, rows.take(np.arange(0)))


def _check_target(schema: Schema | None, target: str | None) -> None:
    if schema is not None and target not in (None, schema.target.name):
        raise DataError(
            f"the schema's target is {schema.target.name!r}, not {target!r}; correct --target or the schema"
        )


def feature_of(facts: Facts, name: str) -> Feature:
    """What makes numbers of examples, by public facts alone."""
    if facts.kind == "image" and facts.value_range is not None:
        return Pixels(white=facts.value_range[1])
    if facts.kind == "vector" and facts.value_range is not None:
        return Scaled(*facts.value_range)
    if facts.kind == "table" and facts.columns is not None:
        return OneHot(facts.columns)
    raise DataError(f"{name} has examples of kind {facts.kind}: searches are for images, vectors and tables")
