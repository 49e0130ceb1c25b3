"""Where a workflow's records come from: a private table before anything is read off it, and the parts of a search."""

import filecmp
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.data import (
    DataError,
    Dataset,
    Facts,
    Schema,
    Split,
    cell_blocks,
    is_named,
    load,
    number_set_aside,
    read_cells,
    read_table,
    set_aside,
    under,
)
from sordino.features import Feature, OneHot, Pixels, Scaled, as_array
from sordino.selection.proxy_rows import ProxyRows, PublicRows, SyntheticRows
from sordino.selection.trials import TrialData

if TYPE_CHECKING:
    from pandas import DataFrame, Series


@dataclass(frozen=True)
class PrivateTable:
    """A file or a named table; `open` counts its rows and reads nothing else."""

    name: str
    schema: Schema
    n: int
    public: Path | None = None
    """A public table with the same columns."""

    @classmethod
    def open(cls, file: str, target: str | None, schema: Path | None, public: Path | None) -> "PrivateTable":
        """With the schema from its file, from the public table, or from the named table.

        Guarantee: under zero-out, the ledger's adjacency, the number of records is public; nothing else is read.
        """
        refuse_private_as_public(file, public)
        known = given_schema(file, target, schema, public)
        if is_named(file):
            dataset = load(file)
            known = known or Schema.of(dataset.facts, target or "target")
            return cls(file, known, len(under(dataset, known).train), public)
        assert known is not None
        n, (_, blocks) = 0, cell_blocks(file)
        for cells in blocks:
            missing = [column.name for column in (*known.columns, known.target) if column.name not in cells]
            if missing:
                named = ", ".join(map(repr, missing))
                raise DataError(f"{file} lacks {named} of the schema; correct the file or the schema")
            n += len(cells)
        return cls(file, known, n, public)

    @property
    def trained(self) -> int:
        """Records to train on; the others are held out to score on."""
        return self.n - number_set_aside(self.n)

    def read(self) -> Split:
        """The private records."""
        if is_named(self.name):
            return under(load(self.name), self.schema).train
        return read_table(self.name, self.schema)

    def proxy_rows(self) -> ProxyRows:
        """Rows to try things out on in place of the private ones: public, or synthetic."""
        if self.public is None:
            return SyntheticRows(self.schema, self.trained)
        return PublicRows(read_table(self.public, self.schema), self.trained)


def refuse_private_as_public(private: str, public: str | Path | None) -> None:
    """Refuse the private table under another name: its records would be used without being charged."""
    if public is None:
        return
    if is_named(str(public)):
        same = private == str(public)
    else:
        same = (is_named(private) or Path(private).is_file()) and Path(public).is_file() and _same_rows(private, public)
    if same:
        raise DataError(f"--public {public} is the private table itself; give a table that anybody may see")


def _same_rows(one: str, other: str | Path) -> bool:
    """Whether a table and a file hold the same records, in any order and format."""
    if is_named(one) and load(one).facts.columns is None:
        return False
    if not is_named(one) and filecmp.cmp(one, other, shallow=False):
        return True
    try:
        tables = [load(one).train.x if is_named(one) else read_cells(one), read_cells(other)]
    except DataError:  # what cannot be read is refused where it is used
        return False
    shared = [name for name in tables[0] if name in tables[1]]
    if not shared or len(tables[0]) != len(tables[1]):
        return False
    one_rows, other_rows = (Counter(_comparable(table[shared]).itertuples(index=False, name=None)) for table in tables)
    return one_rows == other_rows


def _comparable(table: "DataFrame") -> "DataFrame":
    """Cells as text, with equal numbers alike however a format writes them."""
    import pandas as pd

    def words(column: "Series[Any]") -> "Series[Any]":
        text = column.astype(str).str.strip()
        numbers = pd.to_numeric(text, errors="coerce")
        return numbers.map("{:.9g}".format).where(numbers.notna(), text)

    return table.apply(words)


def given_schema(source: str, target: str | None, schema: Path | None, public: str | Path | None) -> Schema | None:
    """The public domain of each column: read from the schema's file, or inferred from the public table.

    None for a named dataset, which declares its own. Domains are never read off private rows.
    """
    if schema is not None:
        known = Schema.read(schema)
        if target not in (None, known.target.name):
            raise DataError(
                f"{schema} has the target {known.target.name!r}, and --target says {target!r}: make them agree"
            )
        return known
    if is_named(source):
        return None
    if target is None:
        raise DataError("give --target, the column to predict, or a --schema that names it")
    if public is None or is_named(str(public)):
        raise DataError(
            "give --schema FILE with the public domain of each column, or --public FILE to infer it from: domains "
            "are not read off private rows"
        )
    return Schema.inferred(public, target)


@dataclass(frozen=True, eq=False)
class SearchData:
    """Two disjoint parts to search on, and a benchmark's published test records, if it has any."""

    name: str
    facts: Facts
    parts: TrialData
    test: Split | None
    """Public, to be scored exactly."""

    @classmethod
    def read(cls, source: str, schema: Schema | None) -> "SearchData":
        """A named dataset, or a .csv or .parquet file under its schema, which it needs.

        Guarantee: encoding uses public bounds and categories, and the parts come from a record's place in the file
        alone; nothing is read off the records, so it costs nothing.
        """
        dataset = _dataset(source, schema)
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
        test = Split(as_array(feature(dataset.test.x)), dataset.test.y) if len(dataset.test) else None
        return cls(dataset.name, dataset.facts, parts, test)


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


def _dataset(source: str, schema: Schema | None) -> Dataset:
    if schema is None:
        return load(source)
    if is_named(source):
        return under(load(source), schema)
    rows = read_table(source, schema)
    return Dataset(Path(source).name, schema.facts(len(rows), source), rows, rows.take(np.arange(0)))
