"""Scattering is kymatio's, to the fifth digit, at any size; an image alone decides its coefficients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.features import Scattering

from .kymatio_reference import CASES, PATH, images


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_transform_is_kymatios(case: str, order: int) -> None:
    expected = np.load(PATH)[f"{case}-{order}"]
    found = Scattering(J=CASES[case][2], order=order)(torch.from_numpy(images(case))[:, None]).numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    # Coefficients of the second order are small: they must be right by their own measure, too.
    last = expected[:, -8:]
    assert np.abs(found[:, -8:] - last).max() <= 1e-4 * np.abs(last).max()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(8, 37), st.integers(8, 37), st.integers(1, 3), st.integers(1, 9))
def test_shapes_colours_and_single_images(scales: int, height: int, width: int, colours: int, batch: int) -> None:
    scattering = Scattering(J=scales, L=4)
    pictures = torch.rand(batch, colours, height, width)
    found = scattering(pictures)
    assert found.shape == (batch, colours * scattering.channels, height >> scales, width >> scales)
    # Colour-major, and nothing of one image in another's coefficients.
    own = scattering(pictures[-1:, -1:])
    assert torch.allclose(found[-1:, -scattering.channels :], own, atol=1e-5)


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="order 1 or 2"):
        Scattering(order=3)
    with pytest.raises(ValueError, match="at least 4×4"):
        Scattering()(torch.zeros(2, 1, 3, 28))
    with pytest.raises(ValueError, match="expected images"):
        Scattering()(torch.zeros(28, 28))
