"""Encodings on public scales."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sordino.data import Column, DataError
from sordino.features import CentredOneHot, OneHot, Scaled, neutral_cuts
from sordino.mechanisms import memory

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


def test_centred_rows_are_shifted_by_public_constants_and_binned_between_public_cuts() -> None:
    table = pd.DataFrame({"colour": ["green", "red"], "age": [50.0, 250.0]})
    np.testing.assert_allclose(
        CentredOneHot(COLUMNS)(table), [[0, -1 / 3, 2 / 3, -1 / 3], [0.5, 2 / 3, -1 / 3, -1 / 3]], rtol=1e-6
    )
    binned = CentredOneHot(COLUMNS, {"age": (50.0,)})(table.assign(age=[49.0, 50.0]))
    np.testing.assert_allclose(binned[:, :2], [[0.5, -0.5], [-0.5, 0.5]])


@given(age=st.floats(-1e6, 1e6), place=st.integers(0, 2), cuts=st.sets(st.integers(1, 99), max_size=5))
def test_no_centred_row_is_longer_than_its_public_norm(age: float, place: int, cuts: set[int]) -> None:
    encode = CentredOneHot(COLUMNS, {"age": tuple(sorted(map(float, cuts)))} if cuts else {})
    colours = COLUMNS[1].categories or ()
    (row,) = encode(pd.DataFrame({"colour": [colours[place]], "age": [age]})).astype(np.float64)
    assert np.sqrt(row @ row + 1) <= encode.row_norm * (1 + 1e-6)


def test_the_norm_is_reached_and_smaller_than_uncentred() -> None:
    encode = CentredOneHot(COLUMNS)
    (row,) = encode(pd.DataFrame({"colour": ["red"], "age": [0.0]})).astype(np.float64)
    assert np.sqrt(row @ row + 1) == pytest.approx(encode.row_norm)
    assert encode.row_norm == pytest.approx(np.sqrt(1 + 1 / 4 + 2 / 3))


@pytest.mark.parametrize("cuts", [{"colour": (1.0,)}, {"age": ()}, {"age": (2.0, 1.0)}, {"age": (np.nan,)}])
def test_cuts_that_cannot_be_are_refused(cuts: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(DataError, match="cuts"):
        CentredOneHot(COLUMNS, cuts)
    with pytest.raises(DataError, match="lacks the column colour"):
        CentredOneHot(COLUMNS, {"age": (1.0,)})(pd.DataFrame({"age": [1.0]}))


@given(low=st.floats(-1e300, 1e300), width=st.floats(1e-300, 1e300))
def test_neutral_cuts_lie_inside_whatever_the_bounds(low: float, width: float) -> None:
    """Of a domain far from zero, too, whose cuts floats cannot tell apart."""
    assume(np.isfinite(low + width) and low + width > low)
    column = Column("a", bounds=(low, low + width))
    cuts = neutral_cuts([column]).get("a", ())
    assert all(low < cut < low + width for cut in cuts)
    rows = CentredOneHot([column], {"a": cuts} if cuts else {})(pd.DataFrame({"a": [low, low + width]}))
    assert rows.shape == (2, len(cuts) + 1)
    assert not (rows[0] == rows[1]).all()


def test_neutral_cuts_follow_from_the_bounds_alone() -> None:
    columns = [
        Column("age", bounds=(0, 100)),
        Column("gain", bounds=(0, 9999)),
        Column("height", bounds=(1200, 2200)),
        Column("balance", bounds=(-1e6, 1e6)),
        Column("colour", ("red", "blue")),
    ]
    cuts = neutral_cuts(columns, 4)
    assert list(cuts) == ["age", "gain", "height", "balance"]
    assert cuts["age"] == (25, 50, 75)
    assert cuts["gain"] == pytest.approx((9, 99, 999))
    assert cuts["height"] == (1450, 1700, 1950)
    assert cuts["balance"] == (-5e5, 0, 5e5)
    CentredOneHot(columns, cuts)
    with pytest.raises(DataError, match="bins must be at least 2"):
        neutral_cuts(columns, 1)


def test_a_table_that_becomes_too_wide_is_refused_before_it_takes_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1e6)
    many = Column("zip", tuple(map(str, range(1000))))
    encode = OneHot([Column("age", bounds=(0, 1)), many])
    assert encode(pd.DataFrame({"age": [0.5], "zip": ["7"]})).shape == (1, 1001)
    with pytest.raises(memory.NotEnoughMemory, match="column 'zip' becomes 1,000 numbers a row; merge its categories"):
        encode(pd.DataFrame({"age": [0.5] * 500, "zip": ["7"] * 500}))


def test_no_warning_shows_a_number_far_outside() -> None:
    far = pd.DataFrame({"x": [0.0, 1e308]})
    assert OneHot((Column("x", bounds=(-1e-3, 1e-3)),))(far)[1, 0] == 1
    assert Scaled(0.0, 1e-3)(np.array([[1e308, -1e308]])).tolist() == [[1.0, 0.0]]
