"""What each paper claims, and whether our record of the item bears it out.

A claim is worded here, beside what the paper reports; what ours came to is read off the record. Most claims are judged
in one of four ways: our figures reach the paper's, some rows are above others, one column is above another, or the
record's own notes say what shows. A verdict counts how many of the comparisons hold.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any

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


Judge = Callable[[Record], Verdict]
Row = dict[str, Cell]


@dataclass(frozen=True)
class Claim:
    """What the paper says, its figures in a few words (or those that the judge reads off the record), and the judge."""

    words: str
    theirs: str
    judge: Judge


def value(cell: Cell) -> float | None:
    """The first number of a cell: the mean of mean ± deviation."""
    found = re.match(r"-?[\d.]+(e[+-]?\d+)?", str(cell))
    return float(found.group()) if found else None


def _half(cell: Cell) -> float:
    """Half of the interval of a cell, as in 90.1 ± 0.2."""
    return value(str(cell).partition("± ")[2]) or 0.0


def _rows(record: Record) -> list[Row]:
    return [dict(zip(record.columns, row, strict=True)) for row in record.rows]


def _is(row: Row, where: Row) -> bool:
    return all(row[name] == wanted for name, wanted in where.items())


def _range(values: list[float]) -> str:
    if len(values) <= 3:
        return ", ".join(as_text(each) for each in values)
    return f"{as_text(min(values))}–{as_text(max(values))}"


def reached(paper: str = "paper", ours: str = "ours", within: float = 0.3, best_of: str | None = None) -> Judge:
    """Our figures are no more than `within` below the paper's; of rows with one `best_of` up to a comma, the best."""

    def judge(record: Record) -> Verdict:
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

    return judge


def above(first: Row, second: Row, by: tuple[str, ...] = (), ours: str = "ours", apart: bool = False) -> Judge:
    """Rows like `first` are above rows like `second` that are equal in `by`, if `apart` with intervals apart."""

    def judge(record: Record) -> Verdict:
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

    return judge


def column_above(first: str, second: str, where: Row | None = None, apart: bool = False) -> Judge:
    """In every row, one column is above another, if `apart` with intervals apart."""

    def judge(record: Record) -> Verdict:
        gaps = []
        for row in (row for row in _rows(record) if _is(row, where or {})):
            high, low = value(row[first]), value(row[second])
            if high is not None and low is not None:
                gaps.append((high - low, high - low > (_half(row[first]) + _half(row[second]) if apart else 0)))
        middle = median(gap for gap, _ in gaps)
        return Verdict(sum(clear for _, clear in gaps), len(gaps), f"{middle:+.3g} in the median")

    return judge


def noted(about: str, holds: str, figures: str = "") -> Judge:
    """Of what the notes say `about` it, so many say that it `holds`; ours are the `figures` in it: all are patterns."""

    def judge(record: Record) -> Verdict:
        said = [match.group() for note in record.notes for match in re.finditer(about, note)]
        held = sum(bool(re.search(holds, each)) for each in said)
        found = [match.group(1) for each in said for match in re.finditer(figures, each)] if figures else []
        ours = ", ".join(found[:4]) + (", …" if len(found) > 4 else "") if found else f"in {held} of {len(said)}"
        return Verdict(held, len(said), ours, otherwise="not shown")

    return judge


def growing(column: str, by: str, falling: bool = False) -> Judge:
    """A column grows (or falls) with another."""

    def judge(record: Record) -> Verdict:
        rows = sorted(_rows(record), key=lambda row: value(row[by]) or 0, reverse=falling)
        values = [value(row[column]) or 0 for row in rows]
        held = sum(low < high for low, high in pairwise(values))
        ends = values[::-1] if falling else values
        return Verdict(held, len(values) - 1, f"{as_text(ends[0])} to {as_text(ends[-1])}")

    return judge


def _parameters(record: Record) -> Verdict:
    rows = _rows(record)
    near = [abs((value(row["ours"]) or 0) / (value(row["paper"]) or 1) - 1) < 0.01 for row in rows]
    return Verdict(sum(near), len(near), "within 1 % each" if all(near) else "see table")


def _square_root(record: Record) -> Verdict:
    pairs = [(value(row["σ (PLD)"]) or 0, value(row["c·√rate"]) or 1) for row in _rows(record)]
    near = [abs(sigma / law - 1) < 0.1 for sigma, law in pairs]
    return Verdict(sum(near), len(near), f"within 10 % at {sum(near)} of {len(near)} rates")


def _iteration(record: Record) -> Verdict:
    rows = [row for row in _rows(record) if not 0.2 <= (value(row["ε"]) or 0) <= 40]
    less = [(value(row["σ of iteration (RDP)"]) or 0) < (value(row["σ of DP-SGD (PLD)"]) or 0) for row in rows]
    return Verdict(sum(less), len(less), "for ε>40 alone")


def _noise_slows(record: Record) -> Verdict:
    """Noise costs more at the high learning rate than at the low one."""
    groups = groupby(_rows(record), key=lambda row: (row["data"], row["model"], row["learning rate"]))
    costs = [(value(plain["ours"]) or 0) - (value(noisy["ours"]) or 0) for _, (plain, noisy) in groups]
    pairs = list(zip(costs[::2], costs[1::2], strict=True))
    low, high = (median(costs) for costs in zip(*pairs, strict=True))
    said = f"{low:.2f} points at the low rate, {high:.2f} at the high one"
    return Verdict(sum(low < high for low, high in pairs), len(pairs), said)


def _generalisation(record: Record) -> Verdict:
    plain, sampled, noisy = (value(row["test accuracy"]) or 0 for row in _rows(record))
    return Verdict((sampled > plain) + (abs(noisy - sampled) <= 1), 2, f"{plain:.1f}, {sampled:.1f}, {noisy:.1f}")


def _thirteen(record: Record) -> Verdict:
    old, pld = (
        next(value(row["q=1"]) or 0 for row in _rows(record) if row["ε"] == 3 and row["accountant"] == accountant)
        for accountant in ("RDP, old", "PLD")
    )
    return Verdict(int(abs(old / 13 - 1) < 0.05), 1, f"{old:.1f} by their accountant, {pld:.1f} by PLD")


def _refuted(record: Record) -> Verdict:
    claims = [row for row in _rows(record) if str(row["algorithm"]).startswith("SI-DPSGD")]
    sound = [value(row["sound ε"]) or float("inf") for row in claims]
    low = [max(value(row["audited ≥"]) or 0, value(row["final only ≥"]) or 0) for row in claims]
    held = sum(bound <= (value(row["claimed ε"]) or 0) for bound, row in zip(low, claims, strict=True))
    return Verdict(held, len(claims), f"sound ε of {min(sound):.0e} or more")


def _norms(plain: tuple[str, ...], normed: tuple[str, ...]) -> Judge:
    """At σ of 1 and 2, each network with a norm is above the same without."""

    def judge(record: Record) -> Verdict:
        of = {(row["model"], row["σ"]): value(row["ours"]) or 0 for row in _rows(record)}
        gaps = [of[b, noise] - of[a, noise] for a, b in zip(plain, normed, strict=True) for noise in (1.0, 2.0)]
        return Verdict(sum(gap > 0 for gap in gaps), len(gaps), f"{min(gaps):+.1f} to {max(gaps):+.1f} points")

    return judge


def _learns(record: Record) -> Verdict:
    rows = _rows(record)
    plain = {row["model"]: value(row["last"]) or 0 for row in rows if row["σ"] == 0}
    gaps = [(value(row["last"]) or 0) - plain[row["model"]] for row in rows if row["σ"] != 0]
    return Verdict(sum(gap >= -3 for gap in gaps), len(gaps), f"{min(gaps):+.1f} points at worst")


def _answer(record: Record) -> Verdict:
    row = next(row for row in _rows(record) if row["ε"] == 0.1 and row["which is"] == "the answer")
    return Verdict(int((value(row["on test (± sd)"]) or 0) > 78.58), 1, f"{row['on test (± sd)']}, all of it counted")


def _time(record: Record) -> Verdict:
    ratios = [(value(row["our ratio"]) or 0, value(row["paper's ratio"]) or 0) for row in _rows(record)]
    held = sum(ours >= theirs / 2 for ours, theirs in ratios)
    return Verdict(held, len(ratios), f"{min(ratios)[0]:.1f}–{max(ratios)[0]:.1f} ×")


_LENETS = ("LeNet-300-100", "LeNet-5")
_PHENOMENON = r"(the phenomenon|: it) (shows|does not show)[^;.]*"
_SHOWS = "shows"
_APART = r"\(intervals apart\)"
_GAP = r"([+-][\d.]+) points"
_UNDER_NOISE = r"by ([+-][\d.]+) points under noise"
_WORSE = r"RWT is ([\d.]+ points \w+)"
_BELOW = r"is ([\d.]+ points below)"
_CROSSOVER = r"crossover at ε of ([\d.e+∞]+)"
_UNPRIVATE = "What is claimed as ε holds"

CLAIMS: dict[str, dict[str, Claim]] = {
    "better-features": {
        "table-1": Claim("Scattering reaches these accuracies at small ε", "", reached()),
        "table-2": Claim("Normalised features learn better", "", reached(within=0.5)),
        "table-3": Claim("Most hyper-parameters do well", "", reached(within=0.5)),
        "table-4": Claim("Sizes of the models", "26,000–551,000", _parameters),
        "table-11": Claim("Without privacy CNNs are ahead on CIFAR-10", "", reached(within=1.0)),
        "table-19": Claim("Poisson and shuffled batches train alike", "", reached()),
        "table-20": Claim("At ε=3 a smaller CNN reaches more", "", reached()),
        "figure-1": Claim(
            "Linear models on scattering are ahead of CNNs up to ε=3",
            "on all three datasets",
            above({"model": "scatter-linear"}, {"model": "cnn"}, ("data",)),
        ),
        "figure-2": Claim(
            "CNNs gain by scattering, too",
            "on all three datasets",
            above({"model": "scatter-cnn"}, {"model": "cnn"}, ("data",)),
        ),
        "figure-3": Claim("Noise costs more at high learning rates", "a figure", _noise_slows),
        "figure-4": Claim("More records, more accuracy", "a figure", growing("ours", "N")),
        "figure-5": Claim("Public features reach 92.7 % on CIFAR-10 at ε=2", "", reached("paper, SimCLRv2")),
        "figure-6": Claim("σ grows as √(sampling rate)", "σ ≈ c·√(B/N)", _square_root),
        "figure-9": Claim("Iteration needs less noise than DP-SGD", "for ε<0.2 and ε>40", _iteration),
        "figure-10": Claim(
            "DP-SGD is ahead of iteration",
            "throughout",
            above({"algorithm": "DP-SGD"}, {"algorithm": "iteration"}, ("ε",)),
        ),
        "figure-11": Claim("Noise costs more at high learning rates", "a figure", _noise_slows),
    },
    "sampling-rates": {
        "table-1": Claim("Large rates give the best accuracy yet", "", reached(best_of="setting")),
        "table-2": Claim("Large rates do so in nine settings", "", reached(best_of="setting")),
        "figure-1": Claim(
            "GD, SGD and DP-GD: SGD generalises better than GD, DP-GD as well as SGD", "a figure", _generalisation
        ),
        "figure-2": Claim("60 epochs at ε=3 need σ ≈ 13·√q", "13", _thirteen),
        "figure-3": Claim("Accuracy along the budget", "", reached()),
    },
    "weight-distributions": {
        "table-1": Claim(
            "With a norm, networks learn at noisy weights",
            "98.0–99.3 against no convergence",
            _norms(_LENETS * 2, tuple(f"{norm}-{name}" for norm in ("BN", "LN") for name in _LENETS)),
        ),
        "table-2": Claim(
            "Batch norm before the scores helps at noisy weights",
            "+4.3 to +28 points",
            _norms(("ResNet-18", "VGG-16"), ("BN-ResNet-18", "BN-VGG-16")),
        ),
        "table-3": Claim(
            "Layer norm helps LSTMs at noisy weights", "+19 and +58 points", _norms(("BiLSTM-DL",), ("LN-BiLSTM-DL",))
        ),
        "table-4": Claim(f"{_UNPRIVATE} (MNIST)", "ε of 0.025–7", _refuted),
        "table-5": Claim(f"{_UNPRIVATE} (CIFAR-10)", "ε of 0.05–8", _refuted),
        "table-6": Claim(f"{_UNPRIVATE} (AG News)", "ε of 0.05–7", _refuted),
        "figure-1": Claim("With batch norm noise costs next to nothing", "a figure", _learns),
    },
    "privacy-aware": {
        "table-1": Claim(
            "Simple networks are ahead under noise, complex ones without",
            "in all pairs",
            noted(f"the simple network is better.*{_PHENOMENON}", _SHOWS, _UNDER_NOISE),
        ),
        "table-2": Claim(
            "Selected features are ahead under noise (Breast Cancer)", "at both ε", noted(_PHENOMENON, _SHOWS)
        ),
        "table-3": Claim(
            "Fewer inputs are better under noise",
            "86 to 60 %",
            noted(r"\d+ above \d+: [^;.]*", "intervals apart"),
        ),
        "table-4": Claim(
            "The privacy-aware CNN is ahead of LeNet-5", "at both ε", noted("than LeNet-5 by .*", _APART, f"by {_GAP}")
        ),
        "table-5": Claim(
            "PCA helps under noise", "for both networks", noted("PCA is better by .*", _APART, f"by {_GAP}")
        ),
        "table-6": Claim(
            "Frozen random layers (RWT) help at small ε",
            "+22, +4 and +7 points",
            noted(r"at ε=0[.]\d+: RWT is .*", f"better {_APART}", _WORSE),
        ),
        "table-7": Claim(
            "RWT is ahead of full training and of a simple network",
            "+25 and +2 points",
            noted("RWT is .*", f"better {_APART}", _WORSE),
        ),
        "table-8": Claim(
            "Private searches find better networks",
            "+1.8 to +2.4 points",
            noted("[A-Z]+ is .* better than STW .*", _APART, r"is ([\d.]+ points)"),
        ),
        "table-9": Claim(
            "Searches with frozen layers find better networks",
            "+3.1 and +19 points",
            noted(f"better than STW.*{_PHENOMENON}", _SHOWS, _UNDER_NOISE),
        ),
        "table-10": Claim(
            "PAFS selects the best features",
            "ahead of all features at most ε",
            column_above("ours, PAFS", "ours, All", {"regime": "whole workflow, (ε, 1e-5)"}),
        ),
        "table-13": Claim(
            "The simple LSTM is ahead under noise",
            "+7.4 points",
            noted(f"better by.*{_PHENOMENON}", _SHOWS, _UNDER_NOISE),
        ),
        "table-14": Claim(
            "Under noise wider networks err more", "at all depths", column_above("ours, 120 units", "ours, 10 units")
        ),
        "table-15": Claim(
            "Without noise wider networks err less", "at all depths", column_above("ours, 10 units", "ours, 120 units")
        ),
        "table-16": Claim(
            "One-hot helps above an ε of 0.01 to 0.05 and hurts below",
            "crossover shows",
            noted("the crossover, .*(shows|does not show) in this range", _SHOWS),
        ),
        "table-17": Claim("DP-SGD takes many times as long as SGD", "19–37 ×", _time),
        "table-18": Claim("Selected features are ahead under noise (Adult)", "at both ε", noted(_PHENOMENON, _SHOWS)),
        "figure-1": Claim(
            "Under noise larger networks fall behind",
            "a figure",
            noted(r"the largest is .* below it \(.*?\)", "with intervals apart", _BELOW),
        ),
        "figure-3": Claim(
            "Few features are best at small ε (Adult)", "78.58 with 5 features", noted(_PHENOMENON, _SHOWS)
        ),
        "figure-4": Claim(
            "Few features are best at small ε (Breast Cancer)", "best with 1 feature", noted(_PHENOMENON, _SHOWS)
        ),
        "figure-5": Claim("More inputs, larger distance from SGD", "a figure", growing("at the end", "inputs")),
        "figure-6": Claim(
            "Complex networks need more ε for 85 %",
            "at all sizes",
            above({"network": "complex"}, {"network": "simple"}, ("records",), "ε", True),
        ),
        "figure-7": Claim(
            "Lines of simple and complex FCNs cross",
            "ε ≈ 1e4",
            noted("crossover at .*", "it shows.* overtakes shows", _CROSSOVER),
        ),
        "figure-8": Claim(
            "Logistic regression, FCN, CNN: each ahead from some ε",
            "ε of 0.25 and 0.5",
            noted("crossover at .*", "it shows.* overtakes shows", _CROSSOVER),
        ),
        "figure-9": Claim(
            "The simple SVHN CNN is ahead at its own rate",
            "a figure",
            noted("a rate for each: .*", rf"[+].* {_APART}", f"each: {_GAP}"),
        ),
        "figure-10": Claim(
            "RWT is ahead below a crossover",
            "ε ≈ 1.4 and 0.6",
            noted("crossover at .*", "RWT is ahead below it shows", _CROSSOVER),
        ),
        "figure-12": Claim(
            "Under noise wider and deeper networks fall behind",
            "a figure",
            noted(r"the largest is .* below it \(.*?\)", "with intervals apart", _BELOW),
        ),
        "appendix-e": Claim(
            "DP-SGD's clip helps: ahead of SGD",
            "+4.6 points",
            above({"way": "DP-SGD at ε=1e7"}, {"way": "SGD"}, apart=True),
        ),
        "adult-best": Claim("The best private model for Adult, ε=0.1", "78.58, selection uncounted", _answer),
    },
}
