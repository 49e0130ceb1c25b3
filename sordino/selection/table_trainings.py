"""How a model for tables learns: DP-SGD or objective perturbation, rehearsed on proxies and trained once for real."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.budget import Ledger, Planned
from sordino.data import ArrayRecords
from sordino.mechanisms import Stream, Streams
from sordino.runs import Run, WorkflowSteps
from sordino.training import (
    SGD,
    LinearClassifier,
    LogisticPlan,
    Plan,
    Trainable,
    TrainableModule,
    Training,
    check_finite,
    fit,
    fit_logistic,
    fit_many,
    linear_scores,
    logistic_outputs,
    predict_logistic,
    require_memory_for_logistic,
    train_steps,
)

MOMENTUM = 0.9

Rows = NDArray[np.floating]
Outputs = Callable[[NDArray[np.float32]], Rows]
"""A number for each class, for each example."""
Predict = Callable[[NDArray[np.float32]], NDArray[np.int64]]


@dataclass(eq=False)
class SgdTraining:
    """DP-SGD. Rehearsals are for public or synthetic data: with the plan's noise, and uncharged.

    Guarantee: `train` is the plan's event on the part "train", charged before the data is read, and once if it is
    killed: it resumes in the run's folder, which lies in the folder of the steps.
    """

    model: Any
    records: ArrayRecords
    _outputs: Callable[[Any, NDArray[np.float32]], Rows]
    _ready: bool = False

    def rehearse(self, plan: Plan, learning_rate: float, streams: Streams) -> Predict:
        model: Trainable = self.model
        if not self._ready:
            model.choose(self.records, None, plan.sampler.expected_batch_size)
            self._ready = True
        training = Training(plan, model, self.records, SGD(learning_rate, MOMENTUM))
        model.initialise(streams)
        train_steps(training, training.start(), streams, plan.steps)
        return partial(_predict, partial(self._outputs, model))

    def train(self, run: Run, plan: Plan, learning_rate: float, steps: WorkflowSteps, what: str) -> Predict:
        optimiser = SGD(learning_rate, MOMENTUM)
        fit(plan, self.model, self.records, optimiser=optimiser, ledger=steps.ledger, run=run, what=what)
        check_finite(self.model.weights())
        return partial(_predict, partial(self._outputs, self.model))

    def trained(self, run: Run) -> Outputs:
        self.model.load(run.read_tensors(run.model)[0])
        return partial(self._outputs, self.model)


@dataclass(frozen=True, eq=False)
class LogisticTraining:
    """Objective perturbation, otherwise as `SgdTraining`.

    Guarantee: that of `SgdTraining`.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: int

    def rehearse(self, plan: LogisticPlan, learning_rate: float, streams: Streams) -> Predict:
        generator = streams.generator(Stream.NOISE)
        every = np.ones((1, self.x.shape[1]), dtype=bool)
        positives = [1] if self.classes == 2 else range(self.classes)
        binary = replace(plan, classes=2)
        each = [fit_many(self.x, (self.y == c).astype(np.int64), every, binary, 1, generator)[0, 0] for c in positives]
        return partial(predict_logistic, each[0] if self.classes == 2 else np.stack(each))

    def train(self, run: Run, plan: LogisticPlan, learning_rate: float, steps: WorkflowSteps, what: str) -> Predict:
        def draw(ledger: Ledger, streams: Streams) -> NDArray[np.float64]:
            return fit_logistic(plan, self.x, self.y, ledger, streams, what=what)

        require_memory_for_logistic(len(self.x), self.x.shape[1] + 1)  # a step is charged before it is drawn
        return partial(predict_logistic, steps.weights(run.model, Planned(plan.event, what), draw))

    def trained(self, run: Run) -> Outputs:
        return partial(logistic_outputs, run.read_tensors(run.model)[0]["weights"].numpy())


TableTraining = SgdTraining | LogisticTraining


@torch.no_grad()
def outputs_of_linear(model: LinearClassifier, x: NDArray[np.float32]) -> Rows:
    return linear_scores(model.parameters, torch.from_numpy(x)).numpy()


@torch.no_grad()
def outputs_of_module(model: TrainableModule, x: NDArray[np.float32]) -> Rows:
    model.model.eval()
    try:
        return np.asarray(model.model(torch.from_numpy(x)).numpy())
    finally:
        model.model.train()  # the mode in which the next rehearsal trains


def _predict(outputs: Outputs, x: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.asarray(np.nan_to_num(outputs(x)).argmax(axis=1), dtype=np.int64)
