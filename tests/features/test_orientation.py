"""Oriented gradients: a fixed function of one image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data import load
from sordino.features.orientation import OrientedGradients


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(8, 20), st.integers(8, 20), st.booleans(), st.integers(0, 99))
def test_each_vector_depends_on_its_own_image_alone(n: int, height: int, width: int, colour: bool, seed: int) -> None:
    shape = (n, height, width, 3) if colour else (n, height, width)
    images = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    vectors = OrientedGradients()(images)
    assert vectors.dtype == np.float32
    assert len(vectors) == n
    for index in range(n):
        np.testing.assert_allclose(OrientedGradients()(images[index : index + 1])[0], vectors[index], atol=1e-5)
    assert (np.linalg.norm(vectors, axis=1) <= 10 * (1 + 1e-5)).all()


def test_a_blank_image_is_finite_and_an_edge_is_seen_in_its_direction() -> None:
    blank = OrientedGradients()(np.zeros((1, 16, 16), np.uint8))
    assert not blank.any()
    edge = np.zeros((1, 16, 16), np.uint8)
    edge[:, :, 8:] = 255
    responses = OrientedGradients()(edge).reshape(8, -1).sum(axis=1)
    assert responses.argmax() == 0
    turned = OrientedGradients()(edge.swapaxes(1, 2)).reshape(8, -1).sum(axis=1)
    assert turned.argmax() == 2


@pytest.mark.parametrize("images", [np.zeros((2, 16), np.uint8), np.zeros((2, 16, 16)), np.zeros((2, 4, 4), np.uint8)])
def test_what_is_no_image_is_refused(images: np.ndarray) -> None:
    with pytest.raises(ValueError, match="images"):
        OrientedGradients()(images)


def test_all_sizes_of_real_images_work() -> None:
    digits = load("digits")
    assert OrientedGradients(white=16.0)(digits.train.x).shape == (len(digits.train), 72)
