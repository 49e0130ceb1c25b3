"""Trainings and statistics on two neighbouring datasets, with all noisy outputs replayed."""

import itertools
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

import sordino
from sordino.budget import Ledger
from sordino.data import Split, load
from sordino.data.samplers import ShuffledSampler
from sordino.features import Projection, Standardised
from sordino.gradients.tuning import Choices
from sordino.mechanisms.moments import ChannelMoments, SecondMoments, ThresholdQuantiles
from sordino.mechanisms.quantile import private_bounds
from sordino.runs import Run
from sordino.training import SGD, LinearClassifier, Plan, TrainableModule, fit
from sordino.training.convex import LinearPlan, LogisticPlan, fit_linear, fit_logistic
from sordino.training.dense import DenseNetwork
from sordino.training.dense_sums import softmax_slope
from sordino.training.heads import cross_entropy
from sordino.training.normalising import standardised
from sordino.training.plan import QuantileClip
from sordino.training.weight_distributions import WeightDistributionPlan

from .playing import replayed_on
from .recorder import Recorder, entries_of, watching
from .test_commands import differences, seen

N = 60
Array = NDArray[Any]
Data = tuple[Array, Array]
CHOICES = Choices("rules", 32, False, {})
"""What would be measured anew in each run, and keys are bound to it."""
BUDGET: dict[str, Any] = {"target_epsilon": 6.0, "target_delta": 1e-3}


def vectors() -> Data:
    rng = np.random.default_rng(2)
    return rng.normal(0, 1, (N, 5)).astype(np.float32), rng.integers(0, 2, N)


def images() -> Data:
    rng = np.random.default_rng(2)
    return rng.uniform(0, 1, (N, 1, 6, 6)).astype(np.float32), rng.integers(0, 2, N)


def with_record(data: Data, at: int, value: float, label: int | None = None) -> Data:
    """A neighbour: one record of this value everywhere, and perhaps of another class."""
    x, y = (array.copy() for array in data)
    x[at] = value
    y[at] = y[at] if label is None else label
    return x, y


def neighbours(data: Data) -> list[tuple[Data, int]]:
    """With how many records they are apart: a record that is not a number is empty."""
    return [
        (with_record(data, 1, np.nan), 1),
        (with_record(data, 1, np.inf), 1),
        (with_record(data, 1, 3e38, 1), 2),
        (with_record(data, 1, 0.0, 0), 2),
    ]


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: tmp_path / str(next(numbers))


def check(program: Callable[[Data, Ledger], Any], data: Data) -> None:
    assert replayed_on(program, data, neighbours(data)) == []


def fitted(model: Callable[[], Any], folders: Callable[[], Path], **settings: Any) -> Callable[[Data, Ledger], Any]:
    def program(data: Data, ledger: Ledger) -> Any:
        run = Run.at(folders())
        plan = Plan.calibrated(n=N, expected_batch_size=20, epochs=2, l2_clip=0.1, **BUDGET, **settings)
        fit(plan, model(), data, optimiser=SGD(0.5), ledger=ledger, run=run)
        return shown_in(run)

    return program


def shown_in(run: Run) -> Any:
    return sorted(path.name for path in run.folder.iterdir()), run.model.read_bytes()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def of_module(build: Callable[[], nn.Module]) -> Callable[[], Any]:
    return lambda: TrainableModule(build, cross_entropy, choices=CHOICES)


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: LinearClassifier(5, 2),
    "dense": lambda: DenseNetwork(network, softmax_slope),
    "any module": of_module(network),
}


@pytest.mark.parametrize("kind", MODELS)
def test_fit_on_vectors(folders: Callable[[], Path], kind: str) -> None:
    check(fitted(MODELS[kind], folders), vectors())


def test_no_cast_to_single_precision_shows_a_record(folders: Callable[[], Path]) -> None:
    """Vectors in double precision, one of them beyond what single precision holds."""
    x, y = vectors()
    wide = x.astype(np.float64), y
    others = [(with_record(wide, 1, value), 1) for value in (1e300, -1e300)]
    assert replayed_on(fitted(MODELS["linear"], folders), wide, others) == []
    for data, _ in others:
        standardised(None, data[0])
        standardised(Standardised((0.0,) * 5, (1.0,) * 5, 1e-3), data[0])
        Projection(np.zeros(5), np.eye(5)[:2])(data[0])


def test_fit_on_images(folders: Callable[[], Path]) -> None:
    build = lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))  # noqa: E731
    check(fitted(of_module(build), folders), images())


def test_fit_with_an_exact_plan(folders: Callable[[], Path]) -> None:
    x, y = vectors()
    check(fitted(of_module(lambda: network().double()), folders, exact=True), (x.astype(np.float64), y))


def test_weights_drawn_from_distributions(folders: Callable[[], Path]) -> None:
    def program(data: Data, ledger: Ledger) -> Any:
        run = Run.at(folders())
        plan = WeightDistributionPlan.calibrated(
            ShuffledSampler(N, 20), l2_clip=0.1, steps=6, learning_rate=0.5, momentum=0.5, **BUDGET
        )
        fit(plan, LinearClassifier(5, 2), data, ledger=ledger, run=run)
        return shown_in(run)

    check(program, vectors())


def own_loop(data: Data, ledger: Ledger) -> Any:
    torch.manual_seed(0)
    model = network()
    private = sordino.make_private(
        *(model, torch.optim.Adam(model.parameters(), 0.1), nn.CrossEntropyLoss(reduction="none")),
        TensorDataset(*map(torch.from_numpy, data)),
        expected_batch_size=20,
        epochs=2,
        l2_clip=0.1,
        quantile_clip=QuantileClip(5.0),
        ledger=ledger,
        **BUDGET,
    )
    for x, y in private.batches():
        private.step(x, y)
    return private.l2_clip, [value.tolist() for value in model.parameters()]


def own_loop_with_targets(data: Data, ledger: Ledger) -> Any:
    ledger.terms = replace(ledger.terms, **BUDGET)
    return own_loop(data, ledger)


def test_make_private() -> None:
    check(own_loop_with_targets, vectors())


def test_logistic_regression() -> None:
    def program(data: Data, ledger: Ledger) -> Any:
        plan = LogisticPlan.calibrated(n=N, width=5, data_norm=2.0, classes=2, **BUDGET)
        return fit_logistic(plan, *data, ledger).tolist()

    check(program, vectors())


def test_linear_regression() -> None:
    def program(data: Data, ledger: Ledger) -> Any:
        plan = LinearPlan.calibrated(n=N, data_norm=2.0, target_range=(0.0, 1.0), **BUDGET)
        return fit_linear(plan, data[0], data[1].astype(float), ledger).tolist()

    check(program, vectors())


def test_statistics_of_features() -> None:
    def program(data: Data, ledger: Ledger) -> Any:
        means, squares = data[0], np.square(data[0], dtype=np.float64)
        clips = ThresholdQuantiles((0.1, 10.0), (0.1, 10.0), 1.0).release(means, squares, ledger)
        moments = ChannelMoments(2.0, 4.0).release(means, squares, ledger)
        return clips, [each.tolist() for each in moments]

    check(program, vectors())


def test_bounds_of_columns() -> None:
    def program(data: Data, ledger: Ledger) -> Any:
        return private_bounds(data[0], ledger, 1.0, [(-5.0, 5.0)] * 5)

    # What is infinite lies at the bound, and only NaN is no value.
    apart = [(other, 1 if np.isnan(other[0]).any() else 2) for other, _ in neighbours(vectors())]
    assert replayed_on(program, vectors(), apart) == []


def test_principal_components() -> None:
    def program(data: Data, ledger: Ledger) -> Any:
        found = Projection.of_private(data[0], 2, SecondMoments(2.0, 4.0, with_mean=True), ledger)
        return found.mean.tolist(), found.components.tolist()

    check(program, vectors())


def test_train_on_a_named_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    picture = digits.train.x.copy()
    picture[3] = 255 - picture[3]
    label = np.where(np.arange(len(digits.train)) == 3, (digits.train.y + 1) % 10, digits.train.y)
    other = replace(digits, train=Split(picture, label))
    folder, earlier, shown = tmp_path / "work", None, []
    for dataset in (digits, other):
        shutil.rmtree(folder, ignore_errors=True)
        monkeypatch.setattr(sys.modules["sordino.training.train"], "load", lambda name, dataset=dataset: dataset)
        recorder = Recorder(earlier, apart=2, account=entries_of(folder / "run" / "ledger.json"))
        words = ("train", "digits", "--recipe", "linear", "--epsilon", 3, "--delta", 1e-4, "--out", folder / "run")
        with watching(recorder):
            shown.append(seen(folder, words))
        assert recorder.finish() == []
        assert recorder.releases, shown
        earlier = recorder.releases
    assert shown[0].code == 0, shown[0].err
    assert differences(*shown) == []
