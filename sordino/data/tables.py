"""Tables under a schema: cells → numbers and category codes → one-hot rows, each from its own row alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Column, Split
from sordino.data.files import cell_blocks
from sordino.data.raw_files import DataError
from sordino.mechanisms import memory

if TYPE_CHECKING:
    import pandas as pd

    from sordino.data.schema import Schema

# A whole number written as a float, as most formats do in columns with gaps.
_WHOLE = re.compile(r"^(-?\d+)\.0$")


def read_table(path: str | Path, schema: Schema) -> Split:
    """The records of a .csv or .parquet file under a schema: x in the schema's order, y class indices or numbers.

    Numbers outside their bounds come back as they are: encoders cut them. A cell that does not fit is named by row and
    column, both as they stand in the file, never by its value. Other columns of the file are not read.
    """
    values = read_values(path, schema.columns, schema.target)
    y = values[schema.target.name]
    return Split(_frame(values, schema.columns), y if schema.target.categories is None else y.astype(np.int64))


def read_inputs(table: pd.DataFrame | str | Path, columns: tuple[Column, ...]) -> pd.DataFrame:
    """The same without the target."""
    return _frame(read_values(table, columns), columns)


def read_values(
    table: pd.DataFrame | str | Path, columns: Sequence[Column], target: Column | None = None
) -> dict[str, NDArray[Any]]:
    """Each column's numbers (float64) or category codes (int32), read one block of rows after another."""
    where = table if isinstance(table, str | Path) else "the table"
    wanted = [*columns, *([] if target is None else [target])]
    most, blocks = cell_blocks(table)
    # Room for as many rows as there may be: pages that are never written take no memory.
    found = {c.name: np.empty(most, np.float64 if c.categories is None else np.int32) for c in wanted}
    row = 0
    for cells in blocks:
        _refuse_missing(cells, wanted, target, where)
        for column in wanted:
            values = (_codes if column.categories is not None else _numbers)(cells[column.name], column, where, row)
            found[column.name][row : row + len(cells)] = values
        row += len(cells)
    return {name: values[:row] for name, values in found.items()}


def one_hot(columns: Sequence[Column], values: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Numbers scaled to [0, 1] by their public bounds, and an indicator for each category, from `read_values`.

    Guarantee: each row is a function of that record and of the public schema alone, so it costs no privacy.
    """
    widths, n = [column.width for column in columns], len(values[0])
    rows = np.zeros((n, sum(widths)), np.float32)
    for column, found, block in zip(columns, values, np.split(rows, np.cumsum(widths)[:-1], axis=1), strict=True):
        if column.bounds is None:
            block[np.arange(n), found] = 1
        else:
            low, high = column.bounds
            # Clip first: a number that overflows later would reveal itself in a warning.
            block[:, 0] = np.clip((np.clip(found, low, high) - low) / (high - low), 0, 1)
    return rows


def refuse_too_wide(n: int, columns: Sequence[Column]) -> None:
    """Refuse to encode a whole table that would not fit in memory, before it is charged or allocated; n is public."""
    widest, width = max(columns, key=lambda column: column.width), sum(column.width for column in columns)
    remedy = (
        f"column {widest.name!r} becomes {widest.width:,} numbers a row; merge its categories, or leave columns out"
    )
    memory.require(6.0 * n * width, f"a table of {n:,} rows as {width:,} numbers each", remedy)


def as_words(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Each cell as text without surrounding blanks; missing cells stay missing, and the number 1.0 is the word 1."""
    words = cells.astype("string").str.strip()
    return words.str.replace(_WHOLE, r"\1", regex=True) if cells.dtype.kind == "f" else words


def as_numbers(cells: pd.Series[Any]) -> NDArray[np.float64]:
    """Each cell as a number, NaN where it is not one: dates and truth values written as words are not."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_complex_dtype(cells):
        return cells.to_numpy(np.float64, na_value=np.nan)
    return np.asarray(pd.to_numeric(as_words(cells), errors="coerce").to_numpy(np.float64, na_value=np.nan))


def _frame(values: dict[str, NDArray[Any]], columns: tuple[Column, ...]) -> pd.DataFrame:
    import pandas as pd

    content: dict[str, Any] = {column.name: values[column.name] for column in columns}
    for column in columns:
        if column.categories is not None:
            index = pd.Index(column.categories)
            content[column.name] = pd.Categorical.from_codes(content[column.name], categories=index)
    # copy=False: pandas would otherwise copy columns of one type into one block, and double the memory.
    return pd.DataFrame(content, copy=False)


def _refuse_missing(cells: pd.DataFrame, wanted: list[Column], target: Column | None, where: object) -> None:
    missing = [column.name for column in wanted if column.name not in cells]
    if missing:
        named = ", ".join(
            repr(name) + " (the target)" * (target is not None and name == target.name) for name in missing
        )
        plural = "s" * (len(missing) > 1)
        raise DataError(f"{where} lacks the column{plural} {named} of the schema; correct the table or the schema")


def _numbers(cells: pd.Series[Any], column: Column, where: object, row: int) -> NDArray[np.float64]:
    """`row` is the number of the first cell in the table."""
    numbers = as_numbers(cells)
    _refuse_first(~np.isfinite(numbers), column.name, where, row, "not a finite number")
    return numbers


def _codes(cells: pd.Series[Any], column: Column, where: object, row: int) -> NDArray[np.int32]:
    """The index of each cell's category; a missing cell is the empty word, as in a CSV file.

    Words that are not declared are also compared as numbers, which formats write differently: 1 and 1.0.
    """
    places = {word.strip(): place for place, word in enumerate(column.categories or ())}
    numbers = {_WHOLE.sub(r"\1", word): place for word, place in places.items()}
    words = cells.astype("string").str.strip().fillna("")
    otherwise = words.str.replace(_WHOLE, r"\1", regex=True).map(numbers)
    codes = words.map(places).fillna(otherwise).to_numpy(np.float64, na_value=np.nan)
    _refuse_first(np.isnan(codes), column.name, where, row, f"none of the {len(places)} declared categories")
    return codes.astype(np.int32)


def _refuse_first(wrong: NDArray[np.bool_], name: str, where: object, row: int, what: str) -> None:
    """Name the first wrong cell by row and column."""
    if wrong.any():
        first = row + int(wrong.argmax()) + 1
        raise DataError(f"{where}, row {first}, column {name!r}: {what}; correct or drop the row")
