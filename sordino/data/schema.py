"""The schema of a user's table: the public domain of each column and of the target, declared, never read off the rows.

A schema file is JSON: {"columns": {"age": {"bounds": [17, 90]}, "work": {"categories": ["a", "b"]}},
"target": {"income": {"categories": ["<=50K", ">50K"]}}}; a target with bounds is a number to predict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Ledger
from sordino.data.dataset import Column, Dataset, Facts, Split
from sordino.data.files import cell_blocks, read_cells
from sordino.data.raw_files import DataError, read_bytes, reading, text
from sordino.mechanisms import private_bounds

if TYPE_CHECKING:
    import pandas as pd

_DOMAIN = (
    "write public bounds into the schema (wide ones if in doubt: private bounds, --private-bounds on the command line, "
    "narrow them out of the budget), or infer the schema from a public file"
)
_KEYS = {"categories", "bounds", "absent"}
# A column with more different words than this is an identifier, not a category.
_MOST_CATEGORIES = 1000
# A target with no more different whole numbers than this is taken as classes when a schema is inferred.
_MOST_NUMBERED_CLASSES = 20
# A whole number written as a float, as most formats do in columns with gaps.
_WHOLE = re.compile(r"^(-?\d+)\.0$")


@dataclass(frozen=True)
class Schema:
    """Which columns of a table are used, in which order, with the public domain of each, and what is to be predicted.

    A target with categories makes a classification, one with bounds a regression. Everything in here is public.

    >>> work = {"categories": ["office", "field"]}
    >>> columns = {"age": {"bounds": [17, 90]}, "work": work}
    >>> schema = Schema.from_json({"columns": columns, "target": {"days sick": {"bounds": [0, 365]}}})
    >>> [column.name for column in schema.columns], schema.target.bounds
    (['age', 'work'], (0.0, 365.0))
    """

    columns: tuple[Column, ...]
    target: Column

    def __post_init__(self) -> None:
        if not self.columns:
            raise DataError("a schema needs at least one column beside the target")
        names = [column.name for column in (*self.columns, self.target)]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"the schema has the column {name!r} twice, the target included; name each once")
        for column in (*self.columns, self.target):
            _check(column)
        if self.target.categories is not None and len(self.target.categories) < 2:
            raise DataError(f"the target {self.target.name!r} has a single class: there is nothing to predict")

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """From a JSON file, in the form shown at the top of this module."""
        path = Path(path)
        content = text(read_bytes(path), path)
        with reading(path, "schema"):
            document = json.loads(content, object_pairs_hook=_named_once)
        return cls.from_json(document, path)

    @classmethod
    def from_json(cls, document: Any, where: object = "the schema") -> Schema:
        parts = [document.get(part) if isinstance(document, dict) else None for part in ("columns", "target")]
        columns, target = (part if isinstance(part, dict) else {} for part in parts)
        if not columns or len(target) != 1 or len(document) != 2:
            raise DataError(
                f'{where} is not a schema: it must be {{"columns": {{NAME: DOMAIN, …}}, "target": {{NAME: DOMAIN}}}} '
                'with DOMAIN {"bounds": [LOW, HIGH]} or {"categories": [WORD, …]}'
            )
        [last] = (_column(name, domain, where) for name, domain in target.items())
        return cls(tuple(_column(name, domain, where) for name, domain in columns.items()), last)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values that `from_json` reads."""
        return {
            "columns": {column.name: _domain(column) for column in self.columns},
            "target": {self.target.name: _domain(self.target)},
        }

    @classmethod
    def of(cls, facts: Facts, target: str = "target") -> Schema:
        """The schema of a named table, whose target has no documented name."""
        if facts.columns is None:
            raise DataError(f"this needs a table with columns, and the dataset's examples are of the kind {facts.kind}")
        return cls(facts.columns, Column(target, facts.classes, facts.target_range))

    @classmethod
    def inferred(cls, public_file: str | Path, target: str) -> Schema:
        """The domains found in a file that is taken to be PUBLIC: its extremes and words enter the schema as they are.

        Numbers get their least and greatest as bounds, anything else its words as categories. A target of at most 20
        different whole numbers counts as classes.

        Guarantee: none for the records of this file. Never give it the private one.
        """
        cells = read_cells(public_file)
        if target not in cells:
            raise DataError(f"{public_file} has no column {target!r} to predict; it has {', '.join(map(str, cells))}")
        found = {name: _inferred(str(name), cells[name], public_file, name == target) for name in cells}
        return cls(tuple(column for name, column in found.items() if name != target), found[target])

    def without_absent(self) -> Schema:
        """Without the categories that no published row has: one-hot then gives the papers' widths."""
        columns = (
            replace(
                column, categories=tuple(word for word in column.categories if word not in column.absent), absent=()
            )
            if column.categories is not None
            else column
            for column in self.columns
        )
        return replace(self, columns=tuple(columns))

    def facts(self, n: int, name: str) -> Facts:
        """What may be known of a table of n records under this schema; n is public under every adjacency but one."""
        return Facts(
            task="classification" if self.target.categories is not None else "regression",
            kind="table",
            classes=self.target.categories,
            shape=(len(self.columns),),
            value_range=None,
            n_train=n,
            n_test=0,
            source=name,
            licence="",
            complete=True,
            note="",
            protected="one row of the table",
            columns=self.columns,
            target_range=self.target.bounds,
        )

    def narrowed(self, table: pd.DataFrame, ledger: Ledger, epsilon: float, part: str = "train") -> Schema:
        """The same schema with the bounds of its number columns narrowed to where most of the table's values lie.

        Guarantee: pure epsilon-DP by `private_bounds`, which charges the ledger before it looks. The bounds that this
        schema has serve as the wide public ones; the target keeps its own.
        """
        numeric = {column.name: column.bounds for column in self.columns if column.bounds is not None}
        if not numeric:
            raise DataError("the schema has no column of numbers whose bounds could be narrowed; leave that out")
        values = table[list(numeric)].to_numpy(np.float64)
        found = dict(
            zip(numeric, private_bounds(values, ledger, epsilon, list(numeric.values()), part=part), strict=True)
        )
        columns = (replace(column, bounds=found.get(column.name, column.bounds)) for column in self.columns)
        return replace(self, columns=tuple(columns))


def under(dataset: Dataset, schema: Schema) -> Dataset:
    """A named table with the columns of a schema alone, in its order and with its bounds: as a selection leaves it."""
    known = {column.name: column for column in dataset.facts.columns or ()}
    for column in schema.columns:
        if column.name not in known:
            raise DataError(f"the column {column.name!r} of the schema is none of {dataset.name}; correct the schema")
        if column.categories != known[column.name].categories:
            raise DataError(f"{dataset.name} has other categories in {column.name!r} than the schema; correct those")
    if (schema.target.categories, schema.target.bounds) != (dataset.facts.classes, dataset.facts.target_range):
        raise DataError(f"the target of the schema is not that of {dataset.name}; correct the schema")
    names = [column.name for column in schema.columns]
    train, test = (Split(part.x[names], part.y) for part in (dataset.train, dataset.test))
    return Dataset(dataset.name, replace(dataset.facts, columns=schema.columns, shape=(len(names),)), train, test)


def read_table(path: str | Path, schema: Schema) -> Split:
    """The records of a .csv or .parquet file under a schema: x in the schema's order, y class indices or numbers.

    Numbers outside their bounds come back as they are: encoders cut them. A cell that does not fit is named by row and
    column, both as they stand in the file, never by its value. Other columns of the file are not read.
    """
    content, target = _read(path, schema.columns, schema.target)
    assert target is not None
    return Split(content, target if schema.target.categories is None else target.astype(np.int64))


def read_inputs(path: str | Path, columns: tuple[Column, ...]) -> pd.DataFrame:
    """The same without the target."""
    return _read(path, columns, None)[0]


def _read(
    path: str | Path, columns: tuple[Column, ...], target: Column | None
) -> tuple[pd.DataFrame, NDArray[Any] | None]:
    """Numbers and category codes, one block of the file's cells after another."""
    import pandas as pd

    wanted = [*columns, *([] if target is None else [target])]
    most, blocks = cell_blocks(path)
    # Room for as many rows as there may be: pages that are never written take no memory.
    found = {c.name: np.empty(most, np.float64 if c.categories is None else np.int32) for c in wanted}
    row = 0
    for cells in blocks:
        _refuse_missing(cells, wanted, target, path)
        for column in wanted:
            values = (_codes if column.categories is not None else _numbers)(cells[column.name], column, path, row)
            found[column.name][row : row + len(cells)] = values
        row += len(cells)
    content: dict[str, Any] = {name: values[:row] for name, values in found.items()}
    for column in columns:
        if column.categories is not None:
            index = pd.Index(column.categories)
            content[column.name] = pd.Categorical.from_codes(content[column.name], categories=index)
    labels = None if target is None else content.pop(target.name)
    # copy=False: pandas would otherwise copy columns of one type into one block, and double the memory.
    return pd.DataFrame(content, copy=False), labels


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a repeated name Python would silently keep the last."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"the schema has {name!r} twice; name each once")
    return dict(pairs)


def _refuse_missing(cells: pd.DataFrame, wanted: list[Column], target: Column | None, path: str | Path) -> None:
    missing = [column.name for column in wanted if column.name not in cells]
    if missing:
        named = ", ".join(
            repr(name) + " (the target)" * (target is not None and name == target.name) for name in missing
        )
        plural = "s" * (len(missing) > 1)
        raise DataError(f"{path} lacks the column{plural} {named} of the schema; correct the file or the schema")


def _check(column: Column) -> None:
    """Refuse an invalid domain, saying what to do."""
    name = repr(column.name)
    if column.categories is None and column.bounds is None:
        raise DataError(
            f"the column {name} has neither categories nor bounds, and none are read off private rows: {_DOMAIN}"
        )
    if column.categories is not None and column.bounds is not None:
        raise DataError(f"the column {name} has both categories and bounds; keep one of them")
    if column.bounds is not None:
        low, high = column.bounds
        if not (isfinite(low) and low < high and isfinite(high - low)):
            raise DataError(f"the bounds of {name} must be two finite numbers, the lower one first; correct them")
    categories = column.categories or ()
    different = {word.strip() for word in categories}  # as they are looked for in the cells
    if column.categories is not None and (not categories or len(different) < len(categories)):
        raise DataError(f"the categories of {name} must be different words, at least one; correct them")
    if not set(column.absent) <= set(categories):
        raise DataError(f"{name} says that words are absent which are none of its categories; correct them")


def _column(name: str, domain: Any, where: object) -> Column:
    wrong = DataError(
        f'{where}: the domain of {name!r} must be {{"bounds": [LOW, HIGH]}} or {{"categories": [WORD, …]}}; correct it'
    )
    if not isinstance(domain, Mapping) or not domain.keys() <= _KEYS:
        raise wrong
    bounds = domain.get("bounds")
    if bounds is not None and not (
        isinstance(bounds, list) and len(bounds) == 2 and all(type(bound) in (int, float) for bound in bounds)
    ):
        raise wrong
    words = {key: domain.get(key) for key in ("categories", "absent")}
    for value in words.values():
        if value is not None and not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            raise wrong
    categories, absent = (None if value is None else tuple(value) for value in words.values())
    try:
        return Column(name, categories, None if bounds is None else (float(bounds[0]), float(bounds[1])), absent or ())
    except OverflowError:  # JSON's whole numbers have no end
        raise wrong from None


def _domain(column: Column) -> dict[str, Any]:
    if column.bounds is not None:
        return {"bounds": list(column.bounds)}
    return {"categories": list(column.categories or ())} | ({"absent": list(column.absent)} if column.absent else {})


def _inferred(name: str, cells: pd.Series[Any], where: object, is_target: bool) -> Column:
    words = _words(cells)
    numbers = _as_numbers(cells)
    if words.isna().any() or (words == "").any():
        row = int((words.isna() | (words == "")).to_numpy(bool).argmax()) + 1
        raise DataError(f"{where}, row {row}, column {name!r}: missing value; fill or drop it")
    different = words.unique()
    whole = np.isfinite(numbers).all() and bool((numbers == np.round(numbers)).all())
    numbered_classes = is_target and whole and len(different) <= _MOST_NUMBERED_CLASSES
    if np.isfinite(numbers).all() and not numbered_classes:
        low, high = float(numbers.min()), float(numbers.max())
        if low == high:
            raise DataError(
                f"{where}: the column {name!r} has one value everywhere, which gives no bounds; leave it out"
            )
        return Column(name, bounds=(low, high))
    if len(different) > _MOST_CATEGORIES:
        raise DataError(
            f"{where}: the column {name!r} has {len(different):,} different words, too many categories; leave it out"
        )
    return Column(name, categories=tuple(sorted(different, key=float) if numbered_classes else sorted(different)))


def _words(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Each cell as text without surrounding blanks; missing cells stay missing, and the number 1.0 is the word 1."""
    words = cells.astype("string").str.strip()
    return words.str.replace(_WHOLE, r"\1", regex=True) if cells.dtype.kind == "f" else words


def _as_numbers(cells: pd.Series[Any]) -> NDArray[np.float64]:
    """Each cell as a number, NaN where it is not one: dates and truth values written as words are not."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_complex_dtype(cells):
        return cells.to_numpy(np.float64, na_value=np.nan)
    return np.asarray(pd.to_numeric(_words(cells), errors="coerce").to_numpy(np.float64, na_value=np.nan))


def _numbers(cells: pd.Series[Any], column: Column, where: object, row: int) -> NDArray[np.float64]:
    """`row` is the number of the first cell in the file."""
    numbers = _as_numbers(cells)
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
