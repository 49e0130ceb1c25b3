"""Features of one image: its central pixels, its pooled pixels, its oriented gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data import load
from sordino.features import Central, MaxPool, OrientedGradients


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


def test_the_middle_is_cut_out() -> None:
    planes = torch.arange(2 * 3 * 6 * 8).reshape(2, 3, 6, 8).float()
    assert torch.equal(Central(4)(planes), planes[:, :, 1:5, 2:6])
    assert torch.equal(Central(6)(planes), planes[..., 1:7])


@pytest.mark.parametrize("side", [0, 7])
def test_more_than_there_is_cannot_be_cut_out(side: int) -> None:
    with pytest.raises(ValueError, match="have no central"):
        Central(side)(torch.zeros(1, 1, 6, 8))


def test_the_largest_of_each_square() -> None:
    images = torch.arange(40.0).reshape(1, 2, 4, 5)
    expected = torch.tensor([[[[6.0, 8], [16, 18]], [[26, 28], [36, 38]]]])
    assert torch.equal(MaxPool(2)(images), expected)


def test_what_cannot_be_pooled() -> None:
    with pytest.raises(ValueError, match="at least 3 pixels"):
        MaxPool(3)(torch.zeros(1, 1, 2, 5))
    with pytest.raises(ValueError, match="images"):
        MaxPool(2)(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="at least 1"):
        MaxPool(0)
