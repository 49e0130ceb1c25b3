"""The data of a search, from a named dataset or a user's table: encoded on a public scale, split record by record."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import DataError, Dataset, Facts, Schema, Split, is_named, load, read_table, set_aside, under
from sordino.features import Feature, OneHot, Pixels, Scaled, as_array
from sordino.selection.trials import TrialData


@dataclass(frozen=True, eq=False)
class SearchData:
    """Two disjoint parts to search on, and a benchmark's published test records, if it has any."""

    name: str
    facts: Facts
    parts: TrialData
    test: TrialData | None
    """Public test records, as the validation part, to be scored exactly; its training part is unused."""
    schema: dict[str, Any] | None = None
    """The schema that was given, as JSON values."""

    @classmethod
    def read(cls, source: str, *, schema: Schema | None = None, target: str | None = None) -> "SearchData":
        """A named dataset, or a .csv or .parquet file under its schema.

        Guarantee: encoding uses public bounds and categories, and the parts come from a record's place in the file
        alone; nothing is read off the records, so it costs nothing.
        """
        dataset = _dataset(source, schema, target)
        if dataset.facts.task != "classification" or dataset.facts.classes is None:
            raise DataError(
                f"{source} is of the kind {dataset.facts.kind} with the task {dataset.facts.task}: searching and "
                "tuning are for classes of images, vectors or table rows"
            )
        feature, classes = feature_of(dataset.facts, source), len(dataset.facts.classes)
        # A table takes more memory than its numbers, and images less: split and copy the smaller of the two.
        if dataset.facts.kind == "table":
            dataset = replace(dataset, train=Split(as_array(feature(dataset.train.x)), dataset.train.y))
            train, held_out = set_aside(dataset.train)
        else:
            train, held_out = (Split(as_array(feature(part.x)), part.y) for part in set_aside(dataset.train))
        parts = TrialData(train.x, train.y, held_out.x, held_out.y, classes)
        test = None
        if len(dataset.test):
            test = replace(
                parts,
                train_x=train.x[:1],
                train_y=train.y[:1],
                validation_x=as_array(feature(dataset.test.x)),
                validation_y=dataset.test.y,
            )
        return cls(dataset.name, dataset.facts, parts, test, None if schema is None else schema.to_json())


def check_source(source: str) -> None:
    if not is_named(source) and not Path(source).exists():
        raise DataError(f"{source} is neither a file nor a named dataset; `sordino data list` names those")


def feature_of(facts: Facts, name: str) -> Feature:
    """How examples become numbers, by public facts alone."""
    if facts.kind == "image" and facts.value_range is not None:
        return Pixels(white=facts.value_range[1])
    if facts.kind == "vector" and facts.value_range is not None:
        return Scaled(*facts.value_range)
    if facts.kind == "table" and facts.columns is not None:
        return OneHot(facts.columns)
    raise DataError(f"{name} has examples of kind {facts.kind}: searches are for images, vectors and tables")


def _dataset(source: str, schema: Schema | None, target: str | None) -> Dataset:
    check_source(source)
    if schema is not None and target not in (None, schema.target.name):
        raise DataError(
            f"the schema's target is {schema.target.name!r}, not {target!r}; correct --target or the schema"
        )
    if is_named(source):
        return load(source) if schema is None else under(load(source), schema)
    if schema is None:
        raise DataError(
            "a table of your own needs the public domains of its columns: give --schema, or --target and a public "
            "table with --public to infer them from"
        )
    rows = read_table(source, schema)
    return Dataset(Path(source).name, schema.facts(len(rows), source), rows, rows.take(np.arange(0)))
