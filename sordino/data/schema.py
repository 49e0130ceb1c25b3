"""The schema of a user's table: the public domain of each column and of the target, declared, never read off the rows.

A schema file is JSON: {"columns": {"age": {"bounds": [17, 90]}, "work": {"categories": ["a", "b"]}},
"target": {"income": {"categories": ["<=50K", ">50K"]}}}; a target with bounds is a number to predict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Ledger
from sordino.data.dataset import Column, Dataset, Facts, Split
from sordino.data.files import read_cells
from sordino.data.raw_files import DataError, read_bytes, reading, text
from sordino.data.tables import as_numbers, as_words, one_hot, read_values, refuse_too_wide
from sordino.mechanisms import private_bounds

if TYPE_CHECKING:
    import pandas as pd

    from sordino.data.records import TableRecords

_DOMAIN = (
    "write public bounds into the schema (wide ones if in doubt: private bounds, --private-bounds on the command line, "
    "narrow them out of the budget), or infer the schema from a public file"
)
_KEYS = {"categories", "bounds", "absent"}
# A column with more different words than this is an identifier, not a category.
_MOST_CATEGORIES = 1000
# A target with no more different whole numbers than this is taken as classes when a schema is inferred.
_MOST_NUMBERED_CLASSES = 20


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

    @property
    def width(self) -> int:
        """How many numbers a record's inputs become: one for a column of numbers, one for each category of another."""
        return sum(column.width for column in self.columns)

    def records(self, table: pd.DataFrame | str | Path) -> TableRecords:
        """The rows of a DataFrame, or of a .csv or .parquet file, as records to train on.

        >>> import pandas as pd
        >>> columns = {"age": {"bounds": [0, 100]}, "smokes": {"categories": ["no", "yes"]}}
        >>> schema = Schema.from_json({"columns": columns, "target": {"ill": {"categories": ["no", "yes"]}}})
        >>> records = schema.records(pd.DataFrame({"age": [25, 50], "smokes": ["yes", "no"], "ill": ["no", "yes"]}))
        >>> len(records), schema.width
        (2, 3)
        """
        from sordino.data.records import TableRecords  # loads torch

        return TableRecords(table, self)

    def encode(self, table: pd.DataFrame | str | Path) -> NDArray[np.float32]:
        """The inputs of rows to predict, encoded as `records` encodes them; no target is needed."""
        values = list(read_values(table, self.columns).values())
        refuse_too_wide(len(values[0]), self.columns)
        return one_hot(self.columns, values)

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


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a repeated name Python would silently keep the last."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"the schema has {name!r} twice; name each once")
    return dict(pairs)


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
    words, numbers = as_words(cells), as_numbers(cells)
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
