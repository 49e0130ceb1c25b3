"""A small search, with few records, small networks and a handful of steps; and a small table with a known structure."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino.budget import Laplace
from sordino.data import Column, Split
from sordino.data.samplers import PoissonSampler
from sordino.data.schema import Schema
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


SCHEMA = Schema(
    (
        Column("copy", categories=("no", "yes")),
        Column("noise", categories=("a", "b", "c")),
        Column("number", bounds=(0.0, 10.0)),
    ),
    Column("y", categories=("0", "1", "2")),
)


def table(n: int, seed: int = 0) -> Split:
    """`copy` tells the class 0 from the others, `number` follows the class, `noise` is nothing."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 3, n)
    x = pd.DataFrame(
        {
            "copy": np.where(y == 0, "yes", "no"),
            "noise": generator.choice(["a", "b", "c"], n),
            "number": 3.0 * y + generator.uniform(0, 4, n),
        }
    )
    return Split(x, y)


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


@pytest.fixture
def small() -> Split:
    return table(300)


@pytest.fixture
def large() -> Split:
    return table(20_000)
