"""An audit of any training: many runs on two neighbouring datasets, and how well their outputs can be distinguished."""

import math
import operator
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.audit import statistics
from sordino.audit.bounds import best_set, bound_from_hits, check_levels, is_number
from sordino.audit.result import Audit
from sordino.audit.statistics import Array, Parts, Statistic
from sordino.budget import Gaussian, cost
from sordino.mechanisms import Stream, Streams

_FEWEST_RUNS = 100
_FITTING, _CHOOSING = 0.2, 0.2
"""Shares of the runs on which statistics are fitted, and on which one of them and its threshold are chosen."""
_MOST_NUMBERS = 2**25
"""Numbers kept of all outputs; of larger outputs, only the columns that differ most between the arms."""
_MOST_COLUMNS = 4096
_FEWEST_TO_SETTLE = 16
_FAILURES = 3
"""Runs on each dataset that may raise if none has succeeded."""
_MOST_RUNS = 10**12
_CAUTION = 2.5
"""Standard errors: by chance, one of forty statistics at a hundred thresholds looks far better than it is."""


def audit(
    train: Callable[[Any], Any],
    neighbours: tuple[Any, Any],
    *,
    epsilon: float,
    delta: float,
    runs: int,
    confidence: float = 0.95,
    low_bits: bool = False,
    streams: Streams | None = None,
) -> Audit:
    """Train `runs` times on each of two neighbouring datasets, and bound ε from below by how well the outputs differ.

    `train(records)` returns everything that is released: a number, an array, a module, or dicts or lists of them. It
    must draw fresh randomness in every call, and gets a fresh copy of the records. If it raises, the exception counts
    as an output: raising on one dataset only is a disclosure. A fifth of the runs fit statistics (single numbers,
    norms, lengths, reused noise, linear discriminants, boosted trees), a fifth choose the best statistic and its
    threshold, and the others measure it.

    Guarantee: the bound holds at its confidence whatever `train` is, if runs are independent of each other.

    The verdict is about the claim that training is (ε, δ)-DP; "consistent" means that this attack, with these runs and
    datasets, did not refute it. Noise drawn in floating point leaks through its lowest bits (Mironov 2012); that is
    reported as a note, and counts for the verdict with `low_bits`.

    >>> noise = np.random.default_rng(0)
    >>> zeros, neighbour = np.zeros(10), np.append(np.zeros(9), 1.0)
    >>> audit(lambda x: x.sum() + noise.normal(), (zeros, neighbour), epsilon=0.1, delta=1e-5, runs=2000).verdict
    'violated'
    """
    runs = _checked_runs(neighbours, epsilon, delta, runs, confidence)
    epsilon, delta = float(epsilon), float(delta)
    trials = _Trials(train, neighbours)
    order = (Streams.fresh() if streams is None else streams).generator(Stream.SAMPLING)
    fitting, choosing = int(_FITTING * runs), int(_CHOOSING * runs)
    table = _Table()
    # The measuring runs come last: the runs before them may decide which numbers are kept. In random order, so that
    # whatever changes with time does not look like a difference between the arms.
    for part in (fitting, choosing, runs - fitting - choosing):
        for arm in order.permutation(np.repeat([True, False], part)).tolist():
            table.add(trials.run(arm), arm)
        table.settle()
    with np.errstate(all="ignore"):  # a statistic that overflows shows nothing, and does no harm
        return _measured(table, trials, epsilon, delta, runs, confidence, low_bits)


def _measured(
    table: "_Table",
    trials: "_Trials",
    epsilon: float,
    delta: float,
    runs: int,
    confidence: float,
    low_bits: bool,
) -> Audit:
    """Fit the statistics, choose one and measure it, on the runs in the table."""
    fitting, choosing = int(_FITTING * runs), int(_CHOOSING * runs)
    columns, summaries, arms = table.features()
    first, second = 2 * fitting, 2 * (fitting + choosing)
    rows = np.column_stack([columns, summaries])
    sizes = (int(arms[second:].sum()), int((~arms[second:]).sum()))

    def attack(candidates: list[Statistic]) -> tuple[float, bool, str, Array]:
        """The best statistic's bound, whether it never errs, its name, and its scores of the measuring runs."""
        scored = []
        for name, statistic in candidates:
            scores = np.nan_to_num(statistic(rows[first:]))
            seen, arm = scores[: second - first], arms[first:second]
            chosen = best_set(seen[arm], seen[~arm], sizes, delta, confidence, _CAUTION)
            scored.append((chosen, name, scores[second - first :]))
        chosen, name, scores = max(scored, key=lambda item: item[0].promise)
        present, absent = scores[arms[second:]], scores[~arms[second:]]
        return chosen.bound(present, absent, delta, confidence), chosen.without_error(present, absent), name, scores

    labels = table.labels()
    ordinary = statistics.fitted(columns[:first], summaries[:first], [*labels, *table.names], arms[:first])
    by_bits = statistics.fitted_on_low_bits(columns[:first], labels, arms[:first])
    bound, never_wrong, name, scores = attack([*ordinary, *by_bits] if low_bits else ordinary)
    present, absent = scores[arms[second:]], scores[~arms[second:]]
    notes = [*table.notes, *trials.notes()]
    if not np.ptp(rows[arms], 0).any() and not np.ptp(rows[~arms], 0).any():
        notes.append(
            "the output never changes from run to run: train draws no noise, or draws it from a generator that is part "
            "of the records, of which each run gets a fresh copy"
        )
    bound_by_bits = 0.0 if low_bits or not by_bits else attack(by_bits)[0]
    if bound_by_bits > max(bound, epsilon):
        notes.append(
            f"the lowest bits of the output alone show ε ≥ {bound_by_bits:.3g}: its noise is drawn in floating "
            "point; low_bits=True makes the verdict count them"
        )
    most = largest_bound(sizes, delta, confidence)
    if never_wrong and 0 < bound <= epsilon:
        needed = _runs_to_refute(epsilon * max(1.0, most / bound), delta, confidence)
        many = f"about {needed:,}" if needed else f"more than {_MOST_RUNS:,}"
        notes.append(
            f"every run was identified correctly, but {runs:,} runs show no more than ε ≥ {bound:.3g}: {many} runs on "
            f"each dataset would refute ε={epsilon:g}"
        )
    elif most <= epsilon:
        notes.append(f"{runs:,} runs cannot show more than ε ≥ {most:.3g}: this audit cannot refute ε={epsilon:g}")
    return Audit(
        lower_bound=bound,
        confidence=confidence,
        claimed_epsilon=epsilon,
        sound_epsilon=epsilon,
        delta=delta,
        runs=2 * runs,
        statistic=name,
        epsilon_if_gaussian=_if_gaussian(present, absent, delta, confidence),
        notes=tuple(notes),
    )


def largest_bound(sizes: tuple[int, int], delta: float, confidence: float) -> float:
    """The largest bound that this many measuring runs on each dataset can give: if none is misidentified."""
    with_canary, without = sizes
    return bound_from_hits((with_canary, with_canary), (0, without), delta, 1 - confidence, (0.0, 1.0))


def _runs_to_refute(epsilon: float, delta: float, confidence: float) -> int | None:
    """Runs needed on each dataset, to two digits, if none is misidentified; None if there would be far too many."""
    runs = float(_FEWEST_RUNS)
    while runs <= _MOST_RUNS:
        measuring = int(runs) - int(_FITTING * runs) - int(_CHOOSING * runs)
        if largest_bound((measuring, measuring), delta, confidence) > epsilon:
            unit: int = 10 ** (len(str(int(runs))) - 2)
            return -(-int(runs) // unit) * unit
        runs *= 1.05
    return None


def _if_gaussian(present: Array, absent: Array, delta: float, confidence: float) -> float:
    """A lower bound on ε if scores are normal in both arms with one variance, at a threshold between them.

    No verdict rests on it, because without that assumption it is not a bound.
    """
    if delta == 0 or len({*present, *absent}) < len(present) // 2:  # not even a continuous law
        return 0.0
    threshold = (present.mean() + absent.mean()) / 2
    hits, false_hits = (
        stats.binomtest(int(np.count_nonzero(scores >= threshold)), len(scores)).proportion_ci(confidence)
        for scores in (present, absent)
    )
    mu = float(stats.norm.ppf(hits.low) - stats.norm.ppf(false_hits.high))
    return cost(Gaussian(1 / mu), delta).epsilon if 1e-6 < mu < math.inf else 0.0


def _checked_runs(neighbours: tuple[Any, Any], epsilon: float, delta: float, runs: int, confidence: float) -> int:
    """The number of runs as a Python int; raises ValueError if any argument is invalid."""
    check_levels(delta, confidence)
    if not isinstance(neighbours, tuple | list) or len(neighbours) != 2:
        raise ValueError("neighbours must be two datasets, one with the record in question and one without")
    if not is_number(epsilon) or not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number of at least 0, not {epsilon!r}")
    try:
        whole = operator.index(runs)
    except TypeError:
        raise ValueError(f"runs must be an integer, not {runs!r}") from None
    if whole < _FEWEST_RUNS:
        raise ValueError(f"an audit needs at least {_FEWEST_RUNS} runs on each dataset, not {runs!r}")
    return whole


class _Trials:
    """Runs of `train`, each on a fresh copy of its dataset: a run that changes its records must not affect the next."""

    def __init__(self, train: Callable[[Any], Any], neighbours: tuple[Any, Any]) -> None:
        self._train, self._neighbours = train, neighbours
        self._ended, self._raised = [0, 0], [0, 0]
        self._first: Exception | None = None
        try:
            deepcopy(tuple(neighbours))
            self._copied = True
        except Exception:  # a foreign class may raise anything
            self._copied = False

    def run(self, arm: bool) -> Parts:
        records = self._neighbours[arm]
        records = deepcopy(records) if self._copied else records
        try:
            output = self._train(records)
        except Exception as problem:
            self._raised[arm] += 1
            self._first = problem if self._first is None else self._first
            if min(self._raised) >= _FAILURES and not any(self._ended):
                problem.add_note(f"train has raised in all of its first {sum(self._raised)} runs, on both datasets")
                raise
            return statistics.parts_of_error(problem)
        self._ended[arm] += 1
        return statistics.parts_of(output)

    def notes(self) -> Iterator[str]:
        if not self._copied:
            yield "the datasets cannot be copied: the verdict is valid only if train does not change them"
        if self._first is not None:
            runs = sum(self._raised + self._ended) // 2
            words = [type(self._first).__name__, *str(self._first).splitlines()[:1]]
            yield (
                f"of {runs:,} runs on each dataset, train raised in {self._raised[0]:,} on the first and "
                f"{self._raised[1]:,} on the second ({': '.join(words)}): raising on one only is itself a disclosure"
            )


class _Table:
    """Outputs of all runs, one row each: all numbers, or those that differ most between the arms, and summaries."""

    def __init__(self) -> None:
        self._arms: list[bool] = []
        self._parts: list[Parts] = []
        self._summaries: list[dict[str, float]] = []
        self._widths: dict[str, int] | None = None
        self._kept: NDArray[np.int64] | None = None
        self._rows: list[Array] = []
        self.names: list[str] = []
        self.notes: tuple[str, ...] = ()

    def add(self, parts: Parts, arm: bool) -> None:
        self._arms.append(arm)
        self._summaries.append(statistics.summary(parts))
        if self._kept is not None:
            self._rows.append(self._row(parts))
            return
        self._parts.append(parts)
        too_many = sum(len(value) for value in parts.values()) * len(self._parts) > _MOST_NUMBERS
        if too_many and len(self._parts) >= _FEWEST_TO_SETTLE:
            self.settle()

    def settle(self) -> None:
        """Fix, from the runs so far, which numbers are kept and which summaries there are."""
        if self._kept is not None:
            return
        self.names = sorted({name for summary in self._summaries for name in summary})
        longest: dict[str, int] = {}
        for parts in self._parts:
            for name, values in parts.items():
                longest[name] = max(len(values), longest.get(name, 0))
        self._widths, total = longest, sum(longest.values())
        if total == 0 and all(summary == self._summaries[0] for summary in self._summaries):
            raise ValueError("train returned no numbers in any run: it must return everything that is released")
        self._kept = np.arange(total)
        rows = np.stack([self._row(parts) for parts in self._parts])
        if total > _MOST_COLUMNS:
            self._kept = statistics.separating_columns(rows, np.array(self._arms), _MOST_COLUMNS)
            rows = rows[:, self._kept]
            kept = f"the {_MOST_COLUMNS:,} of {total:,} numbers that differ most in the first {len(rows):,} runs"
            self.notes = (f"outputs are compared by {kept}, and by the norms and lengths of all",)
        self._rows, self._parts = list(rows), []

    def labels(self) -> list[str]:
        """The name of each kept number: its part of the output, and its index there."""
        assert self._widths is not None
        assert self._kept is not None
        parts, starts = list(self._widths), np.cumsum([0, *self._widths.values()])
        of = np.searchsorted(starts, self._kept, side="right") - 1
        return [f"{parts[part]}[{place - starts[part]}]" for part, place in zip(of, self._kept, strict=True)]

    def features(self) -> tuple[Array, Array, NDArray[np.bool_]]:
        """The numbers, summaries and arm of each run."""
        columns = np.stack(self._rows)
        summaries = np.array([[summary.get(name, 0.0) for name in self.names] for summary in self._summaries])
        return columns, statistics.tame(summaries), np.array(self._arms)

    def _row(self, parts: Parts) -> Array:
        """The kept numbers of an output, each part padded with zeros to its longest length in the runs that settled."""
        assert self._widths is not None
        assert self._kept is not None
        row = np.zeros(sum(self._widths.values()))
        start = 0
        for name, width in self._widths.items():
            values = parts.get(name, np.empty(0))[:width]
            row[start : start + len(values)] = values
            start += width
        return statistics.tame(row[self._kept])
