"""A small table with a known structure."""

import numpy as np
import pandas as pd
import pytest

from sordino.data import Column, Split
from sordino.data.schema import Schema

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
