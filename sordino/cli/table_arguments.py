"""What the commands for tables have in common: FILE, --target, --schema and --public become a schema and a number."""

import filecmp
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from sordino.data import Schema, Split

File = Annotated[
    str,
    typer.Argument(help="The private table (.csv, .parquet), or the name of one, such as adult.", show_default=False),
]
Target = Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", help="JSON: the public domain of each column. Default: inferred from --public."),
]
PublicFile = Annotated[Path | None, typer.Option("--public", help="A public table with the same columns.")]
Epsilon = Annotated[float, typer.Option(help="ε of the whole workflow: never exceeded.", show_default=False)]
Delta = Annotated[float, typer.Option(help="δ of the whole workflow, below 1/n.", show_default=False)]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="Go on with this ledger, or with that of this folder.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, all else beside it.")]


@dataclass(frozen=True)
class TableFile:
    """A private table that nobody has looked into yet: its name, its schema, how many records it has."""

    name: str
    schema: "Schema"
    n: int

    def read(self) -> "Split":
        """The private records."""
        from sordino.data import is_named, load, read_table, under

        if is_named(self.name):
            return under(load(self.name), self.schema).train
        return read_table(self.name, self.schema)


def table_file(file: str, target: str | None, schema: Path | None, public: Path | None) -> TableFile:
    """Schema from its file, from the public table, or of the named one; of the private table only the rows are counted.

    Guarantee: under zero-out, the ledger's adjacency, the number of records is public; nothing else is read off them.
    """
    from sordino.data import DataError, Schema, cell_blocks, is_named

    refuse_private_as_public(file, public)
    if is_named(file):
        return _named(file, target, schema)
    if target is None:
        raise typer.BadParameter("give --target, the column to predict")
    if schema is not None:
        known = _read_for(schema, target)
    elif public is not None:
        known = Schema.inferred(public, target)
    else:
        raise typer.BadParameter(
            "give --schema FILE with the public domain of each column, or --public FILE to infer it from: domains are "
            "not read off private rows"
        )
    n, (_, blocks) = 0, cell_blocks(file)
    for cells in blocks:
        missing = [column.name for column in (*known.columns, known.target) if column.name not in cells]
        if missing:
            named = ", ".join(map(repr, missing))
            raise DataError(f"{file} lacks {named} of the schema; correct the file or the schema")
        n += len(cells)
    return TableFile(file, known, n)


def refuse_private_as_public(private: str, public: str | Path | None) -> None:
    """The private table is not public by being named so: its records would be used without a price."""
    from sordino.data import is_named

    if public is None:
        return
    if is_named(str(public)):
        same = private == str(public)
    else:
        same = (is_named(private) or Path(private).is_file()) and Path(public).is_file() and _same_rows(private, public)
    if same:
        raise typer.BadParameter(f"--public {public} is the private table itself; give a table that anybody may see")


def _same_rows(one: str, other: str | Path) -> bool:
    """Whether a table and a file hold the same records, in whatever order and format."""
    from sordino.data import DataError, is_named, load, read_cells

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
    """Cells as words, numbers alike however a format writes them."""
    import pandas as pd

    def words(column: "Series[Any]") -> "Series[Any]":
        text = column.astype(str).str.strip()
        numbers = pd.to_numeric(text, errors="coerce")
        return numbers.map("{:.9g}".format).where(numbers.notna(), text)

    return table.apply(words)


def _read_for(schema: Path, target: str | None) -> "Schema":
    from sordino.data import DataError, Schema

    known = Schema.read(schema)
    if target not in (None, known.target.name):
        raise DataError(f"{schema} has the target {known.target.name!r}, and --target says {target!r}: make them agree")
    return known


def _named(name: str, target: str | None, schema: Path | None) -> TableFile:
    from sordino.data import Schema, load, under

    dataset = load(name)
    known = Schema.of(dataset.facts, target or "target") if schema is None else _read_for(schema, target)
    return TableFile(name, known, len(under(dataset, known).train))
