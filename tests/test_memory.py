"""What memory has no room for is refused before anything is charged, however it is trained."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino
from sordino.budget import Ledger
from sordino.data import Column, Split
from sordino.data.samplers import PoissonSampler
from sordino.data.schema import Schema
from sordino.mechanisms import memory
from sordino.runs import Key, Run
from sordino.selection import PafsSelection
from sordino.selection.search_spaces import DenseSpace, check_buildable
from sordino.training import SGD, DenseNetwork, Plan, fit
from sordino.training.convex import LogisticPlan, fit_logistic
from sordino.training.convex.linear_regression import LinearPlan, fit_linear
from sordino.training.dense_sums import softmax_slope

N, WIDTH = 40, 300
X, Y = np.zeros((N, WIDTH), np.float32), np.arange(N) % 2
LOSS = nn.CrossEntropyLoss(reduction="none")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))


def own_loop(ledger: Ledger, folder: Run) -> None:
    model, data = network(), TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sordino.make_private(
        *(model, optimizer, LOSS, data), expected_batch_size=4, epochs=1, l2_clip=1.0, physical_batch=4, ledger=ledger
    )


def module(ledger: Ledger, folder: Run) -> None:
    plan = Plan(PoissonSampler(N, 4), 1.0, 9.0, 5)
    fit(plan, network, (X, Y), optimiser=SGD(0.1), ledger=ledger, run=folder, loss=LOSS)


def dense(ledger: Ledger, folder: Run) -> None:
    plan = Plan(PoissonSampler(N, 4), 1.0, 9.0, 5)
    fit(plan, DenseNetwork(network, softmax_slope), (X, Y), optimiser=SGD(0.1), ledger=ledger, run=folder)


def logistic(ledger: Ledger, folder: Run) -> None:
    plan = LogisticPlan.calibrated(n=N, width=WIDTH, data_norm=1.0, ledger=ledger)
    fit_logistic(plan, X, Y, ledger)


def linear(ledger: Ledger, folder: Run) -> None:
    plan = LinearPlan.calibrated(n=N, data_norm=1.0, target_range=(0, 1), ledger=ledger)
    fit_linear(plan, X, Y.astype(float), ledger)


def subsets(ledger: Ledger, folder: Run) -> None:
    import pandas as pd

    words = tuple(map(str, range(WIDTH)))
    schema = Schema((Column("word", words),), Column("y", ("no", "yes")))
    parts = [Split(pd.DataFrame({"word": ["1"] * n}), Y[:n]) for n in (30, 10)]
    PafsSelection(5).select(schema, *parts, ledger, 2.0)


def search(ledger: Ledger, folder: Run) -> None:
    check_buildable(DenseSpace(), (WIDTH,), 2)


@pytest.mark.parametrize("train", [own_loop, module, dense, logistic, linear, subsets, search])
def test_refused_before_the_charge(
    train: Callable[[Ledger, Run], None], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 3e5)
    ledger, run = Ledger(3.0, 1e-3, path=f"{tmp_path}/ledger.json"), Run.at(f"{tmp_path}/run")
    with pytest.raises(memory.NotEnoughMemory, match=r"needs about .* are free: (choose|use)"):
        train(ledger, run)
    assert not ledger.entries
    assert Key.read(run) is None
    monkeypatch.undo()
    train(ledger, run)
