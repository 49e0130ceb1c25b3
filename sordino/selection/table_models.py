"""Models for tables from the simplest to the most complex: logistic regression, and networks trained by DP-SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Event, Gaussian, Ledger, Planned
from sordino.data import ArrayRecords, Column, DataError, PoissonSampler, Schema, Split
from sordino.features import CentredOneHot, OneHot, neutral_cuts
from sordino.mechanisms import Streams, noisy_accuracy, secret_from_seed
from sordino.models import dense
from sordino.runs import Run, WorkflowSteps
from sordino.selection.attributes import Mask
from sordino.selection.table_trainings import (
    LogisticTraining,
    SgdTraining,
    TableTraining,
    outputs_of_linear,
    outputs_of_module,
)
from sordino.training import (
    GaussianObjective,
    LinearClassifier,
    LogisticPlan,
    TrainableModule,
    cached_plan,
    cross_entropy,
    data_norm,
)

if TYPE_CHECKING:
    import pandas as pd

L2_CLIP = 1.0
STEPS = 30
LEARNING_RATES = (0.1, 0.4, 1.6)
"""Candidates for each model at each ε: the best ones differ by more than the models do (PAW, Fig. 9)."""
BINS = 10
"""Bins of a numeric column."""
_PIECE = 2048
"""Rows worked through at once: so small a network is fastest on many."""


class PricedPlan(Protocol):
    """A priced training: a `Plan` (DP-SGD) or a `LogisticPlan` (objective perturbation)."""

    @property
    def event(self) -> Event: ...


@dataclass(frozen=True)
class TableModel:
    """A classifier on the columns it is shown: linear without hidden layers, else fully connected with ReLU between."""

    name: str
    hidden: tuple[int, ...] = ()
    numeric_only: bool = False
    """Drop categorical columns instead of one-hot encoding them."""
    learning_rates: ClassVar[tuple[float, ...]] = LEARNING_RATES

    def columns(self, schema: Schema) -> tuple[Column, ...]:
        shown = tuple(column for column in schema.columns if not self.numeric_only or column.bounds is not None)
        if not shown:
            raise DataError(
                f"the model {self.name} uses numeric columns only, and the schema has none: choose another model"
            )
        return shown

    def width(self, columns: tuple[Column, ...]) -> int:
        """How many numbers encode a row of these columns."""
        return encoded_width(columns)

    def parameters(self, schema: Schema) -> int:
        """All of them trained."""
        return self.weights(self.width(self.columns(schema)), len(classes_of(schema)))

    def weights(self, width: int, outputs: int) -> int:
        """The number of weights for this many encoded features."""
        return trained_parameters(width, self.hidden, outputs)

    def usable(self, schema: Schema, kept: Mask) -> Mask:
        """The one-hot features that the model uses if those of the mask are kept."""
        return kept

    def encode(self, schema: Schema, table: pd.DataFrame, kept: Mask | None = None) -> NDArray[np.float32]:
        """Rows of numbers, of the features kept alone, which are usable; columns without any need not be there."""
        columns = self.columns(schema)
        if kept is None:
            return OneHot(columns)(table)
        rows = OneHot(touched(columns, kept))(table)
        return np.ascontiguousarray(rows[:, kept[_of_whole_columns(columns, kept)]])

    def plan(
        self, schema: Schema, n: int, target_epsilon: float, target_delta: float, before: Event | None = None
    ) -> Any:
        """The training plan for n records; `before` is what else will be spent within the same target."""
        # Every record in every step, where the noise of the whole run is least for its ε (LSR).
        return cached_plan(
            n=n,
            expected_batch_size=n,
            epochs=STEPS,
            l2_clip=L2_CLIP,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            before=before,
        )

    def rehearsal(self, plan: Any, rows: int, n: int) -> Any:
        """The plan for other rows in place of n, with noise so that their mean has as much as that of n.

        For public rows only: it does not cost what the plan costs.
        """
        return replace(plan, sampler=PoissonSampler(rows, rows), noise_multiplier=plan.noise_multiplier * rows / n)

    def narrowed(self, plan: Any, schema: Schema, kept: Mask) -> Any:
        """The plan, at the same price, where only these features are left."""
        return plan

    def rehearsed_on(
        self, schema: Schema, rows: tuple[Split, Split], n: int, kept: Mask | None = None
    ) -> Callable[[Any, float, int], float]:
        """Plan of n private records, learning rate, seed → accuracy on the second rows of a model of the first.

        Guarantee: none is given: the rows must be public or synthetic.
        """
        train, test = rows
        x, held_out = (self.encode(schema, part.x, kept) for part in rows)
        training = self.training_on(x, train.y, len(classes_of(schema)))

        def accuracy(plan: Any, learning_rate: float, seed: int) -> float:
            streams = Streams(secret_from_seed(seed))
            predict = training.rehearse(self.rehearsal(plan, len(train), n), learning_rate, streams)
            return float((predict(held_out) == test.y).mean())

        return accuracy

    def train_and_score(
        self,
        schema: Schema,
        parts: tuple[Split, Split],
        plan: Any,
        learning_rate: float,
        steps: WorkflowSteps,
        *,
        run: Run,
        what: str,
        score: Path,
        charge: Planned,
        kept: Mask | None = None,
    ) -> float:
        """Train on the first part in the run's folder, and give the noisy accuracy on the second, kept in `score`.

        Guarantee: the plan's event on "train", and the charge, which is Gaussian, for a count that one record moves by
        at most 1; each is paid before it is drawn, and once however often it is killed.
        """
        (train, validation), noise = parts, charge.event
        assert isinstance(noise, Gaussian)
        x, held_out = (self.encode(schema, part.x, kept) for part in parts)
        predict = self.training_on(x, train.y, len(classes_of(schema))).train(run, plan, learning_rate, steps, what)

        def draw(notes: Ledger, streams: Streams) -> dict[str, Any]:
            correct = predict(held_out) == validation.y
            found = noisy_accuracy(correct, noise.noise_multiplier, notes, charge.what, charge.part, streams)
            return {"accuracy": found}

        return float(steps.values(score, charge, draw, run.model.read_bytes())["accuracy"])

    def training_on(self, x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> TableTraining:
        """The model with data to learn from, again and again from the start; nothing is read off them yet."""
        if not self.hidden:
            return SgdTraining(LinearClassifier(x.shape[1], classes), ArrayRecords(x, y), outputs_of_linear)
        model = TrainableModule(
            lambda: dense(x.shape[1], *self.hidden, classes), cross_entropy, physical_batch=min(len(x), _PIECE)
        )
        return SgdTraining(model, ArrayRecords(x, y), outputs_of_module)


@dataclass(frozen=True)
class LogisticModel(TableModel):
    """Logistic regression by objective perturbation: no steps, no learning rate, the least noise at small ε."""

    learning_rates: ClassVar[tuple[float, ...]] = (1.0,)

    def weights(self, width: int, outputs: int) -> int:
        return trained_parameters(width, (), 1 if outputs == 2 else outputs)

    def plan(
        self, schema: Schema, n: int, target_epsilon: float, target_delta: float, before: Event | None = None
    ) -> Any:
        ledger = None if before is None else Ledger(target_epsilon, target_delta, planned=[(before, "before")])
        return LogisticPlan.calibrated(
            n=n,
            width=self.width(self.columns(schema)),
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            data_norm=self.row_norm(self.columns(schema)),
            classes=len(classes_of(schema)),
            ledger=ledger,
        )

    def rehearsal(self, plan: Any, rows: int, n: int) -> Any:
        noise = GaussianObjective(plan.perturbation.noise_multiplier * rows / n)
        return replace(plan, ridge=plan.ridge * rows / n, perturbation=noise)

    def row_norm(self, columns: tuple[Column, ...]) -> float:
        """The greatest norm of a row of these columns with a 1 for the bias: public."""
        return data_norm(len(columns))

    def narrowed(self, plan: Any, schema: Schema, kept: Mask) -> Any:
        """Shorter rows, so that the same noise says more: the event knows rows of norm 1 only."""
        return replace(plan, data_norm=self.row_norm(touched(self.columns(schema), kept)))

    def training_on(self, x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> TableTraining:
        return LogisticTraining(x, y, classes)


@dataclass(frozen=True)
class BinnedLogisticModel(LogisticModel):
    """The same about the middle of each column's domain, with numbers in bins: shorter rows, and weights that bend.

    It uses whole columns: a centred indicator says something of every category.
    """

    def width(self, columns: tuple[Column, ...]) -> int:
        return _centred(columns).width

    def row_norm(self, columns: tuple[Column, ...]) -> float:
        return _centred(columns).row_norm

    def usable(self, schema: Schema, kept: Mask) -> Mask:
        return _of_whole_columns(self.columns(schema), kept)

    def encode(self, schema: Schema, table: pd.DataFrame, kept: Mask | None = None) -> NDArray[np.float32]:
        columns = self.columns(schema)
        return _centred(columns if kept is None else touched(columns, kept))(table)


MODELS = (
    LogisticModel("logistic-numeric", numeric_only=True),
    LogisticModel("logistic"),
    BinnedLogisticModel("logistic-binned"),
    TableModel("linear-numeric", numeric_only=True),
    TableModel("linear"),
    TableModel("network-small", hidden=(16,)),
    TableModel("network-large", hidden=(128,)),
)


def usual_models(schema: Schema) -> tuple[TableModel, ...]:
    """What is compared unless the user says otherwise: the numbers alone only if there are any."""
    numbers = any(column.bounds is not None for column in schema.columns)
    return models_named("logistic-numeric," * numbers + "logistic,logistic-binned,network-small")


def models_named(names: str) -> tuple[TableModel, ...]:
    """From a list such as "linear,network-small", in the order of complexity whatever theirs is."""
    known = {model.name: model for model in MODELS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ValueError(f"there is no model {name!r} for tables; choose from {', '.join(known)}")
    if len(set(wanted)) < 2:
        raise ValueError(f"a crossover compares at least two models; choose from {', '.join(known)}")
    return tuple(model for model in MODELS if model.name in wanted)


def encoded_width(columns: tuple[Column, ...]) -> int:
    """Numbers that one-hot encoding makes of a row: one for each column of numbers or category of the others."""
    return len(OneHot(columns).owners)


def touched(columns: tuple[Column, ...], kept: Mask) -> tuple[Column, ...]:
    """The columns that the one-hot features kept are of."""
    return tuple(columns[place] for place in np.unique(OneHot(columns).owners[kept]))


def _of_whole_columns(columns: tuple[Column, ...], kept: Mask) -> Mask:
    """All one-hot features of the columns that those kept are of."""
    owners = OneHot(columns).owners
    return np.isin(owners, owners[kept])


def _centred(columns: tuple[Column, ...]) -> CentredOneHot:
    return CentredOneHot(columns, neutral_cuts(columns, BINS))


def trained_parameters(width: int, hidden: tuple[int, ...], outputs: int) -> int:
    sizes = (width, *hidden, outputs)
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))


def classes_of(schema: Schema) -> tuple[str, ...]:
    if schema.target.categories is None:
        raise DataError(
            f"the target {schema.target.name!r} is a number; crossovers compare accuracies, so they need classes"
        )
    return schema.target.categories


def table_arrays(schema: Schema, *parts: Split) -> Iterator[NDArray[Any]]:
    """All that a schema lets one read of the parts of a table, to bind a key to."""
    import pandas as pd

    for part in parts:
        for column in schema.columns:
            values = part.x[column.name]
            if column.categories is None:
                yield values.to_numpy(np.float64)
            else:
                yield np.asarray(pd.Index(column.categories).get_indexer(pd.Index(values)))
        yield part.y
