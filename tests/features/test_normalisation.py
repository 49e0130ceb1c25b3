"""Normalisation by groups needs one example only; by statistics it does what the statistics say."""

import numpy as np
import pytest
import torch

from sordino.features.feature import Chain
from sordino.features.normalisation import GroupNorm, Standardised
from sordino.features.pixels import IMAGENET_DEVIATION, IMAGENET_MEAN, Pixels


def test_groups_have_mean_zero_and_variance_one() -> None:
    batch = torch.randn(5, 12, 3, 3) * 4 + 7
    groups = GroupNorm(4)(batch).view(5, 4, -1)
    assert torch.allclose(groups.mean(2), torch.zeros(5, 4), atol=1e-5)
    assert torch.allclose(groups.var(2, unbiased=False), torch.ones(5, 4), atol=1e-3)
    with pytest.raises(ValueError, match="12 channels do not fall into 5 groups"):
        GroupNorm(5)(batch)


def test_statistics_are_applied_and_small_variances_floored() -> None:
    scale = Standardised(mean=(1.0, 2.0), variance=(4.0, -1.0), floor=0.25)
    found = scale(torch.tensor([[[3.0], [2.5]]]))
    assert torch.allclose(found, torch.tensor([[[1.0], [1.0]]]), atol=1e-4)
    with pytest.raises(ValueError, match="2 channels, not of 3"):
        scale(torch.zeros(1, 3, 2))
    with pytest.raises(ValueError, match="for each channel"):
        Standardised((0.0,), (1.0, 1.0))


def test_pixels_come_on_the_public_scale() -> None:
    grey = np.full((2, 4, 5), 255, np.uint8)
    assert Pixels()(grey).shape == (2, 1, 4, 5)
    assert float(Pixels()(grey).max()) == 1
    colour = Pixels(IMAGENET_MEAN, IMAGENET_DEVIATION)(np.zeros((2, 4, 5, 3), np.uint8))
    assert torch.allclose(colour[0, :, 0, 0], -torch.tensor(IMAGENET_MEAN) / torch.tensor(IMAGENET_DEVIATION))
    with pytest.raises(ValueError, match="expected uint8 images"):
        Pixels()(grey.astype(float))  # type: ignore[arg-type]


def test_a_chain_is_its_steps_one_after_the_other() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    chain = Pixels() >> (GroupNorm(3) >> GroupNorm(1))
    assert chain == Chain((Pixels(), GroupNorm(3), GroupNorm(1)))
    assert torch.equal(chain(images), GroupNorm(1)(GroupNorm(3)(Pixels()(images))))
