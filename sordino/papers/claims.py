"""What each paper claims, and whether our record of the item bears it out.

A claim is declared in PAPER.toml, with the judge that reads ours off the record. Most are judged in one of four ways:
our figures reach the paper's, some rows are above others, one column is above another, or the record's own notes say
what shows. A verdict counts how many of the comparisons hold.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from sordino.papers.declarations import Declaration
from sordino.papers.records import Cell, Record, as_text


@dataclass(frozen=True)
class Verdict:
    """In how many of the comparisons the claim holds, with theirs and ours in a few words."""

    held: int
    of: int
    ours: str
    theirs: str = ""
    otherwise: str = "no"
    """The verdict where it holds in none: "not shown" if that is all that intervals can tell."""

    def __str__(self) -> str:
        if self.of == 0:
            return "–"
        return "yes" if self.held == self.of else self.otherwise if self.held == 0 else f"{self.held} of {self.of}"


Judge = Callable[..., Verdict]
"""Judges a record, with the options that its declaration gives."""
Cells = dict[str, Cell]


def value(cell: Cell) -> float | None:
    """The first number of a cell: the mean of mean ± deviation."""
    found = re.match(r"-?[\d.]+(e[+-]?\d+)?", str(cell))
    return float(found.group()) if found else None


def _half(cell: Cell) -> float:
    """Half of the interval of a cell, as in 90.1 ± 0.2."""
    return value(str(cell).partition("± ")[2]) or 0.0


def _rows(record: Record) -> list[Cells]:
    return [dict(zip(record.columns, row, strict=True)) for row in record.rows]


def _is(row: Cells, where: Cells) -> bool:
    return all(row[name] == wanted for name, wanted in where.items())


def _range(values: list[float]) -> str:
    if len(values) <= 3:
        return ", ".join(as_text(each) for each in values)
    return f"{as_text(min(values))}–{as_text(max(values))}"


def reached(
    record: Record, paper: str = "paper", ours: str = "ours", within: float = 0.3, best_of: str | None = None
) -> Verdict:
    """Our figures are no more than `within` below the paper's; of rows with one `best_of` up to a comma, the best."""
    pairs: dict[Any, tuple[float, float]] = {}
    for place, row in enumerate(_rows(record)):
        theirs, found = value(row[paper]), value(row[ours])
        key = place if best_of is None else str(row[best_of]).partition(",")[0]
        if theirs is not None and found is not None and (key not in pairs or found > pairs[key][1]):
            pairs[key] = theirs, found
    gaps = [found - theirs for theirs, found in pairs.values()]
    said = _range([found for _, found in pairs.values()])
    if len(gaps) > 3:
        said = f"{median(gaps):+.2f} points in the median, {min(gaps):+.2f} at worst"
    held = sum(gap >= -within for gap in gaps)
    return Verdict(held, len(gaps), said, _range([theirs for theirs, _ in pairs.values()]))


def above(
    record: Record, first: Cells, second: Cells, by: Sequence[str] = (), ours: str = "ours", apart: bool = False
) -> Verdict:
    """Rows like `first` are above rows like `second` that are equal in `by`, if `apart` with intervals apart."""
    rows = _rows(record)
    gaps = []
    for row in (row for row in rows if _is(row, first)):
        match = next((other for other in rows if _is(other, {**second, **{name: row[name] for name in by}})), None)
        if match is not None:
            gap = (value(row[ours]) or 0) - (value(match[ours]) or 0)
            gaps.append((gap, gap > (_half(row[ours]) + _half(match[ours]) if apart else 0)))
    said = ", ".join(f"{gap:+.2f}" for gap, _ in gaps[:4]) + (", …" if len(gaps) > 4 else "")
    otherwise = "not shown" if apart else "no"
    return Verdict(sum(clear for _, clear in gaps), len(gaps), said, otherwise=otherwise)


def column_above(record: Record, first: str, second: str, where: Cells | None = None, apart: bool = False) -> Verdict:
    """In every row, one column is above another, if `apart` with intervals apart."""
    gaps = []
    for row in (row for row in _rows(record) if _is(row, where or {})):
        high, low = value(row[first]), value(row[second])
        if high is not None and low is not None:
            gaps.append((high - low, high - low > (_half(row[first]) + _half(row[second]) if apart else 0)))
    middle = median(gap for gap, _ in gaps)
    return Verdict(sum(clear for _, clear in gaps), len(gaps), f"{middle:+.3g} in the median")


def noted(record: Record, about: str, holds: str, figures: str = "") -> Verdict:
    """Of what the notes say `about` it, so many say that it `holds`; ours are the `figures` in it: all are patterns."""
    said = [match.group() for note in record.notes for match in re.finditer(about, note)]
    held = sum(bool(re.search(holds, each)) for each in said)
    found = [match.group(1) for each in said for match in re.finditer(figures, each)] if figures else []
    ours = ", ".join(found[:4]) + (", …" if len(found) > 4 else "") if found else f"in {held} of {len(said)}"
    return Verdict(held, len(said), ours, otherwise="not shown")


def growing(record: Record, column: str, by: str, falling: bool = False, each: Sequence[str] = ()) -> Verdict:
    """A column grows (or falls) with another, apart for `each` value of others."""
    groups: dict[tuple[Cell, ...], list[float]] = {}
    for row in sorted(_rows(record), key=lambda row: value(row[by]) or 0, reverse=falling):
        groups.setdefault(tuple(row.get(name) for name in each), []).append(value(row[column]) or 0)
    steps = [low < high for values in groups.values() for low, high in pairwise(values)]
    ends = [values[::-1] if falling else values for values in groups.values()]
    said = ", ".join(f"{as_text(values[0])} to {as_text(values[-1])}" for values in ends)
    return Verdict(sum(steps), len(steps), said)


def parameters(record: Record) -> Verdict:
    rows = _rows(record)
    near = [abs((value(row["ours"]) or 0) / (value(row["paper"]) or 1) - 1) < 0.01 for row in rows]
    return Verdict(sum(near), len(near), "within 1 % each" if all(near) else "see table")


def square_root(record: Record) -> Verdict:
    pairs = [(value(row["σ (PLD)"]) or 0, value(row["c·√rate"]) or 1) for row in _rows(record)]
    near = [abs(sigma / law - 1) < 0.1 for sigma, law in pairs]
    return Verdict(sum(near), len(near), f"within 10 % at {sum(near)} of {len(near)} rates")


def iteration(record: Record) -> Verdict:
    rows = [row for row in _rows(record) if not 0.2 <= (value(row["ε"]) or 0) <= 40]
    less = [(value(row["σ of iteration (RDP)"]) or 0) < (value(row["σ of DP-SGD (PLD)"]) or 0) for row in rows]
    return Verdict(sum(less), len(less), "for ε>40 alone")


def noise_slows(record: Record) -> Verdict:
    """Noise costs more at the high learning rate than at the low one."""
    groups = groupby(_rows(record), key=lambda row: (row["data"], row["model"], row["learning rate"]))
    costs = [(value(plain["ours"]) or 0) - (value(noisy["ours"]) or 0) for _, (plain, noisy) in groups]
    pairs = list(zip(costs[::2], costs[1::2], strict=True))
    low, high = (median(costs) for costs in zip(*pairs, strict=True))
    said = f"{low:.2f} points at the low rate, {high:.2f} at the high one"
    return Verdict(sum(low < high for low, high in pairs), len(pairs), said)


def generalisation(record: Record) -> Verdict:
    plain, sampled, noisy = (value(row["test accuracy"]) or 0 for row in _rows(record))
    return Verdict((sampled > plain) + (abs(noisy - sampled) <= 1), 2, f"{plain:.1f}, {sampled:.1f}, {noisy:.1f}")


def thirteen(record: Record) -> Verdict:
    old, pld = (
        next(value(row["q=1"]) or 0 for row in _rows(record) if row["ε"] == 3 and row["accountant"] == accountant)
        for accountant in ("RDP, old", "PLD")
    )
    return Verdict(int(abs(old / 13 - 1) < 0.05), 1, f"{old:.1f} by their accountant, {pld:.1f} by PLD")


def refuted(record: Record) -> Verdict:
    claims = [row for row in _rows(record) if str(row["algorithm"]).startswith("SI-DPSGD")]
    sound = [value(row["sound ε"]) or float("inf") for row in claims]
    low = [max(value(row["audited ≥"]) or 0, value(row["final only ≥"]) or 0) for row in claims]
    held = sum(bound <= (value(row["claimed ε"]) or 0) for bound, row in zip(low, claims, strict=True))
    return Verdict(held, len(claims), f"sound ε of {min(sound):.0e} or more")


def norms(record: Record, plain: Sequence[str], normed: Sequence[str]) -> Verdict:
    """At σ of 1 and 2, each network with a norm is above the same without."""
    of = {(row["model"], row["σ"]): value(row["ours"]) or 0 for row in _rows(record)}
    gaps = [of[b, noise] - of[a, noise] for a, b in zip(plain, normed, strict=True) for noise in (1.0, 2.0)]
    return Verdict(sum(gap > 0 for gap in gaps), len(gaps), f"{min(gaps):+.1f} to {max(gaps):+.1f} points")


def learns(record: Record) -> Verdict:
    rows = _rows(record)
    plain = {row["model"]: value(row["last"]) or 0 for row in rows if row["σ"] == 0}
    gaps = [(value(row["last"]) or 0) - plain[row["model"]] for row in rows if row["σ"] != 0]
    return Verdict(sum(gap >= -3 for gap in gaps), len(gaps), f"{min(gaps):+.1f} points at worst")


def answer(record: Record) -> Verdict:
    row = next(row for row in _rows(record) if row["ε"] == 0.1 and row["which is"] == "the answer")
    return Verdict(int((value(row["on test (± sd)"]) or 0) > 78.58), 1, f"{row['on test (± sd)']}, all of it counted")


def time(record: Record) -> Verdict:
    ratios = [(value(row["our ratio"]) or 0, value(row["paper's ratio"]) or 0) for row in _rows(record)]
    held = sum(ours >= theirs / 2 for ours, theirs in ratios)
    return Verdict(held, len(ratios), f"{min(ratios)[0]:.1f}–{max(ratios)[0]:.1f} ×")


def recomputed(record: Record, within: float) -> Verdict:
    """Our figures lie within this share of the paper's."""
    ratios = [(value(row["ours"]) or 0) / (value(row["paper"]) or 1) for row in _rows(record)]
    near = [ratio for ratio in ratios if abs(ratio - 1) <= within]
    return Verdict(len(near), len(ratios), f"{len(near)} of {len(ratios)} within {100 * within:.0f} %")


def minor(record: Record, column: str, most: float) -> Verdict:
    """A tenfold smaller δ raises ε by no more than this share, from row to row."""
    found = [value(row[column]) or 0 for row in _rows(record)]
    steps = [after / before - 1 for before, after in pairwise(found)]
    return Verdict(
        sum(step <= most for step in steps), len(steps), f"+{100 * max(steps):.0f} % at most for a tenth of δ"
    )


def steady(record: Record, column: str, within: float) -> Verdict:
    """No row lies further than this below the best of the rows before it."""
    found = [value(row[column]) or 0 for row in _rows(record)]
    gaps = [after - max(found[:place]) for place, after in enumerate(found) if place]
    return Verdict(sum(gap >= -within for gap in gaps), len(gaps), _range(found))


def level(record: Record, column: str, least: str, within: float, last: int) -> Verdict:
    """The rows with the largest `least` lie within so much of the best of them."""
    rows = sorted(_rows(record), key=lambda row: value(row[least]) or 0)[-last:]
    found = [value(row[column]) or 0 for row in rows]
    return Verdict(sum(max(found) - each <= within for each in found), last, _range(found))


def saturates(record: Record, by: Sequence[str], along: str, within: float) -> Verdict:
    """In each group of rows equal in `by`, the last one gains at most so much over the last but one."""
    gains = []
    for _, group in groupby(_rows(record), key=lambda row: [row[name] for name in by]):
        *_, before, after = sorted(group, key=lambda row: value(row[along]) or 0)
        gains.append((value(after["ours"]) or 0) - (value(before["ours"]) or 0))
    return Verdict(sum(gain <= within for gain in gains), len(gains), ", ".join(f"{gain:+.1f}" for gain in gains))


def inverse(record: Record, along: str, rate: str, by: str) -> Verdict:
    """In each group, from row to row along a growing column the best rate falls."""
    held = of = 0
    for _, group in groupby(_rows(record), key=lambda row: row[by]):
        rows = sorted(group, key=lambda row: value(row[along]) or 0)
        falls = [(value(high[rate]) or 0) < (value(low[rate]) or 0) for low, high in pairwise(rows)]
        held, of = held + sum(falls), of + len(falls)
    return Verdict(held, of, f"the best rate falls in {held} of {of} steps to a larger clip")


def beats_scratch(record: Record) -> Verdict:
    """Every row that starts from public weights is above the one from scratch, of the same epochs or else the last."""
    rows = _rows(record)
    scratch = [row for row in rows if row["frozen groups"] == "scratch"]
    gaps = []
    for row in (row for row in rows if row["frozen groups"] != "scratch"):
        same = [other for other in scratch if other["epochs"] == row["epochs"]] or scratch[-1:]
        gaps.append((value(row["ours"]) or 0) - (value(same[0]["ours"]) or 0))
    return Verdict(sum(gap > 0 for gap in gaps), len(gaps), f"{min(gaps):+.1f} to {max(gaps):+.1f} points")


def sizes(record: Record, low: str, high: str) -> Verdict:
    """The network `high` is ahead of `low` at the least σ and behind it at the largest."""
    of = {(row["network"], value(row["σ"])): value(row["ours"]) or 0 for row in _rows(record)}
    noise = [sigma for name, sigma in of if name == low]
    gaps = [of[high, sigma] - of[low, sigma] for sigma in noise]
    said = ", ".join(f"{gap:+.1f}" for gap in gaps)
    return Verdict((gaps[0] > 0) + (gaps[-1] < 0), 2, f"{said} points from no noise to most")


_JUDGES: dict[str, Judge] = {
    judge.__name__: judge
    for judge in (
        reached,
        above,
        column_above,
        noted,
        growing,
        norms,
        parameters,
        square_root,
        iteration,
        noise_slows,
        generalisation,
        thirteen,
        refuted,
        learns,
        answer,
        time,
        recomputed,
        minor,
        steady,
        level,
        saturates,
        inverse,
        beats_scratch,
        sizes,
    )
}


def verdict(item: Declaration, record: Record) -> Verdict | None:
    """Whether the record bears out what the paper claims; None where it claims nothing."""
    return _JUDGES[item.judge](record, **item.judged) if item.claim else None
