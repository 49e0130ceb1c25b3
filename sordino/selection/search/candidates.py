"""One trial of a search: a candidate is trained under the search's plan and scored on the validation records.

A trial lives in a folder of its own and has a ledger of its own, with room for exactly its plan: whoever runs it never
sees the workflow's ledger, which was charged for the whole trial before it began.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.budget import Ledger
from sordino.gradients import Choices
from sordino.mechanisms import ScoreNoise, Stream, bound_streams, noised_accuracy
from sordino.runs import Diverged, Run, RunError
from sordino.selection.search.space import Candidate
from sordino.training import (
    SGD,
    DenseTrainee,
    Plan,
    Steps,
    Trainee,
    at_once,
    check_labels,
    cross_entropy,
    fitting,
    gains_by_company,
    is_dense,
    module_trainee,
    softmax_slope,
    words,
)

_RESULT = "trial.json"
_BLOCK = 4096
_LARGEST = 8192
_CHECKPOINTS = 5
"""Trials are short and many: to write the disk more often would take longer than to repeat what a kill has lost."""


@dataclass(frozen=True, eq=False)
class Material:
    """The records that candidates are trained and judged on, in two disjoint parts; private unless said otherwise."""

    train_x: NDArray[np.float32] = field(repr=False)
    train_y: NDArray[np.int64] = field(repr=False)
    validation_x: NDArray[np.float32] = field(repr=False)
    validation_y: NDArray[np.int64] = field(repr=False)
    classes: int

    def __post_init__(self) -> None:
        for x, y in ((self.train_x, self.train_y), (self.validation_x, self.validation_y)):
            if len(x) != len(y) or len(x) == 0:
                raise ValueError(f"each part needs as many labels as examples, and one at least, not {len(y)}/{len(x)}")
            check_labels(y, self.classes)
        if self.train_x.shape[1:] != self.validation_x.shape[1:]:
            raise ValueError("training and validation examples must have one shape")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train_x.shape[1:]

    def arrays(self) -> tuple[NDArray[Any], ...]:
        return self.train_x, self.train_y, self.validation_x, self.validation_y


@dataclass(frozen=True)
class TrialTraining:
    """What is the same for all candidates: above all the plan, so that every training is the same event."""

    plan: Plan
    momentum: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"plan": self.plan.to_json(), "momentum": self.momentum}

    def plan_of(self, candidate: Candidate) -> Plan:
        return self.plan if candidate.l2_clip is None else replace(self.plan, l2_clip=candidate.l2_clip)


@dataclass(frozen=True)
class Task:
    """All that is needed to run a trial besides the records; it can be sent to another process."""

    number: int
    folder: Path
    candidate: Candidate
    training: TrialTraining
    adjacency: str
    noise: ScoreNoise | None
    """None scores exactly: on public records, or where the ledger says that nothing is private."""
    secret: bytes = field(repr=False)
    seed: int | None = None


@dataclass(frozen=True)
class Finding:
    """What a trial found out about its candidate: all that a search may ever show of a trial."""

    candidate: Candidate
    score: float
    """The accuracy on the validation records, with the search's noise."""
    diverged: bool
    parameters: int
    trained: int
    """How many of the parameters are not frozen."""

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"candidate": self.candidate.to_json()}


@dataclass(frozen=True)
class Trial:
    """A finding and where it was made. Numbers and folders tell how many trials there were: they stay inside."""

    number: int
    folder: Path
    finding: Finding

    @property
    def score(self) -> float:
        return self.finding.score


def trying(task: Task, material: Material, place: tuple[int, int] = (0, 1)) -> Steps[Trial]:
    """Train and score the candidate, or go on where that was interrupted; a finished trial is read and not repeated.

    Guarantee: on the training records, the plan's event; on the validation records, the event `noise`. The caller has
    charged both. Noise comes from keyed streams, so that what a kill has lost is repeated bit for bit. A training that
    diverges counts as always wrong: an error instead would tell of a trial that may have to stay secret. Beside others
    (`side_by_side`) it has a place among them.
    """
    run = Run.at(task.folder)
    kept = _kept(run, task)
    if kept is not None:
        return kept
    plan = task.training.plan_of(task.candidate)
    trainee = _trainee(task, material, place)
    optimiser = SGD(task.candidate.learning_rate, task.training.momentum)
    ledger = Ledger(adjacency=task.adjacency, path=run.ledger)
    try:
        yield from fitting(
            *(run, plan, trainee, optimiser, ledger),
            what="the training of a trial",
            seed=task.seed,
            checkpoint_every=max(1, plan.steps // _CHECKPOINTS),
        )
        correct = right(task.candidate, run, material)
        diverged = False
    except Diverged:
        correct, diverged = np.zeros(len(material.validation_y), dtype=np.bool_), True
    score = float(correct.mean())
    if task.noise is not None:
        streams = bound_streams(task.secret, {"the score of trial": task.number}, predictable=task.seed is not None)
        score = noised_accuracy(correct, task.noise, streams.generator(Stream.NOISE))
    sizes = {name: math.prod(value.shape) for name, value in trainee.weights().items()}
    trained = sum(math.prod(value.shape) for value in trainee.parameters.values())
    finding = Finding(task.candidate, score, diverged, sum(sizes.values()), trained)
    run.write_json(_RESULT, {"number": task.number, **finding.to_json()})
    return Trial(task.number, run.folder, finding)


train_candidate = at_once(trying, "train_candidate")


def _trainee(task: Task, material: Material, place: tuple[int, int]) -> Trainee:
    build = partial(task.candidate.build, material.shape, material.classes)
    if shared_network(task, material) is not None:
        dense = cast("Callable[[], nn.Sequential]", build)
        return DenseTrainee(dense, softmax_slope, material.train_x, material.train_y, place=place)
    choices = dense_choices(build(), task.training.plan.sampler.expected_batch_size)
    return module_trainee(build, cross_entropy, material.train_x, material.train_y, choices)


def shared_network(task: Task, material: Material) -> str | None:
    """The network in words, if trials of it are faster side by side: a small dense one, nothing of it frozen."""
    with torch.device("meta"):  # shapes alone
        model = task.candidate.build(material.shape, material.classes)
    whole = all(parameter.requires_grad for parameter in model.parameters())
    gains = whole and is_dense(model) and gains_by_company(model, task.training.plan.sampler.expected_batch_size)
    return words(model) if gains else None


def dense_choices(model: nn.Module, expected_batch_size: int) -> Choices | None:
    """Whole batches by the layer rules where all weights are dense: nothing is worth measuring for each trial anew.

    So a search with a fixed seed repeats, as well; with convolutions what is fastest is measured, and may differ.
    """
    weighty = (layer for layer in model.modules() if any(True for _ in layer.parameters(recurse=False)))
    if not all(isinstance(layer, nn.Linear) for layer in weighty):
        return None
    return Choices("rules", min(_LARGEST, 2 ** math.ceil(math.log2(1.25 * expected_batch_size))), False, {})


def right(candidate: Candidate, run: Run, material: Material) -> NDArray[np.bool_]:
    """Which validation records the run's model classifies correctly: private, as they are."""
    found: NDArray[np.bool_] = (
        predicted(candidate, run, material.validation_x, material.classes) == material.validation_y
    )
    return found


def predicted(candidate: Candidate, run: Run, x: NDArray[np.float32], classes: int) -> NDArray[np.int64]:
    """The class of each example, by its number, from the run's model."""
    model = candidate.build(x.shape[1:], classes).eval()
    model.load_state_dict(run.read_tensors(run.model)[0])
    with torch.no_grad():
        scores = torch.cat([model(block) for block in torch.from_numpy(x).split(_BLOCK)])
    found: NDArray[np.int64] = scores.argmax(dim=1).numpy()
    return found


def _kept(run: Run, task: Task) -> Trial | None:
    path = run.folder / _RESULT
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known, number = content.pop("candidate"), content.pop("number")
        finding = Finding(task.candidate, **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino") from None
    # JSON knows lists only, so what was kept is compared with what would be kept now.
    if (known, number) != (json.loads(json.dumps(task.candidate.to_json())), task.number):
        raise RunError(f"{path} is of another candidate than this search draws: it is not this search's folder")
    return Trial(number, run.folder, finding)
