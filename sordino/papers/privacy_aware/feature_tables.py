"""PAW's tables: Adult and Breast Cancer encoded, subsets of their features, and what an ε of their items covers."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.budget import Composed, Gaussian, Ledger, Pure, cost
from sordino.data import ArrayRecords, Schema, Split
from sordino.features import OneHot
from sordino.mechanisms import Streams, Tables, bound_streams, pair_tables, secret_from_seed
from sordino.papers.privacy_aware.networks import loaded
from sordino.papers.trials import Experiment, Result
from sordino.selection import (
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
from sordino.training import (
    RIDGE_PER_NOISE,
    LinearClassifier,
    LogisticPlan,
    Optimiser,
    Plan,
    Training,
    fit_many,
    linear_scores,
    minimise,
    scores,
    train_steps,
    with_bias,
)

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

    @property
    def most_frequent(self) -> float:
        """The share of test records that a constant guess gets right."""
        return float(np.bincount(self.test_y).max() / len(self.test_y))

    def norms(self, masks: Mask) -> Array:
        """The public norm of a row of each subset: √(attributes it touches + 1 for the bias)."""
        belongs = self.attributes.owners[:, None] == np.unique(self.attributes.owners)
        return np.asarray(np.sqrt((masks.astype(np.int64) @ belongs.astype(np.int64) > 0).sum(axis=1) + 1.0))

    @cached_property
    def counts(self) -> Tables:
        return pair_tables(self.attributes.codes(self.train), self.attributes.sizes)

    def private(self, noise_multiplier: float, generator: np.random.Generator) -> Uncertainties:
        """From noisy tables, as a private selection releases them; not charged here, since the benchmark is public."""
        plan = tables_plan(self.attributes, noise_multiplier)
        tables, _ = consistent_tables(plan.noised(self.counts, generator), plan, len(self.train))
        return uncertainties(self.attributes, tables)

    def greedy_orders(
        self, tables_noise: float | None, count: int, generator: np.random.Generator
    ) -> list[GreedyOrder]:
        """CFS-Greedy: from exact counts (not private) one order, from private tables another each time."""
        if tables_noise is None:
            return [cfs_greedy(uncertainties(self.attributes, self.counts))]
        return [cfs_greedy(self.private(tables_noise, generator)) for _ in range(count)]

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


@dataclass(frozen=True)
class Regime:
    """What an ε covers."""

    label: str
    delta: float | None
    adjacency: str
    counts_selection: bool
    """Whether the tables that features are selected by are private, within the same ε."""
    documented: bool = False
    """Whether categories come from the documentation alone."""

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
    """The release of the tables within a whole workflow of this ε."""
    split = BudgetSplit.proposed(epsilon, DELTA, selects=True)
    return Gaussian(split.noise(split.selection))


def measured(experiment: Experiment, words: str, compute: Callable[[str], Result]) -> Result:
    """The result that these words describe: from the store, or else computed now; with its processor time.

    `compute` is given the words, by which it draws its noise.
    """
    words += ", quick" * experiment.quick

    def timed() -> Result:
        experiment.say(words)
        begun = time.process_time()
        return compute(words) | {"trial": words, "seconds": time.process_time() - begun}

    key = hashlib.blake2b(f"{_REVISION} {words}".encode(), digest_size=16).hexdigest()
    found = experiment.store.get(f"paw-tables-{key}", lambda folder: timed())
    # Rows and lines of the record sum up many fits; one by one they would make it a hundred times as long.
    experiment.ran[words] = {name: value for name, value in found.items() if not isinstance(value, dict | list)}
    return found


def generator_of(words: str) -> np.random.Generator:
    """Separate noise for each thing that is measured."""
    return np.random.default_rng(list(hashlib.blake2b(words.encode(), digest_size=16).digest()))


def linear_accuracy(plan: Plan, optimiser: Optimiser, parts: "Arrays", streams: Streams) -> float:
    """The accuracy on the last two arrays of a linear layer trained on the first two: public, and so not charged."""
    x, y, test_x, test_y = parts
    model = LinearClassifier(x.shape[1], 2)
    model.initialise(streams)
    training = Training(plan, model, ArrayRecords(x, y), optimiser)
    train_steps(training, training.start(), streams, plan.steps)
    guesses = linear_scores(model.parameters, torch.from_numpy(np.ascontiguousarray(test_x))).argmax(dim=1).numpy()
    return float((guesses == test_y).mean())


Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""Features and labels to train on, and others to examine."""


def streams_of(words: str, seed: int = 0) -> Streams:
    return bound_streams(secret_from_seed(seed), {"for": words}, predictable=True)


def frequent(name: str, splits: Sequence[int], quick: bool) -> str:
    """The accuracy of a constant guess, in words."""
    share = mean(benchmark(name, split, quick).most_frequent for split in splits)
    return f"{100 * share:.1f} % of the test records are of the most frequent class"


def over_splits(splits: int, repeats: int) -> str:
    """What the item's intervals are taken over, in words."""
    return (
        f"Mean ± half of the 95 % interval over {splits} random splits of the table (which share records: it is rather "
        f"too short), each the mean of {repeats} fits; differences are taken split by split"
    )
