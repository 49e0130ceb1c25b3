"""What is said of an item before it is run, from PAPER.toml beside this file.

Title, columns and notes of its record; how it falls short of the paper's own, always (`always`), reduced to this
machine (`here`) and in repeats (`seeds`, where the paper has `of`); and what the paper claims, its figures in a few
words (`theirs`), and how a record is judged by it (see `claims`). `{name}` in a text stands for one of the file's
[texts], or for what the item's code fills in; either may name others. `given` is what the code takes besides.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment


@dataclass(frozen=True)
class Declaration:
    """One item's table of the file."""

    texts: Mapping[str, str]
    title: str = ""
    columns: Sequence[str] = ()
    notes: Sequence[str] = ()
    here: str = ""
    always: str = ""
    seeds: Mapping[str, int] = field(default_factory=dict)
    of: int = 5
    tuning: str = ""
    published: Sequence[Any] = ()
    """The paper's figures, a list for each row; what each has, its code says."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the item's code takes by name."""
    beside: Sequence[tuple[str, float, float, str]] = ()
    """Published points to draw beside ours: label, x, y and panel."""
    axes: Sequence[str] = ("", "", "")
    """x, y and which of them are logarithmic: "", "x" or "xy"."""
    claim: str = ""
    theirs: str = ""
    judge: str = ""
    judged: Mapping[str, Any] = field(default_factory=dict)

    def record(
        self,
        experiment: Experiment,
        rows: list[list[Cell]],
        series: Sequence[Series] = (),
        columns: Sequence[str] = (),
        follows: Sequence[str] = (),
        words: Mapping[str, str] | None = None,
    ) -> Record:
        """The item's record; `follows` are notes that come of the rows, and stand first."""
        known = {**self.texts, **(words or {})}
        x, y, logarithmic = self.axes
        points: dict[tuple[str, str], Series] = {}
        for label, place, height, panel in self.beside:
            line = points.setdefault((label, panel), Series(label, [], [], panel, points=True))
            line.x.append(place)
            line.y.append(height)

        def said(text: str) -> str:
            return re.sub(r"\{(\w+)\}", lambda match: said(known[match.group(1)]), text)

        return Record(
            "",
            "",  # `reproduce` adds which item it is
            said(self.title),
            list(columns or self.columns),
            rows,
            [*follows, *map(said, self.notes)],
            experiment.shortfall(said(self.here), said(self.always), of=self.of, **self.seeds),
            said(self.tuning),
            x,
            y,
            logarithmic,
            [*series, *points.values()],
        )


Item = Callable[[Experiment, Declaration], Record]
"""Makes the record of a table or figure from its declaration."""


@lru_cache
def declared(paper: str) -> Mapping[str, Declaration]:
    """The paper's items by name."""
    file = files("sordino.papers") / f"{paper.replace('-', '_')}.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    texts = content.pop("texts", {})
    return {item: Declaration(texts, **fields) for item, fields in content.items()}
