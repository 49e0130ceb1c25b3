"""Under add-remove the number of records n is private: whatever computes with it refuses such a ledger, unpaid.

n=1000 and n=1001 would show different sample rates, steps, ridges and means, which distinguishes the two for certain.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino
from sordino.budget import Gaussian, Laplace, Ledger
from sordino.data import Column, Split, source_fingerprint
from sordino.data.samplers import FullBatchSampler, PoissonSampler
from sordino.data.schema import Schema
from sordino.features import Projection
from sordino.mechanisms.gaussian import clipped_gaussian_sum
from sordino.mechanisms.moments import ChannelMoments, SecondMoments, ThresholdQuantiles
from sordino.mechanisms.quantile import private_bounds, private_quantile
from sordino.mechanisms.trials import noisy_accuracy
from sordino.runs import Run, TableLedger, workflow_steps
from sordino.selection import DenseSpace, RandomSearch, SearchPlan, SearchRequest, TrialData, search
from sordino.selection.attributes import Attributes
from sordino.selection.crossover_measurement import CrossoverPlan
from sordino.selection.feature_selection import CfsSelection
from sordino.selection.private_tables import private_uncertainties, tables_plan
from sordino.selection.search_workflow import calibrated
from sordino.selection.subset_search import LogisticTrials, SubsetCost, pafs
from sordino.selection.table_models import MODELS
from sordino.selection.tuning import best_of_trials, clip_then_rate
from sordino.training import Plan, normalising
from sordino.training.convex import LinearPlan, LogisticPlan, fit_linear, fit_logistic
from sordino.training.convex.perturbations import GaussianObjective
from sordino.training.fitting import fit
from sordino.training.last_iterate import LastIteratePlan
from sordino.training.linear import LinearClassifier
from sordino.training.optimisers import SGD
from sordino.training.weight_distributions import WeightDistributionPlan

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
PLAN = Plan(PoissonSampler(60, 20), l2_clip=1.0, noise_multiplier=50.0, steps=2)
SI = WeightDistributionPlan(FullBatchSampler(60, 60), 1.0, 100.0, 2, 0.1)
SCHEMA = Schema(
    (Column("a", bounds=(0.0, 1.0)), Column("b", categories=("x", "y"))), Column("t", categories=("n", "y"))
)
TARGETS: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5, "adjacency": "add-remove"}

Use = Callable[[Ledger, Run], object]


def make_private(ledger: Ledger, run: Run) -> object:
    model = nn.Linear(3, 2)
    return sordino.make_private(
        *(model, torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss(reduction="none")),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        expected_batch_size=20,
        epochs=2,
        l2_clip=1.0,
        ledger=ledger,
    )


def searched(ledger: Ledger, run: Run) -> object:
    plan = SearchPlan(RandomSearch(2.0), DenseSpace(widths=((4,),)), PLAN, Laplace(2.0))
    return search(run, plan, TrialData(X, Y, X, Y, 2), ledger)


def stepped(ledger: Ledger, run: Run) -> object:
    with workflow_steps(run, ledger, "question", [X], [run.folder / "outcome"]) as steps:
        return steps


def table() -> Split:
    import pandas as pd

    return Split(pd.DataFrame({"a": np.linspace(0, 1, 60), "b": ["x", "y"] * 30}), Y)


LAST = LastIteratePlan(60, 20, 1, 1.0, 50.0, 0.5)


def linear() -> LinearClassifier:
    return LinearClassifier(X.shape[1], 2)


USES: dict[str, Use] = {
    "make_private": make_private,
    "fit": lambda ledger, run: fit(PLAN, linear(), (X, Y), optimiser=SGD(0.1), ledger=ledger, run=run),
    "last iterate": lambda ledger, run: fit(LAST, linear(), (X, Y), ledger=ledger, run=run),
    "weight distributions": lambda ledger, run: fit(SI, linear(), (X, Y), ledger=ledger, run=run),
    "fit_logistic": lambda ledger, run: fit_logistic(
        LogisticPlan(2.0, 5.0, GaussianObjective(20.0), adjacency="add-remove"), X, Y, ledger
    ),
    "fit_linear": lambda ledger, run: fit_linear(LinearPlan(2.0, (0.0, 1.0), 20.0), X, Y.astype(float), ledger),
    "normalisation": lambda ledger, run: normalising.statistics(
        run, ChannelMoments(1.0, 1.0, 50.0), X[:, :, None], ledger, None
    ),
    "ChannelMoments": lambda ledger, run: ChannelMoments(1.0, 1.0, 50.0).release(X, X, ledger),
    "ThresholdQuantiles": lambda ledger, run: ThresholdQuantiles((0.1, 1.0), (0.1, 1.0), 0.1).release(X, X, ledger),
    "SecondMoments": lambda ledger, run: SecondMoments(1.0, 50.0).release(X, ledger),
    "Projection": lambda ledger, run: Projection.of_private(X, 1, SecondMoments(1.0, 50.0), ledger),
    "noisy_accuracy": lambda ledger, run: noisy_accuracy(Y > 0, 50.0, ledger, "score", "validation"),
    "search": searched,
    "workflow": lambda ledger, run: calibrated(
        ledger, SearchRequest(RandomSearch(2.0), DenseSpace()), RandomSearch(2.0), 60
    ),
    "workflow_steps": stepped,
    "CrossoverPlan": lambda ledger, run: CrossoverPlan.calibrated(MODELS[:1], SCHEMA, 60, 2, 2, ledger, 1.0),
    "tune": lambda ledger, run: best_of_trials(
        [1], lambda one: (one, 0.5), ledger, training=Gaussian(50.0), score=Gaussian(50.0), mean_trials=2.0
    ),
    "clip_then_rate": lambda ledger, run: clip_then_rate(
        lambda *_: 0.5, clips=[1.0], learning_rates=[0.1], public_rate=0.1, ledger=ledger
    ),
    "CfsSelection": lambda ledger, run: CfsSelection(bounds_epsilon=0.1).select(SCHEMA, table(), table(), ledger, 1.0),
    "private_uncertainties": lambda ledger, run: private_uncertainties(
        Attributes(SCHEMA), table(), tables_plan(Attributes(SCHEMA), 50.0), ledger
    ),
    "LogisticTrials": lambda ledger, run: LogisticTrials.calibrated(2, 60, 2, 3, ledger, 1.0),
    "pafs": lambda ledger, run: pafs(
        lambda masks: np.zeros(len(masks)),
        3,
        np.random.default_rng(0),
        cost=SubsetCost(Gaussian(50.0), Gaussian(50.0)),
        ledger=ledger,
        most_trials=2,
    ),
    "commands for tables": lambda ledger, run: TableLedger(
        "adult", source_fingerprint("adult"), 5.0, 1e-5, ledger.path, None
    ),
    "Plan": lambda ledger, run: Plan.calibrated(n=60, expected_batch_size=20, epochs=1, l2_clip=1.0, **TARGETS),
    "LogisticPlan": lambda ledger, run: LogisticPlan.calibrated(n=60, width=3, data_norm=2.0, **TARGETS),
    "output perturbation": lambda ledger, run: LogisticPlan.output_perturbed(n=60, width=3, data_norm=2.0, **TARGETS),
    "LinearPlan": lambda ledger, run: LinearPlan.calibrated(n=60, data_norm=2.0, target_range=(0.0, 1.0), **TARGETS),
    "LastIteratePlan": lambda ledger, run: LastIteratePlan.calibrated(
        n=60, batch=20, epochs=1, data_clip=1.0, learning_rate=0.5, **TARGETS
    ),
    "WeightDistributionPlan": lambda ledger, run: WeightDistributionPlan.calibrated(
        FullBatchSampler(60, 60), l2_clip=1.0, steps=2, learning_rate=0.1, **TARGETS
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_uses_the_number_of_records_refuses_an_add_remove_ledger(tmp_path: Path, use: Use) -> None:
    ledger = Ledger(5.0, 1e-5, adjacency="add-remove", path=tmp_path / "ledger.json")
    run = Run.at(tmp_path / "run")
    with pytest.raises(ValueError, match="under add-remove the number of records is private"):
        use(ledger, run)
    assert not ledger.entries
    assert not ledger.plan
    assert not list(run.private.glob("*.json*"))
    assert [path.name for path in run.folder.iterdir()] == ["private"]


def test_what_does_not_use_it_takes_one() -> None:
    ledger = Ledger(50.0, 1e-5, adjacency="add-remove")
    assert clipped_gaussian_sum(X, 1.0, 50.0, ledger, "a sum").shape == (3,)
    for values in (X[:, 0], X[:0, 0]):  # that there are no records is private, too
        assert 0 < private_quantile(values, 0.5, (0.0, 1.0), 1.0, ledger, "a median") < 1
        [(low, high)] = private_bounds(values[:, None], ledger, 1.0, [(0.0, 1.0)])
        assert 0 <= low < high <= 1
