"""Inputs are functions of one record; parts are disjoint, and those held out are training records."""

import numpy as np
import pytest

from sordino.papers.privacy_aware import inputs
from sordino.papers.privacy_aware.comparing import TRAINED
from sordino.papers.privacy_aware.inputs import CHARGES, LENGTH, VOCABULARY, material, principal_components


def test_pooled_pixels_are_means_of_a_grid() -> None:
    images = np.zeros((2, 28, 28), np.uint8)
    images[0, :4, :4] = 255
    pooled, _ = inputs.POOLED(images, images[:1])
    assert pooled.shape == (2, 64)
    assert pooled[0, 0] == pytest.approx(1)
    assert pooled[0, 10:].max() == 0 == pooled[1].max()


def test_words_get_the_same_id_in_any_message_and_stand_at_the_end() -> None:
    one, other = inputs.TOKENS(np.array(["Free prize now", ""], object), np.array(["a free PRIZE! " * 40], object))
    assert one.shape == (2, LENGTH)
    assert other.shape == (1, LENGTH)
    assert not one[0, :-3].any()
    assert not one[1].any()
    assert one[0, -3] == other[0, 1]
    assert one[0, -2] == other[0, 2]
    assert 0 < other.min() <= other.max() < VOCABULARY


def test_attributes_are_six_numbers_and_charges_are_rescaled() -> None:
    found = material("medical-cost", inputs.ATTRIBUTES, 0, None, None)
    assert found.x.shape == (TRAINED["medical-cost"], 6)
    assert found.x.min() >= 0
    assert found.x.max() <= 1
    assert set(np.unique(found.x[:, 1])) == {0, 1}
    assert len(np.unique(found.x[:, 5])) == 4
    assert 0 < found.y.min() < found.y.max() <= 63_771 / CHARGES
    assert len(found.examined_y) == 300


def test_components_are_those_of_the_training_records() -> None:
    generator = np.random.default_rng(0)
    train = generator.normal(size=(50, 4)).astype(np.float32) * np.array([9, 3, 1, 0.1], np.float32)
    one, other = principal_components(train, train[:5] + 1, 2)
    values = np.linalg.eigvalsh(np.cov(train.T))[::-1][:2]
    np.testing.assert_allclose(one.var(axis=0, ddof=1), values, rtol=1e-3)
    assert other.shape == (5, 2)
    wide, _ = principal_components(train, train, 6)
    assert wide.shape == (50, 6)
    assert not wide[:, 4:].any()


def test_held_out_records_are_training_records_that_do_not_train() -> None:
    whole = material("location-30", inputs.BITS, 0, None, None)
    parts = material("location-30", inputs.BITS, 400, None, None)
    assert len(whole.y) == TRAINED["location-30"] == len(parts.y) + len(parts.examined_y)
    rows = np.concatenate([parts.x, parts.examined_x])
    assert np.array_equal(np.sort(rows.sum(axis=1)), np.sort(whole.x.sum(axis=1)))
    assert len(material("location-30", inputs.BITS, 0, 5000, 7).y) == 5000
