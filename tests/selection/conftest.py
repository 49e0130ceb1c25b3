"""A small search: few records, small networks, a handful of steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sordino.budget import Laplace
from sordino.data.samplers import PoissonSampler
from sordino.selection import DenseSpace, SearchMethod, SearchPlan, TrialData
from sordino.training import Plan

STEPS = 4


@pytest.fixture
def data() -> TrialData:
    x = np.random.default_rng(0).normal(size=(90, 5)).astype("float32")
    y = (x[:, 0] > 0).astype(np.int64)
    return TrialData(x[:60], y[:60], x[60:], y[60:], 2)


@pytest.fixture
def search_plan() -> Callable[..., SearchPlan]:
    def plan(method: SearchMethod, **changes: Any) -> SearchPlan:
        training = Plan(PoissonSampler(60, 20), 1.0, 4.0, STEPS)
        space = DenseSpace(widths=((4, 6), (3,)), freezing=True, learning_rates=(0.5,))
        return SearchPlan(**{"method": method, "space": space, "training": training, "noise": Laplace(2.0)} | changes)

    return plan
