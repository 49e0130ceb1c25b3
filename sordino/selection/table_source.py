"""A private table before anything is read off it: its schema, its number of records, and rows to use in its place."""

import filecmp
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.data import (
    DataError,
    Schema,
    Split,
    cell_blocks,
    is_named,
    load,
    number_set_aside,
    read_cells,
    read_table,
    under,
)
from sordino.selection.proxy_rows import ProxyRows, PublicRows, SyntheticRows

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
        if is_named(file):
            dataset = load(file)
            known = Schema.of(dataset.facts, target or "target") if schema is None else _read_schema(schema, target)
            return cls(file, known, len(under(dataset, known).train), public)
        if target is None:
            raise DataError("give --target, the column to predict")
        if schema is not None:
            known = _read_schema(schema, target)
        elif public is not None:
            known = Schema.inferred(public, target)
        else:
            raise DataError(
                "give --schema FILE with the public domain of each column, or --public FILE to infer it from: domains "
                "are not read off private rows"
            )
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


def _read_schema(schema: Path, target: str | None) -> Schema:
    known = Schema.read(schema)
    if target not in (None, known.target.name):
        raise DataError(f"{schema} has the target {known.target.name!r}, and --target says {target!r}: make them agree")
    return known
