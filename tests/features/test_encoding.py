"""Encodings on public scales."""

import numpy as np
import pandas as pd
import pytest

from sordino.data import Column, DataError
from sordino.features.encoding import OneHot, Scaled

COLUMNS = (Column("age", bounds=(0, 100)), Column("colour", categories=("red", "green", "blue")))


def test_one_hot_uses_documented_domains_only() -> None:
    table = pd.DataFrame({"colour": ["green", "red"], "age": [50.0, 250.0]})
    np.testing.assert_array_equal(OneHot(COLUMNS)(table), [[0.5, 0, 1, 0], [1.0, 1, 0, 0]])


@pytest.mark.parametrize(("colour", "age", "column"), [("purple", "50", "colour"), ("red", "old", "age")])
def test_a_wrong_cell_is_named_by_its_place_and_never_quoted(colour: str, age: str, column: str) -> None:
    table = pd.DataFrame({"colour": ["green", colour], "age": ["50", age]})
    with pytest.raises(DataError, match=f"row 2, column {column}") as caught:
        OneHot(COLUMNS)(table)
    assert "purple" not in str(caught.value)
    assert "old" not in str(caught.value)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match="lacks the column colour"):
        OneHot(COLUMNS)(pd.DataFrame({"age": [1.0]}))


def test_scaled_vectors_stay_in_bounds() -> None:
    np.testing.assert_allclose(Scaled(0, 4)(np.array([[-1, 0, 2, 9]])), [[0, 0, 0.5, 1]])
    with pytest.raises(DataError, match="vectors"):
        Scaled(0, 1)(np.zeros(3))
