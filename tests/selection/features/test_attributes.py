"""Columns as attributes: public bins, and features in the order of the one-hot encoding."""

import numpy as np
import pandas as pd
import pytest

from sordino.data import Column, DataError, Split
from sordino.data.schema import Schema
from sordino.features.encoding import OneHot
from sordino.selection.features.attributes import Attributes


def test_features_stand_in_the_order_of_the_encoding(schema, small):
    attributes = Attributes(schema, bins=4)
    assert attributes.sizes == (2, 3, 4, 3)
    assert attributes.names == ("copy = no", "copy = yes", "noise = a", "noise = b", "noise = c", "number")
    assert attributes.owners.tolist() == [0, 0, 1, 1, 1, 2]
    encoded, codes = OneHot(schema.columns)(small.x), attributes.codes(small)
    assert encoded.shape[1] == len(attributes.names)
    np.testing.assert_array_equal(encoded[:, :2].argmax(1), codes[:, 0])
    np.testing.assert_array_equal(encoded[:, 2:5].argmax(1), codes[:, 1])
    np.testing.assert_array_equal(np.minimum(encoded[:, 5] * 4, 3).astype(int), codes[:, 2])
    np.testing.assert_array_equal(small.y, codes[:, 3])


def test_numbers_fall_into_public_bins_whatever_they_are():
    schema = Schema((Column("a", bounds=(0, 10)),), Column("y", bounds=(0, 1)))
    split = Split(pd.DataFrame({"a": [-5.0, 0, 4.9, 5, 10, 1e9]}), np.array([-1, 0, 0.4, 0.6, 1, 2]))
    assert Attributes(schema, bins=2).codes(split).tolist() == [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1], [1, 1]]
    cut = Attributes(schema, bins=2, cuts={"a": (0.5, 1, 9)})
    assert cut.sizes == (4, 2)
    assert cut.codes(split)[:, 0].tolist() == [0, 0, 2, 2, 3, 3]


def test_a_word_outside_the_categories_is_an_empty_value(schema):
    frame = pd.DataFrame({"copy": ["yes", "what"], "noise": ["a", "c"], "number": [1.0, 2.0]})
    assert Attributes(schema).codes(Split(frame, np.array([0, 2])))[:, 0].tolist() == [1, -1]


@pytest.mark.parametrize("cuts", [{"copy": (1.0,)}, {"absent": (1.0,)}, {"number": ()}, {"number": (2.0, 1.0)}])
def test_cuts_that_are_none(schema, cuts):
    with pytest.raises(DataError, match="cuts"):
        Attributes(schema, cuts=cuts)
    with pytest.raises(ValueError, match="2 bins"):
        Attributes(schema, bins=1)
