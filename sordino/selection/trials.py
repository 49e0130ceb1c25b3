"""One trial of a search: a candidate is trained under the search's plan and scored on the validation records.

A trial has its own folder and its own ledger, with room for exactly its plan; the workflow's ledger was charged for the
whole trial before it began, and is never seen by the process that runs it.
"""

import json
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.budget import Ledger
from sordino.gradients import Choices
from sordino.mechanisms import ScoreNoise, Stream, bound_streams, uncharged_accuracy
from sordino.runs import Diverged, Run, RunError, kept_json
from sordino.selection.search_spaces import Network
from sordino.training import (
    SGD,
    DenseNetwork,
    Plan,
    Steps,
    Trainable,
    check_labels,
    cross_entropy,
    fitting,
    gains_by_company,
    is_dense,
    side_by_side,
    softmax_slope,
    trainable_network,
    words,
)

_RESULT = "trial.json"
_BLOCK = 4096
_LARGEST = 8192
_CHECKPOINTS = 5
"""Trials are short and many: writing more often would take longer than repeating what a kill loses."""


@dataclass(frozen=True, eq=False)
class TrialData:
    """The records that candidates are trained and scored on, in two disjoint parts; private unless stated otherwise."""

    train_x: NDArray[np.float32] = field(repr=False)
    train_y: NDArray[np.int64] = field(repr=False)
    validation_x: NDArray[np.float32] = field(repr=False)
    validation_y: NDArray[np.int64] = field(repr=False)
    classes: int

    def __post_init__(self) -> None:
        for x, y in ((self.train_x, self.train_y), (self.validation_x, self.validation_y)):
            if len(x) != len(y) or len(x) == 0:
                raise ValueError(f"each part needs a label for each example, and at least one: {len(y)}/{len(x)}")
            check_labels(y, self.classes)
        if self.train_x.shape[1:] != self.validation_x.shape[1:]:
            raise ValueError("training and validation examples must have the same shape")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train_x.shape[1:]

    def arrays(self) -> tuple[NDArray[Any], ...]:
        return self.train_x, self.train_y, self.validation_x, self.validation_y


@dataclass(frozen=True)
class TrialTask:
    """All that a trial needs apart from the records; it can be sent to another process."""

    number: int
    folder: Path
    candidate: Network
    plan: Plan
    momentum: float
    adjacency: str
    noise: ScoreNoise | None
    """None scores exactly: on public records, or where the ledger states that nothing is private."""
    secret: bytes = field(repr=False)
    seed: int | None = None


@dataclass(frozen=True)
class TrialResult:
    """What a trial found out about its candidate: all that a search may ever show of a trial."""

    candidate: Network
    score: float
    """The accuracy on the validation records, with the search's noise."""
    diverged: bool
    parameters: int
    trained: int
    """How many of the parameters are not frozen."""

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"candidate": self.candidate.to_json()}


@dataclass(frozen=True)
class FinishedTrial:
    """A result with its number and folder, which reveal how many trials there were: they stay inside the search."""

    number: int
    folder: Path
    result: TrialResult


def trial_steps(task: TrialTask, data: TrialData, place: tuple[int, int] = (0, 1)) -> Steps[FinishedTrial]:
    """Train and score the candidate, or resume where that was interrupted; a finished trial is read, not repeated.

    `place` is its place among the trials that train beside it, and their number (`side_by_side`).

    Guarantee: on the training records, the plan's event; on the validation records, the event `noise`. The caller has
    charged both. Noise comes from keyed streams, so what a kill loses is repeated bit for bit. A training that diverges
    scores 0: an error instead would reveal a trial that may have to stay secret.
    """
    run = Run.at(task.folder)
    kept = _kept(run, task)
    if kept is not None:
        return kept
    model = _trainable(task, data, place)
    try:
        yield from fitting(
            task.plan,
            model,
            (data.train_x, data.train_y),
            optimiser=SGD(task.candidate.learning_rate, task.momentum),
            ledger=Ledger(adjacency=task.adjacency, path=run.ledger),
            run=run,
            what="the training of a trial",
            seed=task.seed,
            checkpoint_every=max(1, task.plan.steps // _CHECKPOINTS),
        )
        correct = correct_predictions(task.candidate, run, data)
        diverged = False
    except Diverged:
        correct, diverged = np.zeros(len(data.validation_y), dtype=np.bool_), True
    score = float(correct.mean())
    if task.noise is not None:
        streams = bound_streams(task.secret, {"the score of trial": task.number}, predictable=task.seed is not None)
        score = uncharged_accuracy(correct, task.noise, streams.generator(Stream.NOISE))
    parameters = sum(math.prod(value.shape) for value in model.weights().values())
    trained = sum(math.prod(value.shape) for value in model.parameters.values())
    result = TrialResult(task.candidate, score, diverged, parameters, trained)
    run.write_json(_RESULT, {"number": task.number, **result.to_json()})
    return FinishedTrial(task.number, run.folder, result)


def run_trial(task: TrialTask, data: TrialData) -> FinishedTrial:
    """`trial_steps` from start to end.

    Guarantee: that of `trial_steps`.
    """
    [finished] = side_by_side([trial_steps(task, data)])
    return finished


def shared_network(task: TrialTask, data: TrialData) -> str | None:
    """A description of the network if its trials are faster side by side: small, dense, no layer frozen."""
    with torch.device("meta"):  # shapes only
        model = task.candidate.build(data.shape, data.classes)
    whole = all(parameter.requires_grad for parameter in model.parameters())
    gains = whole and is_dense(model) and gains_by_company(model, task.plan.sampler.expected_batch_size)
    return words(model) if gains else None


def correct_predictions(candidate: Network, run: Run, data: TrialData) -> NDArray[np.bool_]:
    """Which validation records the run's model classifies correctly: as private as they are."""
    outputs = network_outputs(candidate, run, data.validation_x, data.classes)
    return np.asarray(outputs.argmax(axis=1) == data.validation_y)


def network_outputs(candidate: Network, run: Run, x: NDArray[np.float32], classes: int) -> NDArray[np.float32]:
    """What the run's model gives for each example and class."""
    model = candidate.build(x.shape[1:], classes).eval()
    model.load_state_dict(run.read_tensors(run.model)[0])
    with torch.no_grad():
        return np.asarray(torch.cat([model(block) for block in torch.from_numpy(x).split(_BLOCK)]).numpy())


def _trainable(task: TrialTask, data: TrialData, place: tuple[int, int]) -> Trainable:
    build = partial(task.candidate.build, data.shape, data.classes)
    if shared_network(task, data) is not None:
        return DenseNetwork(build, softmax_slope, place=place)
    choices = _dense_choices(build(), task.plan.sampler.expected_batch_size)
    return trainable_network(build, cross_entropy, choices)


def _dense_choices(model: nn.Module, expected_batch_size: int) -> Choices | None:
    """Whole batches by the layer rules where all weights are dense: measuring for every trial is not worth it.

    It also lets a search with a fixed seed repeat; with convolutions the fastest way is measured, and may differ.
    """
    weighty = (layer for layer in model.modules() if any(True for _ in layer.parameters(recurse=False)))
    if not all(isinstance(layer, nn.Linear) for layer in weighty):
        return None
    return Choices("rules", min(_LARGEST, 2 ** math.ceil(math.log2(1.25 * expected_batch_size))), False, {})


def _kept(run: Run, task: TrialTask) -> FinishedTrial | None:
    path = run.folder / _RESULT
    if not path.exists():
        return None
    with kept_json(path) as content:
        known, number = content.pop("candidate"), content.pop("number")
        result = TrialResult(task.candidate, **content)
    # JSON turns tuples into lists: compare what was kept with what would be kept now.
    if (known, number) != (json.loads(json.dumps(task.candidate.to_json())), task.number):
        raise RunError(f"{path} is of another candidate than this search draws: it is not this search's folder")
    return FinishedTrial(number, run.folder, result)
