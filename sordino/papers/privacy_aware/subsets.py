"""PAW's tables, feature subsets of them, and private logistic regressions on these, many at a time."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Composed, Event, Gaussian, Ledger, Pure, cost
from sordino.data import Schema, Split
from sordino.features import OneHot
from sordino.mechanisms import Tables, pair_tables
from sordino.papers.privacy_aware.intervals import Interval
from sordino.papers.privacy_aware.networks import loaded
from sordino.papers.trials import Experiment
from sordino.selection import (
    TARGET_WEIGHT,
    Attributes,
    BudgetSplit,
    GreedyOrder,
    Mask,
    Uncertainties,
    cfs_greedy,
    consistent_tables,
    tables_plan,
    uncertainties,
)
from sordino.training import RIDGE_PER_NOISE, LogisticPlan, fit_many, minimise, scores, with_bias

Array = NDArray[np.float64]
DELTA = 1e-5
_REVISION = 2
_QUICK_RECORDS, _QUICK_TESTED = 150, 60
PLAIN_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A public table in PAW's sizes: its attributes, encoded records to train on, and others to test on."""

    attributes: Attributes
    train: Split
    x: Array
    test_x: Array
    test_y: NDArray[np.int64]

    @property
    def y(self) -> NDArray[np.int64]:
        return self.train.y

    @property
    def features(self) -> int:
        return int(self.x.shape[1])

    @property
    def every(self) -> Mask:
        return np.ones((1, self.features), dtype=bool)

    def norms(self, masks: Mask) -> Array:
        """The public norm of a row of each subset: √(attributes it touches + 1 for the bias)."""
        belongs = self.attributes.owners[:, None] == np.unique(self.attributes.owners)
        return np.asarray(np.sqrt((masks.astype(np.int64) @ belongs.astype(np.int64) > 0).sum(axis=1) + 1.0))

    @cached_property
    def counts(self) -> Tables:
        return pair_tables(self.attributes.codes(self.train), self.attributes.sizes)

    def exact(self) -> Uncertainties:
        """From exact counts: selection not private."""
        return uncertainties(self.attributes, self.counts)

    def private(self, noise_multiplier: float, generator: np.random.Generator) -> Uncertainties:
        """From tables told as a private selection tells them; not charged here, since the benchmark is public."""
        plan = tables_plan(self.attributes, noise_multiplier)
        told = consistent_tables(plan.noised(self.counts, generator), plan, len(self.train))
        return uncertainties(self.attributes, told.tables)

    def accuracies(self, masks: Mask, plan: LogisticPlan, repeats: int, generator: np.random.Generator) -> Array:
        """On the test records, (subsets, repeats), with fresh noise each time."""
        used = np.asarray(masks.any(axis=0))
        weights = fit_many(self.x[:, used], self.y, masks[:, used], plan, repeats, generator, self.norms(masks))
        return self._correct(weights, used)

    def plain_accuracies(self, masks: Mask, plain_ridge: float = PLAIN_RIDGE) -> Array:
        """Without noise, by default with the ridge of 1 that PAW's library has."""
        rows, chosen = with_bias(self.x), np.concatenate([masks, np.ones((len(masks), 1), dtype=bool)], axis=1)
        linear = np.tile(-rows[self.y == 1].sum(axis=0), (len(masks), 1))
        ridge, tolerance = np.full(len(masks), plain_ridge), np.full(len(masks), 1e-3)
        weights = minimise(rows, np.ones(len(rows)), linear, ridge, tolerance, chosen)
        return self._correct(weights, np.ones(self.features, dtype=bool))

    def _correct(self, weights: Array, used: NDArray[np.bool_]) -> Array:
        # Subset by subset: the scores of all test records under all models would take gigabytes.
        found = [((scores(own, self.test_x[:, used]).T > 0) == self.test_y).mean(axis=-1) for own in weights]
        return np.asarray(found)


@lru_cache(maxsize=16)
def benchmark(name: str, split: int = 0, quick: bool = False, documented: bool = False) -> Benchmark:
    """A table with the rows of its parts drawn by `split`; quickly, only a few of them.

    PAW's columns leave out categories that no record has, which is a look at the records: `documented` keeps them.
    """
    dataset = loaded(name)
    parts = dataset.workflow_split(split)
    train, test = parts.train, parts.test
    if quick:
        train, test = train.take(np.arange(_QUICK_RECORDS)), test.take(np.arange(_QUICK_TESTED))
    schema = Schema.of(dataset.facts)
    schema = schema if documented else schema.without_absent()
    encode = OneHot(schema.columns)
    x, test_x = (encode(part.x).astype(np.float64) for part in (train, test))
    return Benchmark(Attributes(schema), train, x, test_x, test.y)


def most_frequent(table: Benchmark) -> float:
    """The share of test records that a constant guess gets right."""
    return float(np.bincount(table.test_y).max() / len(table.test_y))


@dataclass(frozen=True)
class Regime:
    """What a row's ε stands for."""

    label: str
    delta: float | None
    adjacency: str
    counts_selection: bool
    """Whether the tables that features are selected by are private, within the same ε."""
    documented: bool = False
    """Whether nothing but documentation tells which categories there are."""

    def benchmark(self, name: str, split: int = 0, quick: bool = False) -> Benchmark:
        """The table in the columns that this promise allows."""
        return benchmark(name, split, quick, self.documented)

    @property
    def without_selection(self) -> "Regime":
        """The same promise where nothing is selected."""
        return replace(self, counts_selection=False)


PURE = Regime("selection not private, pure ε", None, "replace-one", False)
UNCOUNTED = Regime("selection not private, (ε, 1e-5)", DELTA, "zero-out", False)
WHOLE = Regime("whole workflow, (ε, 1e-5)", DELTA, "zero-out", True, documented=True)
REGIMES = (PURE, UNCOUNTED, WHOLE)
RIDGE_WORDS = f"ridge {RIDGE_PER_NOISE:g} E‖b‖/√n"
RIDGE_TUNED = (
    f"No setting is tuned on this table: that the ridge is {RIDGE_PER_NOISE:g} times E‖b‖/√n was found on made-up "
    "tables (item ridges)"
)
SELECTION_TUNED = (
    f"that tables with the label weigh {TARGET_WEIGHT:g} times as much in a private selection was chosen, once for all "
    "tables, on Adult, which no ε counts"
)
WHAT_REGIMES_ARE = (
    "Pure ε is PAW's mechanism and promise (objective perturbation, a record replaced); (ε, 1e-5) is ours with "
    "Gaussian noise, a record zeroed out, planned and priced by PLD. In the whole workflow ε counts the tables of all "
    "pairs of columns as well, which get 15 % of the budget (in squares of 1/σ), and categories are all that are "
    "documented; otherwise features are selected by exact counts, which no ε covers"
)


@dataclass(frozen=True)
class Budgeted:
    """A training and, in the whole workflow, the tables before it, within one ε."""

    plan: LogisticPlan
    tables_noise: float | None
    epsilon: float


@lru_cache(maxsize=4096)
def budgeted(regime: Regime, n: int, width: int, epsilon: float) -> Budgeted:
    """Planned for n records and so many features; norms are given with the subsets."""
    if not regime.counts_selection:
        plan = LogisticPlan.calibrated(
            n=n,
            width=width,
            target_epsilon=epsilon,
            target_delta=regime.delta,
            data_norm=1.0,
            adjacency=regime.adjacency,
        )
        spent = (
            plan.event.epsilon if isinstance(plan.event, Pure) else cost(plan.event, DELTA, regime.adjacency).epsilon
        )
        return Budgeted(plan, None, spent)
    before = selection_event(epsilon)
    ledger = Ledger(epsilon, regime.delta, adjacency=regime.adjacency, planned=[(before, "feature selection")])
    plan = LogisticPlan.calibrated(n=n, width=width, data_norm=1.0, ledger=ledger)
    together = cost(Composed((before, plan.event)), DELTA, regime.adjacency)
    return Budgeted(plan, before.noise_multiplier, together.epsilon)


@lru_cache(maxsize=256)
def selection_event(epsilon: float) -> Gaussian:
    """The tables' release within a whole workflow of this ε."""
    split = BudgetSplit.proposed(epsilon, DELTA, selects=True, tunes=False)
    return Gaussian(split.noise(split.selection))


def greedy_orders(
    table: Benchmark, tables_noise: float | None, count: int, generator: np.random.Generator
) -> list[GreedyOrder]:
    """CFS-Greedy: of exact counts one and the same, of private tables each time another."""
    if tables_noise is None:
        return [cfs_greedy(table.exact())]
    return [cfs_greedy(table.private(tables_noise, generator)) for _ in range(count)]


def measured(experiment: Experiment, words: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What these words stand for: from the store, or else computed now; with the seconds of processor that it took."""

    def timed() -> dict[str, Any]:
        experiment.say(words)
        begun = time.process_time()
        return compute() | {"trial": words, "seconds": time.process_time() - begun}

    key = hashlib.blake2b(f"{_REVISION} {words}".encode(), digest_size=16).hexdigest()
    found = experiment.store.get(f"paw-tables-{key}", lambda folder: timed())
    # Rows and lines of the record say what many fits came to; one by one they would make it a hundred times as long.
    experiment.ran[words] = {name: value for name, value in found.items() if not isinstance(value, dict | list)}
    return found


def generator_of(words: str) -> np.random.Generator:
    """Noise of its own for each thing that is measured."""
    return np.random.default_rng(list(hashlib.blake2b(words.encode(), digest_size=16).digest()))


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Of two things measured on the same splits, split by split."""
    return Interval.of([a - b for a, b in zip(first, second, strict=True)])


def sign(found: Interval) -> str:
    """What the interval of a difference says."""
    if found.half is None:
        return "one split has no interval"
    if found.mean - found.half > 0:
        return "above 0"
    return "below 0" if found.mean + found.half < 0 else "not apart from 0"


def event_epsilon(*events: Event) -> float:
    """ε of all these together at δ=1e-5, planned."""
    return cost(Composed(events), DELTA).epsilon


def over_splits(splits: int, repeats: int) -> str:
    """What the intervals of an item are of."""
    return (
        f"Mean ± half of the 95 % interval over {splits} random splits of the table (which share records: it is rather "
        f"too short), each the mean of {repeats} fits; differences are taken split by split"
    )
